//! Attention for training against its definition in f64, and its gradients against closed forms that are
//! themselves held against finite differences.

mod definition;

use crate::common::*;
use definition::Exact;
use ggml::attention::Scoring;
use ggml::attention_train::{AttentionBack, TrainScoring};
use ggml::graph::Executor;
use ggml::matmul::Kernel;
use ggml::tensor::{StoreTensor, Tensor};
use ggml::DType;
use proptest::prelude::{any, prop, proptest, ProptestConfig, Strategy};

/// Numbers of everything, and what is seen.
#[derive(Debug, Clone)]
struct Case {
    d: usize,
    d_v: usize,
    n_head_kv: usize,
    n_rep: usize,
    n_tokens: usize,
    n_keys: usize,
    seen: Seen,
    softcap: Option<f32>,
    sinks: bool,
    /// Factors are rounded.
    kernel: Kernel,
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
enum Seen {
    All,
    /// The last token sees all keys, the one before all but one.
    Causal,
    /// Causal, and not beyond borders this far apart.
    Documents(usize),
    /// Causal, and so many keys at most.
    Window(usize),
    /// Documents of this length for the lower half of the heads; for the others their borders are half a length later.
    Shifted(usize),
    /// Any pairs of numbers: empty, reversed, beyond the keys.
    Wild,
    /// The same, others for each half of the heads.
    WildHalves,
    Nothing,
}

/// Queries, keys, values, the gradient of the output, and the key ranges.
struct Data {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_out: Vec<f32>,
    key_ranges: Vec<i32>,
    /// One for each head; minus infinity is none.
    sinks: Vec<f32>,
}

impl Case {
    fn n_head(&self) -> usize {
        self.n_head_kv * self.n_rep
    }

    fn scale(&self) -> f32 {
        1.0 / (self.d as f32).sqrt()
    }

    /// Tables of key ranges.
    fn n_tables(&self) -> usize {
        if matches!(self.seen, Seen::Shifted(_) | Seen::WildHalves) {
            2
        } else {
            1
        }
    }

    /// The shape of the key ranges of so many tokens.
    fn ranges(&self, t: usize) -> Vec<usize> {
        [&[2, t][..], &[2][..self.n_tables() - 1]].concat()
    }

    fn data(&self) -> Data {
        let mut rng = Rng(self.seed);
        let rows = self.n_head() * self.n_tokens;
        let all = (0..self.n_tables()).flat_map(|half| (0..self.n_tokens).map(move |t| (half, t)));
        let key_ranges = all.flat_map(|(half, t)| {
            let end = (self.n_keys + t + 1).saturating_sub(self.n_tokens);
            let (first, end) = match self.seen {
                Seen::All => (0, self.n_keys as i32),
                Seen::Causal => (0, end as i32),
                Seen::Documents(n) => (end.saturating_sub(1) as i32 / n as i32 * n as i32, end as i32),
                Seen::Window(n) => (end.saturating_sub(n) as i32, end as i32),
                Seen::Shifted(n) => {
                    let (last, shift) = (end.saturating_sub(1), half * (n / 2));
                    let first = if last < shift { 0 } else { shift + (last - shift) / n * n };
                    (first as i32, end as i32)
                }
                Seen::Wild | Seen::WildHalves => {
                    let mut any = || rng.int(0, 2 * self.n_keys) as i32 - self.n_keys as i32 / 3;
                    (any(), if t % 5 == 0 { i32::MAX } else { any() })
                }
                Seen::Nothing => (t as i32, t as i32),
            };
            [first, end]
        });
        let key_ranges = key_ranges.collect();
        Data {
            q: rng.values(self.d * rows).iter().map(|q| 3.0 * q).collect(),
            k: rng.values(self.d * self.n_head_kv * self.n_keys),
            v: rng.values(self.d_v * self.n_head_kv * self.n_keys),
            d_out: rng.values(self.d_v * rows),
            key_ranges,
            sinks: match self.sinks {
                true => rng.values(self.n_head()).iter().map(|s| 4.0 * s).collect(),
                false => vec![f32::NEG_INFINITY; self.n_head()],
            },
        }
    }

    fn exact_of(&self, data: &Data) -> Exact {
        let x = [&data.q, &data.k, &data.v, &data.d_out, &data.sinks].map(|x| to_f64(x));
        self.exact(x.each_ref().map(|x| &x[..]), &data.key_ranges)
    }

    fn run(&self, exec: &mut Executor, data: &Data, blocks: &[usize]) -> Results {
        let (h, g, d, d_v) = (self.n_head(), self.n_head_kv, self.d, self.d_v);
        // Keys and values wider than they are used, as they are in a cache of a longer text.
        let wide = |x: &[f32], d: usize| {
            let mut x = x.to_vec();
            x.resize(x.len() + 2 * d * g, f32::NAN);
            x
        };
        let n = self.n_keys + 2;
        let (k, v) = (wide(&data.k, d), wide(&data.v, d_v));
        let (d_k, _) = stored(DType::F32, &[d, g, n], &vec![0.0; k.len()]);
        let (d_v_store, _) = stored(DType::F32, &[d_v, g, n], &vec![0.0; v.len()]);
        let mut results = Results { o_lse: vec![], d_q: vec![], d_k: vec![], d_v: vec![] };
        let mut ends = blocks.to_vec();
        while let Some(end) = ends.pop() {
            let start = ends.last().copied().unwrap_or(0);
            let t = end - start;
            let tables = data.key_ranges.chunks_exact(2 * self.n_tokens);
            let ranges: Vec<i32> = tables.flat_map(|table| table[2 * start..2 * end].to_vec()).collect();
            let cut = |t: Tensor<'_>, d: usize| ([d, g, self.n_keys, 1], [t.nb()[1], t.nb()[2], t.nb()[3]]);
            let some = eval_all(exec, 1, |b, feed| {
                let q = feed.f32(b, &[d, h, t], &data.q[start * h * d..end * h * d])?;
                let d_out = feed.f32(b, &[d_v, h, t], &data.d_out[start * h * d_v..end * h * d_v])?;
                let key_ranges = feed.i32_of(b, &self.ranges(t), &ranges)?;
                let sinks = feed.f32(b, &[h], &data.sinks)?;
                let sinks = self.sinks.then_some(sinks);
                let scoring = Scoring { scale: self.scale(), softcap: self.softcap, sinks };
                let scoring = TrainScoring { scoring, kernel: self.kernel };
                let used = |t, d| {
                    let (ne, nb) = cut(t, d);
                    b.view(t, ne, nb, 0)
                };
                let (k, v) = (feed.f32(b, &[d, g, n], &k)?, feed.f32(b, &[d_v, g, n], &v)?);
                let (k, v) = (used(k, d)?, used(v, d_v)?);
                let o_lse = b.attention_lse(q, k, v, key_ranges, scoring)?;
                let (d_k, d_v) = (used(b.stored(&d_k)?, d)?, used(b.stored(&d_v_store)?, d_v)?);
                let operands = AttentionBack { q, k, v, key_ranges, o_lse, d_out, d_k, d_v };
                Ok([o_lse, b.attention_back(operands, scoring)?])
            });
            for (some, all) in some.unwrap().into_iter().zip([&mut results.o_lse, &mut results.d_q]) {
                all.splice(0..0, some);
            }
        }
        let part = |t: &StoreTensor, n: usize| {
            let all = contents(t);
            assert!(all[n..].iter().all(|x| *x == 0.0), "keys that are not there have gradients");
            all[..n].to_vec()
        };
        results.d_k = part(&d_k, data.k.len());
        results.d_v = part(&d_v_store, data.v.len());
        results
    }

    fn check(&self, exec: &mut Executor) -> Results {
        let data = self.data();
        let want = self.exact_of(&data);
        let got = self.run(exec, &data, &[self.n_tokens]);
        got.agree(&want, 1.0, &format!("{self:?}"));
        got
    }
}

#[derive(Debug, PartialEq)]
struct Results {
    o_lse: Vec<f32>,
    d_q: Vec<f32>,
    d_k: Vec<f32>,
    d_v: Vec<f32>,
}

impl Results {
    /// Within so many times of how far floats may be off.
    fn agree(&self, want: &Exact, times: f64, what: &str) {
        let all = [
            ("output", &self.o_lse, &want.o_lse),
            ("d_q", &self.d_q, &want.d_q),
            ("d_k", &self.d_k, &want.d_k),
            ("d_v", &self.d_v, &want.d_v),
        ];
        for ((name, got, want), off) in all.into_iter().zip(&want.off) {
            // What is -inf has to be that.
            let pairs =
                got.iter().zip(want).map(|(g, w)| if f64::from(*g) == *w { (0.0, 0.0) } else { (*g, *w) });
            let (got, want): (Vec<f32>, Vec<f64>) = pairs.unzip();
            assert_within(&got, &want, |i| times * off[i] + 1e-30, &format!("{name}: {what}"));
        }
    }
}

#[test]
fn closed_forms_are_the_derivatives() {
    for (softcap, sinks) in [(None, false), (Some(0.8), false), (None, true), (Some(0.8), true)] {
        let shape = Case { d: 4, d_v: 3, n_head_kv: 2, n_rep: 2, n_tokens: 3, n_keys: 5, ..PLAIN };
        let case = Case { seed: 1, softcap, sinks, ..shape };
        let data = case.data();
        let x = [&data.q, &data.k, &data.v, &data.d_out, &data.sinks].map(|x| to_f64(x));
        let exact = |x: &[Vec<f64>; 5]| case.exact(x.each_ref().map(|x| &x[..]), &data.key_ranges);
        let loss = |x: &[Vec<f64>; 5]| {
            exact(x).o_lse.chunks(4).zip(x[3].chunks(3)).map(|(o, g)| dot(&o[..3], g)).sum::<f64>()
        };
        let exact = exact(&x);
        let grads = [(0, &exact.d_q), (1, &exact.d_k), (2, &exact.d_v)];
        for (which, grads) in grads {
            for (i, g) in grads.iter().enumerate() {
                let at = |step: f64| {
                    let mut x = x.clone();
                    x[which][i] += step;
                    loss(&x)
                };
                let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                assert!((slope - g).abs() < 1e-8, "{which} {i}: {slope} {g}");
            }
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    let seen = prop::sample::select(vec![
        Seen::All,
        Seen::Causal,
        Seen::Documents(37),
        Seen::Documents(3),
        Seen::Window(50),
        Seen::Shifted(64),
        Seen::Shifted(9),
        Seen::Wild,
        Seen::WildHalves,
        Seen::Nothing,
    ]);
    let widths = prop::sample::select(vec![(8, 8), (64, 64), (40, 24), (128, 128), (20, 7), (1, 1), (96, 2)]);
    let grouping = prop::sample::select(vec![(1usize, 1usize), (3, 3), (2, 4), (1, 7), (3, 1), (1, 200)]);
    let shape = (widths, grouping, 1usize..230, 1usize..600);
    let scoring = (prop::sample::select(vec![None, Some(0.7), Some(3.0)]), any::<bool>());
    (shape, seen, scoring, any::<u64>()).prop_map(
        |(((d, d_v), (n_head_kv, n_rep), n_tokens, n_keys), seen, (softcap, sinks), seed)| {
            let n_tokens = if n_rep > 7 { n_tokens.min(5) } else { n_tokens };
            Case {
                d,
                d_v,
                n_head_kv,
                n_rep,
                n_tokens,
                n_keys,
                seen,
                softcap,
                sinks,
                kernel: Kernel::F32,
                seed,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_definition(case in case(), threads in prop::sample::select(vec![1usize, 3])) {
        case.check(&mut executor(threads));
        for (kernel, dtype) in [(Kernel::HalfFloats, DType::BF16), (Kernel::F32Tiles, DType::F32)] {
            if kernel.available(dtype) {
                Case { kernel, ..case }.check(&mut executor(threads));
            }
        }
    }
}

const PLAIN: Case = Case {
    d: 64,
    d_v: 64,
    n_head_kv: 3,
    n_rep: 3,
    n_tokens: 150,
    n_keys: 700,
    seen: Seen::Causal,
    softcap: None,
    sinks: false,
    kernel: Kernel::F32,
    seed: 5,
};

#[test]
fn threads_change_no_bit() {
    let wild = Case { seen: Seen::WildHalves, d: 32, softcap: Some(1.0), sinks: true, ..PLAIN };
    for case in [PLAIN, wild, Case { n_head_kv: 1, n_rep: 4, ..PLAIN }] {
        let data = case.data();
        let alone = case.run(&mut executor(1), &data, &[case.n_tokens]);
        for threads in [2, 3, 5] {
            let mut exec = executor(threads);
            assert_eq!(case.run(&mut exec, &data, &[case.n_tokens]), alone, "{threads} threads, {case:?}");
        }
    }
}

#[test]
fn blocks_of_queries_last_to_first_are_one_piece() {
    for seen in [Seen::Causal, Seen::Documents(100), Seen::Window(90), Seen::Shifted(75)] {
        let case = Case { n_tokens: 300, n_keys: 300, seen, sinks: true, ..PLAIN };
        let data = case.data();
        let mut exec = executor(2);
        let whole = case.check(&mut exec);
        let blocks = case.run(&mut exec, &data, &[64, 128, 200, 300]);
        let exact = Exact {
            o_lse: to_f64(&whole.o_lse),
            d_q: to_f64(&whole.d_q),
            d_k: to_f64(&whole.d_k),
            d_v: to_f64(&whole.d_v),
            off: case.exact_of(&data).off,
        };
        // Both may be off, one to either side.
        blocks.agree(&exact, 2.0, "blocks");
    }
}

#[test]
fn a_second_compute_adds_again() {
    let case = Case { n_tokens: 70, n_keys: 90, ..PLAIN };
    let data = case.data();
    let (h, g, d) = (case.n_head(), case.n_head_kv, case.d);
    let acc = [0, 1].map(|_| stored(DType::F32, &[d, g, case.n_keys], &vec![1.0; d * g * case.n_keys]).0);
    eval_all(&mut executor(3), 2, |b, feed| {
        let (rows, keys) = ([d, h, case.n_tokens], [d, g, case.n_keys]);
        let (q, d_out) = (feed.f32(b, &rows, &data.q)?, feed.f32(b, &rows, &data.d_out)?);
        let (k, v) = (feed.f32(b, &keys, &data.k)?, feed.f32(b, &keys, &data.v)?);
        let key_ranges = feed.i32_of(b, &[2, case.n_tokens], &data.key_ranges)?;
        let o_lse = b.attention_lse(q, k, v, key_ranges, case.scale())?;
        let (d_k, d_v) = (b.stored(&acc[0])?, b.stored(&acc[1])?);
        let operands = AttentionBack { q, k, v, key_ranges, o_lse, d_out, d_k, d_v };
        Ok([b.attention_back(operands, case.scale())?])
    })
    .unwrap();
    let want = case.exact_of(&data);
    for ((acc, want), off) in acc.iter().zip([&want.d_k, &want.d_v]).zip(&want.off[2..]) {
        let twice: Vec<f64> = want.iter().map(|w| 1.0 + 2.0 * w).collect();
        // Sums of each tile of queries are added to what is there already.
        let added = |i: usize| rounding(2 * case.n_tokens) * (1.0 + twice[i].abs());
        assert_within(&contents(acc), &twice, |i| 2.0 * off[i] + added(i), "twice");
    }
}

#[test]
fn large_scores_and_other_strides() {
    // Queries as [d, T, n_head] seen as [d, n_head, T]; keys whose heads each lie together; scores up to
    // hundreds.
    let (d, h, g, t, n) = (16usize, 4usize, 2usize, 50usize, 300usize);
    let shape = Case { d, d_v: d, n_head_kv: g, n_rep: h / g, n_tokens: t, n_keys: n, ..PLAIN };
    let case = Case { seed: 2, ..shape };
    let mut data = case.data();
    data.q.iter_mut().for_each(|q| *q *= 40.0);
    let turned = |x: &[f32], heads: usize, n: usize| -> Vec<f32> {
        let row = |i: usize| &x[(i % n * heads + i / n) * d..][..d];
        (0..heads * n).flat_map(row).copied().collect()
    };
    let want = case.exact_of(&data);
    let got = eval(&mut executor(2), |b, feed| {
        let q = b.permute(feed.f32(b, &[d, t, h], &turned(&data.q, h, t))?, [0, 2, 1, 3])?;
        let k = b.permute(feed.f32(b, &[d, n, g], &turned(&data.k, g, n))?, [0, 2, 1, 3])?;
        let v = b.permute(feed.f32(b, &[d, n, g], &turned(&data.v, g, n))?, [0, 2, 1, 3])?;
        let key_ranges = b.reshape(feed.i32(b, &data.key_ranges)?, &[2, t])?;
        b.attention_lse(q, k, v, key_ranges, case.scale())
    })
    .unwrap();
    assert_within(&got, &want.o_lse, |i| want.off[0][i], "large scores");
}
