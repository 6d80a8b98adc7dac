//! Cross entropy of a row of logits, and its gradient, written over the logits.
//!
//! Sums are in f64 and exponents relative to the row's largest logit, so that tens of thousands of terms cost
//! no digits.

use std::f32::consts::LOG2_E;

use crate::attention::exp2;

/// Number of values that [`loss`] returns for a row.
pub const STATS: usize = 3;
/// Terms summed in f32 before they are added in f64.
const CHUNK: usize = 256;
/// Independent sums, so that the compiler can vectorize.
const LANES: usize = 8;

/// The largest element; NaN if any element is NaN, which comparisons alone would skip.
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
    if odd.contains(&true) {
        return f32::NAN;
    }
    max.into_iter().fold(f32::NEG_INFINITY, f32::max)
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

/// Cross entropy of a row of logits `x` for the token `target`: returns the loss `ln(sum(exp(x))) -
/// x[target]` (NaN for a target outside the row), the largest logit m, and `ln(sum(exp(x - m)))`.
pub fn loss(row: &[f32], target: usize) -> [f32; STATS] {
    let max = largest(row);
    let log_sum = sum_exp(row, max).ln();
    [of_target(row, target, max, log_sum), max, log_sum as f32]
}

/// The loss of [`loss`] for each of several targets of one row.
pub fn losses(row: &[f32], targets: &[usize]) -> Vec<f32> {
    let max = largest(row);
    let log_sum = sum_exp(row, max).ln();
    targets.iter().map(|&target| of_target(row, target, max, log_sum)).collect()
}

fn of_target(row: &[f32], target: usize, max: f32, log_sum: f64) -> f32 {
    let target = row.get(target).map_or(f64::NAN, |&x| f64::from(x));
    (log_sum + (f64::from(max) - target)) as f32
}

/// Replaces a row of logits by the gradient of `weight` times its loss; `stats` is the result of [`loss`] for
/// the row and target.
pub fn gradient(row: &mut [f32], target: usize, stats: [f32; STATS], weight: f32) {
    let [loss, max, log_sum] = stats;
    let factor = weight * (-log_sum).exp();
    row.iter_mut().for_each(|x| *x = factor * exp2((*x - max) * LOG2_E));
    if let Some(x) = row.get_mut(target) {
        // p - 1, without cancellation where p is nearly 1.
        *x = (f64::from(weight) * (-f64::from(loss)).exp_m1()) as f32;
    }
}
