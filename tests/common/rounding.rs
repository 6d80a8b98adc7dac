//! How far results in floats may be off for rounding alone: so much, and no more, another order of the same sums may change,
//! as another processor or another cut into blocks has it. Tests of other crates include this file.
#![allow(dead_code, unreachable_pub)]

/// The largest error of rounding a number to a float, in parts of it: half of the distance from 1 to the next.
pub const UNIT: f64 = f32::EPSILON as f64 / 2.0;

/// How far a result with `n` roundings after one another may be off, in parts of the magnitudes it is summed from: a sum
/// has one for each of its terms, and they add up along the longest way from what is given to what is found.
///
/// Each may be off by [`UNIT`], so all of them together by `n` of it. But they go either way, and together come to the root
/// of `n` (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019): six times that, more than
/// 2 exp(-6 * 6 / 2), or one in 30 million, are not.
pub const fn rounding(n: usize) -> f64 {
    let together = (6 * 6 * n).isqrt();
    (if together < n { together } else { n }) as f64 * UNIT
}

/// How far two orders of the same sums may be apart: both may be off, one to either side.
pub const fn two_orders(n: usize) -> f64 {
    2.0 * rounding(n)
}
