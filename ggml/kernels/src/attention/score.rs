//! Changes that some models make to scores besides a softmax: a cap on their size, and a sink next to the keys.

use std::f32::consts::LOG2_E;

use super::kernel::exp2;
use crate::simd::fma;

/// Where the quotient of [`tanh`] reaches 1; beyond, it would leave it again.
const MOST: f32 = 7.905_311;
/// Odd coefficients above, even ones below, from `x^1` and `x^0` on: those of Eigen's `ptanh_float`.
#[allow(clippy::excessive_precision)]
const ABOVE: [f32; 7] = [
    4.893_524_558_917_86e-3,
    6.372_619_288_754_36e-4,
    1.485_722_357_179_79e-5,
    5.122_297_090_371_14e-8,
    -8.604_671_522_137_35e-11,
    2.000_187_904_824_77e-13,
    -2.760_768_477_423_55e-16,
];
#[allow(clippy::excessive_precision)]
const BELOW: [f32; 4] =
    [4.893_525_185_543_85e-3, 2.268_434_632_439e-3, 1.185_347_056_866_54e-4, 1.198_258_394_667_02e-6];

/// The hyperbolic tangent, relatively within 4e-7 of its value; NaN of NaN. Loops of it become vectors.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let x = if x > MOST { MOST } else { x };
    let x = if x < -MOST { -MOST } else { x };
    let square = x * x;
    let sum = |of: &[f32]| of.iter().rev().fold(0.0, |sum, &next| fma(sum, square, next));
    x * sum(&ABOVE) / sum(&BELOW)
}

/// Scores `s` become `cap * tanh(s / cap)`.
#[inline(always)]
pub(super) fn soft_cap<const W: usize>(s: &mut [[f32; W]], cap: f32) {
    let inverse = 1.0 / cap;
    for s in s {
        s.iter_mut().for_each(|s| *s = cap * tanh(*s * inverse));
    }
}

/// A row's softmax over its keys: the maximum, in units of log 2, and the sum of weights relative to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stats {
    /// -inf where nothing is seen.
    pub max: f32,
    /// 0 where nothing is seen.
    pub sum: f32,
}

impl Stats {
    /// The same with a sink among the keys: a score (in natural units) that no value belongs to. Also returns the
    /// factor on what was summed before.
    #[inline]
    pub fn with_sink(self, sink: f32) -> (Stats, f32) {
        let sink = sink * LOG2_E;
        let max = self.max.max(sink);
        let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let factor = exp2(self.max - base);
        (Stats { max, sum: self.sum * factor + exp2(sink - base) }, factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyperbolic_tangents() {
        let mut worst = 0.0f64;
        for i in 1..=2_000_000 {
            let x = i as f32 * 1e-5;
            let exact = f64::from(x).tanh();
            worst = worst.max((f64::from(tanh(x)) - exact).abs() / exact);
            assert_eq!(tanh(-x), -tanh(x), "{x}");
            assert!(tanh(x) <= 1.0, "{x}");
        }
        assert!(worst < 4e-7, "{worst:e}");
        for (x, y) in
            [(0.0, 0.0), (f32::INFINITY, 1.0), (f32::NEG_INFINITY, -1.0), (1e30, 1.0), (1e-30, 1e-30)]
        {
            assert!((tanh(x) - y).abs() <= 4e-7 * y.abs(), "{x}: {}", tanh(x));
        }
        assert!(tanh(f32::NAN).is_nan());
    }

    #[test]
    fn a_sink_takes_part_in_the_softmax() {
        let ln2 = std::f32::consts::LN_2;
        // Weights 2^3 and 2^1, and a sink of 2^5.
        let (stats, factor) = Stats { max: 3.0, sum: 1.25 }.with_sink(5.0 * ln2);
        assert_eq!((stats, factor), (Stats { max: 5.0, sum: 1.3125 }, 0.25));
        let (stats, factor) = Stats { max: 3.0, sum: 1.25 }.with_sink(2.0 * ln2);
        assert_eq!((stats, factor), (Stats { max: 3.0, sum: 1.75 }, 1.0));
        let nothing = Stats { max: f32::NEG_INFINITY, sum: 0.0 };
        assert_eq!(nothing.with_sink(2.0 * ln2), (Stats { max: 2.0, sum: 1.0 }, 0.0));
        assert_eq!(nothing.with_sink(f32::NEG_INFINITY), (nothing, 0.0));
        assert!(nothing.with_sink(f32::NAN).0.sum.is_nan());
    }
}
