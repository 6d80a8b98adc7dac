//! Means with their standard errors, the Wilson interval, and the bootstrap.

use rand::Rng;
use rand_chacha::rand_core::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::invalid;
use crate::model::Result;

/// Running mean and variance of f64 values (Welford's update).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Mean {
    n: usize,
    mean: f64,
    m2: f64,
}

impl Mean {
    /// Adds a value.
    pub fn push(&mut self, x: f64) {
        self.n += 1;
        let delta = x - self.mean;
        self.mean += delta / self.n as f64;
        self.m2 += delta * (x - self.mean);
    }
    /// Number of values.
    pub fn n(&self) -> usize {
        self.n
    }
    /// Mean of the values; 0 if there are none.
    pub fn mean(&self) -> f64 {
        self.mean
    }
    /// Standard error of the mean, assuming independent values; `None` for fewer than two values.
    pub fn stderr(&self) -> Option<f64> {
        (self.n >= 2).then(|| (self.m2.max(0.0) / (self.n as f64 * (self.n - 1) as f64)).sqrt())
    }
}

/// A mean negative log-likelihood and its perplexity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Perplexity {
    /// `base ^ nll`.
    pub ppl: f64,
    /// Mean negative log-likelihood, in nats per token.
    pub nll: f64,
    /// Standard error of `ppl` to first order: `ppl * nll_stderr`.
    pub ppl_stderr: Option<f64>,
    /// Standard error of `nll`.
    pub nll_stderr: Option<f64>,
}

impl Perplexity {
    /// Computes the perplexity of a mean in nats. `base` is e unless the protocol sets another one.
    ///
    /// # Errors
    /// Returns an error if the perplexity is not finite.
    pub fn new(mean: &Mean, base: f64) -> Result<Perplexity> {
        let nll = mean.mean();
        // `exp` rather than `powf`, so that the usual case is as exact as it can be.
        let ppl = if base == std::f64::consts::E { nll.exp() } else { base.powf(nll) };
        if !ppl.is_finite() {
            return Err(invalid(format!(
                "perplexity overflows: mean negative log-likelihood {nll} over {} values",
                mean.n()
            )));
        }
        let nll_stderr = mean.stderr();
        Ok(Perplexity { ppl, nll, ppl_stderr: nll_stderr.map(|e| e * ppl), nll_stderr })
    }
}

/// The 95% interval of a perplexity, from its standard error ([`Perplexity`]): 1.96 standard errors of the mean
/// negative log-likelihood on both sides, and never below 1, the smallest possible perplexity. `None` if the upper
/// end overflows.
pub fn perplexity_interval(ppl: f64, ppl_stderr: f64) -> Option<(f64, f64)> {
    let ratio = (1.96 * ppl_stderr / ppl).exp();
    let (low, high) = ((ppl / ratio).max(1.0), ppl * ratio);
    high.is_finite().then_some((low, high))
}

/// Wilson's 95% score interval of `k` successes in `n` trials (Wilson 1927); `(0, 1)` without trials.
pub fn wilson(k: usize, n: usize) -> (f64, f64) {
    wilson_of_mean(k as f64 / n.max(1) as f64, n)
}

/// [`wilson`] of the mean `p` of `n` scores between 0 and 1.
fn wilson_of_mean(p: f64, n: usize) -> (f64, f64) {
    const Z: f64 = 1.959_963_984_540_054;
    if n == 0 {
        return (0.0, 1.0);
    }
    let (n, z2) = (n as f64, Z * Z);
    let centre = p + z2 / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z2 / n;
    // At 0 and 1 the bound is exactly that; rounding would miss it by an ulp.
    let low = if p == 0.0 { 0.0 } else { ((centre - half) / scale).max(0.0) };
    let high = if p == 1.0 { 1.0 } else { ((centre + half) / scale).min(1.0) };
    (low, high)
}

/// Fewest values whose resamples say how much their mean would vary.
const BOOTSTRAP_FROM: usize = 10;

/// The 95% interval of the mean of scores between 0 and 1, and the name of its method. The method is `wilson` if all
/// scores are 0 or 1, and `bootstrap` otherwise. It is also `wilson` for fewer than ten scores and for equal scores,
/// because resamples would make the mean look certain. Wilson's interval then treats the mean as a rate. No scores
/// with that mean vary more than scores of 0 and 1, so the interval is too wide rather than too narrow.
pub fn interval(values: &[f64]) -> (&'static str, (f64, f64)) {
    let rates = values.iter().all(|x| *x == 0.0 || *x == 1.0);
    if rates || values.len() < BOOTSTRAP_FROM || values.windows(2).all(|w| w[0] == w[1]) {
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        return ("wilson", wilson_of_mean(mean, values.len()));
    }
    ("bootstrap", bootstrap(values))
}

/// The 95% interval of the mean of differences between -1 and 1, by the rules of [`interval`]. Ten or more equal
/// differences count as certain.
pub fn interval_of_differences(values: &[f64]) -> (f64, f64) {
    if values.len() >= BOOTSTRAP_FROM {
        return bootstrap(values);
    }
    let scores: Vec<f64> = values.iter().map(|d| (d + 1.0) / 2.0).collect();
    let (_, (low, high)) = interval(&scores);
    (2.0 * low - 1.0, 2.0 * high - 1.0)
}

/// Resamples of [`bootstrap`].
const RESAMPLES: usize = 2000;

/// The 95% percentile bootstrap interval of the mean of `values` (Efron 1979): the 2.5th and the 97.5th percentile of
/// the means of 2,000 resamples. The same values in the same order give the same interval. Without values, it is `(0,
/// 0)`.
pub fn bootstrap(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (0.0, 0.0);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut mean = || {
        let sum: f64 = (0..values.len()).map(|_| values[rng.random_range(0..values.len())]).sum();
        sum / values.len() as f64
    };
    let mut means: Vec<f64> = (0..RESAMPLES).map(|_| mean()).collect();
    means.sort_by(f64::total_cmp);
    let at = |p: f64| means[((RESAMPLES - 1) as f64 * p).round() as usize];
    (at(0.025), at(0.975))
}
