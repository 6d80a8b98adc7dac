//! Fifty steps of AdamW against the recording, and a run that goes on from a checkpoint.

use std::collections::BTreeMap;

use ropewalk::train::checkpoint::{self, State};
use ropewalk::train::optim::{AdamW, OptimParams, Optimizer, Schedule};
use ropewalk::train::{Checkpointing, Sequence, TrainParams, Trainer};
use ropewalk::Token;

use super::recording::{recording, trainer, Curve, Recording};
use super::{of_gradient, of_loss, shipped};
use crate::common::{scratch, size};

/// How far the recorded curve is followed, where the run is saved, and where the one that goes on from there is compared.
struct Length {
    steps: usize,
    stop: usize,
    compared: usize,
}

/// A step is a second of one core.
fn length() -> Length {
    size(Length { steps: 4, stop: 3, compared: 4 }, Length { steps: 50, stop: 20, compared: 50 })
}

fn optim(curve: &Curve) -> OptimParams {
    let Curve { lr, beta1, beta2, eps, weight_decay, clip, .. } = *curve;
    OptimParams::new(Schedule::constant(lr, curve.steps as u64))
        .adamw(AdamW::default().beta1(beta1).beta2(beta2).eps(eps).weight_decay(weight_decay))
        .clip(clip)
}

fn settings(recording: &Recording) -> TrainParams {
    TrainParams::new(recording.curve.tokens_per_step)
        .rope(Some("plain".parse().unwrap()))
        .n_threads(1)
        .checkpointing(Some(Checkpointing::Products))
        .lora(recording.lora(&recording.curve.targets))
}

/// The tokens of a step, the one predicted last included.
fn tokens(recording: &Recording, step: usize) -> &[Token] {
    let n = recording.curve.tokens_per_step;
    &recording.tokens[n * step..n * (step + 1) + 1]
}

fn step(trainer: &mut Trainer, optimizer: &mut Optimizer, tokens: &[Token]) -> (f64, f64) {
    let loss = trainer.accumulate(Sequence::new(tokens), 1.0).unwrap();
    (loss, optimizer.step(trainer.params_mut()).unwrap().grad_norm)
}

/// On the file as shipped: its weights are dequantized exactly.
#[test]
fn steps_follow_the_recorded_losses_and_resume_bit_by_bit() {
    let recording = recording();
    let (curve, settings) = (&recording.curve, settings(&recording));
    let mut run = trainer(shipped(), &settings, false);
    let mut optimizer = Optimizer::new(optim(curve), run.params()).unwrap();
    let path = scratch("train-reference-curve.safetensors");
    let names = BTreeMap::from([("rank".to_string(), recording.rank.to_string())]);
    let Length { steps, stop, compared } = length();
    println!("{steps} of {} steps; make soak takes all", curve.steps);
    // A step is off by as large a part as its gradient, and so is how far the run has come: the loss by that part of what it has
    // lost, and the next gradient by no more than twice.
    let (hp, n) = (shipped().hparams(), curve.tokens_per_step);
    let learned = |i: usize| 1.0 - curve.losses[i] / curve.base_losses[i];
    let (mut at_compared, mut worst) = (None, (0.0f64, 0.0f64));
    for i in 0..steps {
        if i == stop {
            let state = State { step: i as u64, n_seen: i as u64, settings: names.clone() };
            checkpoint::save(&path, &state, run.params(), &optimizer).unwrap();
        }
        let (loss, norm) = step(&mut run, &mut optimizer, tokens(&recording, i));
        let off = (loss / curve.losses[i] - 1.0).abs();
        let bound = of_loss(hp, n) + of_gradient(hp, n) * learned(i).abs();
        assert!(off < bound, "step {i}: loss {loss}, recorded {}", curve.losses[i]);
        worst = (worst.0.max(off), worst.1.max((norm / curve.gradient_norms[i] - 1.0).abs()));
        if i + 1 == compared {
            at_compared = Some((run.params().list().to_vec(), optimizer.clone()));
        }
    }
    println!("losses {:.1e} off at most, norms of gradients {:.1e}", worst.0, worst.1);
    assert!(worst.1 < 2.0 * of_gradient(hp, n), "{worst:?}");
    // A run that learns nothing does not follow the curve.
    let last = learned(steps - 1);
    assert!(last > of_loss(hp, n) + of_gradient(hp, n) * last);
    let ends = [(".lora_a", curve.final_norms.a), (".lora_b", curve.final_norms.b)];
    for (side, want) in ends.into_iter().filter(|_| steps == curve.steps) {
        let halves = run.params().list().iter().filter(|t| t.id.to_string().ends_with(side));
        let norm = halves.flat_map(|t| &t.value).map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        assert!((norm / want - 1.0).abs() < of_gradient(hp, n), "{side}: norm {norm}, recorded {want}");
    }

    let mut fresh = Trainer::new(shipped(), &settings).unwrap();
    let mut optimizer = Optimizer::new(optim(curve), fresh.params()).unwrap();
    let state = checkpoint::load(&path, &names, fresh.params_mut(), &mut optimizer).unwrap();
    assert_eq!((state.step, optimizer.step), (stop as u64, stop as u64));
    fresh.set_seen(state.n_seen);
    for i in stop..compared {
        step(&mut fresh, &mut optimizer, tokens(&recording, i));
    }
    let (values, there) = at_compared.unwrap();
    assert!(fresh.params().list() == values, "values differ from those of the run that never stopped");
    assert!(optimizer == there, "moments differ from those of the run that never stopped");
    std::fs::remove_file(path).unwrap();
}
