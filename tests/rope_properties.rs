//! What must hold of every registered rope method, whatever its parameters.

use proptest::prelude::*;
use ropewalk::hparams::{Hparams, RopeScaling};
use ropewalk::rope::{Kind, Param, Plan, Spec, METHODS};

fn model(freq_base: f64, n_rot: usize, n_head_kv: usize) -> Hparams {
    let factors = Some((0..n_rot / 2).map(|j| 1.0 + j as f32 / 4.0).collect::<Vec<f32>>());
    Hparams {
        arch: "llama".into(),
        n_layer: 2,
        n_embd: 64,
        n_ff: 128,
        n_head: n_head_kv,
        n_head_kv,
        n_embd_head: n_rot,
        n_rot,
        n_vocab: 256,
        n_ctx_train: 2048,
        n_swa: None,
        rms_eps: 1e-5,
        freq_base,
        rope_scaling: RopeScaling {
            long_factors: factors.clone(),
            short_factors: factors,
            ..RopeScaling::default()
        },
    }
}

fn value_of(param: &'static Param) -> BoxedStrategy<String> {
    let number = |min: f64, max: f64| {
        prop_oneof![Just(min), Just(max), (min.ln()..max.ln()).prop_map(f64::exp), (1.0..64f64)]
            .prop_map(move |x| x.clamp(min, max))
    };
    let text = |x: f64| format!("{x:e}");
    match param.kind {
        Kind::Number { min, max } => number(min.max(1e-9), max).prop_map(text).boxed(),
        Kind::Count { min, max } => {
            prop_oneof![Just(min), Just(max), min..=20_000].prop_map(|n| n.to_string()).boxed()
        }
        Kind::Choice(words) => proptest::sample::select(words).prop_map(String::from).boxed(),
        Kind::ChoiceOrList { choices, min, max } => prop_oneof![
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
            .params()
            .iter()
            .map(|p| {
                proptest::option::weighted(0.4, value_of(p))
                    .prop_map(move |v| v.map(|v| format!("{}={v}", p.key)))
            })
            .collect();
        args.prop_map(move |args| {
            let args: Vec<String> = args.into_iter().flatten().collect();
            format!("{}{}{}", method.name(), if args.is_empty() { "" } else { ":" }, args.join(","))
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
            prop_assert_eq!(e.0.lines().count(), 1, "{}", e.0);
        }
    }

    #[test]
    fn plans_hold_their_promises(text in specs(), n_ctx in prop_oneof![1usize..100_000, Just(usize::MAX)],
                                 base in prop_oneof![Just(1e4), Just(1e6), 1.1..1e9], n_head_kv in 1usize..6, half in 1usize..24) {
        let hp = model(base, 2 * half, n_head_kv);
        // A search as wide as these ranges allow takes seconds; a narrow one holds to the same promises.
        let searches = text.starts_with("harpe") && !text.contains("uniform") && !text.contains('/');
        let text = if searches { format!("harpe:hi=2500,factor={}", 1 + n_ctx % 40) } else { text };
        let spec: Spec = text.parse().map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        match Plan::new(&spec, &hp, n_ctx) {
            Err(e) => prop_assert!(e.0.lines().count() == 1 && e.0.len() < 1000, "{}", e.0),
            Ok(p) => {
                prop_assert!(p.freqs.n_tables == 1 || p.freqs.n_tables == n_head_kv);
                prop_assert_eq!(p.freqs.theta.len(), p.freqs.n_tables * half);
                prop_assert!(p.freqs.theta.iter().all(|t| t.is_finite() && *t >= 0.0 && *t <= 1.0));
                prop_assert!(p.freqs.tables().all(|t| t.windows(2).all(|w| w[1] <= w[0])), "{:?}", p.freqs);
                prop_assert!(p.mscale.is_finite() && p.mscale > 0.0);
                // The filled-in spec stands for itself, at whatever context.
                let again = Plan::new(&p.spec, &hp, 77).map_err(|e| TestCaseError::fail(e.0))?;
                prop_assert_eq!(&again.spec, &p.spec);
                prop_assert_eq!(&again.freqs, &p.freqs);
                prop_assert_eq!(again.mscale, p.mscale);
                prop_assert_eq!((&again.branches, again.q_log_base, again.evict), (&p.branches, p.q_log_base, p.evict));
                prop_assert!(p.inspect(&hp).is_ok());
            }
        }
    }
}
