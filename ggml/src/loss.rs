//! Cross entropy over a vocabulary: of one row, and ops of our own for the CPU: the loss of each row of logits, and its
//! gradient in the logits' own memory. Ordinary ops would go over the logits, the largest tensor of a
//! training step, some five times.

use kernels::cross_entropy::{gradient, loss, losses, STATS};

use crate::graph::Builder;
use crate::node::Part;
use crate::ops::{check, plain};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// `ln(sum(exp(x))) - x[target]` of a row of logits, nats; NaN for a target outside the row.
pub fn row_loss(row: &[f32], target: usize) -> f32 {
    loss(row, target)[0]
}

/// [`row_loss`] for each of several targets, to the bit.
pub fn row_losses(row: &[f32], targets: &[usize]) -> Vec<f32> {
    losses(row, targets)
}

impl<'c> Builder<'c> {
    /// Cross entropy of logits (F32 `[n_vocab, T]`, contiguous) and targets (I32 `[T]`, an input of the graph, each
    /// below `n_vocab`): F32 `[3, T]`, each row the loss `ln(sum(exp(x))) - x[target]`, the largest logit m, and
    /// `ln(sum(exp(x - m)))`. For the CPU; elsewhere the graph is refused.
    pub fn cross_entropy(&self, logits: Tensor<'c>, targets: Tensor<'c>) -> Result<Tensor<'c>> {
        let (op, [n_vocab, t, ..]) = ("cross_entropy", logits.ne());
        let ok = plain(logits, DType::F32, [n_vocab, t, 1, 1]) && plain(targets, DType::I32, [t, 1, 1, 1]);
        check(ok, op, "contiguous f32 [n_vocab,T], i32 [T]", &[logits, targets])?;
        self.index(op, targets, n_vocab)?;
        self.custom(op, DType::F32, [STATS, t, 1, 1], &[logits, targets], run_loss)
    }

    /// The gradient of the logits where the loss of row `i` counts `weights[i]` (F32 `[T]`), over the logits
    /// themselves: whoever needs those must come before. `stats` is what [`Builder::cross_entropy`] gave of
    /// these logits and targets; the logits are a result of the graph. For the CPU; elsewhere the graph is
    /// refused.
    pub fn cross_entropy_back(
        &self,
        logits: Tensor<'c>,
        targets: Tensor<'c>,
        stats: Tensor<'c>,
        weights: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let (op, [n_vocab, t, ..]) = ("cross_entropy_back", logits.ne());
        let args = [logits, targets, stats, weights];
        let ok = plain(logits, DType::F32, [n_vocab, t, 1, 1])
            && plain(targets, DType::I32, [t, 1, 1, 1])
            && plain(stats, DType::F32, [STATS, t, 1, 1])
            && plain(weights, DType::F32, [t, 1, 1, 1]);
        // Inputs and stored tensors are others' to keep; both are leaves, without an op.
        let apart = args[1..].iter().all(|t| t.ptr != logits.ptr && t.raw().view_src != logits.ptr.as_ptr());
        let result = logits.raw().op != sys::GGML_OP_NONE && logits.raw().view_src.is_null();
        check(
            ok && result && apart,
            op,
            "a result f32 [n_vocab,T]; i32 [T], f32 [3,T] and f32 [T] that are no views of it; contiguous",
            &args,
        )?;
        self.index(op, targets, n_vocab)?;
        self.custom_over(logits, &args[1..], run_back)
    }
}

fn run_loss(part: Part<'_>) {
    let (logits, targets) = (part.source(0), part.source(1).all::<i32>());
    for (i, stats) in part.rows::<f32>() {
        stats.copy_from_slice(&loss(logits.row([i, 0, 0]), targets[i] as usize));
    }
}

fn run_back(part: Part<'_>) {
    let (targets, weights) = (part.source(1).all::<i32>(), part.source(3).all::<f32>());
    let stats = part.source(2).all::<f32>().as_chunks::<STATS>().0;
    for (i, row) in part.rows::<f32>() {
        gradient(row, targets[i] as usize, stats[i], weights[i]);
    }
}
