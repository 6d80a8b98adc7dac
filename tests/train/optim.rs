//! The optimizer against what PyTorch and transformers give (`tests/reference/optimiser.py`), and on a trainer against a plain
//! loop in f64.

use ropewalk::data::Separator;
use ropewalk::ids::ParamId;
use ropewalk::rope::Spec;
use ropewalk::train::optim::{
    clip_factor, global_norm, AdamW, Decay, Moments, OptimParams, Optimizer, Schedule,
};
use ropewalk::train::recipe::{Recipe, RECIPES};
use ropewalk::train::{Sequence, Settings, TrainAttention, Trainable, Trainer};

use crate::common::rounding::rounding;
use crate::common::some_tokens;
use crate::gradients::{lora, models, settings, N_VOCAB};

#[derive(serde::Deserialize)]
struct Recording {
    /// By step and tensor.
    gradients: Vec<Vec<Vec<f32>>>,
    adamw: Vec<Rule>,
    schedules: Vec<Rates>,
}

#[derive(serde::Deserialize)]
struct Rule {
    lr: f64,
    beta1: f64,
    beta2: f64,
    eps: f64,
    weight_decay: f64,
    clip: f64,
    start: Vec<Vec<f32>>,
    norms: Vec<f64>,
    values: Vec<Vec<Vec<f64>>>,
    m: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
}

#[derive(serde::Deserialize)]
struct Rates {
    decay: Decay,
    lr: f64,
    lr_min: f64,
    warmup: u64,
    steps: u64,
    rates: Vec<f64>,
}

fn recording() -> Recording {
    serde_json::from_str(include_str!("../reference/optimiser.json")).expect("the recording")
}

#[track_caller]
fn close(found: &[f32], want: &[f64], what: &str) {
    assert_eq!(found.len(), want.len());
    for (i, (f, w)) in found.iter().zip(want).enumerate() {
        // Values and moments are rounded to f32 in each step.
        assert!((f64::from(*f) - w).abs() <= 2e-6 * w.abs() + 1e-20, "{what}[{i}]: {f}, recorded {w}");
    }
}

#[test]
fn adamw_and_clipping_are_pytorchs() {
    let all = recording();
    assert_eq!(all.adamw.len(), 3);
    for (case, rule) in all.adamw.iter().enumerate() {
        let Rule { lr, beta1, beta2, eps, weight_decay, .. } = *rule;
        let adamw = AdamW::default().beta1(beta1).beta2(beta2).eps(eps).weight_decay(weight_decay);
        let mut values = rule.start.clone();
        let mut moments: Vec<Moments> = values.iter().map(|v| Moments::new(v.len())).collect();
        let mut n_clipped = 0;
        for (step, grads) in all.gradients.iter().enumerate() {
            let norm = global_norm(grads);
            assert!((norm / rule.norms[step] - 1.0).abs() < 1e-12, "{norm}");
            let factor = clip_factor(norm, rule.clip);
            n_clipped += usize::from(factor < 1.0);
            for (t, value) in values.iter_mut().enumerate() {
                adamw.step(step as u64 + 1, lr, factor, value, &grads[t], &mut moments[t]);
                close(value, &rule.values[step][t], &format!("case {case}, step {step}, tensor {t}"));
            }
        }
        assert_eq!(n_clipped > 0, rule.clip > 0.0, "clipping must bite where there is any");
        for (t, state) in moments.iter().enumerate() {
            close(&state.m, &rule.m[t], &format!("case {case}: m of {t}"));
            close(&state.v, &rule.v[t], &format!("case {case}: v of {t}"));
        }
    }
    assert_eq!(clip_factor(7.0, 0.0), 1.0);
    assert_eq!(clip_factor(0.5, 1.0), 1.0);
    assert_eq!(clip_factor(0.0, 1.0), 1.0);
}

#[test]
fn schedules_are_those_of_transformers() {
    let mut kinds = Vec::new();
    for Rates { decay, lr, lr_min, warmup, steps, rates } in recording().schedules {
        let schedule = Schedule::constant(lr, steps).lr_min(lr_min).warmup(warmup).decay(decay);
        schedule.check().unwrap();
        assert_eq!(rates.len() as u64, steps + 1);
        for (step, want) in rates.iter().enumerate() {
            let found = schedule.lr_at(step as u64);
            assert!((found - want).abs() < 1e-15, "{schedule:?}, step {step}: {found}, recorded {want}");
        }
        // Beyond the end it stays.
        assert_eq!(schedule.lr_at(steps + 5), schedule.lr_at(steps));
        kinds.push(decay);
    }
    for decay in [Decay::Constant, Decay::Linear, Decay::Cosine] {
        assert!(kinds.iter().filter(|k| **k == decay).count() >= 2, "{decay:?}");
    }
    // A line to a rate above 0, and warm-up that takes all steps: by hand.
    let line = Schedule::constant(1.0, 6).lr_min(0.5).warmup(2).decay(Decay::Linear);
    let found: Vec<f64> = (0..8).map(|i| line.lr_at(i)).collect();
    assert_eq!(found, [0.0, 0.5, 1.0, 0.875, 0.75, 0.625, 0.5, 0.5]);
    let all = line.warmup(6);
    assert_eq!((all.lr_at(3), all.lr_at(6), all.lr_at(9)), (0.5, 1.0, 0.5));
}

fn stated(recipe: &Recipe) -> Settings {
    recipe.settings(recipe.n_ctx, &Settings::default())
}

fn optimiser(recipe: &Recipe, steps: u64) -> OptimParams {
    let mut given = Settings::default();
    given.steps = Some(steps);
    let own = recipe.settings(recipe.n_ctx, &given);
    given.or(own).optimiser().1
}

/// Recipes state what their sources do; figures of the controlled study's script are worked out by hand from DeepSpeed's
/// `WarmupDecayLR`.
#[test]
fn recipes_are_those_of_the_papers() {
    for r in RECIPES {
        let spec: Spec = r.rope.parse().unwrap();
        assert_eq!(spec.to_string(), r.rope, "{}", r.name);
        assert_ne!(stated(r).separator, Some(Separator::Auto));
        let batch = r.batch(r.n_ctx);
        optimiser(r, r.steps(r.n_ctx, batch)).schedule.check().unwrap();
    }
    let at = |name: &str| {
        let r = Recipe::find(name).unwrap();
        let batch = r.batch(r.n_ctx);
        (batch, r.steps(r.n_ctx, batch))
    };
    // 4M tokens are 32 sequences of 128k tokens.
    assert_eq!((at("sba"), at("utk"), at("harpe")), ((8, 1250), (32, 4769), (32, 1431)));
    assert_eq!((at("lceg"), at("lceg-code")), ((32, 954), (256, 120)));
    let longlora = Recipe::find("longlora").unwrap();
    assert_eq!((at("longlora"), longlora.attention.to_string()), ((64, 1000), "s2".into()));
    let landmark = Recipe::find("landmark").unwrap();
    assert_eq!((at("landmark"), landmark.attention.to_string()), ((128, 15_000), "landmark:block=64".into()));
    // Four fifths of the way from the top of a cosine to its bottom.
    let end = 2e-5 * 0.5 * (1.0 + (0.8 * std::f64::consts::PI).cos());
    let schedule = optimiser(landmark, 15_000).schedule;
    assert!((schedule.lr_min - end).abs() < 1e-9 && schedule.warmup == 15_000 * 3 / 100);
    // The released schedule, `get_cosine_schedule_with_warmup` with num_cycles = 0.4, in its own words.
    let released = |step: u64| {
        let (warmup, steps, num_cycles) = (450.0, 15_000.0, 0.4);
        let step = step as f64;
        if step < warmup {
            return 2e-5 * step / warmup;
        }
        let progress = (step - warmup) / (steps - warmup);
        2e-5 * 0f64.max(0.5 * (1.0 + (std::f64::consts::PI * num_cycles * 2.0 * progress).cos()))
    };
    for step in [0, 1, 449, 450, 451, 2000, 5000, 7725, 11_000, 14_999, 15_000] {
        let (found, want) = (schedule.lr_at(step), released(step));
        assert!((found - want).abs() < 1e-18, "step {step}: {found}, expected {want}");
    }
    assert!((schedule.lr_at(7725) - 1.309e-5).abs() < 1e-8, "the middle");
    let others = RECIPES.iter().filter(|r| !["landmark", "longlora"].contains(&r.name));
    assert!(others.into_iter().all(|r| r.attention == TrainAttention::Full && r.train == ["full"]));
    assert_eq!(at("drope"), (512, 5000), "10B tokens of 4,096 each");
    // 3 % of the steps, rounded up.
    assert_eq!((at("clex"), stated(Recipe::find("clex").unwrap()).warmup), ((512, 954), Some(29)));
    let code = optimiser(Recipe::find("lceg-code").unwrap(), 120);
    let rates = [(0, 0.0), (4, 2e-5 * 5f64.ln() / 20f64.ln()), (20, 2e-5), (70, 1e-5), (120, 0.0)];
    for (step, want) in rates {
        let found = code.schedule.lr_at(step);
        assert!((found - want).abs() < 1e-18, "step {step}: {found}, expected {want}");
    }
    assert!((code.schedule.lr_at(4) - 1.0745e-5).abs() < 1e-9);
    let AdamW { beta1, beta2, eps, weight_decay, .. } = code.adamw;
    assert_eq!((beta1, beta2, eps, weight_decay), (0.9, 0.999, 1e-8, 0.0));
    assert_eq!((code.clip, code.ema), (1.0, 0.0));
    let longce = Recipe::find("longce").unwrap();
    assert_eq!((at("longce"), longce.rope, longce.n_ctx), ((8, 200), "pi:factor=8", 32_768));
    let schedule = optimiser(longce, 200).schedule;
    assert_eq!(
        (schedule.lr_at(10), schedule.lr_at(20), schedule.lr_at(110), schedule.lr_at(200)),
        (1e-5, 2e-5, 1e-5, 0.0)
    );
    let weights = stated(longce).loss.flatten().unwrap().at(longce.n_ctx);
    assert_eq!((weights.short, weights.stride, weights.gamma), (4096, 1024, 5.0));
    let pose = Recipe::find("pose").unwrap();
    assert_eq!((at("pose"), pose.n_ctx, stated(pose).beta2), ((64, 1000), 2048, Some(0.999)));
    let schedule = optimiser(pose, 1000).schedule;
    assert_eq!((schedule.lr_at(0), schedule.lr_at(10), schedule.lr_at(1000)), (0.0, 2e-5, 0.0));
    assert!((schedule.lr_at(505) - 1e-5).abs() < 1e-18);
    // No average that the paper does not state.
    assert!(RECIPES.iter().all(|r| stated(r).ema == Some(0.0)));
    let paper = optimiser(Recipe::find("lceg").unwrap(), 954);
    assert_eq!((paper.schedule.lr_at(10), paper.schedule.lr_at(953)), (1e-5, 2e-5));
    // A warm-up of one step starts from 0, as DeepSpeed's does, and from nothing that is no number.
    assert_eq!(code.schedule.warmup(1).lr_at(0), 0.0);
}

/// Settings of a recipe are values: none of them can fail to parse, and those that it leaves alone are shared.
#[test]
fn a_recipe_replaces_shared_settings() {
    let own = Recipe { set: |set| set.lr = Some(1.0), ..*Recipe::find("sba").unwrap() };
    let texts = |key: &str| stated(&own).text(key);
    let found = ["lr", "steps", "batch", "packing", "beta2", "loss", "separator"].map(texts);
    let wanted = [Some("1"), Some("1250"), Some("8"), Some("pack"), Some("0.95"), Some("ce"), None];
    assert_eq!(found, wanted.map(|text| text.map(str::to_owned)));
}

/// What each paper does with its texts.
#[test]
fn recipes_have_the_data_of_the_papers() {
    let fu = "fu:length=4096,keep=0.1";
    let of = |name: &str| {
        let recipe = Recipe::find(name).unwrap();
        let set = stated(recipe);
        assert_eq!(set.doc_mask, Some(false), "{name}");
        let text = |key| set.text(key).unwrap();
        let longce = set.loss.unwrap().is_some();
        (
            recipe.method.unwrap_or("none"),
            text("packing"),
            text("upsample"),
            set.eod_mask_loss.unwrap(),
            longce,
        )
    };
    let plain =
        |packing: &str, upsample: &str| ("none", packing.to_owned(), upsample.to_owned(), false, false);
    for name in ["harpe", "lceg", "lceg-code"] {
        assert_eq!(of(name), plain("pack", fu), "{name}");
    }
    for name in ["longlora", "landmark", "clex", "drope"] {
        assert_eq!(of(name), plain("pack", "none"), "{name}");
    }
    assert_eq!(of("sba"), plain("truncate", "none"));
    assert_eq!(of("utk"), ("utk-80", "pack".into(), "none".into(), true, false));
    assert_eq!(of("longce"), ("none", "long".into(), "none".into(), false, true));
    assert_eq!(of("pose"), ("pose:factor=64", "pack".into(), "none".into(), false, false));
    // Where all parameters cannot be trained as in the paper, the recipe says so by name.
    for r in RECIPES {
        let excepted = ["landmark", "clex"].contains(&r.name);
        assert_eq!(r.source.contains("all parameters, which cannot be done here"), excepted, "{}", r.name);
    }
}

/// As Hugging Face's trainer and Megatron have it: a tensor without a gradient moves by decay alone, and norms and biases
/// do not.
#[test]
fn weight_decay_leaves_norms_and_biases_alone() {
    let kinds = |id: ParamId| match id {
        ParamId::Norm(_) => "norm",
        ParamId::NormBias(_) => "bias of a norm",
        ParamId::Bias(_) => "bias",
        _ => "other",
    };
    let mut seen = std::collections::BTreeSet::new();
    for (about, model) in models() {
        let mut how = settings(8, 8, "plain");
        how.trainable = Trainable::Full;
        let mut pairs = settings(8, 8, "plain");
        lora(&mut pairs).norms = true;
        lora(&mut pairs).embeddings = true;
        for how in [how, pairs] {
            let mut trainer = Trainer::new(&model, &how).unwrap_or_else(|e| panic!("{about}: {e}"));
            let before = trainer.params().list().to_vec();
            let mut p = params();
            (p.schedule, p.ema) = (Schedule::constant(1e-2, 3), 0.0);
            let mut optimizer = Optimizer::new(p, trainer.params()).unwrap();
            trainer.params().zero_grads().unwrap();
            optimizer.step(trainer.params_mut()).unwrap();
            for (t, was) in trainer.params().list().iter().zip(&before) {
                let kept = if kinds(t.id) == "other" { 1.0 - 1e-2 * 0.1 } else { 1.0 };
                for (now, was) in t.value.iter().zip(&was.value) {
                    // A value, the factor and their product are rounded.
                    assert!(
                        f64::from((now - was * kept).abs()) <= rounding(3) * f64::from(was.abs()),
                        "{about}: {}: {was} to {now}",
                        t.id
                    );
                }
                seen.insert(kinds(t.id));
            }
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["bias", "bias of a norm", "norm", "other"]);
}

/// Checkpoints name the shape of a warm-up only where it is not linear, so that those of before it could be another
/// can still be resumed.
#[test]
fn a_linear_warmup_is_not_written() {
    let json = |s: Schedule| serde_json::to_value(s).unwrap();
    assert_eq!(json(Schedule::constant(1.0, 9)).as_object().unwrap().len(), 5);
    let log = optimiser(Recipe::find("lceg-code").unwrap(), 120).schedule;
    assert_eq!(json(log)["warmup_shape"], "log");
    assert_eq!(serde_json::from_value::<Schedule>(json(log)).unwrap(), log);
}

fn params() -> OptimParams {
    OptimParams::new(Schedule::constant(1e-2, 6).lr_min(1e-3).warmup(1).decay(Decay::Cosine))
        .adamw(AdamW::default().weight_decay(0.1))
        .clip(0.05)
        .ema(0.75)
}

/// With accumulation, clipping, decay, a schedule and the moving average, which starts from what there is at the start.
#[test]
fn steps_of_a_trainer_are_those_of_a_plain_loop() {
    let (_, model) = models().remove(0);
    let mut trainer = Trainer::new(&model, &settings(24, 24, "plain")).unwrap();
    let p = params();
    let mut optimizer = Optimizer::new(p, trainer.params()).unwrap();
    let wide = |v: &[f32]| v.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let mut values: Vec<Vec<f64>> = trainer.params().list().iter().map(|t| wide(&t.value)).collect();
    let mut means = values.clone();
    let zero: Vec<Vec<f64>> = values.iter().map(|v| vec![0.0; v.len()]).collect();
    let (mut m, mut v) = (zero.clone(), zero);
    for step in 0..6u64 {
        for part in some_tokens(50, N_VOCAB).chunks(25) {
            trainer.accumulate(Sequence::new(part), 0.5).unwrap();
        }
        let grads: Vec<Vec<f64>> = trainer.params().grads().unwrap().iter().map(|g| wide(g)).collect();
        let norm = grads.iter().flatten().map(|g| g * g).sum::<f64>().sqrt();
        let factor = (p.clip / (norm + 1e-6)).min(1.0);
        assert!(factor < 1.0, "clipping does not bite");
        let lr = p.schedule.lr_at(step);
        let AdamW { beta1, beta2, eps, weight_decay, .. } = p.adamw;
        let t = step as i32 + 1;
        for (i, grad) in grads.iter().enumerate() {
            for (j, g) in grad.iter().enumerate() {
                let g = g * factor;
                m[i][j] = beta1 * m[i][j] + (1.0 - beta1) * g;
                v[i][j] = beta2 * v[i][j] + (1.0 - beta2) * g * g;
                let up = (m[i][j] / (1.0 - beta1.powi(t))) / ((v[i][j] / (1.0 - beta2.powi(t))).sqrt() + eps);
                values[i][j] -= lr * weight_decay * values[i][j] + lr * up;
                means[i][j] = p.ema * means[i][j] + (1.0 - p.ema) * values[i][j];
            }
        }
        let said = optimizer.step(trainer.params_mut()).unwrap();
        assert_eq!((said.step, said.lr), (step + 1, lr));
        let n: usize = grads.iter().map(Vec::len).sum();
        assert!((said.grad_norm / norm - 1.0).abs() < n as f64 * f64::EPSILON);
        assert!(trainer.params().grads().unwrap().iter().flatten().all(|g| *g == 0.0), "not forgotten");
        for (i, t) in trainer.params().list().iter().enumerate() {
            let off = |a: &[f32], b: &[f64]| {
                a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
            };
            let mean = &optimizer.average.as_ref().unwrap()[i];
            let (value, mean) = (off(&t.value, &values[i]), off(mean, &means[i]));
            // In each step a value, its mean and two moments are rounded to floats.
            let most = values[i].iter().chain(&means[i]).fold(0.0f64, |most, x| most.max(x.abs()));
            let bound = rounding(4 * (step as usize + 1)) * most;
            assert!(value <= bound && mean <= bound, "step {step}: {} is {value:.1e} off, {mean:.1e}", t.id);
        }
    }
    // The device has the new values: they change the loss.
    let tokens = some_tokens(25, N_VOCAB);
    let moved = trainer.loss(Sequence::new(&tokens)).unwrap();
    let fresh =
        Trainer::new(&model, &settings(24, 24, "plain")).unwrap().loss(Sequence::new(&tokens)).unwrap();
    assert!(moved < fresh - 1e-3, "{moved}, {fresh} untrained");
}

#[test]
fn impossible_settings_are_named() {
    let (_, model) = models().remove(1);
    let trainer = Trainer::new(&model, &settings(8, 8, "plain")).unwrap();
    let good = params();
    let with = |f: &dyn Fn(&mut OptimParams)| {
        let mut p = good;
        f(&mut p);
        p
    };
    let bad = [
        ("beta1", with(&|p| p.adamw.beta1 = 1.0)),
        ("beta1", with(&|p| p.adamw.beta1 = -0.1)),
        ("beta2", with(&|p| p.adamw.beta2 = f64::NAN)),
        ("eps", with(&|p| p.adamw.eps = 0.0)),
        ("weight-decay", with(&|p| p.adamw.weight_decay = -1.0)),
        ("weight-decay", with(&|p| p.adamw.weight_decay = f64::INFINITY)),
        ("clip", with(&|p| p.clip = f64::NAN)),
        ("ema", with(&|p| p.ema = 1.0)),
        ("lr:", with(&|p| p.schedule.lr = f64::NAN)),
        ("lr:", with(&|p| p.schedule.lr = -1e-3)),
        ("lr-min", with(&|p| p.schedule.lr_min = 2e-2)),
    ];
    for (name, p) in bad {
        let e = Optimizer::new(p, trainer.params()).expect_err(name).to_string();
        assert!(e.starts_with(name), "{e}");
    }
    Optimizer::new(good, trainer.params()).unwrap();
}
