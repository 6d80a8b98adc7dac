//! Every frequency table against formulas written a second time here; declared scaling; errors.

mod declared;
mod kinds;
mod reach;
mod settings;
mod yarn;

use std::f64::consts::{PI, TAU};

use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams, LayerRotation, RopeScaling};
use ropewalk::rope::{Inspection, PairKind, Plan, RopeError, Spec, METHODS};

/// Llama-2-7B's shape.
fn llama2() -> Hparams {
    Hparams {
        arch: "llama".into(),
        n_layer: 32,
        n_embd: 4096,
        n_vocab: 32000,
        n_ctx_train: 4096,
        norm_eps: 1e-5,
        attention: vec![LayerAttention::new(32, 32, 128).rotated(1e4, 128)],
        layers: LayerHparams::alike(32, 11008),
        ..Hparams::default()
    }
}

fn model(freq_base: f64, n_rot: usize, n_ctx_train: usize) -> Hparams {
    let attention = vec![LayerAttention::new(9, 3, n_rot).rotated(freq_base, n_rot)];
    Hparams { n_ctx_train, attention, ..llama2() }
}

/// SmolLM2's numbers, as far as they matter here.
fn smol() -> Hparams {
    model(1e5, 64, 8192)
}

/// What a file declares by its standard keys.
fn keys(kind: &str, factor: Option<f64>, original: Option<usize>) -> RopeScaling {
    let n_ctx_orig = original.map(|n| n as u32);
    RopeScaling { kind: Some(kind.into()), factor, n_ctx_orig, ..RopeScaling::default() }
}

fn factors(n: usize) -> Vec<f32> {
    (0..n).map(|j| 1.0 + j as f32 / 4.0).collect()
}

fn plan(spec: &str, hp: &Hparams, n_ctx: usize) -> Result<Plan, RopeError> {
    Plan::new(&spec.parse()?, hp, n_ctx)
}

fn refusal(spec: &str, hp: &Hparams, n_ctx: usize) -> String {
    plan(spec, hp, n_ctx).expect_err(spec).to_string()
}

/// What is shown of a plan.
fn view(spec: &str, hp: &Hparams, n_ctx: usize) -> Inspection {
    plan(spec, hp, n_ctx).expect(spec).inspect(hp).expect("its own model")
}

fn theta(spec: &str, hp: &Hparams, n_ctx: usize) -> Vec<f64> {
    plan(spec, hp, n_ctx).unwrap_or_else(|e| panic!("{spec}: {e}")).layer(0).freqs.theta.clone()
}

/// b^(-2j/d), by logarithms.
fn powers(b: f64, d: usize) -> Vec<f64> {
    (0..d / 2).map(|j| (-(2.0 * j as f64) / d as f64 * b.ln()).exp()).collect()
}

fn divided(t: Vec<f64>, ff: &Option<Vec<f32>>) -> Vec<f64> {
    t.iter().enumerate().map(|(j, t)| t / ff.as_ref().map_or(1.0, |f| f64::from(f[j]))).collect()
}

#[track_caller]
fn assert_close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (j, (a, b)) in got.iter().zip(want).enumerate() {
        assert!((a - b).abs() <= 1e-11 * b.abs(), "pair {j}: {a} and {b}");
    }
}

fn with_and_without_factors(hp: Hparams) -> [Hparams; 2] {
    let mut other = hp.clone();
    other.rope_scaling.freq_factors = Some(factors(hp.attention_of(0).unwrap().n_rot() / 2));
    [hp, other]
}

#[test]
fn plain_pi_ntk_and_abf() {
    for hp in with_and_without_factors(model(5e5, 64, 8192)) {
        let ff = &hp.rope_scaling.freq_factors;
        let own = divided(powers(5e5, 64), ff);
        assert_close(&theta("plain", &hp, 32768), &own);
        assert_close(&theta("pi", &hp, 32768), &own.iter().map(|t| t / 4.0).collect::<Vec<_>>());
        assert_close(&theta("pi:factor=2.5", &hp, 32768), &own.iter().map(|t| t / 2.5).collect::<Vec<_>>());
        let ntk = divided(powers(5e5 * 4f64.powf(64.0 / 62.0), 64), ff);
        assert_close(&theta("ntk:factor=4", &hp, 100), &ntk);
        assert_close(&theta("abf:base=5e6", &hp, 100), &divided(powers(5e6, 64), ff));
    }
    let five_million = theta("abf", &llama2(), 131_072);
    assert_close(&five_million, &powers(5e6, 128));
}

/// Bases of the controlled study: 29 is its NTK-32K, 121 what its code does for NTK-64K, 57 what its table
/// says.
#[test]
fn dynamic_ntk_takes_its_base_from_the_session_length() {
    let hp = llama2();
    for (spec, n_ctx, t) in [
        ("dynamic-ntk:factor=4", 32768, 29.0),
        ("dynamic-ntk:factor=8", 65536, 121.0),
        ("dynamic-ntk:factor=2", 4096, 1.0),
        ("dynamic-ntk:factor=2", 100, 1.0),
        ("dynamic-ntk:factor=2", 65536, 31.0),
        ("dynamic-ntk", 8192, 3.0),
        ("dynamic-ntk:t=57", 65536, 57.0),
    ] {
        assert_close(&theta(spec, &hp, n_ctx), &powers(1e4 * f64::powf(t, 128.0 / 126.0), 128));
    }
    let base = |spec, n| theta(spec, &hp, n)[1].powf(-64.0);
    assert!((base("dynamic-ntk:factor=4", 32768) - 305_922.0).abs() < 1.0);
    assert!((base("dynamic-ntk:factor=8", 65536) - 1_305_706.0).abs() < 1.0);
}

/// The controlled study's Table 8: one spec of its NTK-32K gives every column, and so does the spec of a plan
/// made at any of them, which is what an adapter records.
#[test]
fn dynamic_ntk_keeps_the_base_it_was_trained_with() {
    let hp = llama2();
    let lengths = [4096, 8192, 16384, 32768, 65536];
    for at in lengths {
        let made = plan("dynamic-ntk:trained=32768", &hp, at).expect("valid");
        assert_eq!(made.spec.to_string(), "dynamic-ntk:factor=4,trained=32768,original=4096");
        assert_eq!(made.frozen(&hp).as_ref(), Ok(&made.spec));
        for (n_ctx, t) in lengths.into_iter().zip([29.0, 29.0, 29.0, 29.0, 61.0]) {
            let again = Plan::new(&made.spec, &hp, n_ctx).expect("valid");
            assert_close(&again.layer(0).freqs.theta, &powers(1e4 * f64::powf(t, 128.0 / 126.0), 128));
            assert!(again.same_positions(&plan(&format!("dynamic-ntk:t={t}"), &hp, n_ctx).expect("valid")));
        }
    }
    let base = |n| theta("dynamic-ntk:trained=32768", &hp, n)[1].powf(-64.0);
    assert!((base(8192) - 305_922.0).abs() < 1.0 && (base(65536) - 651_131.0).abs() < 1.0);
    // The study's code rounds the factor up, and NTK-64K is what its code computes.
    for (spec, n_ctx, factor, t) in [
        ("dynamic-ntk:trained=65536", 4096, "8", 121.0),
        ("dynamic-ntk:trained=20480", 4096, "3", 13.0),
        ("dynamic-ntk:trained=100", 4096, "1", 1.0),
        ("dynamic-ntk:trained=32768,factor=2", 4096, "2", 15.0),
    ] {
        let made = plan(spec, &hp, n_ctx).expect("valid");
        assert_eq!(made.spec.parts()[0].get("factor").map(|v| v.to_string()).as_deref(), Some(factor));
        assert_close(&made.layer(0).freqs.theta, &powers(1e4 * f64::powf(t, 128.0 / 126.0), 128));
    }
}

/// ggml's `rope_yarn` and `ggml_rope_yarn_corr_dims`, f32 replaced by f64: (angle per position, magnitude).
fn ggml_yarn(d: usize, base: f64, ff: f64, i0: usize, settings: [f64; 6]) -> (f64, f64) {
    let [factor, orig, ext, attn, fast, slow] = settings;
    let scale = 1.0 / factor;
    let corr = |n_rot: f64| d as f64 * (orig / (n_rot * 2.0 * PI)).ln() / (2.0 * base.ln());
    let (low, high) = (corr(fast).floor().max(0.0), corr(slow).ceil().min(d as f64 - 1.0));
    let extrap = base.powf(-(i0 as f64) / d as f64) / ff;
    let interp = scale * extrap;
    if ext == 0.0 {
        return (interp, attn);
    }
    let y = ((i0 / 2) as f64 - low) / f64::max(0.001, high - low);
    let mix = (1.0 - y.clamp(0.0, 1.0)) * ext;
    (interp * (1.0 - mix) + extrap * mix, attn * (1.0 + 0.1 * (1.0 / scale).ln()))
}

#[test]
fn yarn_is_what_ggml_computes() {
    for hp in with_and_without_factors(model(1e5, 64, 8192)) {
        for (spec, n_ctx, settings) in [
            ("yarn:factor=2", 16384, [2.0, 8192.0, 1.0, 1.0, 32.0, 1.0]),
            ("yarn", 65536, [8.0, 8192.0, 1.0, 1.0, 32.0, 1.0]),
            (
                "yarn:factor=4,original=300,beta-fast=16,beta-slow=2,ext-factor=0.5,attn-factor=1.5",
                9,
                [4.0, 300.0, 0.5, 1.5, 16.0, 2.0],
            ),
            ("yarn:factor=4,ext-factor=0,attn-factor=0.75", 9, [4.0, 8192.0, 0.0, 0.75, 32.0, 1.0]),
            ("yarn:factor=4,original=3", 9, [4.0, 3.0, 1.0, 1.0, 32.0, 1.0]),
        ] {
            let plan = plan(spec, &hp, n_ctx).expect("valid");
            let ff = |j: usize| hp.rope_scaling.freq_factors.as_ref().map_or(1.0, |f| f64::from(f[j]));
            let all: Vec<_> = (0..32).map(|j| ggml_yarn(64, 1e5, ff(j), 2 * j, settings)).collect();
            assert_close(&plan.layer(0).freqs.theta, &all.iter().map(|x| x.0).collect::<Vec<_>>());
            assert!((plan.layer(0).mscale - all[0].1).abs() < 1e-12, "{spec}");
        }
    }
}

#[test]
fn sba_test_vectors() {
    for (b, d, l, target, dim, base) in [
        (1e4, 128, 4096, 32768, 46, 180_551.9),
        (1e4, 128, 4096, 8192, 46, 26_236.0),
        (1e4, 20, 2048, 4096, 7, 26_927.4),
        (1e4, 20, 2048, 8192, 7, 72_495.8),
        (5e5, 64, 8192, 32768, 18, 5_879_895.0),
    ] {
        let hp = model(b, d, l);
        let t = theta("sba", &hp, target);
        assert_eq!(t[..dim], theta("plain", &hp, target)[..dim]);
        assert_close(&t[dim..], &powers(t[dim].powf(-(d as f64) / (2.0 * dim as f64)), d)[dim..]);
        let got = t[dim].powf(-(d as f64) / (2.0 * dim as f64));
        assert!((got / base - 1.0).abs() < 2e-6, "base* {got}, expected {base}");
        let plain = theta("plain", &hp, target)[dim];
        assert!(((target as f64 - 1.0) * t[dim] / ((l as f64 - 1.0) * plain) - 1.0).abs() < 1e-12);
    }
    let last = theta("plain", &llama2(), 32768)[63] / theta("sba", &llama2(), 32768)[63];
    assert!((last - 17.26).abs() < 0.005, "{last}");
}

#[test]
fn sba_finds_its_pair_on_the_angles_the_model_was_trained_with() {
    let mut hp = model(5e5, 64, 8192);
    hp.rope_scaling.freq_factors = Some(vec![8.0; 32]);
    let own = theta("plain", &hp, 1);
    let dim = own.iter().position(|t| 8191.0 * t < TAU).expect("slow pairs exist");
    assert!(dim < 18);
    let base = 5e5 * f64::powf(16383.0 / 8191.0, 64.0 / (2.0 * dim as f64));
    let want: Vec<f64> = powers(base, 64).iter().map(|t| t / 8.0).collect();
    let got = theta("sba:factor=2", &hp, 1);
    assert_close(&got[dim..], &want[dim..]);
    assert_eq!(got[..dim], own[..dim]);
}

#[test]
fn longrope_uses_the_tensors_of_the_file() {
    let mut hp = model(1e4, 96, 131_072);
    assert!(refusal("longrope", &hp, 9).contains("rope_factors_short.weight"));
    hp.rope_scaling.kind = Some("longrope".into());
    hp.rope_scaling.n_ctx_orig = Some(4096);
    hp.rope_scaling.long_factors = Some((0..48).map(|j| 1.0 + j as f32).collect());
    hp.rope_scaling.short_factors = Some(factors(48));
    hp.rope_scaling.freq_factors = Some(vec![7.0; 48]);
    let by = |f: &Option<Vec<f32>>| divided(powers(1e4, 96), f);
    let declared = Spec::declared(&hp).expect("valid").to_string();
    for (spec, n_ctx, want) in [
        (declared.as_str(), 4096, by(&hp.rope_scaling.short_factors)),
        (declared.as_str(), 4097, by(&hp.rope_scaling.long_factors)),
        ("longrope:factors=short", 9999, by(&hp.rope_scaling.short_factors)),
        ("longrope:factors=long", 1, by(&hp.rope_scaling.long_factors)),
    ] {
        let plan = plan(spec, &hp, n_ctx).expect("valid");
        assert_close(&plan.layer(0).freqs.theta, &want);
        let su = (1.0 + 32f64.ln() / 4096f64.ln()).sqrt();
        assert!((plan.layer(0).mscale - su).abs() < 1e-12);
    }
    hp.rope_scaling.attn_factor = Some(1.5);
    assert_eq!(plan("longrope", &hp, 9).expect("valid").layer(0).mscale, 1.5);
    hp.rope_scaling.long_factors = Some(vec![1.0; 47]);
    assert!(refusal("longrope:factors=long", &hp, 9).contains("expected 48"));
}

#[test]
fn longrope_takes_factors_that_are_given() {
    for hp in with_and_without_factors(model(1e4, 8, 4096)) {
        let plan = plan("longrope:factors=1/1.25/2.5/32", &hp, 131_072).expect("valid");
        let own = powers(1e4, 8);
        assert_close(&plan.layer(0).freqs.theta, &[own[0], own[1] / 1.25, own[2] / 2.5, own[3] / 32.0]);
        assert!((plan.layer(0).mscale - (1.0 + 32f64.ln() / 4096f64.ln()).sqrt()).abs() < 1e-12);
    }
    let hp = model(1e4, 8, 4096);
    assert_eq!(
        plan("longrope:factors=1/1/1/1,attn-factor=1.25", &hp, 8192).expect("valid").layer(0).mscale,
        1.25
    );
    let few = refusal("longrope:factors=1/2/3", &hp, 8192);
    assert!(few.contains("expected 4 factors, one for each pair, found 3"), "{few}");
    assert!(refusal("longrope:factors=1/1/1/0", &hp, 8192).contains("from 0.001"));
}

#[test]
fn harpe_has_a_table_for_each_kv_head() {
    let hp = llama2();
    let published = plan("harpe:bases=table2", &hp, 131_072).expect("valid");
    let found = plan("harpe", &hp, 131_072).expect("valid");
    assert_eq!(
        found.spec.to_string(),
        "harpe:bases=search,base-min=1000000,base-max=5000000,stride=30000,lo=1000,hi=131072,original=4096"
    );
    assert_eq!(published.layer(0).freqs, found.layer(0).freqs);
    assert_eq!((found.layer(0).freqs.n_tables, found.layer(0).freqs.theta.len()), (32, 32 * 64));
    for (table, base) in found.layer(0).freqs.tables().zip(found.bases().expect("harpe has bases")) {
        assert_close(table, &powers(*base, 128));
    }
    let small = model(1e5, 64, 8192);
    let bases =
        |spec: &str| plan(spec, &small, 16384).expect("valid").bases().expect("harpe has bases").to_vec();
    assert_eq!(bases("harpe:bases=uniform,base-min=1e6,base-max=5e6"), [1e6, 3e6, 5e6]);
    assert_eq!(bases("harpe:bases=uniform-desc,base-min=1e6,base-max=5e6"), [5e6, 3e6, 1e6]);
    let mut one = small.clone();
    one.attention[0].n_head_kv = 1;
    for way in ["search", "uniform"] {
        let plan = plan(&format!("harpe:bases={way},base-min=2e5"), &one, 16384).expect("valid");
        assert_eq!(plan.bases(), Some(&[2e5][..]));
    }
    // Kinds of layers with other numbers of heads have other bases, which the rule alone can name.
    let mut mixed = small.clone();
    mixed.attention.push(one.attention[0].clone());
    let found = plan("harpe", &mixed, 16384).expect("valid");
    assert_eq!((found.bases(), found.frozen(&mixed).as_ref()), (None, Ok(&found.spec)));
    for hp in with_and_without_factors(small) {
        let abf = theta("abf:base=7e5", &hp, 1);
        assert_eq!(theta("harpe:bases=7e5/7e5/7e5", &hp, 1), abf.repeat(3));
        assert_eq!(theta("harpe:bases=1e5/1e5/1e5", &hp, 1), theta("plain", &hp, 1).repeat(3));
        assert_eq!(theta("harpe:factor=1", &hp, 1), theta("plain", &hp, 1).repeat(3));
    }
}

#[test]
fn a_factor_of_one_changes_nothing() {
    for hp in with_and_without_factors(model(1e5, 64, 8192)) {
        let own = theta("plain", &hp, 8192);
        for m in METHODS.iter().filter(|m| m.params.iter().any(|p| p.key == "factor")) {
            if m.name == "longrope" {
                continue;
            }
            let plan = plan(&format!("{}:factor=1", m.name), &hp, 4096).expect("valid");
            plan.layer(0).freqs.tables().for_each(|t| assert_close(t, &own));
            assert_eq!(plan.layer(0).mscale, 1.0, "{}", m.name);
        }
    }
}

#[test]
fn inspection_says_what_became_of_each_pair() {
    let hp = llama2();
    let sba = view("sba", &hp, 32768);
    assert_eq!((sba.kinds[0].tables.len(), sba.n_ctx_orig, sba.n_ctx), (1, 4096, 32768));
    for p in &sba.kinds[0].tables[0].pairs {
        assert_eq!(p.kind, if p.index < 46 { PairKind::Extrapolated } else { PairKind::Interpolated });
        assert!(!p.unseen, "pair {}", p.index);
        assert!((p.wavelength.expect("rotated") * p.theta - TAU).abs() < 1e-9);
        assert!((p.turns_target - 32768.0 * p.theta / TAU).abs() < 1e-9 * p.turns_target);
    }
    let plain = view("plain", &hp, 8192).kinds.remove(0).tables.remove(0).pairs;
    assert!(plain.iter().all(|p| p.kind == PairKind::Extrapolated && p.unseen == (p.index >= 46)));
    let short = view("plain", &hp, 4096);
    assert!(short.kinds[0].tables[0].pairs.iter().all(|p| p.kind == PairKind::Unchanged && !p.unseen));
    let harpe = view("harpe:bases=table2", &hp, 4096);
    assert_eq!((harpe.kinds[0].tables[31].head, harpe.kinds[0].tables[31].base), (Some(31), Some(4.54e6)));
    let json = serde_json::to_value(&harpe.kinds).expect("serializes");
    assert_eq!(harpe.rope.to_string(), "harpe:bases=table2,original=4096");
    assert_eq!(json[0]["tables"][0]["pairs"][0]["kind"], "unchanged");
    assert!(plan("plain", &hp, 1).expect("valid").inspect(&model(1e4, 64, 10)).is_err());
}

#[test]
fn declared_scaling_is_the_default_spec() {
    let with =
        |s: RopeScaling| Spec::declared(&Hparams { rope_scaling: s, ..llama2() }).map(|s| s.to_string());
    let kind = |k: &str, factor| keys(k, factor, None);
    assert_eq!(with(RopeScaling::default()), Ok("plain".into()));
    assert_eq!(with(kind("none", Some(4.0))), Ok("plain".into()));
    assert_eq!(with(kind("linear", Some(4.0))), Ok("pi:factor=4".into()));
    assert_eq!(with(kind("linear", Some(0.0))), Ok("plain".into()));
    assert_eq!(with(RopeScaling { factor: Some(2.0), ..RopeScaling::default() }), Ok("pi:factor=2".into()));
    let text = Some("sba:original=4096,factor=2".into());
    assert_eq!(
        with(RopeScaling { spec: text, ..kind("yarn", Some(4.0)) }),
        Ok("sba:factor=2,original=4096".into())
    );
    for bad in [
        kind("su", None),
        kind("linear", Some(f64::NAN)),
        kind("linear", Some(-2.0)),
        RopeScaling { attn_factor: Some(1.5), ..kind("linear", Some(2.0)) },
        kind("yarn", Some(0.5)),
        kind("longrope", Some(4.0)),
    ] {
        let e = with(bad).expect_err("not usable").to_string();
        assert!(e.contains("rope.scaling"), "{e}");
    }
    let broken = RopeScaling { spec: Some("nonsense".into()), ..RopeScaling::default() };
    assert!(with(broken).expect_err("not a spec").to_string().starts_with("ropewalk.rope.spec: "));
}

/// Both would take some ten seconds of a core for each plan.
#[test]
fn a_file_may_not_ask_for_a_long_search() {
    // One with many cosines, one with few pairs and many positions.
    for (n_rot, more) in [(64, "stride=500,lo=10,hi=120000"), (2, "stride=250,lo=10,hi=300000")] {
        let hp = model(1e4, n_rot, 4096);
        let long: Spec = format!("harpe:base-min=1e4,base-max=1e6,{more}").parse().expect("valid");
        let scaling = RopeScaling { spec: Some(long.to_string()), ..RopeScaling::default() };
        let declaring = Hparams { rope_scaling: scaling, ..hp.clone() };
        for found in [Plan::of_file(&long, &hp, 4096), plan("declared", &declaring, 4096)] {
            let e = found.expect_err("too long").to_string();
            assert!(
                e.contains("harpe: search: expected a cost of at most 6000000000 for a spec out of a file"),
                "{e}"
            );
        }
        assert!(Plan::of_file(&"harpe:hi=2500".parse().expect("valid"), &hp, 4096).is_ok());
    }
}

#[test]
fn errors_name_what_is_known() {
    let hp = model(1e5, 64, 8192);
    for (spec, words) in [
        (
            "yarm",
            &[
                "`yarm`",
                "did you mean `yarn`",
                "plain, pi, ntk, dynamic-ntk, yarn, abf, longrope, sba, harpe, clex",
            ][..],
        ),
        ("", &["unknown rope method ``"]),
        ("yarn:factr=2", &["`factr`", "did you mean `factor`", "beta-fast", "original"]),
        ("yarn:factor", &["key=value"]),
        ("yarn:", &["key=value"]),
        ("yarn:factor=2,factor=3", &["twice"]),
        ("yarn+pi", &["yarn", "pi", "frequency"]),
        ("yarn:factor=0.5", &["yarn", "factor", "from 1 to 1000000", "`0.5`"]),
        ("pi:factor=nan", &["number from 1", "`nan`"]),
        ("pi:factor=inf", &["`inf`"]),
        ("pi:factor=1e300", &["`1e300`"]),
        ("pi:original=0", &["whole number from 1"]),
        ("pi:original=2.5", &["`2.5`"]),
        ("longrope:factors=both", &["auto, long, short"]),
        ("harpe:bases=1e5/x/2", &["search", "`1e5/x/2`"]),
        ("harpe:bases=1e5/2e5", &["3 bases, one per KV head", "found 2"]),
        ("harpe:bases=table2", &["32 bases", "3 KV heads", "uniform"]),
        ("harpe:bases=uniform,stride=5", &["stride", "no effect"]),
        ("harpe:base-min=1e6,base-max=1e5", &["base-max", "1000000"]),
        ("harpe:stride=1e-6", &["stride", "4096"]),
        ("harpe:stride=1e9", &["stride", "at least 3"]),
        ("harpe:lo=500,hi=400", &["lo", "400"]),
        ("harpe:hi=2000000000", &["hi - lo", "4194304"]),
        ("harpe:hi=4000000,stride=250", &["candidates x positions x pairs"]),
        ("abf:base=1e6,factor=2", &["factor", "no effect"]),
        ("abf:base=1e31", &["1e30"]),
        ("dynamic-ntk:t=5,factor=2", &["factor", "no effect"]),
        ("dynamic-ntk:t=5,trained=32768", &["trained", "no effect"]),
        ("clex:factor=64", &["factor", "max-factor 32", "64"]),
        ("clex:max-factor=0", &["max-factor", "from 1 to 1024", "`0`"]),
        ("clex:max-factor=1024,step=0.001", &["step", "max-factor 1024"]),
        ("clex:max-factor=1000,param-factor=64,step=0.03", &["step", "cost of at most", "found"]),
        ("clex:log-scale=true,temperature=2", &["temperature=2", "log-scale"]),
        ("yarn:beta-fast=1,beta-slow=2", &["beta-fast", "beta-slow"]),
        ("sba:original=1", &["sba", "1 tokens"]),
        ("string:shifted-offset=100,local-value=100", &["local-value", "below shifted-offset 100"]),
        ("string:drop=0.5", &["unknown parameter `drop`"]),
        ("rerope:leak=1000000,window=3000", &["leak", "3000 x 999999 + 16384"]),
        ("yarn:temperature=hot", &["logn, llama4, or a number from 0.01 to 100", "`hot`"]),
        ("yarn:temperature-scale=0.2", &["temperature-scale", "no effect"]),
        ("yarn:temperature=logn+dca:temperature=2", &["temperature is given twice"]),
        ("yarn:temperature=logn+self-extend:log-scale=true", &["log-scale", "temperature=logn"]),
        ("self-extend:log-scale=true+yarn:temperature=2", &["log-scale", "temperature=2"]),
        ("yarn:temperature=2+self-extend:log-scale=true", &["log-scale", "temperature"]),
        ("yarn:temperature=llama4+self-extend:log-scale=true", &["log-scale", "temperature=llama4"]),
        ("plain:temperature=logn,original=1", &["temperature=logn", "above 1"]),
        ("plain:drop=1.5", &["drop", "from 0 to 1"]),
        // Within the trained window too, where nothing of it is used.
        ("abf:base=1e6,factor=2,keep-short=true,original=20000", &["factor", "no effect"]),
    ] {
        let e = refusal(spec, &hp, 16384);
        assert!(words.iter().all(|w| e.contains(w)) && e.lines().count() == 1, "{spec}: {e}");
    }
    let with = |change: fn(&mut LayerAttention, &mut LayerRotation)| {
        let mut hp = llama2();
        let mut rotation = hp.attention[0].rotation.expect("rotated");
        change(&mut hp.attention[0], &mut rotation);
        hp.attention[0].rotation = Some(rotation);
        hp
    };
    let wrong = [
        with(|_, r| r.freq_base = f64::NAN),
        with(|_, r| r.freq_base = -1.0),
        with(|_, r| r.n_rot = 0),
        with(|_, r| r.n_rot = 3),
        with(|_, r| r.n_rot = usize::MAX - 1),
        with(|a, _| a.n_head_kv = 0),
        with(|a, _| a.n_head_kv = usize::MAX),
        Hparams { n_ctx_train: 0, ..llama2() },
    ];
    for hp in wrong {
        for m in METHODS {
            assert!(plan(m.name, &hp, 16384).is_err(), "{}", m.name);
        }
    }
    for (n_ctx, ff) in [(0, 1.0), (usize::MAX, 1.0), (1, f32::NAN), (1, 0.0)] {
        let mut hp = llama2();
        hp.rope_scaling.freq_factors = Some(vec![ff; 64]);
        assert!(plan("plain", &hp, n_ctx).is_err());
    }
}
