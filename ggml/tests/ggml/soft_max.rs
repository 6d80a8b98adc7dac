//! Scores, a softmax of them and the values it weighs in f64, and how far floats may be off, to first order.

#![allow(unreachable_pub)]

use crate::common::{rounding, UNIT};

/// A score, and how far it may be off.
#[derive(Debug, Clone, Copy)]
pub struct Score {
    pub value: f64,
    pub off: f64,
}

impl Score {
    /// The product of a query and a key that is off by so much, scaled and perhaps capped.
    pub fn of_product(product: f64, off: f64, scale: f64, cap: Option<f64>) -> Score {
        let value = scale * product;
        let value = cap.map_or(value, |cap| cap * (value / cap).tanh());
        // Its scale and units; a tanh is right to 4e-7, 7 of these units.
        Score { value, off: scale * off + 12.0 * UNIT * value.abs() }
    }

    /// The same of a query and a key of floats.
    pub fn new(q: &[f64], k: &[f64], scale: f64, cap: Option<f64>) -> Score {
        let terms = || q.iter().zip(k).map(|(q, k)| q * k);
        let size: f64 = terms().map(f64::abs).sum();
        // Its terms, the lanes of their sum, and the scale of the query before.
        Score::of_product(terms().sum(), rounding(q.len() + 6) * size, scale, cap)
    }

    /// A sink, which no product follows.
    pub fn given(value: f64) -> Score {
        Score { value, off: 4.0 * UNIT * value.abs() }
    }

    /// With a bias of a mask; one of -inf hides it.
    pub fn plus(self, bias: f64) -> Score {
        if bias == f64::NEG_INFINITY {
            return Score { value: bias, off: 0.0 };
        }
        let value = self.value + bias;
        Score { value, off: self.off + UNIT * value.abs() }
    }
}

/// How far a sum of `n` weights, or of values weighted, may be off: its terms, its lanes, and its units,
/// which change with each larger maximum.
pub fn summed(n: usize) -> f64 {
    rounding(n + 24)
}

/// Weights, and the logarithm of the sum of exponentials.
pub struct SoftMax {
    pub weights: Vec<f64>,
    /// How far each may be off, in parts of it.
    pub off: Vec<f64>,
    /// The same but for what `lse` is off, by the same parts of all of them.
    pub own: Vec<f64>,
    pub lse: f64,
    pub lse_off: f64,
}

impl SoftMax {
    /// Softmax of these scores, with sums of `n` terms.
    pub fn new(scores: &[Score], n: usize) -> SoftMax {
        let max = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(s.value));
        if max == f64::NEG_INFINITY {
            let none = vec![0.0; scores.len()];
            return SoftMax { weights: none.clone(), off: none.clone(), own: none, lse: max, lse_off: 0.0 };
        }
        let lse = max + scores.iter().map(|s| (s.value - max).exp()).sum::<f64>().ln();
        let weights: Vec<f64> = scores.iter().map(|s| (s.value - lse).exp()).collect();
        let mean: f64 = weights.iter().zip(scores).map(|(w, s)| w * s.off).sum();
        // Scores are less their maximum, at most the logarithm of n below the result, in units of ln 2.
        let lse_off = mean + summed(n) + UNIT * (8.0 * lse.abs() + 4.0 * (n as f64).ln());
        // Exponentials are right to 2e-7, 4 of these units; what they are taken of is a difference.
        let own = |s: &Score| match s.value.is_finite() {
            true => s.off + UNIT * (8.0 + 4.0 * (s.value.abs() + lse.abs())),
            false => 0.0,
        };
        let own: Vec<f64> = scores.iter().map(own).collect();
        SoftMax { off: own.iter().map(|own| own + lse_off).collect(), own, weights, lse, lse_off }
    }

    /// The score of a landmark in whose place these weights are divided among the keys of its block.
    pub fn joined(&self, landmark: Score) -> Score {
        let mean: f64 = self.weights.iter().zip(&self.off).map(|(w, off)| w * off).sum();
        // It is shifted by the logarithm of their sum.
        let off = landmark.off + mean + 4.0 * UNIT * (landmark.value.abs() + self.lse.abs());
        Score { off, ..landmark }
    }

    /// The sum of values, each times its weight, and how far it may be off, where sums have so much in parts
    /// of their terms.
    pub fn weigh(&self, summed: f64, value: impl Fn(usize) -> f64) -> (f64, f64) {
        let (mut sum, mut off) = (0.0, 0.0);
        for (i, (w, part)) in self.weights.iter().zip(&self.own).enumerate() {
            let term = w * value(i);
            sum += term;
            off += term.abs() * (part + summed);
        }
        (sum, off + sum.abs() * self.lse_off)
    }
}
