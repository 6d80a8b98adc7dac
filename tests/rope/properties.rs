//! Properties that must hold of every registered rope method, whatever its parameters.

use std::ops::Range;

use proptest::prelude::*;
use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams, RopeScaling};
use ropewalk::rope::{Axis, Branch, Chunks, Kind, Param, Plan, PosMap, Reach, Spec, Value, METHODS};

fn model(freq_base: f64, n_rot: usize, n_head_kv: usize) -> Hparams {
    let factors = Some((0..n_rot / 2).map(|j| 1.0 + j as f32 / 4.0).collect::<Vec<f32>>());
    Hparams {
        arch: "llama".into(),
        n_layer: 2,
        n_embd: 64,
        n_vocab: 256,
        n_ctx_train: 2048,
        norm_eps: 1e-5,
        attention: vec![LayerAttention::new(n_head_kv, n_head_kv, n_rot).rotated(freq_base, n_rot)],
        layers: LayerHparams::alike(2, 128),
        rope_scaling: RopeScaling {
            long_factors: factors.clone(),
            short_factors: factors,
            ..RopeScaling::default()
        },
        ..Hparams::default()
    }
}

fn value_of(param: &'static Param) -> BoxedStrategy<String> {
    let number = |min: f64, max: f64| {
        prop_oneof![Just(min), Just(max), (min.ln()..max.ln()).prop_map(f64::exp), (1.0..64f64)]
            .prop_map(move |x| x.clamp(min, max))
    };
    let text = |x: f64| format!("{x:e}");
    match param.kind {
        Kind::Number(min, max) => number(min.max(1e-9), max).prop_map(text).boxed(),
        Kind::Count(min, max) => {
            prop_oneof![Just(min), Just(max), min..=max.min(20_000)].prop_map(|n| n.to_string()).boxed()
        }
        Kind::Choice(words) => proptest::sample::select(words).prop_map(String::from).boxed(),
        Kind::ChoiceOrNumber(choices, min, max) => prop_oneof![
            proptest::sample::select(choices).prop_map(String::from),
            number(min, max).prop_map(text),
        ]
        .boxed(),
        Kind::ChoiceOrList(choices, min, max) => prop_oneof![
            proptest::sample::select(choices).prop_map(String::from),
            proptest::collection::vec(number(min, max).prop_map(text), 1..5).prop_map(|v| v.join("/")),
        ]
        .boxed(),
        other => panic!("no generator for {other:?}"),
    }
}

/// Any method with any subset of its parameters.
fn specs() -> impl Strategy<Value = String> {
    (0..METHODS.len()).prop_flat_map(|m| {
        let method = METHODS[m];
        let args: Vec<_> = method
            .params
            .iter()
            .chain(method.settings())
            .map(|p| {
                proptest::option::weighted(0.4, value_of(p))
                    .prop_map(move |v| v.map(|v| format!("{}={v}", p.key)))
            })
            .collect();
        args.prop_map(move |args| {
            let args: Vec<String> = args.into_iter().flatten().collect();
            format!("{}{}{}", method.name, if args.is_empty() { "" } else { ":" }, args.join(","))
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn specs_survive_printing(text in specs()) {
        let spec: Spec = text.parse().map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        prop_assert_eq!(spec.to_string().parse::<Spec>(), Ok(spec));
    }

    #[test]
    fn parsing_never_panics(text in "[a-z0-9:=,+/.\\- \\PC]{0,40}") {
        if let Err(e) = text.parse::<Spec>() {
            prop_assert_eq!(e.to_string().lines().count(), 1, "{}", e.to_string());
        }
    }

    #[test]
    fn plans_hold_their_promises(text in specs(), n_ctx in prop_oneof![1usize..100_000, Just(usize::MAX)],
                                 base in prop_oneof![Just(1e4), Just(1e6), 1.1..1e9],
                                 n_head_kv in 1usize..6, half in 1usize..24) {
        promises_hold(text, n_ctx, base, n_head_kv, half)?;
    }
}

#[test]
fn longrope_takes_factors_below_1_in_any_order() {
    for factors in ["1e-3/1e-3", "1/1e-3", "1e9/1e-3", "0.998/1.02"] {
        promises_hold(format!("longrope:factors={factors}"), 4096, 1e4, 1, 2).unwrap();
    }
}

/// What every plan promises for `text` in a model with `half` pairs in each head.
fn promises_hold(
    text: String,
    n_ctx: usize,
    base: f64,
    n_head_kv: usize,
    half: usize,
) -> Result<(), TestCaseError> {
    let hp = model(base, 2 * half, n_head_kv);
    // A search as wide as these ranges allow takes seconds; a narrow one holds to the same promises.
    let searches = text.starts_with("harpe") && !text.contains("uniform") && !text.contains('/');
    let text = if searches { format!("harpe:hi=2500,factor={}", 1 + n_ctx % 40) } else { text };
    let spec: Spec = text.parse().map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
    match Plan::new(&spec, &hp, n_ctx) {
        Err(e) => prop_assert!(
            e.to_string().lines().count() == 1 && e.to_string().len() < 1000,
            "{}",
            e.to_string()
        ),
        Ok(p) => {
            prop_assert!(p.layer(0).freqs.n_tables == 1 || p.layer(0).freqs.n_tables == n_head_kv);
            prop_assert_eq!(p.layer(0).freqs.theta.len(), p.layer(0).freqs.n_tables * half);
            prop_assert!(p.layer(0).freqs.theta.iter().all(|t| t.is_finite() && *t >= 0.0));
            // Factors that the user types divide the trained frequencies in any order, also by less than 1.
            if let Some(Value::List(factors)) = p.spec.parts()[0].get("factors") {
                let divided = |(t, f): (&f64, &f64)| t * f <= 1.0 + 1e-12;
                prop_assert!(
                    p.layer(0).freqs.theta.iter().zip(factors).all(divided),
                    "{:?}",
                    p.layer(0).freqs
                );
            } else {
                let falls = |t: &[f64]| t[0] <= 1.0 && t.windows(2).all(|w| w[1] <= w[0]);
                prop_assert!(p.layer(0).freqs.tables().all(falls), "{:?}", p.layer(0).freqs);
            }
            prop_assert!(p.layer(0).mscale.is_finite() && p.layer(0).mscale > 0.0);
            // The filled-in spec stands for itself, at whatever context; only `trained`, `keep-short` and `clex`
            // follow the context.
            let follows = ["trained", "keep-short"].iter().any(|key| p.spec.parts()[0].get(key).is_some())
                || p.spec.part("clex").is_some();
            let again = Plan::new(&p.spec, &hp, if follows { n_ctx } else { 77 });
            let again = again.map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(&again.spec, &p.spec);
            prop_assert_eq!(&again.layer(0).freqs, &p.layer(0).freqs);
            prop_assert_eq!(again.layer(0).mscale, p.layer(0).mscale);
            prop_assert_eq!(&again.layer(0).branches, &p.layer(0).branches);
            prop_assert_eq!(again.evict, p.evict);
            prop_assert!(again.same_positions(&p));
            prop_assert!(p.inspect(&hp).is_ok());
        }
    }
    Ok(())
}

/// Positions looked at one by one.
const N: i32 = 200;

/// Reach methods with small parameters, sometimes on top of a frequency method.
fn reach_specs() -> impl Strategy<Value = String> {
    let reach: Vec<_> = METHODS.iter().filter(|m| m.axis == Axis::Reach).collect();
    (0..reach.len(), any::<bool>()).prop_flat_map(move |(m, composed)| {
        let method = reach[m];
        let args: Vec<_> = method
            .params
            .iter()
            .map(|p| {
                let value = match p.kind {
                    Kind::Count(min, _) => {
                        let few = vec![0u64, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 150];
                        let few: Vec<u64> = few.into_iter().filter(|n| *n >= min).collect();
                        proptest::sample::select(few).prop_map(|n| n.to_string()).boxed()
                    }
                    _ => value_of(p),
                };
                proptest::option::weighted(0.6, value).prop_map(move |v| v.map(|v| format!("{}={v}", p.key)))
            })
            .collect();
        args.prop_map(move |args| {
            let args: Vec<String> = args.into_iter().flatten().collect();
            let (before, sep) =
                (if composed { "pi:factor=2+" } else { "" }, if args.is_empty() { "" } else { ":" });
            format!("{before}{}{sep}{}", method.name, args.join(","))
        })
    })
}

/// The largest distance a method's own documentation allows within `n` tokens; `None` where it promises
/// nothing.
fn promised(plan: &Plan, n: i32) -> Option<f64> {
    let part = plan.spec.parts().iter().find(|p| !["plain", "pi"].contains(&p.name()))?;
    let of = |key: &str| -> i32 { part.get(key).and_then(|v| v.as_f64()).expect(key) as i32 };
    let whole = match part.name() {
        // Up to (L - W) G + W tokens keep within trained distances, 0 to L-1.
        "self-extend" => {
            let (l, w, g) = (of("original"), of("window"), of("group"));
            (w < l && n <= (l - w) * g + w).then_some(l - 1)
        }
        // Distances 0..M-1 as they are, the first tokens at exactly M.
        "lm-infinite" => Some(of("window")),
        // `chunk`: largest distance shown.
        "dca" => Some(of("chunk")),
        // Positions counted inside a cache of S + M tokens.
        "streaming" => Some(of("sinks") + of("window") - 1),
        // Distances from S on less S, plus W.
        "string" => Some((of("shifted-offset") - 1).max(n - 1 - of("shifted-offset") + of("local-value"))),
        // w, or w + (d - w)/k.
        "rerope" => {
            let leak = part
                .get("leak")
                .map_or(0.0, |_| f64::from((n - 1 - of("window")).max(0)) / f64::from(of("leak")));
            return Some(f64::from(of("window")) + leak);
        }
        other => panic!("what is the largest distance {other} promises?"),
    };
    whole.map(f64::from)
}

fn reaches() -> impl Strategy<Value = Reach> {
    let end = || prop_oneof![Just(i32::MAX), 0..N + 20];
    let back = || prop_oneof![Just(i32::MAX), 0..6];
    let chunks = (0..60i32, 0..6i32, back()).prop_map(|(len, min, max)| Chunks { len: len + 1, min, max });
    (0..N, end(), 0..N, end(), proptest::option::of(chunks)).prop_map(
        |(dist_min, dist_end, key_min, key_end, chunks)| Reach {
            dist_min: dist_min / 4,
            dist_end,
            key_min: key_min / 4,
            key_end,
            chunks,
        },
    )
}

/// The conditions of a reach, one after the other.
fn sees(r: &Reach, i: i32, j: i32) -> bool {
    let chunks = r.chunks.is_none_or(|c| (c.min..=c.max).contains(&(i / c.len - j / c.len)));
    j <= i && i - j >= r.dist_min && i - j < r.dist_end && j >= r.key_min && j < r.key_end && chunks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reach_keeps_its_promises(text in reach_specs(), l in 2usize..300, n in 1i32..=N) {
        let hp = Hparams { n_ctx_train: l, ..model(1e4, 8, 2) };
        let spec: Spec = text.parse().map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        // Parameters that do not fit together.
        let Ok(plan) = Plan::new(&spec, &hp, n as usize) else { return Ok(()) };
        let most = promised(&plan, n);
        let mut largest = f64::NEG_INFINITY;
        for i in 0..n {
            prop_assert_eq!(plan.layer(0).distance(i, i), Some(0.0), "{}: query {} and itself", plan.spec, i);
            for j in 0..n {
                let branches = &plan.layer(0).branches;
                let shown: Vec<f64> = branches.iter().filter_map(|b| b.distance(i, j)).collect();
                let at_most = usize::from(j <= i);
                prop_assert!(shown.len() <= at_most, "{}: ({i}, {j}) shown as {shown:?}", plan.spec);
                prop_assert_eq!(plan.layer(0).distance(i, j), shown.first().copied());
                for d in shown {
                    let kept = d >= 0.0 && most.is_none_or(|m| d <= m + 1e-9);
                    prop_assert!(kept, "{}: ({i}, {j}) at {d}, promised {most:?}", plan.spec);
                    largest = largest.max(d);
                }
            }
        }
        prop_assert!(largest >= 0.0);
    }

    /// Exact for the registered methods: no key is kept that nobody sees, and none dropped that somebody
    /// does.
    #[test]
    fn needed_keys_are_those_that_later_queries_see(text in reach_specs(), l in 2usize..300) {
        let hp = Hparams { n_ctx_train: l, ..model(1e4, 8, 2) };
        let spec: Spec = text.parse().map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        let Ok(plan) = Plan::new(&spec, &hp, 4 * N as usize) else { return Ok(()) };
        for from in (0..N).step_by(3) {
            let mut needed = 0;
            for j in 0..=from {
                // Far enough for what lies two chunks of at most 300 back.
                let seen = (from..from + 4 * N).any(|i| plan.layer(0).distance(i, j).is_some());
                prop_assert_eq!(plan.needs(j, from), seen, "{}: key {} from query {} on", plan.spec, j, from);
                needed += usize::from(seen);
            }
            prop_assert!(plan.n_held().is_none_or(|n| needed <= n), "{}: {needed} keys at {from}", plan.spec);
        }
        prop_assert_eq!(plan.evict, plan.n_held().is_some());
    }

    /// No query sees a key at or after the end of its map, and some query the last one before; without an end they go
    /// on with the text.
    #[test]
    fn keys_end_where_the_last_one_is_seen(text in reach_specs(), l in 2usize..300) {
        let hp = Hparams { n_ctx_train: l, ..model(1e4, 8, 2) };
        let spec: Spec = text.parse().map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        let Ok(plan) = Plan::new(&spec, &hp, 4 * N as usize) else { return Ok(()) };
        let plan = plan.layer(0);
        let maps = plan.key_maps();
        let last_seen = |map: PosMap, queries: Range<i32>| {
            let of_map = plan.branches.iter().filter(move |b| b.k_pos == map);
            of_map.flat_map(|b| queries.clone().map(|i| b.reach.keys(i).end)).max()
        };
        for &map in &maps {
            let (some, more) = (last_seen(map, 0..4 * N), last_seen(map, 0..8 * N));
            match plan.keys_end(map) {
                Some(end) => prop_assert!(some == Some(end) && more == Some(end), "{text}: {end}, seen {some:?}, {more:?}"),
                None => prop_assert!(some < more, "{text}: no end, seen {some:?}, {more:?}"),
            }
        }
        // LM-Infinite alone has one: StreamingLLM's first keys stand under the same map as all others.
        let ends = maps.iter().any(|&map| plan.keys_end(map).is_some());
        prop_assert_eq!(ends, text.contains("lm-infinite") && maps.len() == 2, "{}", text);
    }

    /// For any reach at all: `needs` may keep a key too many (where no query meets every condition), never
    /// one too few.
    #[test]
    fn keys_are_the_conditions_met(r in reaches()) {
        for i in 0..N {
            let keys = r.keys(i);
            for j in 0..N {
                prop_assert_eq!(keys.contains(&j), sees(&r, i, j), "{:?}: ({}, {})", r, i, j);
                if keys.contains(&j) {
                    for from in (0..=i).step_by(7) {
                        prop_assert!(r.needs(j, from), "{:?}: key {} from {} on, seen by {}", r, j, from, i);
                    }
                }
            }
            let needed = (0..=i).filter(|j| r.needs(*j, i)).count();
            prop_assert!(r.most_keys().is_none_or(|most| needed <= most), "{:?}: {} at {}", r, needed, i);
        }
    }

    /// Within what the model was trained for, and a setting that asks for nothing, every key is seen as it
    /// is.
    #[test]
    fn neutral_settings_are_plain(l in 8usize..=N as usize) {
        let hp = Hparams { n_ctx_train: l, ..model(1e4, 8, 2) };
        let one_chunk = l * 3 / 4 - l / 8;
        let window = ["self-extend", "self-extend:group=1", "lm-infinite", "streaming"].map(|text| (text, l));
        for (text, n) in window.into_iter().chain([("dca", one_chunk)]) {
            let spec: Spec = text.parse().map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
            let plan = Plan::new(&spec, &hp, n).map_err(|e| TestCaseError::fail(e.to_string()))?;
            for i in 0..n as i32 {
                for j in 0..n as i32 {
                    let (found, own) = (plan.layer(0).distance(i, j), Branch::PLAIN.distance(i, j));
                    prop_assert_eq!(found, own, "{} of {}: ({}, {})", text, l, i, j);
                }
                prop_assert_eq!(plan.layer(0).q_scale(i), 1.0);
            }
        }
    }
}
