//! The loops attention spends its time in, written so that the compiler turns the inner ones into vector instructions.
//!
//! Sizes are chosen for twelve vectors of accumulators: what a fused multiply-add unit needs to stay busy, and what leaves
//! room in 16 registers of 8 floats. On machines with 32 wider registers, blocks are twice as wide.

const WIDE: bool = cfg!(target_feature = "avx512f");

/// Query rows that are vector lanes of one block of scores.
pub(super) const LANES: usize = if WIDE { 48 } else { 24 };
/// Columns of values that are vector lanes of one block of sums.
pub(super) const BLOCK: usize = if WIDE { 32 } else { 16 };
/// Rows of sums in a block.
pub(super) const PANEL: usize = 6;

/// `a * b + c`, fused where that is an instruction and not a function call.
#[inline(always)]
fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// `2^x` for x <= 0 within 2e-7 of its value; 0 below -125 (of which `e^x` is -86.6), so for -inf too.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // 2^r = 1 + r P(r) on -0.5..=0.5, least relative error: 9.1e-8.
    const P: [f32; 5] = [0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];
    let rounded = x + ROUND;
    let r = x - (rounded - ROUND);
    let p = fma(fma(fma(fma(P[4], r, P[3]), r, P[2]), r, P[1]), r, P[0]);
    let power = fma(p, r, 1.0).to_bits().wrapping_add(rounded.to_bits() << 23);
    if x < -125.0 {
        0.0
    } else {
        f32::from_bits(power)
    }
}

/// Scores of K keys (rows of d floats) with W queries (transposed, `[d][W]`).
#[inline]
pub(super) fn scores<const W: usize, const K: usize>(q: &[[f32; W]], k: [&[f32]; K]) -> [[f32; W]; K] {
    let d = q.len();
    let k = k.map(|k| &k[..d]);
    let mut sums = [[0.0; W]; K];
    for (i, q) in q.iter().enumerate() {
        for (sum, k) in sums.iter_mut().zip(k) {
            let k = k[i];
            for (s, q) in sum.iter_mut().zip(q) {
                *s = fma(k, *q, *s);
            }
        }
    }
    sums
}

/// One step of the running softmax for W queries: scores `[n_keys][W]`, in units of log 2, become weights relative to the new
/// maximum. Returns what the sums so far must be multiplied with, when a maximum has changed.
#[inline]
pub(super) fn soften<const W: usize>(
    s: &mut [[f32; W]],
    max: &mut [f32; W],
    sum: &mut [f32; W],
) -> Option<[f32; W]> {
    let old = *max;
    let mut new = old;
    for s in s.iter() {
        for (m, &s) in new.iter_mut().zip(s) {
            *m = if s > *m { s } else { *m };
        }
    }
    *max = new;
    // A row that has seen nothing yet: -inf - -inf would not be a number.
    let base = new.map(|m| if m == f32::NEG_INFINITY { 0.0 } else { m });
    let mut total = [0.0; W];
    for s in s.iter_mut() {
        for ((s, base), total) in s.iter_mut().zip(&base).zip(&mut total) {
            *s = exp2(*s - base);
            *total += *s;
        }
    }
    let mut factor = [1.0; W];
    if new != old {
        for ((f, old), base) in factor.iter_mut().zip(&old).zip(&base) {
            *f = exp2(old - base);
        }
    }
    for ((sum, f), total) in sum.iter_mut().zip(&factor).zip(&total) {
        *sum = fma(*sum, *f, *total);
    }
    (new != old).then_some(factor)
}

/// Adds weighted values to R rows of sums, `stride` blocks apart: weights `[n_keys][W]` from lane `lane` on, values
/// `[n_keys][BLOCK]`.
#[inline]
pub(super) fn weigh<const W: usize, const R: usize>(
    p: &[[f32; W]],
    lane: usize,
    v: &[[f32; BLOCK]],
    out: &mut [[f32; BLOCK]],
    stride: usize,
) {
    assert!(lane + R <= W);
    let mut sums: [[f32; BLOCK]; R] = std::array::from_fn(|r| out[r * stride]);
    for (p, v) in p.iter().zip(v) {
        for (r, sum) in sums.iter_mut().enumerate() {
            let p = p[lane + r];
            for (s, v) in sum.iter_mut().zip(v) {
                *s = fma(p, *v, *s);
            }
        }
    }
    for (r, sum) in sums.iter().enumerate() {
        out[r * stride] = *sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_of_two() {
        let mut worst = 0.0f64;
        for i in 0..=1_250_000 {
            let x = -(i as f32) / 10_000.0;
            let exact = f64::from(x).exp2();
            worst = worst.max((f64::from(exp2(x)) - exact).abs() / exact);
        }
        assert!(worst < 2e-7, "{worst:e}");
        assert_eq!(exp2(0.0), 1.0);
        for x in [-125.001, -1e4, -1e30, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp2(x), 0.0, "{x}");
        }
        assert!(exp2(f32::NAN).is_nan());
    }

    #[test]
    fn a_running_softmax_of_nothing_and_of_one_piece_or_two() {
        let inf = f32::NEG_INFINITY;
        let (mut max, mut sum) = ([inf; 2], [0.0; 2]);
        assert_eq!(soften(&mut [[inf, inf]], &mut max, &mut sum), None);
        assert_eq!((max, sum), ([inf; 2], [0.0; 2]));
        assert_eq!(soften(&mut [[1.0, inf], [0.0, inf]], &mut max, &mut sum), Some([0.0, 0.0]));
        assert_eq!((max, sum), ([1.0, inf], [1.5, 0.0]));
        assert_eq!(soften(&mut [[3.0, -200.0]], &mut max, &mut sum), Some([0.25, 0.0]));
        assert_eq!((max, sum), ([3.0, -200.0], [1.375, 1.0]));
    }
}
