//! Methods with windows so small that a few hundred tokens cross every border, and what each means, from its paper.

use ropewalk::hparams::Hparams;
use ropewalk::rope::Plan;

use naive::Definition;

/// Frequencies: written down here, or the plan's where its own tests settle them.
pub(crate) enum Theta {
    /// The model's series, slowed so many times.
    Over(f64),
    /// A series for each key head, of the plan's bases.
    Bases,
    /// The model's series slowed so many times, of which only so many pairs turn, the others not at all.
    Turning(f64, usize),
    /// As the plan has them: `tests/rope/tables` compares those with papers.
    OfPlan,
}

/// A spec and its definition.
pub(crate) struct Case {
    pub(crate) spec: &'static str,
    pub(crate) theta: Theta,
    /// Factor on rotated q and on rotated k.
    pub(crate) mscale: fn() -> f64,
    /// Factor on query `i`.
    pub(crate) q_scale: fn(i64) -> f64,
    /// The distance query `i` is shown to key `j <= i`, in parts of a position; `None` where it does not see it.
    pub(crate) rel: fn(i64, i64) -> Option<i64>,
    /// Parts of a position.
    pub(crate) unit: i64,
}

impl Definition for Case {
    fn distance(&self, i: i64, j: i64) -> Option<i64> {
        (self.rel)(i, j)
    }

    fn unit(&self) -> i64 {
        self.unit
    }

    fn mscale(&self, _: usize) -> f64 {
        (self.mscale)()
    }

    fn q_scale(&self, _: usize, i: i64) -> f64 {
        (self.q_scale)(i)
    }

    fn tables(&self, hp: &Hparams, plan: &Plan, _: usize) -> Vec<Vec<f64>> {
        let pairs = 0..hp.attention_of(0).unwrap().n_rot() / 2;
        let series = |base: f64| {
            pairs
                .clone()
                .map(|j| base.powf(-2.0 * j as f64 / hp.attention_of(0).unwrap().n_rot() as f64))
                .collect()
        };
        match self.theta {
            Theta::Over(s) => {
                let table: Vec<f64> = series(hp.attention_of(0).unwrap().rotation.unwrap().freq_base);
                vec![table.iter().map(|t| t / s).collect()]
            }
            Theta::Turning(s, kept) => {
                let table: Vec<f64> = series(hp.attention_of(0).unwrap().rotation.unwrap().freq_base);
                let turned = |(j, t): (usize, &f64)| if j < kept { t / s } else { 0.0 };
                vec![table.iter().enumerate().map(turned).collect()]
            }
            Theta::Bases => plan.bases().expect("bases").iter().map(|b| series(*b)).collect(),
            Theta::OfPlan => plan.layer(0).freqs.tables().map(<[f64]>::to_vec).collect(),
        }
    }
}

pub(crate) const fn case(spec: &'static str, rel: fn(i64, i64) -> Option<i64>) -> Case {
    Case { spec, theta: Theta::Over(1.0), mscale: || 1.0, q_scale: |_| 1.0, rel, unit: 1 }
}

pub(crate) const fn with(theta: Theta, case: Case) -> Case {
    Case { theta, ..case }
}

pub(crate) fn causal(i: i64, j: i64) -> Option<i64> {
    Some(i - j)
}

/// Self-Extend: near keys as they are, far ones by the difference of their groups.
pub(crate) fn self_extend<const W: i64, const G: i64>(i: i64, j: i64) -> Option<i64> {
    Some(if i - j < W { i - j } else { i / G - j / G + W - W / G })
}

/// LM-Infinite: a window, and the first tokens at its length.
pub(crate) fn lm_infinite<const M: i64, const G: i64>(i: i64, j: i64) -> Option<i64> {
    if i - j < M {
        Some(i - j)
    } else {
        (j < G).then_some(M)
    }
}

/// Dual Chunk Attention: within a chunk, to the one before, to all older ones.
pub(crate) fn dca<const C: i64, const W: i64>(i: i64, j: i64) -> Option<i64> {
    let c = C - W;
    let q = match i / c - j / c {
        0 => i % c,
        1 => (i % c + c).min(C),
        _ => (2 * c - 1).min(C),
    };
    Some(q - j % c)
}

/// StreamingLLM: sinks and a window, places counted inside the cache.
pub(crate) fn streaming<const S: i64, const M: i64>(i: i64, j: i64) -> Option<i64> {
    if j < S {
        Some(i.min(S + M - 1) - j)
    } else {
        (i - j < M).then_some(i - j)
    }
}

/// STRING: from S on, distances less S, plus W.
pub(crate) fn string<const S: i64, const W: i64>(i: i64, j: i64) -> Option<i64> {
    Some(if i - j < S { i - j } else { i - j - S + W })
}

/// ReRoPE: no distance above W.
pub(crate) fn rerope<const W: i64>(i: i64, j: i64) -> Option<i64> {
    Some((i - j).min(W))
}

/// Leaky ReRoPE, in parts of which K are a position: W + (d - W)/K from W on.
pub(crate) fn leaky<const W: i64, const K: i64>(i: i64, j: i64) -> Option<i64> {
    Some(if i - j < W { (i - j) * K } else { W * K + (i - j - W) })
}

/// Log-n scaling of a model trained for 64 tokens.
pub(crate) fn log_n(i: i64) -> f64 {
    (((i + 1) as f64).ln() / 64f64.ln()).max(1.0)
}

/// Llama 4's attention temperature by 0.3 for each 64 tokens.
pub(crate) fn llama4(i: i64) -> f64 {
    1.0 + 0.3 * (1.0 + ((i + 1) / 64) as f64).ln()
}

/// YaRN's magnitude at 4 times.
pub(crate) fn yarn4() -> f64 {
    0.1 * 4f64.ln() + 1.0
}

pub(crate) const FREQUENCIES: &[Case] = &[
    case("plain", causal),
    with(Theta::Over(4.0), case("pi:factor=4", causal)),
    with(Theta::OfPlan, case("ntk:factor=4", causal)),
    with(Theta::OfPlan, case("dynamic-ntk:t=9", causal)),
    Case { mscale: yarn4, ..with(Theta::OfPlan, case("yarn:factor=4,original=64", causal)) },
    with(Theta::OfPlan, case("abf:base=300000", causal)),
    with(Theta::OfPlan, case("longrope:attn-factor=1", causal)),
    with(Theta::OfPlan, case("sba:factor=4,original=64", causal)),
    with(Theta::Bases, case("harpe:bases=uniform,base-min=20000,base-max=900000", causal)),
    Case {
        q_scale: |_| 640f64.ln() / 64f64.ln(),
        ..with(Theta::OfPlan, case("clex:log-scale=true,original=64", causal))
    },
];

pub(crate) const SELF_EXTEND: &[Case] = &[
    case("self-extend:window=16,group=4", self_extend::<16, 4>),
    case("self-extend:window=24,group=3", self_extend::<24, 3>),
    Case {
        q_scale: log_n,
        ..case("self-extend:window=32,group=8,log-scale=true,original=64", self_extend::<32, 8>)
    },
];

pub(crate) const LM_INFINITE: &[Case] = &[
    case("lm-infinite:window=24,global=3", lm_infinite::<24, 3>),
    case("lm-infinite:window=24,global=3,evict=true", lm_infinite::<24, 3>),
    case("lm-infinite:window=40,global=0", lm_infinite::<40, 0>),
];

pub(crate) const DCA: &[Case] = &[
    case("dca:chunk=48,local=8", dca::<48, 8>),
    Case { mscale: || 1.1, ..case("dca:chunk=48,local=8,mscale=1.1", dca::<48, 8>) },
    // Chunks of 7: the last local tokens are more than a chunk, and 2c - 1 is below C.
    case("dca:chunk=20,local=13", dca::<20, 13>),
];

pub(crate) const STREAMING: &[Case] = &[
    case("streaming:sinks=4,window=20", streaming::<4, 20>),
    case("streaming:sinks=0,window=33", streaming::<0, 33>),
];

pub(crate) const STRING: &[Case] = &[
    case("string:shifted-offset=40,local-value=8", string::<40, 8>),
    Case { mscale: || 1.07, ..case("string:shifted-offset=25,local-value=0,mscale=1.07", string::<25, 0>) },
];

pub(crate) const REROPE: &[Case] = &[
    Case { unit: 3, ..case("rerope:window=24,leak=3", leaky::<24, 3>) },
    case("rerope:window=24", rerope::<24>),
    Case { unit: 16, q_scale: log_n, ..case("rerope:window=17,leak=16,temperature=logn", leaky::<17, 16>) },
];

/// Keys that every method takes. The twins turn 16, 20, 32 pairs.
pub(crate) const SETTINGS: &[Case] = &[
    Case { q_scale: log_n, ..case("plain:temperature=logn", causal) },
    Case { q_scale: llama4, ..case("plain:temperature=llama4,temperature-scale=0.3", causal) },
    Case {
        q_scale: |_| 1.3,
        ..with(Theta::Over(4.0), case("pi:factor=4,temperature=1.3,keep-short=true", causal))
    },
    with(Theta::Turning(1.0, 0), case("plain:drop=1", causal)),
    case("pi:factor=4,keep-short=true,original=640", causal),
    case("dca:chunk=48,local=8,mscale=1.1,temperature=2,keep-short=true,original=640", causal),
];

/// Both axes at once.
pub(crate) const COMPOSED: &[Case] = &[
    with(Theta::Over(2.0), case("pi:factor=2+self-extend:window=16,group=4", self_extend::<16, 4>)),
    Case {
        mscale: yarn4,
        ..with(
            Theta::OfPlan,
            case("yarn:factor=4,original=64+self-extend:window=16,group=4", self_extend::<16, 4>),
        )
    },
    Case {
        mscale: || 1.1 * yarn4(),
        ..with(Theta::OfPlan, case("yarn:factor=4,original=64+dca:chunk=48,local=8,mscale=1.1", dca::<48, 8>))
    },
    Case {
        mscale: || 1.1 * yarn4(),
        ..with(Theta::OfPlan, case("dca:chunk=48,local=8,mscale=1.1+yarn:factor=4,original=64", dca::<48, 8>))
    },
    Case {
        mscale: || 1.1 * 1.2,
        ..with(Theta::OfPlan, case("dca:chunk=48,local=8,mscale=1.1+longrope:attn-factor=1.2", dca::<48, 8>))
    },
    with(
        Theta::Bases,
        case(
            "harpe:bases=uniform,base-min=20000,base-max=900000+self-extend:window=16,group=4",
            self_extend::<16, 4>,
        ),
    ),
    with(
        Theta::Bases,
        case("dca:chunk=48,local=8+harpe:bases=uniform-desc,base-min=20000,base-max=900000", dca::<48, 8>),
    ),
    Case {
        q_scale: log_n,
        ..case("string:shifted-offset=40,local-value=8+plain:temperature=logn", string::<40, 8>)
    },
    Case {
        unit: 4,
        mscale: yarn4,
        q_scale: |_| 0.9,
        ..with(
            Theta::OfPlan,
            case(
                "yarn:factor=4,original=64,drop=0.3+rerope:window=20,leak=4,temperature=0.9",
                leaky::<20, 4>,
            ),
        )
    },
    Case {
        unit: 5,
        ..with(
            Theta::Bases,
            case(
                "harpe:bases=uniform,base-min=20000,base-max=900000+rerope:window=30,leak=5",
                leaky::<30, 5>,
            ),
        )
    },
    with(
        Theta::Bases,
        case("harpe:bases=search,factor=4,original=64+lm-infinite:window=24,global=3", lm_infinite::<24, 3>),
    ),
    with(Theta::OfPlan, case("sba:factor=4,original=64+streaming:sinks=4,window=20", streaming::<4, 20>)),
];

/// Every case.
pub(crate) fn all() -> impl Iterator<Item = &'static Case> {
    [FREQUENCIES, SELF_EXTEND, LM_INFINITE, DCA, STREAMING, STRING, REROPE, SETTINGS, COMPOSED]
        .into_iter()
        .flatten()
}
