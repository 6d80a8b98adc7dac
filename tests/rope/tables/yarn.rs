//! YaRN as files declare it, and what of it belongs to the weights.

use super::*;

#[test]
fn yarn_as_a_file_declares_it() {
    let mut hp = model(1e6, 128, 131_072);
    hp.rope_scaling = RopeScaling {
        attn_factor: Some(1.25),
        yarn_ext_factor: Some(-1.0),
        yarn_attn_factor: Some(3.0),
        yarn_beta_fast: Some(24.0),
        ..keys("yarn", Some(4.0), Some(32768))
    };
    let spec = Spec::declared(&hp).expect("valid");
    assert_eq!(spec.to_string(), "yarn:factor=4,beta-fast=24,attn-factor=1.25,original=32768");
    let plan = Plan::new(&spec, &hp, 131_072).expect("valid");
    for (j, t) in plan.layer(0).freqs.theta.iter().enumerate() {
        let (want, m) = ggml_yarn(128, 1e6, 1.0, 2 * j, [4.0, 32768.0, 1.0, 1.25, 24.0, 1.0]);
        assert!((t - want).abs() < 1e-12 * want && (plan.layer(0).mscale - m).abs() < 1e-12);
    }
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
    // Explicit: nothing of it stays but the trained window, and the factor where it is more than the context asks for.
    let own = self::plan("yarn", &hp, 65536).expect("valid");
    assert_eq!(
        own.spec.to_string(),
        "yarn:factor=4,beta-fast=32,beta-slow=1,ext-factor=1,attn-factor=1,original=32768"
    );
    assert!(own.notes.iter().any(|n| n.contains("replaces")), "{:?}", own.notes);
    assert_close(&theta("plain", &hp, 10), &powers(1e6, 128));
}

#[test]
fn yarn_keeps_the_multiplier_of_the_weights() {
    let mut hp = model(1e6, 128, 262_144);
    hp.rope_scaling = RopeScaling { yarn_log_mul: Some(1.0), ..keys("yarn", Some(16.0), Some(16384)) };
    let magnitude = |spec: &str, n_ctx: usize| plan(spec, &hp, n_ctx).expect("valid").layer(0).mscale;
    let declared = Spec::declared(&hp).expect("valid");
    assert_eq!(declared.to_string(), "yarn:factor=16,log-multiplier=1,original=16384");
    // transformers: get_mscale(factor, mscale) / get_mscale(factor, mscale_all_dim), both of 1 in these models.
    assert_eq!(magnitude(&declared.to_string(), 262_144), 1.0);
    assert_eq!(magnitude("yarn:factor=4", 65_536), 1.0, "a spec that does not give it takes the file's");
    let m = |m: f64, s: f64| 0.1 * m * s.ln() + 1.0;
    let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
    close(magnitude("yarn:factor=4,log-multiplier=0", 65_536), m(1.0, 4.0));
    close(magnitude("yarn:factor=4,log-multiplier=0.5", 65_536), m(1.0, 4.0) / m(0.5, 4.0));
    close(magnitude("yarn:factor=4,ext-factor=0,attn-factor=1.25", 65_536), 1.25);
    let own = plan("yarn:factor=4", &hp, 65_536).expect("valid");
    assert!(own.spec.to_string().contains("log-multiplier=1"), "{}", own.spec);
    // Of a model without it nothing changes, and nothing is named.
    let hp = model(1e6, 128, 32_768);
    let plain = plan("yarn:factor=4", &hp, 131_072).expect("valid");
    close(plain.layer(0).mscale, m(1.0, 4.0));
    assert!(!plain.spec.to_string().contains("log-multiplier"), "{}", plain.spec);
}
