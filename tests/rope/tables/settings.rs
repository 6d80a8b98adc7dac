//! Settings of every method: attention temperature, pairs without rotation, contexts that need no method; and what is
//! said of settings that change nothing.

use ropewalk::hparams::{AttentionTemperature, Hparams, LayerAttention};
use ropewalk::rope::Plan;

use super::{assert_close, model, plan, powers, refusal, smol, theta, view};

fn factor(spec: &str, i: i32) -> f64 {
    plan(spec, &smol(), 65536).expect(spec).layer(0).q_scale(i)
}

#[test]
fn queries_are_scaled_by_position() {
    // Qwen's list begins at position 1: log(i) base 8192 from i = 8193 on.
    for (i, want) in [(0, 1.0), (8191, 1.0), (16383, 14.0 / 13.0), (32767, 15.0 / 13.0), (65535, 16.0 / 13.0)]
    {
        assert!((factor("yarn:temperature=logn", i) - want).abs() < 1e-12, "position {i}");
    }
    // Transformers' Llama 4: log(floor((i + 1) / 8192) + 1) * 0.1 + 1.
    for (i, whole) in [(0, 1.0), (8190, 1.0), (8191, 2.0), (16383, 3.0), (65535, 9.0)] {
        let want = 1.0 + 0.1 * f64::ln(whole);
        assert!((factor("plain:temperature=llama4", i) - want).abs() < 1e-12, "position {i}");
    }
    let strong = factor("plain:temperature=llama4,temperature-scale=0.5,original=4096", 65535);
    assert!((strong - (1.0 + 0.5 * 17f64.ln())).abs() < 1e-12, "{strong}");
    assert_eq!((factor("dca:temperature=1.2", 0), factor("dca:temperature=1.2", 60_000)), (1.2, 1.2));
    let spec = |s: &str| plan(s, &smol(), 16384).expect(s).spec.to_string();
    assert_eq!(spec("plain:temperature=llama4"), "plain:temperature=llama4,temperature-scale=0.1");
    assert_eq!(spec("pi:temperature=2.50"), "pi:factor=2,original=8192,temperature=2.5");
    let shown = view("pi:temperature=logn", &smol(), 16384);
    assert_eq!(shown.kinds[0].temperature.as_deref(), Some("max(1, ln(i+1) / ln 8192)"));
}

#[test]
fn a_temperature_stands_in_place_of_the_models_own() {
    let temperature = Some(AttentionTemperature { scale: 0.1, length: 8192.0, offset: 0.0 });
    let layer = LayerAttention { temperature, ..smol().attention.remove(0) };
    let hp = Hparams { attention: vec![layer], ..smol() };
    let own = plan("plain", &hp, 32768).expect("a plan");
    assert!((own.layer(0).q_scale(8192) - (1.0 + 0.1 * 2f64.ln())).abs() < 1e-12);
    let one = plan("plain:temperature=1", &hp, 32768).expect("a plan");
    assert!(!one.layer(0).scales_queries() && !one.same_positions(&own));
    assert!(
        one.notes.iter().any(|n| n.contains("replaces")) && !one.notes.iter().any(|n| n.contains("nothing"))
    );
    let log = plan("plain:temperature=logn", &hp, 32768).expect("a plan");
    assert!((log.layer(0).q_scale(32767) - 15.0 / 13.0).abs() < 1e-12);
}

#[test]
fn the_slowest_pairs_are_dropped() {
    let hp = smol();
    for (share, kept) in [("0.25", 24), ("0.75", 8), ("1", 0), ("0.001", 31), ("0.3", 22)] {
        let found = theta(&format!("plain:drop={share}"), &hp, 100);
        assert_close(&found[..kept], &powers(1e5, 64)[..kept]);
        assert!(found[kept..].iter().all(|t| *t == 0.0) && found.len() == 32, "drop={share}: {found:?}");
    }
    // 3 of 10, though 0.3 x 10 and 0.7 x 10 are not whole as floats; 10 of 10.
    let ten = model(1e4, 20, 4096);
    let zeros = |s: &str| theta(s, &ten, 100).iter().filter(|t| **t == 0.0).count();
    assert_eq!((zeros("pi:drop=0.3"), zeros("pi:drop=0.7"), zeros("pi:drop=1")), (3, 7, 10));
    // Of every head, after the method.
    let heads = plan("harpe:bases=uniform,base-min=2e5,base-max=4e5,drop=0.5", &hp, 16384).expect("a plan");
    for table in heads.layer(0).freqs.tables() {
        assert!(table[..16].iter().all(|t| *t > 0.0) && table[16..].iter().all(|t| *t == 0.0));
    }
    let frozen = heads.frozen(&hp).expect("the same again");
    assert!(frozen.to_string().ends_with("drop=0.5"), "{frozen}");
    let shown = view("pi:drop=0.5", &hp, 16384);
    assert!(shown.kinds[0].tables[0].pairs.iter().all(|p| (p.index < 16) == p.wavelength.is_some()));
}

#[test]
fn short_contexts_stay_plain() {
    let hp = smol();
    let own = plan("plain", &hp, 8192).expect("a plan");
    for spec in ["yarn:keep-short=true", "abf:base=1e6,keep-short=true", "dca:keep-short=true,temperature=2"]
    {
        let made = plan(spec, &hp, 8192).expect(spec);
        assert!(made.same_positions(&own) && made.notes.len() == 1, "{spec}: {:?}", made.notes);
        assert!(made.notes[0].contains("within the original context of 8192"), "{:?}", made.notes);
        // Its spec is what was asked for, so that it scales a longer context.
        let long = Plan::new(&made.spec, &hp, 16384).expect(spec);
        assert!(long.same_positions(
            &plan(&spec.replace("keep-short=true", "keep-short=false"), &hp, 16384).expect(spec)
        ));
        assert!(!long.same_positions(&own), "{spec}");
        assert!(Plan::new(&long.spec, &hp, 100).expect(spec).same_positions(&own), "{spec}");
    }
    // By itself each: the other method of a spec goes on.
    let both = plan("yarn:factor=4,keep-short=true+dca", &hp, 8192).expect("a plan");
    assert!(both.same_positions(&plan("dca", &hp, 8192).expect("a plan")));
    assert!(!plan("streaming:keep-short=true", &hp, 8192).expect("a plan").evict);
    let short = "yarn:factor=4,original=8192,keep-short=true";
    assert_eq!(plan("yarn:factor=4,keep-short=true", &hp, 8192).expect("a plan").spec.to_string(), short);
    let original = plan("yarn:factor=4,keep-short=true,original=4096", &hp, 8192).expect("a plan");
    assert!(original.layer(0).mscale > 1.0);
}

/// Three engines' users ask why their flags do nothing.
#[test]
fn what_changes_nothing_is_said() {
    let hp = smol();
    let said = |spec: &str, n_ctx: usize| {
        let notes = plan(spec, &hp, n_ctx).unwrap_or_else(|e| panic!("{spec}: {e}")).notes;
        let found: Vec<String> = notes.into_iter().filter(|n| n.contains("changes nothing")).collect();
        assert!(found.len() <= 2, "{spec}: {found:?}");
        found.join(" ")
    };
    for (spec, n_ctx, what) in [
        ("yarn:factor=1", 16384, "yarn:factor=1,"),
        ("yarn", 8192, "yarn:factor=1,"),
        ("pi:factor=1,temperature=1.2", 8192, "pi, together with temperature=1.2, changes nothing"),
        ("yarn:factor=4,temperature=1", 16384, "yarn: temperature=1 changes nothing"),
        ("yarn:factor=4,temperature=logn", 8192, "yarn: temperature=logn changes nothing"),
        ("yarn:factor=4,temperature=llama4", 8190, "yarn: temperature=llama4 changes nothing"),
        ("yarn:factor=4,drop=0,temperature=1", 8192, "yarn: drop=0 and temperature=1 changes nothing"),
        ("plain:drop=0", 100, "plain:drop=0 changes nothing within the context of 100 tokens."),
        ("plain:keep-short=true", 16384, "plain:keep-short=true changes nothing"),
        ("self-extend:group=1", 16384, "self-extend:"),
        ("self-extend", 1024, "self-extend:"),
        ("dca", 6145, "dca:"),
        ("lm-infinite", 8193, "lm-infinite:"),
        ("streaming", 8192, "streaming:"),
        ("string", 2730, "string:"),
        ("rerope:window=1024", 1025, "rerope:"),
        ("rerope:leak=1", 16384, "rerope:"),
        ("yarn:factor=4+dca", 5121, "dca:"),
    ] {
        assert!(said(spec, n_ctx).contains(what), "{spec} at {n_ctx}: {}", said(spec, n_ctx));
    }
    for (spec, n_ctx) in [
        ("plain", 100),
        ("plain:original=4096", 9000),
        ("yarn:factor=4", 100),
        ("harpe:bases=1e5/1e5/2e5", 100),
        ("yarn:factor=4,temperature=logn", 8194),
        ("yarn:factor=4,temperature=llama4", 8192),
        ("yarn:factor=4,temperature-scale=0.2,temperature=llama4", 9000),
        ("yarn:factor=4,keep-short=true", 9000),
        ("plain:drop=0.1", 100),
        ("plain:temperature=0.9", 100),
        ("plain:temperature=logn+string", 9000),
        ("dca", 6146),
        ("lm-infinite", 8194),
        ("streaming", 8193),
        ("string", 2731),
        ("rerope:window=1024", 1026),
        ("rerope:leak=2", 1027),
    ] {
        assert_eq!(said(spec, n_ctx), "", "{spec} at {n_ctx}");
    }
    // Layers that no method acts on: settings do not, either.
    let none = Hparams { attention: vec![LayerAttention::new(9, 3, 64)], ..smol() };
    for spec in ["plain:temperature=logn", "plain:drop=1", "rerope"] {
        let e = refusal(spec, &none, 9000);
        assert!(e.contains("change nothing") && e.contains("no rotation"), "{e}");
    }
}
