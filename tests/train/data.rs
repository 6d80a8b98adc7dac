//! Data methods in training: positions that are not those of tokens, LongCE's weights, what is refused.

use std::sync::Arc;

use ropewalk::control::Control;
use ropewalk::data::{
    parse_method, Corpus, Dataset, DatasetParams, HeldOut, Packing, Separator, Sources, TextOptions,
};
use ropewalk::model::Model;
use ropewalk::train::optim::{OptimParams, Optimizer, Schedule};
use ropewalk::train::{LongCe, Run, RunParams, Sequence, Trainer};

use crate::common::rounding::{rounding, two_orders};
use crate::common::{roundings, LOGITS};
use crate::gradients::{named_model, settings};
use crate::run::{knotted, World};

const N_CTX: usize = 32;

fn trainer(model: &Model, rope: &str, n_positions: Option<usize>) -> Trainer {
    Trainer::new(model, &settings(N_CTX, 7, rope).n_positions(n_positions)).unwrap()
}

fn tokens(seed: usize) -> Vec<i32> {
    (0..=N_CTX).map(|i| ((i * i * 7 + i * seed + 3) % 60) as i32).collect()
}

/// Losses of tokens, which other orders of the same sums may move as far as logits.
#[track_caller]
fn assert_close(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < LOGITS, "{a} and {b}"));
}

#[test]
fn positions_are_what_tokens_are_rotated_by() {
    let (model, tokens) = (named_model("positions"), tokens(11));
    let losses = |rope: &str, n: Option<usize>, positions: &[u32], starts: &[u32]| {
        let sequence = Sequence { positions, segment_starts: starts, ..Sequence::new(&tokens) };
        trainer(&model, rope, n).losses(sequence).unwrap()
    };
    let by = |f: &dyn Fn(u32) -> u32| (0..N_CTX as u32).map(f).collect::<Vec<u32>>();
    let plain = losses("plain", None, &[], &[]);
    assert_eq!(losses("plain", Some(64), &by(&|i| i), &[]), plain);
    // Twice the positions under half the angles; the same distances elsewhere.
    assert_close(&losses("pi:factor=2", Some(64), &by(&|i| 2 * i), &[]), &plain);
    assert_close(&losses("plain", Some(64), &by(&|i| i + 30), &[]), &plain);
    // A skip shows only to those who see across it.
    let skip = by(&|i| if i < 13 { i } else { i + 17 });
    assert_close(&losses("plain", Some(64), &skip, &[13]), &losses("plain", Some(64), &[], &[13]));
    let skipped = losses("plain", Some(64), &skip, &[]);
    assert_close(&skipped[..13], &plain[..13]);
    assert!(skipped.iter().zip(&plain).skip(13).any(|(a, b)| (a - b).abs() > 1e-3));
    // Also gradients.
    let gradients = |rope: &str, positions: &[u32]| {
        let mut trainer = trainer(&model, rope, Some(64));
        trainer.accumulate(Sequence { positions, ..Sequence::new(&tokens) }, 1.0).unwrap();
        let optim = OptimParams::new(Schedule::constant(1e-2, 1)).clip(0.0);
        let mut optimizer = Optimizer::new(optim, trainer.params()).unwrap();
        optimizer.step(trainer.params_mut()).unwrap().grad_norm
    };
    let (doubled, single) = (gradients("pi:factor=2", &by(&|i| 2 * i)), gradients("plain", &[]));
    let bound = two_orders(3 * roundings(model.hparams(), N_CTX) + N_CTX);
    assert!((doubled - single).abs() < bound * single, "{doubled} and {single}");
    for (positions, what) in
        [(by(&|i| i / 2), "ascend"), (by(&|i| i + 40), "below 64"), (vec![0, 1], "expected 32")]
    {
        let mut trainer = trainer(&model, "plain", Some(64));
        let e = trainer
            .loss(Sequence { positions: &positions, ..Sequence::new(&tokens) })
            .unwrap_err()
            .to_string();
        assert!(e.starts_with("positions: ") && e.contains(what), "{e}");
    }
}

/// `loss_weight` of the released `finetune.py`, step by step, over losses of the same model.
#[test]
fn longce_weighs_by_what_the_long_context_adds() {
    let world = World::new("longce");
    let data = data(&world, "none", Packing::Pack);
    let sample = data.nth(0).unwrap();
    let (trunc_len, internal, thre) = (6, 4, 1.02);
    let mut trainer = self::trainer(&world.model, "plain", None);
    let ids = &sample.tokens;
    let loss = trainer.losses(Sequence::new(ids)).unwrap();
    let mut discrepancy = vec![1.0; ids.len()];
    for start in (0..ids.len() - trunc_len).step_by(internal) {
        let inner = internal.min(ids.len() - start - trunc_len);
        let short = trainer.losses(Sequence::new(&ids[start..start + trunc_len + inner])).unwrap();
        for k in 0..inner {
            let full = loss[start + trunc_len - 1 + k];
            discrepancy[start + trunc_len + k] = (short[trunc_len - 1 + k] - full).exp();
        }
    }
    let weights: Vec<f64> = discrepancy[1..].iter().map(|w| w.min(thre)).collect();
    assert!(weights.contains(&thre) && weights.iter().any(|w| *w < 0.999), "{weights:?}");
    let expected = loss.iter().zip(&weights).map(|(l, w)| l * w).sum::<f64>() / loss.len() as f64;

    let longce = "longce:short=6,stride=4,gamma=1.02".parse::<LongCe>().unwrap();
    let params = RunParams::default().longce(Some(longce)).eval_every(Some(0));
    let optim = OptimParams::new(Schedule::constant(1e-2, 1));
    let trainer = self::trainer(&world.model, "plain", None);
    let optimizer = Optimizer::new(optim, trainer.params()).unwrap();
    let mut run = Run::new(trainer, optimizer, data, params).unwrap();
    run.train(&Control::default()).unwrap();
    let found = run.history().losses[0].1;
    // The losses are the same to the bit: a weight is rounded to a float, and so are its product and their sum.
    assert!((found - expected).abs() < rounding(N_CTX + 2) * expected, "{found}, expected {expected}");
    for bad in ["ce", "longce:short=0", "longce:gamma=0.5", "longce:gamma=NaN", "longce:short"] {
        let e = bad.parse::<LongCe>().unwrap_err().to_string();
        assert!(e.starts_with("loss ") && e.contains("expected "), "{bad}: {e}");
    }
}

/// A short context of an eighth, a stride of a quarter of that; as released from 32,768 tokens on.
#[test]
fn longce_has_a_short_context_at_every_context() {
    for (n_ctx, short, stride) in [
        (1, 1, 1),
        (7, 1, 1),
        (32, 4, 1),
        (48, 6, 1),
        (512, 64, 16),
        (2048, 256, 64),
        (4096, 512, 128),
        (16_384, 2048, 512),
    ] {
        let found = "longce".parse::<LongCe>().unwrap().at(n_ctx);
        assert_eq!(found, LongCe::default().short(short).stride(stride), "{n_ctx}");
    }
    for n_ctx in [32_768, 131_072] {
        let found = LongCe::default().at(n_ctx);
        assert_eq!(found, LongCe::default().short(4096).stride(1024));
    }
    // What is given stays.
    let given = "longce:short=300,gamma=2".parse::<LongCe>().unwrap().at(2048);
    assert_eq!(given, LongCe::default().short(300).stride(75).gamma(2.0));
    for text in ["longce:gamma=5", "longce:short=8,stride=2,gamma=1.5"] {
        assert_eq!(text.parse::<LongCe>().unwrap().to_string(), text);
    }
}

/// The default weighs something below 4,096 tokens; what can weigh nothing is refused; what happens to weigh nothing
/// is reported.
#[test]
fn longce_without_weights_is_no_silence() {
    let world = World::new("longce-silent");
    let run = |longce: &str, packing| {
        let trainer = self::trainer(&world.model, "plain", None);
        let schedule = Schedule::constant(1e-2, 3);
        let optim = OptimParams::new(schedule);
        let optimizer = Optimizer::new(optim, trainer.params()).unwrap();
        let longce = (longce != "ce").then(|| longce.parse::<LongCe>().unwrap());
        let params = RunParams::default().longce(longce).eval_every(Some(0));
        let mut run = Run::new(trainer, optimizer, data(&world, "none", packing), params)?;
        let notes = std::sync::Mutex::new(Vec::new());
        let note = |text: std::fmt::Arguments<'_>| notes.lock().unwrap().push(text.to_string());
        run.train(&Control::default().with_notes(&note)).unwrap();
        let losses: Vec<f64> = run.history().losses.iter().map(|l| l.1).collect();
        Ok::<_, ropewalk::model::Error>((losses, notes.into_inner().unwrap()))
    };
    let said = |notes: &[String]| notes.iter().filter(|n| n.contains("weights of LongCE are 1")).count();
    let (plain, notes) = run("ce", Packing::Pack).unwrap();
    assert_eq!(said(&notes), 0);
    let (weighed, notes) = run("longce", Packing::Pack).unwrap();
    assert!(weighed.iter().zip(&plain).all(|(a, b)| (a - b).abs() > 1e-4), "{weighed:?} {plain:?}");
    assert_eq!(said(&notes), 0, "{notes:?}");
    for (text, found) in [("longce:short=4096", "4096 and 1024"), ("longce:short=30,stride=3", "30 and 3")] {
        let e = run(text, Packing::Pack).unwrap_err().to_string();
        let says = "longce: expected short + stride of at most the context, 32 tokens, found ";
        assert_eq!(e, format!("{says}{found}: all weights would be 1"));
    }
    // A window after the first has one target: the last of all.
    assert_eq!(said(&run("longce:short=30,stride=2", Packing::Pack).unwrap().1), 0);
    // Documents that end within the first window.
    for i in 0..5 {
        std::fs::write(world.path("texts").join(format!("{i}.txt")), format!("{i}: a short rope.")).unwrap();
    }
    let (weighed, notes) = run("longce:short=20,stride=10", Packing::Truncate).unwrap();
    assert_eq!(said(&notes), 2, "{notes:?}");
    assert!(notes
        .iter()
        .any(|n| n.starts_with("step 1: all weights of LongCE are 1, as in plain training: ")));
    assert!(
        notes.iter().any(|n| n.starts_with("in 3 of 3 sequences all weights of LongCE are 1")),
        "{notes:?}"
    );
    assert_close(&weighed, &run("ce", Packing::Truncate).unwrap().0);
}

fn data(world: &World, method: &str, packing: Packing) -> Dataset {
    let sources = Sources::find(&[world.path("texts")], &TextOptions::default()).unwrap();
    let cache = world.path("texts.tokens");
    let vocab = world.model.vocab();
    let corpus = Corpus::open(&cache, vocab, &sources, &Separator::Auto, &Control::default()).unwrap();
    let held_out = HeldOut::Samples(2);
    let params = DatasetParams::new(N_CTX).held_out(held_out).packing(packing);
    let data = Dataset::new(Arc::new(corpus), &params).unwrap();
    if method == "none" {
        return data;
    }
    data.with_transform(parse_method(&knotted(method), N_CTX, Arc::new(vocab.clone())).unwrap()).unwrap()
}

#[test]
fn methods_that_do_not_go_together_are_refused() {
    let world = World::new("methods-refused");
    let new = |method: &str, params: RunParams, n_positions| {
        let how = settings(N_CTX, 20, "plain").n_positions(n_positions);
        let trainer = Trainer::new(&world.model, &how).unwrap();
        let optim = OptimParams::new(Schedule::constant(1e-2, 5));
        let optimizer = Optimizer::new(optim, trainer.params()).unwrap();
        Run::new(trainer, optimizer, data(&world, method, Packing::Pack), params)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let doc_mask = RunParams::default().doc_mask(true);
    assert!(new("utk", doc_mask.clone(), None).starts_with("doc-mask: a data method that mixes documents"));
    assert!(new("cip", doc_mask, None).starts_with("doc-mask: "));
    let e = new("pose:target=64", RunParams::default(), None);
    assert_eq!(e, "positions: expected a plan for a context of 64, found one for 32");
    let longce = RunParams::default().longce(Some(LongCe::default()));
    assert!(new("pose:target=64", longce, Some(64)).starts_with("longce: "));
}
