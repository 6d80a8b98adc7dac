//! Files that declare a scaling, by each of their standard keys, under every method: what of it is kept, restored or
//! replaced, and how they are described.

use ropewalk::hparams::{Hparams, LayerAttention, LayerHparams, RopeScaling};
use ropewalk::rope::{Axis, Method, Plan, Spec, METHODS};

use super::{assert_close, divided, factors, ggml_yarn, keys, model, plan, powers, refusal, theta};

/// Tokens that the scaling of these files was trained up to, and those that the model was trained on without it.
const TRAINED: usize = 2048;
const ORIGINAL: usize = 256;
/// Contexts within the original window, up to its end, between the two, at the trained one and beyond.
const CONTEXTS: [usize; 5] = [64, ORIGINAL, 1000, TRAINED, 2 * TRAINED];

fn short() -> Vec<f32> {
    (0..32).map(|j| 1.0 + j as f32 / 100.0).collect()
}

/// The model without a declaration. It has the tensors of `longrope`, so that every method runs.
fn bare() -> Hparams {
    let mut hp = model(1e4, 64, TRAINED);
    (hp.rope_scaling.long_factors, hp.rope_scaling.short_factors) = (Some(factors(32)), Some(short()));
    hp
}

fn declaring(scaling: RopeScaling) -> Hparams {
    let RopeScaling { long_factors, short_factors, .. } = bare().rope_scaling;
    Hparams { rope_scaling: RopeScaling { long_factors, short_factors, ..scaling }, ..bare() }
}

type Computes = fn(usize) -> (Vec<f64>, f64);

/// A file, how its declaration begins as a spec (`None`: nothing is declared), and what it computes in a context: the
/// frequencies and the magnitude, by independent formulas.
struct Declared {
    hp: Hparams,
    spec: Option<&'static str>,
    computes: Computes,
}

fn files() -> [Declared; 5] {
    let linear = |_: usize| (powers(1e4, 64).iter().map(|t| t / 8.0).collect(), 1.0);
    let yarn = |_: usize| {
        let all = (0..32).map(|j| ggml_yarn(64, 1e4, 1.0, 2 * j, [8.0, 256.0, 1.0, 1.0, 32.0, 1.0]));
        (all.map(|x| x.0).collect(), 0.1 * 8f64.ln() + 1.0)
    };
    let longrope = |n: usize| {
        let of = Some(if n > ORIGINAL { factors(32) } else { short() });
        (divided(powers(1e4, 64), &of), (1.0 + 8f64.ln() / 256f64.ln()).sqrt())
    };
    let llama3 = |_: usize| (divided(powers(1e4, 64), &Some(factors(32))), 1.0);
    let all: [(RopeScaling, Option<&'static str>, Computes); 5] = [
        // As Gemma 3: the file names no original window.
        (keys("linear", Some(8.0), None), Some("pi:factor=8"), linear),
        (keys("linear", Some(8.0), Some(ORIGINAL)), Some("pi:factor=8"), linear),
        // As gpt-oss, Ministral 3 and OLMo 3.
        (keys("yarn", Some(8.0), Some(ORIGINAL)), Some("yarn:factor=8"), yarn),
        // As Phi-3-128k.
        (keys("longrope", None, Some(ORIGINAL)), Some("longrope"), longrope),
        // As Llama 3.1: no scaling is declared, the factors belong to the frequencies.
        (RopeScaling { freq_factors: Some(factors(32)), ..RopeScaling::default() }, None, llama3),
    ];
    all.map(|(scaling, spec, computes)| Declared { hp: declaring(scaling), spec, computes })
}

fn of_axis(axis: Axis) -> impl Iterator<Item = &'static &'static Method> {
    METHODS.iter().filter(move |m| m.axis == axis)
}

fn says(plan: &Plan, word: &str) -> bool {
    plan.notes.iter().any(|note| note.contains(word))
}

#[track_caller]
fn assert_turns_as_declared(found: &Plan, file: &Declared, what: &str) {
    let (theta, mscale) = (file.computes)(found.n_ctx);
    assert_close(&found.layer(0).freqs.theta, &theta);
    assert!((found.layer(0).mscale - mscale).abs() < 1e-12, "{what}: magnitude {}", found.layer(0).mscale);
}

/// What a plan comes to is what its own spec says, here and at every other context.
#[track_caller]
fn assert_stands_for_itself(found: &Plan, hp: &Hparams) {
    let again = Plan::new(&found.spec, hp, found.n_ctx).unwrap_or_else(|e| panic!("{}: {e}", found.spec));
    assert!(again.same_positions(found), "{} and {}", again.spec, found.spec);
    assert_eq!(again.spec, found.spec);
    assert_eq!(found.spec.to_string().parse::<Spec>().as_ref(), Ok(&found.spec));
}

#[test]
fn the_declaration_itself_has_a_name() {
    for file in files() {
        for n_ctx in CONTEXTS {
            let found = plan("declared", &file.hp, n_ctx).expect("what the file declares");
            assert_turns_as_declared(&found, &file, "declared");
            let by_spec =
                Plan::new(&Spec::declared(&file.hp).expect("valid"), &file.hp, n_ctx).expect("a plan");
            assert_eq!(found, by_spec);
            assert!(found.spec.to_string().starts_with(file.spec.unwrap_or("plain")), "{}", found.spec);
            assert!(!says(&found, "declares"), "{:?}", found.notes);
            assert_stands_for_itself(&found, &file.hp);
        }
    }
    assert_eq!("declared".parse::<Spec>().map(|s| s.to_string()), Ok("declared".into()));
    for joined in ["declared+self-extend", "dca+declared", "declared+yarn:factor=2"] {
        let e = joined.parse::<Spec>().expect_err(joined).to_string();
        assert!(e.contains("declared stands alone"), "{e}");
    }
    let own = RopeScaling { spec: Some("declared".into()), ..RopeScaling::default() };
    let e = refusal("declared", &declaring(own), 64);
    assert!(e.contains("ropewalk.rope.spec") && e.contains("declared"), "{e}");
}

#[test]
fn reach_methods_keep_the_declared_frequencies() {
    for file in files() {
        for (method, n_ctx) in of_axis(Axis::Reach).flat_map(|m| CONTEXTS.map(|n| (m.name, n))) {
            let found = plan(method, &file.hp, n_ctx).unwrap_or_else(|e| panic!("{method}: {e}"));
            assert_turns_as_declared(&found, &file, method);
            // The reach is that of a model trained up to where the declared scaling goes.
            let alone = plan(&format!("{method}:original={TRAINED}"), &bare(), n_ctx).expect("a plan");
            assert_eq!(found.layer(0).branches, alone.layer(0).branches, "{method} at {n_ctx}");
            assert_eq!(found.evict, alone.evict);
            assert_stands_for_itself(&found, &file.hp);
            let Some(own) = file.spec else {
                assert!(found.spec.parts().len() == 1 && !says(&found, "declares"), "{:?}", found.notes);
                continue;
            };
            let note =
                format!("The file declares {}: {method} keeps it", Spec::declared(&file.hp).expect("valid"));
            assert!(says(&found, &note) && !says(&found, "replace"), "{:?}", found.notes);
            let spec = found.spec.to_string();
            assert!(spec.starts_with(own) && spec.contains(&format!("+{method}")), "{spec}");
            // Typed out it is the same.
            let typed = format!("{}+{method}", Spec::declared(&file.hp).expect("valid"));
            let typed = plan(&typed, &file.hp, n_ctx).expect("a plan");
            assert_eq!(typed.spec, found.spec);
            assert!(typed.same_positions(&found) && !says(&typed, "replaces"), "{:?}", typed.notes);
            // Without the scaling: asked for, and told.
            let without = plan(&format!("plain+{method}"), &file.hp, n_ctx).expect("a plan");
            assert_close(&without.layer(0).freqs.theta, &powers(1e4, 64));
            assert!(says(&without, "replaces it"), "{:?}", without.notes);
        }
    }
}

#[test]
fn a_kept_longrope_goes_on_following_the_context() {
    let [.., file, _] = files();
    let made = plan("dca", &file.hp, TRAINED).expect("a plan");
    assert!(made.spec.to_string().starts_with("longrope:factors=auto,"), "{}", made.spec);
    let opened = Plan::new(&made.spec, &file.hp, ORIGINAL).expect("a plan");
    assert_turns_as_declared(&opened, &file, "dca");
}

#[test]
fn composition_that_is_typed_stays_what_it_says() {
    let [file, ..] = files();
    for (method, n_ctx) in of_axis(Axis::Reach).flat_map(|m| CONTEXTS.map(|n| (m.name, n))) {
        for spec in [format!("pi:factor=4+{method}"), format!("{method}+yarn:factor=16,original=256")] {
            let found = plan(&spec, &file.hp, n_ctx).expect("a plan");
            assert!(found.same_positions(&plan(&spec, &bare(), n_ctx).expect("a plan")), "{spec}");
            assert!(says(&found, "The file declares pi:factor=8;") && says(&found, "replaces it"));
        }
    }
}

/// The factor that a frequency method takes by default.
fn default_factor(spec: &str, hp: &Hparams, n_ctx: usize) -> f64 {
    let bases = theta(spec, hp, n_ctx);
    (powers(1e4, 64)[31] / bases[31] * 1e6).round() / 1e6
}

#[test]
fn default_factors_are_not_less_than_the_declared_one() {
    let [gemma, linear, yarn, longrope, llama3] = files();
    for (hp, n_ctx, factor) in [
        (&gemma.hp, 64, 8.0),
        (&gemma.hp, 1000, 8.0),
        (&gemma.hp, TRAINED, 8.0),
        (&gemma.hp, 2 * TRAINED, 16.0),
        (&linear.hp, ORIGINAL, 8.0),
        (&linear.hp, 2 * TRAINED, 16.0),
        (&yarn.hp, 64, 8.0),
        (&yarn.hp, 1000, 8.0),
        (&yarn.hp, 3 * TRAINED, 24.0),
        // Its short factors are in use there, as a factor of 1.
        (&longrope.hp, ORIGINAL, 1.0),
        (&longrope.hp, 1000, 8.0),
        (&longrope.hp, 4 * TRAINED, 32.0),
        (&bare(), 1000, 1.0),
        (&bare(), 2 * TRAINED, 2.0),
    ] {
        assert_eq!(default_factor("pi", hp, n_ctx), factor, "pi at {n_ctx}");
        for method in ["pi", "ntk", "yarn", "sba"] {
            let found = plan(method, hp, n_ctx).expect("a plan");
            let given = found.spec.part(method).expect("it").get("factor").and_then(|v| v.as_f64());
            assert_eq!(given, Some(factor), "{method} at {n_ctx}");
        }
    }
    assert_eq!(
        plan("pi", &llama3.hp, 4 * TRAINED).expect("a plan").spec.to_string(),
        "pi:factor=4,original=2048"
    );
    // Gemma 3 4B at twice what it was trained for.
    let mut gemma = model(1e6, 256, 131_072);
    gemma.rope_scaling = keys("linear", Some(8.0), None);
    assert_eq!(plan("plain", &gemma, 131_072).expect("a plan").n_ctx_orig(&gemma), 16_384);
    let found = plan("pi", &gemma, 262_144).expect("a plan");
    assert_eq!(found.spec.to_string(), "pi:factor=16,original=16384");
    assert!(
        says(&found, "factor 16 = context 262144 over the original context of 16384"),
        "{:?}",
        found.notes
    );
}

/// All frequency methods are, on a file that declares a scaling, what they are on the bare model with the window and the
/// factor written out.
#[test]
fn frequency_methods_replace_what_is_declared() {
    for file in files().iter().filter(|file| file.spec.is_some()) {
        for (method, n_ctx) in of_axis(Axis::Frequency).flat_map(|m| CONTEXTS.map(|n| (*m, n))) {
            let name = method.name;
            let found = plan(name, &file.hp, n_ctx).unwrap_or_else(|e| panic!("{name}: {e}"));
            let of_pairs = file.spec == Some("longrope");
            let least = if of_pairs && n_ctx <= ORIGINAL { 1.0 } else { 8.0 };
            let factor = (n_ctx as f64 / ORIGINAL as f64).max(least);
            let own = ["plain", "longrope", "clex"].contains(&name);
            let spelt = if own { String::new() } else { format!("factor={factor},") };
            let bare = plan(&format!("{name}:{spelt}original={ORIGINAL}"), &bare(), n_ctx).expect("a plan");
            assert!(found.same_positions(&bare), "{name} at {n_ctx}: {} and {}", found.spec, bare.spec);
            assert_stands_for_itself(&found, &file.hp);
            let declared = plan("declared", &file.hp, n_ctx).expect("a plan");
            let said = format!("The file declares {};", Spec::declared(&file.hp).expect("valid"));
            let told = says(&found, &said) && says(&found, "replaces it");
            assert_eq!(told, !found.same_positions(&declared), "{name} at {n_ctx}: {:?}", found.notes);
            if name == "plain" {
                assert!(says(&found, "`declared` is the model as it ships"), "{:?}", found.notes);
            }
        }
    }
}

#[test]
fn a_factor_that_is_given_is_taken_as_typed() {
    for file in files().iter().filter(|file| file.spec.is_some()) {
        let found = plan("pi:factor=2", &file.hp, TRAINED).expect("a plan");
        assert_close(
            &found.layer(0).freqs.theta,
            &powers(1e4, 64).iter().map(|t| t / 2.0).collect::<Vec<_>>(),
        );
        assert!(says(&found, "factor 2 is less than the 8 that the file declares"), "{:?}", found.notes);
        assert!(says(&found, "replaces it") && says(&found, "longer than factor x original = 512"));
        let clex = plan("clex:factor=2", &file.hp, TRAINED).expect("a plan");
        assert!(says(&clex, "t = 2 is less than the factor 8 that the file declares"), "{:?}", clex.notes);
        let enough = plan("pi:factor=16", &file.hp, TRAINED).expect("a plan");
        assert!(!says(&enough, "less than") && says(&enough, "replaces it"), "{:?}", enough.notes);
    }
}

#[test]
fn keep_short_gives_the_model_as_the_file_declares_it() {
    for file in files() {
        for (method, n_ctx) in METHODS.iter().flat_map(|m| CONTEXTS.map(|n| (m, n))) {
            let spec = format!("{}:keep-short=true", method.name);
            let found = plan(&spec, &file.hp, n_ctx).unwrap_or_else(|e| panic!("{spec}: {e}"));
            assert_stands_for_itself(&found, &file.hp);
            // What a reach method counts from is what the declared scaling goes up to; a linear scaling that names no
            // window is for the whole context.
            let named = file.hp.rope_scaling.n_ctx_orig.is_some() && method.axis == Axis::Frequency;
            let window = if named { ORIGINAL } else { TRAINED };
            if n_ctx <= window {
                assert_turns_as_declared(&found, &file, &spec);
                assert!(found.is_plain_reach() && !found.evict, "{spec}");
                assert!(!says(&found, "replace"), "{spec} at {n_ctx}: {:?}", found.notes);
                let how = if file.spec.is_some() && method.axis == Axis::Frequency {
                    format!("leaves the model as the file declares it ({}", file.spec.unwrap_or_default())
                } else {
                    "leaves the model as it is".into()
                };
                assert!(
                    says(&found, &how) && says(&found, &format!("original context of {window}")),
                    "{:?}",
                    found.notes
                );
            } else {
                let always = plan(method.name, &file.hp, n_ctx).expect("a plan");
                assert!(found.same_positions(&always), "{spec} at {n_ctx}");
            }
        }
    }
    // With another method each part stands for itself.
    let [_, _, yarn, ..] = files();
    for spec in [
        "ntk:factor=64,keep-short=true+dca:chunk=48,local=8",
        "dca:chunk=48,local=8+ntk:factor=64,keep-short=true",
    ] {
        let found = plan(spec, &yarn.hp, ORIGINAL).expect("a plan");
        assert_turns_as_declared(&found, &yarn, spec);
        assert_eq!(found.layer(0).branches.len(), 3);
    }
}

/// Six layers, every third sees everything, the others a window.
fn mixed(windowed: LayerAttention, scaling: RopeScaling) -> Hparams {
    let layers = (0..6).map(|il| LayerHparams { kind: Some(usize::from(il % 3 == 2)), n_ff: 64 }).collect();
    Hparams {
        n_layer: 6,
        attention: vec![windowed, bare().attention.remove(0)],
        layers,
        ..declaring(scaling)
    }
}

fn windowed(window: usize, scaled: bool) -> LayerAttention {
    let mut layer = LayerAttention { window: Some(window), ..bare().attention.remove(0) };
    layer.rotation.as_mut().expect("rotated").scaled = scaled;
    layer
}

#[test]
fn layers_with_a_window_keep_what_is_theirs() {
    let turned = |plan: &Plan, il: usize| plan.layer(il).freqs.theta.clone();
    let over = |s: f64| powers(1e4, 64).iter().map(|t| t / s).collect::<Vec<_>>();
    for (window, original) in [(32, None), (512, None), (32, Some(ORIGINAL)), (512, Some(ORIGINAL))] {
        // As Gemma 3: the declared scaling is for the layers that see everything alone.
        let hp = mixed(windowed(window, false), keys("linear", Some(8.0), original));
        let specs =
            of_axis(Axis::Reach).map(|m| m.name).chain(["declared", "pi:keep-short=true", "pi:factor=8"]);
        for spec in specs {
            // A method acts on layers whose window is beyond what it counts as trained.
            let seen = original.is_some() && window > ORIGINAL && spec == "pi:keep-short=true";
            let found = plan(spec, &hp, TRAINED).unwrap_or_else(|e| panic!("{spec}: {e}"));
            assert_close(&turned(&found, 2), &over(8.0));
            if !seen {
                assert_close(&turned(&found, 0), &over(1.0));
            }
            assert!(found.layer(0).is_own_reach(&hp.attention[0]), "{spec}");
        }
    }
    // As gpt-oss: it is for all layers, whatever acts on those without a window.
    let hp = mixed(windowed(32, true), keys("linear", Some(8.0), Some(ORIGINAL)));
    for spec in METHODS.iter().map(|m| m.name).chain(["declared", "pi:keep-short=true"]) {
        let found = plan(spec, &hp, TRAINED).unwrap_or_else(|e| panic!("{spec}: {e}"));
        assert_close(&turned(&found, 0), &over(8.0));
        if spec == "plain" {
            assert!(says(&found, "Unchanged: layers 0"), "{:?}", found.notes);
        } else {
            assert!(found.layer(2).freqs.theta[31] < over(2.0)[31], "{spec}");
        }
    }
}

/// A file that was converted declares a spec on top of the keys that its model was trained under.
#[test]
fn a_converted_file_declares_its_spec_and_keeps_its_keys() {
    let converted = |spec: &str| {
        let scaling = keys("linear", Some(8.0), Some(ORIGINAL));
        declaring(RopeScaling { spec: Some(spec.into()), ..scaling })
    };
    let over = |s: f64| powers(1e4, 64).iter().map(|t| t / s).collect::<Vec<_>>();
    let hp = converted("pi:factor=32,original=256+self-extend:window=64,group=4,original=2048");
    let found = plan("dca", &hp, 4096).expect("a plan");
    assert_close(&found.layer(0).freqs.theta, &over(32.0));
    assert!(found.spec.to_string().starts_with("pi:factor=32,original=256+dca:"), "{}", found.spec);
    assert!(says(&found, "keeps pi:factor=32,original=256 and replaces the rest"), "{:?}", found.notes);
    let found = plan("self-extend:window=64,group=4,original=2048", &hp, 4096).expect("a plan");
    assert!(found.same_positions(&plan("declared", &hp, 4096).expect("a plan")));
    assert!(says(&found, "self-extend keeps it"), "{:?}", found.notes);
    // A temperature takes the place of log-scale, which multiplies queries as well.
    let logs = converted("clex:log-scale=true,factor=2");
    let found = plan("dca:temperature=logn", &logs, 4096).expect("a plan");
    assert!(found.layer(0).q_log_base.is_some() && !found.spec.to_string().contains("log-scale=true"));
    // log-scale would multiply on top of a temperature that is kept.
    for temperature in ["2", "logn"] {
        let hot = converted(&format!("yarn:factor=4,temperature={temperature}"));
        let e = plan("self-extend:log-scale=true", &hot, 4096).expect_err("two factors").to_string();
        assert!(e.contains("log-scale") && e.contains("omit one of the two"), "{e}");
    }
    // Frequencies alone take the place of the whole declaration, and keep-short gives the whole back.
    let found = plan("ntk", &hp, 4096).expect("a plan");
    assert!(found.is_plain_reach() && says(&found, "replaces it"), "{:?}", found.notes);
    assert_eq!(found.spec.to_string(), "ntk:factor=32,original=256");
    let found = plan("ntk:keep-short=true", &hp, ORIGINAL).expect("a plan");
    assert!(found.same_positions(&plan("declared", &hp, ORIGINAL).expect("a plan")));
    assert_eq!(found.layer(0).branches.len(), 2);
    // What leaves short contexts alone leaves them as the model was trained.
    let hp = converted("yarn:factor=32,original=256,keep-short=true");
    for spec in ["declared", "yarn:factor=32,original=256,keep-short=true", "ntk:keep-short=true"] {
        assert_close(&theta(spec, &hp, ORIGINAL), &over(8.0));
    }
    assert_close(&theta("string", &hp, ORIGINAL), &over(8.0));
    assert!(plan("string", &hp, 4096).expect("a plan").layer(0).mscale > 1.0);
    // A file that was made to declare no scaling has none to keep; its own spec says so.
    let found = plan("rerope", &converted("plain"), 4096).expect("a plan");
    assert_close(&found.layer(0).freqs.theta, &over(1.0));
    assert!(found.spec.to_string().starts_with("plain+rerope:"), "{}", found.spec);
    assert_stands_for_itself(&found, &converted("plain"));
    // One that declares a reach alone: the model's frequencies.
    let found = plan("declared", &converted("rerope:window=64,original=2048"), 4096).expect("a plan");
    assert_close(&found.layer(0).freqs.theta, &over(8.0));
}

#[test]
fn one_temperature_of_two_is_that_which_was_asked_for() {
    let spec = Some("yarn:factor=8,original=256,temperature=llama4,temperature-scale=0.3".into());
    let hp = declaring(RopeScaling { spec, ..RopeScaling::default() });
    let found = plan("rerope:temperature=1.5", &hp, TRAINED).expect("a plan");
    assert_eq!(found.layer(0).q_scale(1000), 1.5);
    assert!(found.layer(0).mscale > 1.0 && !found.spec.to_string().contains("llama4"), "{}", found.spec);
    let kept = plan("rerope", &hp, TRAINED).expect("a plan");
    assert!(kept.layer(0).q_scale(1000) > 1.0 && kept.spec.to_string().contains("llama4"), "{}", kept.spec);
    assert_stands_for_itself(&kept, &hp);
}

#[test]
fn a_declaration_that_cannot_be_used_is_not_kept_in_silence() {
    let hp = declaring(RopeScaling { attn_factor: Some(1.5), ..keys("linear", Some(8.0), None) });
    for method in of_axis(Axis::Reach) {
        let e = refusal(method.name, &hp, 4096);
        assert!(e.contains("attn_factor") && e.contains(&format!("plain+{}", method.name)), "{e}");
        assert!(plan(&format!("plain+{}", method.name), &hp, 4096).is_ok());
    }
    assert!(plan("declared", &hp, 4096).is_err());
    let found = plan("yarn:factor=4", &hp, 4096).expect("a plan");
    assert!(says(&found, "replaces what the file declares"), "{:?}", found.notes);
}

/// A small file can name many kinds of layers.
#[test]
fn kinds_of_layers_hold_so_many_frequencies_together() {
    let mut hp = bare();
    let layer = hp.attention[0].clone();
    hp.attention = vec![layer; 1 << 17];
    let refused = refusal("plain", &hp, TRAINED);
    assert!(refused.contains("of all kinds of layers: expected at most 4194304, found "), "{refused}");
}
