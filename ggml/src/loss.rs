//! Cross entropy over a vocabulary: of one row, and ops of our own for the CPU: the loss of each row of logits, and its
//! gradient in the logits' own memory. Ordinary ops would go over the logits, the largest tensor of a
//! training step, some five times.

use std::ffi::c_void;

use kernels::cross_entropy::{gradient, loss, STATS};

use crate::custom::share;
use crate::graph::Builder;
use crate::ops::{check, plain, possible};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// `ln(sum(exp(x))) - x[target]` of a row of logits, nats; NaN for a target outside the row.
pub fn row_loss(row: &[f32], target: usize) -> f32 {
    loss(row, target)[0]
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
        possible(op, DType::F32, [STATS, t, 1, 1])?;
        self.custom(DType::F32, [STATS, t, 1, 1], &[logits, targets], run_loss, ())
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
        self.custom_over(logits, &args[1..], run_back, ())
    }
}

unsafe extern "C" fn run_loss(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, _: *mut c_void) {
    // SAFETY: ggml passes the node made in `cross_entropy` and its sources, checked there and alive while it
    // runs.
    let (dst, logits, targets) = unsafe { (&*dst, &*(*dst).src[0], &*(*dst).src[1]) };
    let (n_vocab, t) = (logits.ne[0] as usize, logits.ne[1] as usize);
    // SAFETY: contiguous I32 [T].
    let targets = unsafe { std::slice::from_raw_parts(targets.data as *const i32, t) };
    for i in share(t, ith, nth) {
        // SAFETY: contiguous F32 [n_vocab, T], computed before.
        let row =
            unsafe { std::slice::from_raw_parts((logits.data as *const f32).add(i * n_vocab), n_vocab) };
        let stats = loss(row, targets[i] as usize);
        // SAFETY: dst is contiguous F32 [3, T]; threads take disjoint rows, and the op does not run in place.
        unsafe { (dst.data as *mut [f32; STATS]).add(i).write(stats) };
    }
}

unsafe extern "C" fn run_back(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, _: *mut c_void) {
    // SAFETY: ggml passes the node made in `cross_entropy_back` and its sources, checked there and alive
    // while it runs.
    let (dst, targets, stats, weights) =
        unsafe { (&*dst, &*(*dst).src[1], &*(*dst).src[2], &*(*dst).src[3]) };
    let (n_vocab, t) = (dst.ne[0] as usize, dst.ne[1] as usize);
    // SAFETY: contiguous I32 [T], F32 [3, T] and [T]; none is in the logits' memory: `cross_entropy_back`
    // takes no views of them, and they are alive as sources of this node.
    let (targets, stats, weights) = unsafe {
        (
            std::slice::from_raw_parts(targets.data as *const i32, t),
            std::slice::from_raw_parts(stats.data as *const [f32; STATS], t),
            std::slice::from_raw_parts(weights.data as *const f32, t),
        )
    };
    for i in share(t, ith, nth) {
        // SAFETY: dst is the logits, contiguous F32 [n_vocab, T], and threads take disjoint rows.
        let row = unsafe { std::slice::from_raw_parts_mut((dst.data as *mut f32).add(i * n_vocab), n_vocab) };
        gradient(row, targets[i] as usize, stats[i], weights[i]);
    }
}
