//! Training on the default model against what `tests/reference/training.py` found by automatic differentiation in f64: losses,
//! gradients, fifty steps.

mod curve;
mod gradients;
mod recording;

use std::sync::OnceLock;

use ropewalk::hparams::Hparams;
use ropewalk::model::Model;

use crate::common::rounding::rounding;
use crate::common::{default_model, in_f32, load, roundings};

/// How far the mean loss of `n` tokens may be off, in parts of it: as far as a logit, and the root of their number less, for what
/// tokens are off by goes either way.
fn of_loss(hp: &Hparams, n: usize) -> f64 {
    rounding(roundings(hp, n)) / (n as f64).sqrt()
}

/// How far the gradient of a tensor may be off, of its norm.
fn of_gradient(hp: &Hparams, n: usize) -> f64 {
    rounding(3 * roundings(hp, n) + n)
}

/// The default model with all weights in F32.
fn wide() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| load(&in_f32(&default_model(), "train-reference-f32.gguf")))
}

/// The default model as shipped, in Q4_1.
fn shipped() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| load(&default_model()))
}
