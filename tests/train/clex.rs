//! Training of CLEX: what is drawn for a sequence, the gradients of network and pairs against a naive f64 model, and
//! what becomes of them in an adapter.

use std::collections::BTreeSet;
use std::sync::Arc;

use gguf::Writer;
use proptest::prelude::*;
use ropewalk::adapter::{AdapterMeta, AdapterSpec};
use ropewalk::control::Control;
use ropewalk::hparams::{ClexNet, Hparams};
use ropewalk::ids::ParamId;
use ropewalk::model::{Model, ModelParams};
use ropewalk::rope::{Activation, Clex, Plan};
use ropewalk::session::Session;
use ropewalk::train::{write_adapter, ClexDraw, Init, Sequence, TrainParams, Trainable, Trainer};
use ropewalk::DType;

use crate::common::rounding::{rounding, two_orders};
use crate::common::{all_logits, assert_close, distance, load, log_softmax, params, scratch, some_tokens};
use crate::common::{roundings, says, size, with_adapter, LOGITS};
use crate::differences::{loss, moved, of_element, one, sign};
use crate::gradients::{fill, lora, models, settings, targets, N_VOCAB};
use naive::{Definition, Naive};

const N_CTX: usize = 40;
const N: usize = 37;

/// Attention to all before, at the positions of a draw in layers that the method acts on, in parts of a position.
struct Drawn<'a> {
    positions: &'a [f64],
    unit: i64,
    plan: &'a Plan,
}

impl Drawn<'_> {
    fn at(&self, i: i64) -> i64 {
        (self.positions[i as usize] * self.unit as f64).round() as i64
    }
}

impl Definition for Drawn<'_> {
    fn distance(&self, i: i64, j: i64) -> Option<i64> {
        Some((i - j) * self.unit)
    }

    fn distance_in(&self, kind: usize, i: i64, j: i64) -> Option<i64> {
        if self.plan.kinds()[kind].applies {
            Some(self.at(i) - self.at(j))
        } else {
            self.distance(i, j)
        }
    }

    fn farthest(&self, n: usize) -> usize {
        self.positions.iter().fold(n, |m, p| m.max(p.ceil() as usize)) + 1
    }

    fn unit(&self) -> i64 {
        self.unit
    }

    fn mscale(&self, kind: usize) -> f64 {
        self.plan.kinds()[kind].mscale
    }

    fn q_scale(&self, kind: usize, i: i64) -> f64 {
        let position =
            if self.plan.kinds()[kind].applies { self.positions[i as usize] as i32 } else { i as i32 };
        self.plan.kinds()[kind].q_scale(position)
    }
}

/// Gives the network values large enough to move every frequency, and the pairs some.
fn fill_all(trainer: &mut Trainer) {
    fill(trainer);
    for t in trainer.params_mut().list_mut().iter_mut().filter(|t| t.id.is_clex()) {
        let most = if t.id == ParamId::ClexUp { 0.5 } else { 0.05 };
        t.value
            .iter_mut()
            .enumerate()
            .for_each(|(i, v)| *v = (((i * 37 + 5) % 31) as f32 - 15.0) / 16.0 * most);
    }
    trainer.params().upload().unwrap();
}

/// The plan of the trainer's network at t, one of its numbers moved; and by how much, as f32 has it.
fn plan_at(trainer: &Trainer, hp: &Hparams, t: usize, moved: (ParamId, usize, f64)) -> (Plan, f64) {
    let value = |id: ParamId| {
        let mut value = trainer.params().value(id).unwrap().to_vec();
        let before = value.get(moved.1).copied().unwrap_or_default();
        if id == moved.0 {
            value[moved.1] = (f64::from(before) + moved.2) as f32;
        }
        (value.get(moved.1).copied().unwrap_or_default() - before, value)
    };
    let ((up_by, up), (down_by, down)) = (value(ParamId::ClexUp), value(ParamId::ClexDown));
    let shape = trainer.params().list().iter().find(|t| t.id == ParamId::ClexUp).unwrap().shape;
    let net = ClexNet::new(shape[0], shape[1], up, down).unwrap();
    let hp = Hparams { clex: Some(Arc::new(net)), ..hp.clone() };
    let spec = Clex::fixed(&trainer.plan().spec, t).unwrap();
    (Plan::new(&spec, &hp, N_CTX).unwrap(), f64::from(up_by + down_by))
}

/// The first number of sequences before it whose draw is as wanted, and the draw.
fn draw_of(trainer: &Trainer, wanted: impl Fn(&ClexDraw) -> bool) -> (u64, ClexDraw) {
    let clex = Clex::of(&trainer.plan().spec, 0).unwrap();
    let draws =
        (0..500).map(|k| (k, ClexDraw::new(&clex, trainer.settings().trainable.lora().unwrap().seed, k, N)));
    draws.into_iter().find(|(_, d)| d.positions.is_sorted() && wanted(d)).expect("a draw")
}

fn check(about: &str, model: &Model, how: &TrainParams, wanted: impl Fn(&ClexDraw) -> bool) {
    let (base, hp) = (Naive::of(model), model.hparams());
    let mut trainer = Trainer::new(model, how).unwrap_or_else(|e| panic!("{about}: {e}"));
    fill_all(&mut trainer);
    let (seen, draw) = draw_of(&trainer, wanted);
    trainer.set_seen(seen);
    let (tokens, weights) = (some_tokens(N + 1, N_VOCAB), [1.0; N]);
    let got = trainer.accumulate(Sequence::new(&tokens), 1.0).unwrap();
    let grads = trainer.params().grads().unwrap();
    let original = Clex::of(&trainer.plan().spec, 0).unwrap().original;
    let scale = f64::from(how.trainable.lora().unwrap().scale());
    let at = |id: ParamId, i: usize, by: f64| {
        let (plan, moved_by) = plan_at(&trainer, hp, draw.t, (id, i, by));
        let case = Drawn { positions: &draw.positions, unit: (N / original).max(1) as i64, plan: &plan };
        let naive = moved(&base, &trainer, scale, &one(id, i, by));
        (loss(&naive, &tokens, &weights, &case, &plan), if id.is_clex() { moved_by } else { by })
    };
    let want = at(trainer.params().list()[0].id, 0, 0.0).0;
    let bound = rounding(roundings(hp, N)) * want;
    assert!((got - want).abs() < bound, "{about}: loss {got}, expected {want}");
    let bound = of_element(hp, N);
    let list = trainer.params().list();
    let norms: Vec<f64> =
        grads.iter().map(|grad| grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt()).collect();

    // All pairs at once, as in `differences`: each element moved by its sign, and in each tensor as far as its norm is small.
    let pairs: Vec<usize> = (0..list.len()).filter(|&i| !list[i].id.is_clex()).collect();
    let most = pairs.iter().map(|&i| norms[i]).fold(0.0, f64::max);
    let step = |i: usize, j: usize| most / norms[i].max(1e-3 * most) * sign(i as u32, j);
    let (plan, _) = plan_at(&trainer, hp, draw.t, (list[0].id, 0, 0.0));
    let case = Drawn { positions: &draw.positions, unit: (N / original).max(1) as i64, plan: &plan };
    let along = |by: f64| {
        let change = |id: ParamId, v: &mut [f64]| {
            if let Some(&i) = pairs.iter().find(|&&i| list[i].id == id) {
                v.iter_mut().enumerate().for_each(|(j, v)| *v += by * step(i, j));
            }
        };
        loss(&moved(&base, &trainer, scale, &change), &tokens, &weights, &case, &plan)
    };
    let difference = (along(1e-6) - along(-1e-6)) / 2e-6;
    let of_tensor =
        |&i: &usize| grads[i].iter().enumerate().map(|(j, g)| f64::from(*g) * step(i, j)).sum::<f64>();
    let off = (pairs.iter().map(of_tensor).sum::<f64>() - difference).abs();
    let allowed = bound * (difference.abs() + 2.0 * (pairs.len() as f64).sqrt() * most);
    assert!(off <= allowed, "{about}: pairs are off by {off:.1e}, expected at most {allowed:.1e}");

    for ((t, grad), &norm) in list.iter().zip(&grads).zip(&norms) {
        if draw.t == 1 && t.id.is_clex() {
            assert!(norm == 0.0, "{about}: {} has a gradient where its network has no say", t.id);
            continue;
        }
        let typical = norm / (grad.len() as f64).sqrt();
        assert!(norm > 0.0 && norm.is_finite(), "{about}: {} has no gradient", t.id);
        let largest = (0..grad.len()).max_by(|&i, &j| grad[i].abs().total_cmp(&grad[j].abs())).unwrap();
        for &i in &[largest, grad.len() / 3, grad.len() - 1][..size(usize::from(t.id.is_clex()), 3)] {
            // As in `gradients`; far positions make much of little.
            let h = if t.id.is_clex() { 3e-6 } else { 2e-5 };
            let ((above, up), (below, down)) = (at(t.id, i, h), at(t.id, i, -h));
            let difference = (above - below) / (up - down);
            let off = (f64::from(grad[i]) - difference).abs() / (difference.abs() + typical);
            assert!(off < bound, "{about}: {}[{i}] is {}, expected {difference}: {off:.1e}", t.id, grad[i]);
        }
    }
}

const SHORT: &str = "clex:max-factor=3,step=0.25,original=16";
const LONG: &str = "clex:max-factor=3,step=0.3,original=64,act=tanh,param-factor=2";

#[test]
fn gradients_are_those_of_finite_differences() {
    for (about, model) in models() {
        // What is rotated in cohere2 has a window: no longer than the window of the second spec.
        let specs = if model.hparams().arch == "cohere2" { &[SHORT][..] } else { &[SHORT, LONG] };
        for &spec in specs {
            for portable in [false, true].into_iter().take(if spec == SHORT { 2 } else { 1 }) {
                let mut how = settings(N_CTX, 16, spec).portable(portable);
                lora(&mut how).targets =
                    targets(if model.hparams().arch == "phi3" { &["qkv"] } else { &["q", "k"] });
                check(&format!("{about}, {spec}, portable {portable}"), &model, &how, |d| d.t == 3);
            }
        }
    }
}

#[test]
fn frequencies_that_are_dropped_scaled_or_the_models_own_count_as_they_are() {
    let (about, model) = models().remove(0);
    for spec in
        [&format!("{SHORT},drop=0.5"), &format!("{SHORT},log-scale=true"), &format!("{SHORT},factor=2")]
    {
        let mut how = settings(N_CTX, 64, spec);
        lora(&mut how).targets = targets(&["q"]);
        check(&format!("{about}, {spec}"), &model, &how, |d| d.t > 1);
    }
    check(about, &model, &settings(N_CTX, 16, LONG), |d| d.t == 1);
    let mut alone = settings(N_CTX, 16, SHORT);
    lora(&mut alone).targets.clear();
    check(&format!("{about}, the network alone"), &model, &alone, |d| d.t == 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn draws_are_what_the_code_draws(n in 1usize..300, original in 1usize..200, max_factor in 1usize..40, seed: u64) {
        let clex = Clex { max_factor, param_factor: 1, step: 0.1, act: Activation::Silu, original, factor: None };
        let draw = ClexDraw::new(&clex, seed, 7, n);
        prop_assert_eq!(&draw, &ClexDraw::new(&clex, seed, 7, n));
        prop_assert!(n < 9 || max_factor < 3 || draw != ClexDraw::new(&clex, seed, 8, n) || draw.t == 1);
        prop_assert!((1..=max_factor).contains(&draw.t) && draw.positions.len() == n);
        let (s, t) = ((n / original).max(1), draw.t);
        prop_assert_eq!(draw.positions[0], 0.0);
        if n > 1 {
            prop_assert_eq!(draw.positions[n - 1], ((n * t) / s) as f64 - 1.0);
            let drawn: Vec<f64> = draw.positions[1..n - 1].iter().map(|p| p * s as f64).collect();
            prop_assert!(drawn.windows(2).all(|w| w[0] < w[1]));
            // A position is divided by s, rounded once, and times s again: within a rounding of a whole number.
            let whole = |p: &f64| {
                let p = (*p, p.round());
                (p.0 - p.1).abs() <= f64::EPSILON * p.1 && (1.0..=(n * t) as f64 - 2.0).contains(&p.1)
            };
            prop_assert!(drawn.iter().all(whole), "{:?}", drawn);
        }
        if s * t == 1 {
            prop_assert!(draw.positions.iter().enumerate().all(|(i, p)| *p == i as f64));
        }
    }
}

#[test]
fn every_factor_is_drawn() {
    let spec = "clex:max-factor=5,param-factor=1,step=0.1,act=silu,log-scale=false,original=16";
    let clex = Clex::of(&spec.parse().unwrap(), 0).unwrap();
    let all: BTreeSet<usize> = (0..100).map(|k| ClexDraw::new(&clex, 42, k, 20).t).collect();
    assert_eq!(all, (1..=5).collect());
}

/// A trained network goes through its adapter into sessions: the same loss at the trainer's context, and its own
/// frequencies at every other.
#[test]
fn a_session_computes_with_the_trained_network() {
    for (about, model) in models().into_iter().take(3) {
        let mut trainer = Trainer::new(&model, &settings(N_CTX, 16, SHORT)).unwrap();
        fill_all(&mut trainer);
        let path = scratch(&format!("clex-{}.gguf", about.len()));
        write_adapter(&path, &trainer, None, AdapterMeta::default()).unwrap();
        let of = |scale: f32| {
            let adapters = vec![AdapterSpec::new(path.clone(), scale)];
            Model::load(model.file().path(), &ModelParams::cpu().adapters(adapters)).unwrap()
        };
        let tuned = of(1.0);
        let f32s = |n_ctx: usize| params(n_ctx).kv_type(DType::F32);
        let session = Session::new(&tuned, &f32s(N_CTX)).unwrap();
        assert!(session.plan().spec.to_string().starts_with("clex:max-factor=3,"), "{}", session.plan().spec);
        let tokens = some_tokens(N_CTX + 1, N_VOCAB);
        let want = trainer.loss(Sequence::new(&tokens)).unwrap();
        let logits = all_logits(&tuned, &f32s(N_CTX), &tokens[..N_CTX]);
        let rows = logits.chunks_exact(N_VOCAB).zip(&tokens[1..]);
        let got = -rows.map(|(row, &t)| log_softmax(row)[t as usize]).sum::<f64>() / N_CTX as f64;
        let bound = two_orders(roundings(model.hparams(), N_CTX)) * want;
        assert!((got - want).abs() < bound, "{about}: {got}, {want} in training");
        for (n_ctx, t) in [(16, 1), (17, 2), (33, 3), (400, 3)] {
            let found = Session::new(&tuned, &f32s(n_ctx)).unwrap();
            let (plan, _) = plan_at(&trainer, model.hparams(), t, (ParamId::ClexUp, 0, 0.0));
            assert_eq!(found.plan().layer(0).freqs, plan.layer(0).freqs, "{about} at {n_ctx}");
        }
        // Another run goes on from it.
        let mut next = Trainer::new(&model, &settings(N_CTX, 16, SHORT)).unwrap();
        Init::adapter(&path, &mut next).unwrap();
        assert_eq!(next.params().list(), trainer.params().list());
        let wide = format!("{SHORT},param-factor=2");
        let mut wide = Trainer::new(&model, &settings(N_CTX, 16, &wide)).unwrap();
        assert!(Init::adapter(&path, &mut wide).is_err());
        // At scale 0 it is untrained, and under another method it is refused.
        let none = Session::plan_of(&of(0.0), &f32s(N_CTX)).unwrap();
        let ntk = Plan::new(&"ntk:factor=5,original=16".parse().unwrap(), model.hparams(), N_CTX).unwrap();
        let pairs = none.layer(0).freqs.theta.iter().zip(&ntk.layer(0).freqs.theta);
        pairs.for_each(|(a, b)| assert!((a / b - 1.0).abs() < 1e-3, "{about}: {a}, {b}"));
        let other = f32s(N_CTX).rope(Some("ntk:factor=5".parse().unwrap()));
        let e = Session::new(&tuned, &other).unwrap_err().to_string();
        assert!(e.contains("trained under clex") && e.lines().count() == 1, "{e}");
        let other = format!("{SHORT},act=tanh").parse().unwrap();
        assert!(Session::new(&tuned, &f32s(N_CTX).rope(Some(other))).is_err());
    }
}

/// One length goes into a separate file, for llama.cpp; all of them do not.
#[test]
fn one_length_is_written_into_a_file() {
    let (_, model) = models().remove(0);
    let mut trainer = Trainer::new(&model, &settings(N_CTX, 16, SHORT)).unwrap();
    fill_all(&mut trainer);
    let (path, out) = (scratch("clex-merged-lora.gguf"), scratch("clex-merged.gguf"));
    write_adapter(&path, &trainer, None, AdapterMeta::default()).unwrap();
    let adapters = vec![AdapterSpec::new(path.clone(), 1.0)];
    let merge = |rope: Option<&str>, llama_cpp: bool| {
        let rope = rope.map(|spec| spec.parse().unwrap());
        let options = convert::Options::default().adapters(adapters.clone()).rope(rope).llama_cpp(llama_cpp);
        convert::convert(model.file().path(), &out, &options, &Control::default())
    };
    for (rope, llama_cpp, words) in
        [(None, false, "cannot hold"), (None, true, "factor"), (Some("clex"), true, "factor")]
    {
        let e = merge(rope, llama_cpp).unwrap_err().to_string();
        assert!(e.contains(words) && e.lines().count() == 1, "{rope:?}: {e}");
    }
    let fixed = format!("{SHORT},factor=3");
    merge(Some(&fixed), true).unwrap_or_else(|e| panic!("{e}"));
    let tuned = with_adapter(&model, &path);
    let tokens = some_tokens(N_CTX, N_VOCAB);
    let f32s = params(N_CTX).kv_type(DType::F32);
    let with = f32s.clone().rope(Some(fixed.parse().unwrap()));
    let (want, got) = (all_logits(&tuned, &with, &tokens), all_logits(&load(&out), &f32s, &tokens));
    assert_close(&got, &want, LOGITS, "merged");
    assert!(distance(&want, &all_logits(&model, &f32s, &tokens)) > 0.1);
}

/// A tensor of an adapter: name, shape, values.
type Entry = (&'static str, Vec<usize>, Vec<f32>);

/// A case's name, the spec, the tensors, and words of the error.
type Damage<'a> = (&'a str, Option<&'a str>, Vec<Entry>, &'a [&'a str]);

#[test]
fn damaged_networks_are_refused_with_their_fault() {
    let (_, model) = models().remove(0);
    let good = "clex:max-factor=3,param-factor=1,step=0.25,act=silu,log-scale=false,original=16";
    let up = |n: usize, m: usize| ("clex.up.weight", vec![n, m], vec![0.1; n * m]);
    let down = |n: usize, m: usize| ("clex.down.weight", vec![n, m], vec![0.1; n * m]);
    let write = |name: &str, rope: Option<&str>, tensors: &[Entry]| {
        let path = scratch(&format!("clex-{name}.gguf"));
        let new = |(name, shape, values): &Entry| {
            let (a, b) = (shape[0] as u64, shape.get(1).copied().unwrap_or(1) as u64);
            let bytes: Vec<u8> = values.iter().flat_map(|x: &f32| x.to_le_bytes()).collect();
            (name.to_string(), vec![a, b], bytes)
        };
        let mut writer = Writer::new();
        for (key, value) in
            [("general.type", "adapter"), ("general.architecture", "llama"), ("adapter.type", "lora")]
        {
            writer.set(key, value);
        }
        // So that the next run of the tests can replace it.
        writer.set("ropewalk.version", "1");
        if let Some(rope) = rope {
            writer.set("ropewalk.lora.rope", rope);
        }
        for (name, shape, bytes) in tensors.iter().map(new) {
            writer.tensor_bytes(&name, DType::F32, &shape, bytes).unwrap();
        }
        writer.write(&path).unwrap();
        path
    };
    let open = |path: std::path::PathBuf| {
        let adapters = vec![AdapterSpec::new(path, 1.0)];
        let tuned = Model::load(model.file().path(), &ModelParams::cpu().adapters(adapters))?;
        Session::new(&tuned, &params(N_CTX)).map(|_| ())
    };
    open(write("good", Some(good), &[up(16, 32), down(32, 16)])).unwrap_or_else(|e| panic!("{e}"));
    let nan = ("clex.up.weight", vec![16, 32], vec![f32::NAN; 512]);
    // Velocities without end.
    let low = ("clex.up.weight", vec![16, 32], vec![-0.1; 512]);
    let huge = ("clex.down.weight", vec![32, 16], vec![-3e38; 512]);
    let cases: [Damage<'_>; 9] = [
        ("half", Some(good), vec![up(16, 32)], &["clex.down.weight", "other half"]),
        ("turned", Some(good), vec![up(16, 32), down(16, 32)], &["clex.down.weight", "[32, 16]", "[16, 32]"]),
        ("narrow", Some(good), vec![up(8, 16), down(16, 8)], &["clex.up.weight", "rotary", "8"]),
        ("hidden", Some(good), vec![up(16, 16), down(16, 16)], &["clex.up.weight", "1 x 32", "16"]),
        ("no-rope", None, vec![up(16, 32), down(32, 16)], &["clex", "ropewalk.lora.rope", "none"]),
        ("rope", Some("pi:factor=2"), vec![up(16, 32), down(32, 16)], &["ropewalk.lora.rope", "pi:factor=2"]),
        ("nan", Some(good), vec![nan, down(32, 16)], &["clex.up.weight", "NaN"]),
        ("part", Some(good), vec![("clex.bias", vec![16], vec![0.0; 16])], &["clex.bias"]),
        ("huge", Some(good), vec![low, huge], &["finite"]),
    ];
    for (name, rope, tensors, words) in cases {
        let e = open(write(name, rope, &tensors)).unwrap_err().to_string();
        assert!(words.iter().all(|w| e.contains(w)) && e.lines().count() == 1, "{name}: {e}");
    }
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let (_, model) = models().remove(0);
    let how = TrainParams::new(N_CTX).trainable(Trainable::Full).rope(Some(SHORT.parse().unwrap()));
    says(Trainer::new(&model, &how).map(|_| ()), &["cannot hold the network of clex"]);
    for (spec, words) in [
        ("clex:original=64,keep-short=true", "keep-short"),
        ("clex:max-factor=0", "max-factor"),
        ("clex+self-extend:window=8,group=4", "own attention"),
    ] {
        let how = spec.parse().map(|rope| TrainParams::new(N_CTX).rope(Some(rope)));
        let e = match how {
            Ok(how) => Trainer::new(&model, &how).map(|_| ()).unwrap_err().to_string(),
            Err(e) => ropewalk::rope::RopeError::to_string(&e),
        };
        assert!(e.contains(words) && e.lines().count() == 1, "{spec}: {e}");
    }
}
