//! Cross entropy over a vocabulary, ops of our own for the CPU: the loss of each row of logits, and its gradient in the logits'
//! own memory. Ordinary ops would go over the logits, the largest tensor of a training step, some five times.
//!
//! Sums are in f64 and exponents relative to the row's largest logit, so that tens of thousands of terms cost no digits.

use std::f32::consts::LOG2_E;
use std::ffi::c_void;

use crate::attention::exp2;
use crate::custom::share;
use crate::graph::Builder;
use crate::ops::{check, contiguous, possible};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// Numbers of a row that its gradient starts from, the loss first.
const STATS: usize = 3;
/// Terms summed in f32 before they are added in f64.
const CHUNK: usize = 256;
/// Sums beside each other, for vectors.
const LANES: usize = 8;

fn plain(t: Tensor<'_>, dtype: DType, ne: [usize; 4]) -> bool {
    t.dtype() == dtype && t.ne() == ne && contiguous(t)
}

impl<'c> Builder<'c> {
    /// Of logits (F32 `[n_vocab, T]`, contiguous) and targets (I32 `[T]`, an input of the graph, each below `n_vocab`): F32
    /// `[3, T]`, each row the loss `ln(sum(exp(x))) - x[target]`, the largest logit m, and `ln(sum(exp(x - m)))`. For the CPU;
    /// elsewhere the graph is refused.
    pub fn cross_entropy(&self, logits: Tensor<'c>, targets: Tensor<'c>) -> Result<Tensor<'c>> {
        let (op, [n_vocab, t, ..]) = ("cross_entropy", logits.ne());
        let ok = plain(logits, DType::F32, [n_vocab, t, 1, 1]) && plain(targets, DType::I32, [t, 1, 1, 1]);
        check(ok, op, "contiguous f32 [n_vocab,T], i32 [T]", &[logits, targets])?;
        self.index(op, targets, n_vocab)?;
        possible(op, DType::F32, [STATS, t, 1, 1])?;
        self.custom(DType::F32, [STATS, t, 1, 1], &[logits, targets], run_loss, ())
    }

    /// The gradient of the logits where the loss of row `i` counts `weights[i]` (F32 `[T]`), over the logits themselves:
    /// whoever needs those must come before. `stats` is what [`Builder::cross_entropy`] gave of these logits and targets; the
    /// logits are a result of the graph. For the CPU; elsewhere the graph is refused.
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

/// The largest element; NaN if there is a NaN, which comparisons alone would pass over.
fn largest(row: &[f32]) -> f32 {
    let (mut max, mut odd) = ([f32::NEG_INFINITY; LANES], [false; LANES]);
    let mut see = |part: &[f32]| {
        for ((m, odd), x) in max.iter_mut().zip(&mut odd).zip(part) {
            *m = if *x > *m { *x } else { *m };
            *odd |= x.is_nan();
        }
    };
    let parts = row.chunks_exact(LANES);
    let rest = parts.remainder();
    parts.for_each(&mut see);
    see(rest);
    match odd.contains(&true) {
        true => f32::NAN,
        false => max.into_iter().fold(f32::NEG_INFINITY, f32::max),
    }
}

/// The sum of `exp(x - max)`.
fn sum_exp(row: &[f32], max: f32) -> f64 {
    let chunk = |chunk: &[f32]| {
        let mut sums = [0.0f32; LANES];
        let mut add = |part: &[f32]| {
            sums.iter_mut().zip(part).for_each(|(s, x)| *s += exp2((x - max) * LOG2_E));
        };
        let parts = chunk.chunks_exact(LANES);
        let rest = parts.remainder();
        parts.for_each(&mut add);
        add(rest);
        sums.iter().map(|&s| f64::from(s)).sum::<f64>()
    };
    row.chunks(CHUNK).map(chunk).sum()
}

unsafe extern "C" fn run_loss(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, _: *mut c_void) {
    // SAFETY: ggml passes the node made in `cross_entropy` and its sources, checked there and alive while it runs.
    let (dst, logits, targets) = unsafe { (&*dst, &*(*dst).src[0], &*(*dst).src[1]) };
    let (n_vocab, t) = (logits.ne[0] as usize, logits.ne[1] as usize);
    // SAFETY: contiguous I32 [T].
    let targets = unsafe { std::slice::from_raw_parts(targets.data as *const i32, t) };
    for i in share(t, ith, nth) {
        // SAFETY: contiguous F32 [n_vocab, T], computed before.
        let row =
            unsafe { std::slice::from_raw_parts((logits.data as *const f32).add(i * n_vocab), n_vocab) };
        let max = largest(row);
        let log_sum = sum_exp(row, max).ln();
        let target = row.get(targets[i] as usize).map_or(f64::NAN, |&x| f64::from(x));
        let stats = [(log_sum + (f64::from(max) - target)) as f32, max, log_sum as f32];
        // SAFETY: dst is contiguous F32 [3, T]; threads take disjoint rows, and the op does not run in place.
        unsafe { (dst.data as *mut [f32; STATS]).add(i).write(stats) };
    }
}

unsafe extern "C" fn run_back(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, _: *mut c_void) {
    // SAFETY: ggml passes the node made in `cross_entropy_back` and its sources, checked there and alive while it runs.
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
        let ([loss, max, log_sum], weight) = (stats[i], weights[i]);
        let factor = weight * (-log_sum).exp();
        row.iter_mut().for_each(|x| *x = factor * exp2((*x - max) * LOG2_E));
        if let Some(x) = row.get_mut(targets[i] as usize) {
            // p - 1, without cancellation where p is nearly 1.
            *x = (f64::from(weight) * (-f64::from(loss)).exp_m1()) as f32;
        }
    }
}
