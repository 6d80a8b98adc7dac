//! The equation, its solution and gradient against formulas and a recording; the method's plans.

use super::*;
use crate::hparams::{Hparams, LayerAttention, LayerHparams};
use crate::rope::Plan;
use std::sync::Arc;

const CLEX: Clex =
    Clex { max_factor: 32, param_factor: 1, step: 0.01, act: Activation::Silu, original: 4096, factor: None };

/// A network of values between -`most` and `most`.
fn net(n_pairs: usize, n_hidden: usize, [up, down]: [f32; 2]) -> ClexNet {
    let mut state = 77u32;
    let mut values = |most: f32| -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * most
        };
        (0..n_pairs * n_hidden).map(|_| next()).collect()
    };
    ClexNet::new(n_pairs, n_hidden, values(up), values(down)).expect("a network")
}

fn worst(got: &[f64], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).map(|(g, w)| ((g - w) / w).abs()).fold(0.0, f64::max)
}

#[test]
fn untrained_it_is_ntk_by_two_t_less_one() {
    for (d, base) in [(128usize, 1e4), (8, 5e5), (64, 1e5)] {
        let untrained = net(d / 2, d, [1.0 / (d as f32).sqrt(), 0.0]);
        for t in 1..=32 {
            let base_t: f64 = base * (2.0 * t as f64 - 1.0).powf(d as f64 / (d as f64 - 2.0));
            let want: Vec<f64> = (0..d / 2).map(|j| base_t.powf(-2.0 * j as f64 / d as f64)).collect();
            let off = worst(&CLEX.theta(&untrained, base, t), &want);
            assert!(off < 1e-6, "d {d}, base {base}, t {t}: {off:.1e}");
        }
    }
}

#[test]
fn at_one_it_is_the_model_itself() {
    let trained = net(8, 16, [1.0, 1.0]);
    let want: Vec<f64> = (0..8).map(|j| 1e4f64.powf(-2.0 * j as f64 / 16.0)).collect();
    assert!(worst(&CLEX.theta(&trained, 1e4, 1), &want) < 1e-14);
    assert!(worst(&CLEX.theta(&trained, 1e4, 2), &want) > 1e-3);
    let found = CLEX.backward(&trained, 1e4, 1, &[1.0; 8]);
    assert!(found.up.iter().chain(&found.down).all(|g| *g == 0.0));
}

/// `tests/reference/clex.py` made the recording by torchdiffeq and automatic differentiation.
#[test]
fn solutions_and_gradients_are_those_of_torchdiffeq() {
    let text = include_str!("../../../../tests/reference/clex.json");
    let all: serde_json::Value = serde_json::from_str(text).expect("JSON");
    let numbers = |v: &serde_json::Value| -> Vec<f64> {
        v.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number")).collect()
    };
    let f32s = |v: &serde_json::Value| numbers(v).into_iter().map(|x| x as f32).collect::<Vec<f32>>();
    let cases = all["cases"].as_array().expect("cases");
    assert!(cases.len() >= 3);
    for case in cases {
        let count = |key: &str| case[key].as_u64().expect("a count") as usize;
        let act = if case["act"] == "tanh" { Activation::Tanh } else { Activation::Silu };
        let step = case["step"].as_f64().expect("a step");
        let clex =
            Clex { max_factor: count("max_factor"), param_factor: count("param_factor"), step, act, ..CLEX };
        let (d, base) = (count("d"), case["base"].as_f64().expect("a base"));
        let net = ClexNet::new(d / 2, clex.n_hidden(d), f32s(&case["up"]), f32s(&case["down"]));
        let net = net.expect("a network");
        for (i, want) in case["theta"].as_array().expect("a table").iter().enumerate() {
            let off = worst(&clex.theta(&net, base, i + 1), &numbers(want));
            assert!(off < 1e-10, "{step} {act:?} t {}: {off:.1e}", i + 1);
        }
        let found = clex.backward(&net, base, count("grad_t"), &numbers(&case["grad"]));
        for (got, want) in [(&found.up, numbers(&case["d_up"])), (&found.down, numbers(&case["d_down"]))] {
            let most = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
            let off = got.iter().zip(&want).map(|(g, w)| (g - w).abs() / most).fold(0.0, f64::max);
            assert!(got.len() == want.len() && off < 1e-10, "{step} {act:?}: gradient off by {off:.1e}");
        }
    }
}

fn hparams(clex: Option<ClexNet>) -> Hparams {
    Hparams {
        n_layer: 1,
        n_ctx_train: 4096,
        attention: vec![LayerAttention::new(4, 2, 16).rotated(1e4, 16)],
        layers: LayerHparams::alike(1, 32),
        clex: clex.map(Arc::new),
        ..Hparams::default()
    }
}

fn plan(text: &str, hp: &Hparams, n_ctx: usize) -> Result<Plan, RopeError> {
    Plan::new(&text.parse()?, hp, n_ctx)
}

/// An adapter of a megabyte: the widest network, and as many steps as there may be.
#[test]
fn a_solution_may_not_take_minutes() {
    let attention = vec![LayerAttention::new(4, 2, 128).rotated(1e4, 128)];
    let clex = Some(Arc::new(net(64, 2048, [0.1, 0.1])));
    let hp = Hparams { attention, clex, ..hparams(None) };
    let e =
        plan("clex:max-factor=66,param-factor=16,step=0.001", &hp, 1 << 20).expect_err("long").to_string();
    assert!(e.contains("step: expected a cost of at most 20000000000 (steps x network)"), "{e}");
}

#[test]
fn t_is_the_context_over_the_window_rounded_up() {
    let hp = hparams(None);
    for (text, n_ctx, t) in [
        ("clex", 100, 1),
        ("clex", 4096, 1),
        ("clex", 4097, 2),
        ("clex", 32768, 8),
        ("clex", 32769, 9),
        ("clex", 1_000_000, 32),
        ("clex:max-factor=4", 32768, 4),
        ("clex:factor=5", 32768, 5),
        ("clex:original=1000", 4096, 5),
    ] {
        let (found, ntk) = (plan(text, &hp, n_ctx).expect(text), format!("ntk:factor={}", 2 * t - 1));
        let want = plan(&ntk, &hp, n_ctx).expect("valid");
        assert!(worst(&found.layer(0).freqs.theta, &want.layer(0).freqs.theta) < 1e-12, "{text} at {n_ctx}");
        // Its own spec follows the context, but for a factor that was given.
        assert_eq!(found.spec.part("clex").and_then(|p| p.get(FACTOR)).is_some(), text.contains(":factor"));
        let clex = Clex::of(&found.spec, 7).expect("the method");
        let given = text.parse().ok().and_then(|spec| Clex::of(&spec, hp.n_ctx_orig()));
        assert_eq!(given, Some(clex), "{text}");
        assert_eq!(clex.t(n_ctx), t, "{text} at {n_ctx}");
        let fixed = Plan::new(&Clex::fixed(&found.spec, t).expect("a spec"), &hp, 77).expect("valid");
        assert_eq!(fixed.layer(0).freqs, found.layer(0).freqs);
    }
}

#[test]
fn a_network_gives_the_frequencies_and_factors_of_the_file_are_divided_in() {
    let own = net(8, 16, [0.5, 0.05]);
    let mut hp = hparams(Some(own.clone()));
    let found = plan("clex", &hp, 16384).expect("valid");
    assert_eq!(found.layer(0).freqs.theta, CLEX.theta(&own, 1e4, 4));
    assert!(found.notes.iter().any(|n| n.contains("adapter's network")), "{:?}", found.notes);
    hp.rope_scaling.freq_factors = Some((1..=8).map(|f| f as f32).collect());
    let divided = plan("clex", &hp, 16384).expect("valid");
    let pairs = divided.layer(0).freqs.theta.iter().zip(&found.layer(0).freqs.theta).enumerate();
    pairs.for_each(|(j, (with, without))| assert!((with * (j + 1) as f64 / without - 1.0).abs() < 1e-12));
    // Another width is not taken.
    for wrong in [net(4, 16, [0.5, 0.1]), net(8, 32, [0.5, 0.1])] {
        let e = plan("clex", &hparams(Some(wrong)), 16384).expect_err("another width").to_string();
        assert!(e.contains("8 pairs") && e.lines().count() == 1, "{e}");
    }
    assert!(plan("clex:param-factor=2", &hparams(Some(net(8, 32, [0.5, 0.1]))), 16384).is_ok());
}

#[test]
fn log_scale_is_one_factor_for_all_queries() {
    let hp = hparams(None);
    for (n_ctx, factor) in [(16384, 14.0 / 12.0), (2048, 11.0 / 12.0)] {
        let found = plan("clex:log-scale=true", &hp, n_ctx).expect("valid");
        assert!([0, 1, 999].iter().all(|i| (found.layer(0).q_scale(*i) - factor).abs() < 1e-12));
    }
    for (text, words) in [
        ("self-extend:temperature=2+clex:log-scale=true", "temperature=2"),
        ("clex:log-scale=true,original=1", "above 1"),
        ("clex:max-factor=1e9", "from 1 to 1024"),
        ("clex:act=gelu", "silu, tanh"),
    ] {
        let e = plan(text, &hp, 16384).expect_err(text).to_string();
        assert!(e.contains(words) && e.lines().count() == 1, "{text}: {e}");
    }
}
