//! The inner loops of attention: products of queries and keys, the running softmax, and sums of weighted
//! values.
//!
//! Products keep a block of twelve vectors of sums: enough independent fused multiply-adds to hide their
//! latency, and few enough that operands fit in the rest of 16 registers.

use super::tile::KEYS;
use super::vector::{fma, Vector, N};

/// Columns of values in one block of sums: two vectors.
pub(super) const BLOCK: usize = 2 * N;
/// Rows of sums in a block.
pub(super) const PANEL: usize = 6;

/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
/// 2^r = 1 + r P(r) on -0.5..=0.5, least relative error: 9.1e-8.
#[allow(clippy::approx_constant)]
const P: [f32; 5] = [0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];
/// Below this a power of two is taken to be 0.
const LEAST: f32 = -125.0;

/// `2^x` for x <= 0 within 2e-7 of its value; 0 below -125 (of which `e^x` is -86.6), so for -inf too.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    let rounded = x + ROUND;
    let r = x - (rounded - ROUND);
    let p = fma(fma(fma(fma(P[4], r, P[3]), r, P[2]), r, P[1]), r, P[0]);
    let power = fma(p, r, 1.0).to_bits().wrapping_add(rounded.to_bits() << 23);
    if x < LEAST {
        0.0
    } else {
        f32::from_bits(power)
    }
}

/// [`exp2`] of each element, bit for bit.
#[inline(always)]
fn exp2_of(x: Vector) -> Vector {
    let round = Vector::splat(ROUND);
    let rounded = x.plus(round);
    let r = x.minus(rounded.minus(round));
    let p = P[..4].iter().rev().fold(Vector::splat(P[4]), |p, &next| Vector::splat(next).add_product(p, r));
    Vector::splat(1.0).add_product(p, r).add_exponent(rounded).from(Vector::splat(LEAST), x)
}

/// Scores of K keys (rows of d floats, one after the other) with `L * N` queries (transposed, `[d][L * N]`),
/// as `[K][L * N]`.
#[inline]
pub(super) fn scores<const L: usize, const K: usize>(q: &[f32], k: &[f32], out: &mut [f32]) {
    let (q, out) = (q.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
    let d = q.len() / L;
    assert!(k.len() == K * d && out.len() == K * L);
    let mut sums = [[Vector::splat(0.0); L]; K];
    for (i, q) in q.chunks_exact(L).enumerate() {
        let q: [Vector; L] = std::array::from_fn(|l| Vector::load(&q[l]));
        for (j, sums) in sums.iter_mut().enumerate() {
            // SAFETY: j < K and i < d, and there are K * d floats; the compiler does not see it.
            let k = Vector::splat(unsafe { *k.get_unchecked(j * d + i) });
            for (sum, q) in sums.iter_mut().zip(q) {
                *sum = sum.add_product(k, q);
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums.as_flattened()) {
        sum.store(out);
    }
}

/// One step of the running softmax for W queries, a multiple of [`N`]: scores `[n_keys][W]`, in units of log 2,
/// become weights relative to the new maximum. Returns the factors that the weighted sums so far must be multiplied
/// by, if a maximum has changed.
#[inline]
pub(super) fn soften<const W: usize>(
    s: &mut [[f32; W]],
    max: &mut [f32; W],
    sum: &mut [f32; W],
) -> Option<[f32; W]> {
    const { assert!(W.is_multiple_of(N)) };
    let old = *max;
    let mut factor = [1.0; W];
    for (l, max) in max.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        let at = |s: &[f32; W]| Vector::load(&s.as_chunks::<N>().0[l]);
        // Four at a time, for a maximum or a sum has to wait for the one before.
        let (fours, rest) = s.as_chunks_mut::<4>();
        let mut most = [Vector::load(max); 4];
        for four in fours.iter() {
            most.iter_mut().zip(four).for_each(|(m, s)| *m = m.max(at(s)));
        }
        rest.iter().for_each(|s| most[0] = most[0].max(at(s)));
        most[0].max(most[1]).max(most[2].max(most[3])).store(max);
        // In a row that has seen no key yet the maximum is -inf, and -inf - -inf would be NaN.
        let base = max.map(|m| if m == f32::NEG_INFINITY { 0.0 } else { m });
        let shift = Vector::load(&base);
        let mut totals = [Vector::splat(0.0); 4];
        let soften = |s: &mut [f32; W], total: &mut Vector| {
            let weight = exp2_of(at(s).minus(shift));
            weight.store(&mut s.as_chunks_mut::<N>().0[l]);
            *total = total.plus(weight);
        };
        for four in fours {
            four.iter_mut().zip(&mut totals).for_each(|(s, total)| soften(s, total));
        }
        rest.iter_mut().for_each(|s| soften(s, &mut totals[0]));
        let old = &old.as_chunks::<N>().0[l];
        let factor = &mut factor.as_chunks_mut::<N>().0[l];
        if max != old {
            exp2_of(Vector::load(old).minus(shift)).store(factor);
        }
        let total = totals[0].plus(totals[1]).plus(totals[2].plus(totals[3]));
        let sum = &mut sum.as_chunks_mut::<N>().0[l];
        total.add_product(Vector::load(sum), Vector::load(factor)).store(sum);
    }
    (*max != old).then_some(factor)
}

/// [`soften`] for one query, whose scores are side by side, and whose sum is kept in parts.
#[inline]
pub(super) fn soften_row(s: &mut [f32; KEYS], max: &mut f32, sum: &mut [f32; N]) -> Option<f32> {
    let s = s.as_chunks_mut::<N>().0;
    let (old, mut lanes) = (*max, [0.0; N]);
    s.iter().fold(Vector::splat(old), |most, s| most.max(Vector::load(s))).store(&mut lanes);
    let mut n = N;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = lanes[i].max(lanes[i + n]);
        }
    }
    *max = lanes[0];
    // In a row that has seen no key yet the maximum is -inf, and -inf - -inf would be NaN.
    let base = Vector::splat(if *max == f32::NEG_INFINITY { 0.0 } else { *max });
    let mut total = Vector::splat(0.0);
    for s in s {
        let weight = exp2_of(Vector::load(s).minus(base));
        weight.store(s);
        total = total.plus(weight);
    }
    let factor = if *max == old { 1.0 } else { exp2(old - *max) };
    total.add_product(Vector::load(sum), Vector::splat(factor)).store(sum);
    (*max != old).then_some(factor)
}

/// Adds weighted values to R rows of sums, `stride` blocks apart: weights `[n_keys][W]` from lane `lane` on,
/// values [`BLOCK`] of each key.
#[inline]
pub(super) fn weigh<const W: usize, const R: usize>(
    p: &[[f32; W]],
    lane: usize,
    v: &[[f32; BLOCK]],
    out: &mut [[f32; BLOCK]],
    stride: usize,
) {
    assert!(lane + R <= W);
    let load = |x: &[f32; BLOCK]| [0, 1].map(|i| Vector::load(&x.as_chunks::<N>().0[i]));
    let mut sums: [[Vector; 2]; R] = std::array::from_fn(|r| load(&out[r * stride]));
    for (p, v) in p.iter().zip(v) {
        let v = load(v);
        for (r, sums) in sums.iter_mut().enumerate() {
            let p = Vector::splat(p[lane + r]);
            for (sum, v) in sums.iter_mut().zip(v) {
                *sum = sum.add_product(p, v);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let out = out[r * stride].as_chunks_mut::<N>().0;
        sums.iter().zip(out).for_each(|(sum, out)| sum.store(out));
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
        let mut powers = [0.0; N];
        exp2_of(Vector::splat(f32::NAN)).store(&mut powers);
        assert!(powers.iter().all(|p| p.is_nan()));
        for x in [-125.001, -1e4, -1e30, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp2(x), 0.0, "{x}");
        }
        assert!(exp2(f32::NAN).is_nan());
        for i in 0..100_000 {
            let x: [f32; N] = std::array::from_fn(|l| -0.001_377 * (i * N + l) as f32 + 0.5);
            let mut powers = [0.0; N];
            exp2_of(Vector::load(&x)).store(&mut powers);
            assert_eq!(powers.map(f32::to_bits), x.map(|x| exp2(x).to_bits()), "{x:?}");
        }
    }

    #[test]
    fn a_running_softmax_of_no_keys_and_of_several_blocks() {
        let inf = f32::NEG_INFINITY;
        // Two queries, the others as the first one.
        let two = |a: f32, b: f32| std::array::from_fn(|i| if i == 1 { b } else { a });
        let (mut max, mut sum) = ([inf; N], [0.0; N]);
        let mut soften = |s: &mut [[f32; N]]| {
            let factor = soften(s, &mut max, &mut sum);
            (factor, max, sum)
        };
        assert_eq!(soften(&mut [[inf; N]]), (None, [inf; N], [0.0; N]));
        let seen = soften(&mut [two(1.0, inf), two(0.0, inf)]);
        assert_eq!(seen, (Some(two(0.0, 0.0)), two(1.0, inf), two(1.5, 0.0)));
        let seen = soften(&mut [two(3.0, -200.0)]);
        assert_eq!(seen, (Some(two(0.25, 0.0)), two(3.0, -200.0), two(1.375, 1.0)));
        let mut five = [two(3.0, -200.0), two(2.0, inf), two(2.0, inf), two(1.0, -201.0), two(inf, -201.0)];
        let seen = soften(&mut five);
        assert_eq!(seen, (None, two(3.0, -200.0), two(1.375 + 2.25, 3.0)));
        assert_eq!(five, [two(1.0, 1.0), two(0.5, 0.0), two(0.5, 0.0), two(0.25, 0.5), two(0.0, 0.5)]);
        let (factor, max, sum) = soften(&mut [two(f32::NAN, -300.0)]);
        assert!(factor.is_none() && max == two(3.0, -200.0) && sum[0].is_nan() && sum[1] == 3.0);
    }

    #[test]
    fn a_running_softmax_of_one_query_is_that_of_several() {
        let inf = f32::NEG_INFINITY;
        let (mut max, mut sum, mut maxes, mut sums) = (inf, [0.0; N], [inf; N], [0.0; N]);
        for block in 0..6 {
            let score = |i: usize| match block {
                0 => inf,
                5 if i == 9 => f32::NAN,
                _ if i % 5 == block => inf,
                _ => ((i * 29 + block * 17) % 64) as f32 * 0.37 + block as f32,
            };
            let mut row: [f32; KEYS] = std::array::from_fn(score);
            let mut rows = row.map(|s| [s; N]);
            let factor = soften_row(&mut row, &mut max, &mut sum);
            let factors = soften(&mut rows, &mut maxes, &mut sums);
            assert_eq!((factor, max), (factors.map(|f| f[0]), maxes[0]), "{block}");
            let sum: f32 = sum.iter().sum();
            assert!((sum - sums[0]).abs() <= 1e-6 * sums[0] || sum.is_nan() && sums[0].is_nan(), "{block}");
            assert_eq!(row.map(f32::to_bits), rows.map(|of| of[0].to_bits()), "{block}");
        }
        assert!(sum.iter().sum::<f32>().is_nan());
    }
}
