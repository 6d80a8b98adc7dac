//! Models whose layers see positions in different ways: what a method acts on, and what it leaves as it is.

use ropewalk::hparams::{AttentionTemperature, Hparams, LayerAttention, LayerHparams};
use ropewalk::rope::{LayerPlan, Plan};

use super::{assert_close, divided, factors, keys, model, plan, powers};

/// Six layers, every third as `full`, the others as `other`; trained for 8192 tokens.
fn mixed(full: LayerAttention, other: LayerAttention) -> Hparams {
    let layers = (0..6).map(|il| LayerHparams { kind: Some(usize::from(il % 3 == 2)), n_ff: 64 }).collect();
    Hparams { n_layer: 6, attention: vec![other, full], layers, ..model(1e6, 64, 8192) }
}

fn full() -> LayerAttention {
    LayerAttention::new(9, 3, 64).rotated(1e6, 64)
}

/// As in Gemma 3: a window with a separate base, to which the file's scaling does not apply.
fn local() -> LayerAttention {
    let mut layer = LayerAttention { window: Some(512), ..full() };
    let rotation = layer.rotation.as_mut().expect("rotated");
    (rotation.freq_base, rotation.scaled) = (1e4, false);
    layer
}

fn frequencies(plan: &LayerPlan) -> Vec<f64> {
    plan.freqs.theta.clone()
}

#[test]
fn a_method_acts_where_layers_see_further_than_in_training() {
    let mut hp = mixed(full(), local());
    hp.rope_scaling.freq_factors = Some(factors(32));
    let found = plan("pi:factor=4", &hp, 32768).expect("a plan");
    assert_close(&frequencies(found.layer(0)), &powers(1e4, 64));
    let own = divided(powers(1e6, 64), &hp.rope_scaling.freq_factors);
    assert_close(&frequencies(found.layer(2)), &own.iter().map(|t| t / 4.0).collect::<Vec<_>>());
    assert_eq!((found.layer(0).applies, found.layer(2).applies), (false, true));
    assert_eq!((found.kinds().len(), found.layer(5) == found.main()), (2, true));
    assert_eq!(hp.layers_of(1).collect::<Vec<_>>(), [2, 5]);
    assert!(
        found.notes.iter().any(|n| n.contains("layers 0, 1, 3, 4") && n.contains("512")),
        "{:?}",
        found.notes
    );
    // Each kind has its own window.
    assert_eq!((found.layer(0).distance(600, 89), found.layer(0).distance(600, 88)), (Some(511.0), None));
    assert_eq!(found.layer(2).distance(600, 0), Some(600.0));
    assert!(!found.is_plain_reach() && found.layer(0).is_own_reach(&hp.attention[0]));
    let again = Plan::new(&found.spec, &hp, 77).expect("its own spec");
    assert!(again.same_positions(&found) && found.same_positions(&again));
    assert!(!plan("pi:factor=2", &hp, 32768).expect("a plan").same_positions(&found));
    // A window longer than `original` makes the layers its own.
    let all = plan("pi:factor=4,original=511", &hp, 32768).expect("a plan");
    assert!(all.layer(0).applies && all.layer(2).applies);
    let parts = plan("pi:original=511+self-extend", &hp, 32768).expect("a plan");
    assert!(parts.layer(0).applies && parts.layer(0).is_own_reach(&hp.attention[0]));
}

#[test]
fn reach_methods_leave_windows_alone() {
    let hp = mixed(full(), local());
    let found = plan("self-extend:window=1024,group=8", &hp, 32768).expect("a plan");
    assert_eq!((found.layer(0).branches.len(), found.layer(2).branches.len()), (1, 2));
    // Keys leave the cache when no layer needs them: both kinds are bounded.
    let streaming = plan("streaming:sinks=4,window=1000", &hp, 32768).expect("a plan");
    assert_eq!((streaming.evict, streaming.n_held()), (true, Some(4 + 1000 + 512)));
    assert!(
        streaming.needs(19_001, 20_000) && streaming.needs(3, 20_000) && !streaming.needs(19_000, 20_000)
    );
    // With layers that see everything, none may leave.
    let unrotated = mixed(full(), LayerAttention::new(9, 3, 64));
    let e = plan("streaming", &unrotated, 32768).expect_err("keys are needed").to_string();
    assert!(e.contains("evict") && e.contains("every key"), "{e}");
    let kept = plan("lm-infinite", &unrotated, 32768).expect("a plan");
    assert!(kept.layer(0).is_plain_reach() && !kept.layer(2).is_plain_reach());
}

#[test]
fn layers_without_rotation_have_no_frequencies() {
    let hp = mixed(LayerAttention::new(9, 3, 64), full());
    let found = plan("yarn:factor=4", &hp, 32768).expect("a plan");
    assert_eq!((found.layer(2).freqs.n_rot(), found.layer(2).freqs.tables().len()), (0, 0));
    assert_eq!((found.layer(2).mscale, found.layer(2).applies), (1.0, false));
    assert!(found.layer(0).applies && found.layer(0).mscale > 1.0);
    assert!(
        found.notes.iter().any(|n| n.contains("layers 2, 5") && n.contains("no rotation")),
        "{:?}",
        found.notes
    );
    let view = found.inspect(&hp).expect("its own model");
    assert_eq!(
        (view.kinds[1].n_rot, view.kinds[1].tables.len(), view.kinds[1].layers.as_slice()),
        (0, 0, &[2, 5][..])
    );
    let applies = view.kinds.iter().find(|k| k.applies).expect("a kind");
    assert_eq!(applies.layers, [0, 1, 3, 4]);
    // Without any rotation there is nothing to change.
    let none = Hparams { attention: vec![LayerAttention::new(9, 3, 64)], ..model(1e4, 64, 8192) };
    assert!(plan("plain", &none, 99).is_ok());
    let e = plan("yarn", &none, 99).expect_err("nothing to change").to_string();
    assert!(e.contains("yarn") && e.contains("no rotation"), "{e}");
}

/// As in gpt-oss: the model was trained under the scaling its file declares, in layers with a window too.
#[test]
fn declared_scaling_stays_where_no_method_acts() {
    let window = LayerAttention { window: Some(128), ..full() };
    let mut hp = mixed(full(), window);
    hp.rope_scaling = keys("linear", Some(32.0), Some(4096));
    let divided = |by: f64| powers(1e6, 64).iter().map(|t| t / by).collect::<Vec<_>>();
    let found = plan("pi:factor=2", &hp, 8192).expect("a plan");
    assert_close(&frequencies(found.layer(0)), &divided(32.0));
    assert_close(&frequencies(found.layer(2)), &divided(2.0));
    hp.attention[0].rotation.as_mut().expect("rotated").scaled = false;
    assert_close(&frequencies(plan("pi:factor=2", &hp, 8192).expect("a plan").layer(0)), &divided(1.0));
}

#[test]
fn defaults_that_differ_from_kind_to_kind_must_be_given() {
    let hp = mixed(full(), LayerAttention::new(9, 3, 64).rotated(1e4, 64));
    let e = plan("abf:factor=4", &hp, 32768).expect_err("two bases").to_string();
    assert!(e.contains("layers 0, 1, 3, 4") && e.contains("layers 2, 5") && e.lines().count() == 1, "{e}");
    let found = plan("abf:base=5e6", &hp, 32768).expect("a plan");
    assert_eq!(frequencies(found.layer(0)), frequencies(found.layer(2)));
    // Everything that does not depend on the base is the same for both.
    let found = plan("ntk", &hp, 32768).expect("a plan");
    assert_ne!(frequencies(found.layer(0)), frequencies(found.layer(2)));
}

#[test]
fn temperature_grows_with_position() {
    let temperature = Some(AttentionTemperature { scale: 0.1, length: 8192.0, offset: 1.0 });
    let hp = Hparams { attention: vec![LayerAttention { temperature, ..full() }], ..model(1e6, 64, 8192) };
    let found = plan("plain", &hp, 32768).expect("a plan");
    let layer = found.layer(0);
    assert!(layer.scales_queries() && layer.q_scale(0) == 1.0 && layer.q_scale(8190) == 1.0);
    assert!((layer.q_scale(8191) - (1.0 + 0.1 * 2f64.ln())).abs() < 1e-15);
    let both = plan("self-extend:log-scale=true,group=1", &hp, 32768).expect("a plan");
    let log = 32768f64.ln() / 8192f64.ln();
    assert!((both.layer(0).q_scale(32767) - log * (1.0 + 0.1 * 5f64.ln())).abs() < 1e-12);
}
