//! The inner loops of attention: products of queries and keys, the running softmax, and sums of weighted
//! values.
//!
//! Products keep a block of twelve vectors of sums: enough independent fused multiply-adds to hide their
//! latency, and few enough that operands fit in the rest of 16 registers.

use super::tile::KEYS;
use crate::simd::{fma, FloatLanes, MOST};

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

/// [`exp2`] of each element, bit for bit where the build fuses multiply-adds of single floats.
#[inline(always)]
fn exp2_of<S: FloatLanes>(s: S, x: S::Floats) -> S::Floats {
    let round = s.splat(ROUND);
    let rounded = s.sum(x, round);
    let r = s.minus(x, s.minus(rounded, round));
    let p = P[..4].iter().rev().fold(s.splat(P[4]), |p, &next| s.mul_add(p, r, s.splat(next)));
    s.from(s.add_exponent(s.mul_add(p, r, s.splat(1.0)), rounded), s.splat(LEAST), x)
}

/// Scores of K keys (rows of d floats, one after the other) with L registers of queries (transposed, `[d][L * N]`),
/// as `[K][L * N]`.
#[inline]
pub(super) fn scores<S: FloatLanes, const L: usize, const K: usize>(
    s: S,
    q: &[f32],
    k: &[f32],
    out: &mut [f32],
) {
    s.run(|| {
        let d = q.len() / (L * S::N);
        assert!(k.len() == K * d && out.len() == K * L * S::N);
        let mut sums = [[s.none(); L]; K];
        for (i, q) in q.chunks_exact(L * S::N).enumerate() {
            let q: [S::Floats; L] = std::array::from_fn(|l| s.read(&q[l * S::N..]));
            for (j, sums) in sums.iter_mut().enumerate() {
                // SAFETY: j < K and i < d, and there are K * d floats; the compiler does not see it.
                let k = s.splat(unsafe { *k.get_unchecked(j * d + i) });
                for (sum, q) in sums.iter_mut().zip(q) {
                    *sum = s.mul_add(k, q, *sum);
                }
            }
        }
        for (out, sum) in out.chunks_exact_mut(S::N).zip(sums.as_flattened()) {
            s.write(*sum, out);
        }
    })
}

/// One step of the running softmax for W queries, whole registers: scores `[n_keys][W]`, in units of log 2, become
/// weights relative to the new maximum. Returns the factors that the weighted sums so far must be multiplied by, if a
/// maximum has changed.
#[inline]
pub(super) fn soften<S: FloatLanes, const W: usize>(
    s: S,
    scores: &mut [[f32; W]],
    max: &mut [f32; W],
    sum: &mut [f32; W],
) -> Option<[f32; W]> {
    const { assert!(W.is_multiple_of(S::N)) };
    s.run(|| {
        let old = *max;
        let mut factor = [1.0; W];
        for at in (0..W).step_by(S::N) {
            // Four at a time, for a maximum or a sum has to wait for the one before.
            let (fours, rest) = scores.as_chunks_mut::<4>();
            let mut most = [s.read(&max[at..]); 4];
            for four in fours.iter() {
                most.iter_mut().zip(four).for_each(|(m, x)| *m = s.max(*m, s.read(&x[at..])));
            }
            rest.iter().for_each(|x| most[0] = s.max(most[0], s.read(&x[at..])));
            let most = s.max(s.max(most[0], most[1]), s.max(most[2], most[3]));
            s.write(most, &mut max[at..]);
            // In a row that has seen no key yet the maximum is -inf, and -inf - -inf would be NaN.
            let shift = s.from(most, s.splat(f32::MIN), most);
            let mut totals = [s.none(); 4];
            for four in fours {
                for (x, total) in four.iter_mut().zip(&mut totals) {
                    add_weight(s, &mut x[at..], shift, total);
                }
            }
            rest.iter_mut().for_each(|x| add_weight(s, &mut x[at..], shift, &mut totals[0]));
            if max[at..][..S::N] != old[at..][..S::N] {
                s.write(exp2_of(s, s.minus(s.read(&old[at..]), shift)), &mut factor[at..]);
            }
            let total = s.sum(s.sum(totals[0], totals[1]), s.sum(totals[2], totals[3]));
            s.write(s.mul_add(s.read(&sum[at..]), s.read(&factor[at..]), total), &mut sum[at..]);
        }
        (*max != old).then_some(factor)
    })
}

/// Makes scores weights, and adds them to a total. (A closure that is called twice is not inlined, and then its
/// instructions are calls.)
#[inline(always)]
fn add_weight<S: FloatLanes>(s: S, x: &mut [f32], shift: S::Floats, total: &mut S::Floats) {
    let weight = exp2_of(s, s.minus(s.read(x), shift));
    s.write(weight, x);
    *total = s.sum(*total, weight);
}

/// [`soften`] for one query, whose scores are side by side, and whose sum is kept in parts, as many as lanes.
#[inline]
pub(super) fn soften_row<S: FloatLanes>(
    s: S,
    scores: &mut [f32; KEYS],
    max: &mut f32,
    sum: &mut [f32; MOST],
) -> Option<f32> {
    s.run(|| {
        let (old, mut lanes) = (*max, [0.0; MOST]);
        let most = scores.chunks_exact(S::N).fold(s.splat(old), |most, x| s.max(most, s.read(x)));
        s.write(most, &mut lanes);
        let mut n = S::N;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                lanes[i] = lanes[i].max(lanes[i + n]);
            }
        }
        *max = lanes[0];
        // In a row that has seen no key yet the maximum is -inf, and -inf - -inf would be NaN.
        let base = s.splat(if *max == f32::NEG_INFINITY { 0.0 } else { *max });
        let mut total = s.none();
        for x in scores.chunks_exact_mut(S::N) {
            add_weight(s, x, base, &mut total);
        }
        let factor = if *max == old { 1.0 } else { exp2(old - *max) };
        s.write(s.mul_add(s.read(sum), s.splat(factor), total), sum);
        (*max != old).then_some(factor)
    })
}

#[inline(always)]
fn two<S: FloatLanes>(s: S, x: &[f32]) -> [S::Floats; 2] {
    [s.read(x), s.read(&x[S::N..])]
}

/// Adds weighted values to R rows of sums, `stride` floats apart: weights `[n_keys][W]` from lane `lane` on, two
/// registers of values of each key.
#[inline]
pub(super) fn weigh<S: FloatLanes, const W: usize, const R: usize>(
    s: S,
    p: &[[f32; W]],
    lane: usize,
    v: &[f32],
    out: &mut [f32],
    stride: usize,
) {
    s.run(|| {
        assert!(lane + R <= W);
        let mut sums: [[S::Floats; 2]; R] = std::array::from_fn(|r| two(s, &out[r * stride..]));
        for (p, v) in p.iter().zip(v.chunks_exact(2 * S::N)) {
            let v = two(s, v);
            for (r, sums) in sums.iter_mut().enumerate() {
                let p = s.splat(p[lane + r]);
                for (sum, v) in sums.iter_mut().zip(v) {
                    *sum = s.mul_add(p, v, *sum);
                }
            }
        }
        for (r, sums) in sums.iter().enumerate() {
            let out = out[r * stride..].chunks_exact_mut(S::N);
            sums.iter().zip(out).for_each(|(sum, out)| s.write(*sum, out));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{with_registers, Registers};

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

    fn powers_are_those_of_single_floats<S: FloatLanes>(s: S) {
        let mut powers = [0.0; MOST];
        s.write(exp2_of(s, s.splat(f32::NAN)), &mut powers);
        assert!(powers[..S::N].iter().all(|p| p.is_nan()));
        for i in 0..100_000 {
            let x: [f32; MOST] = std::array::from_fn(|l| -0.001_377 * (i * S::N + l) as f32 + 0.5);
            s.write(exp2_of(s, s.read(&x)), &mut powers);
            let want = x.map(|x| exp2(x).to_bits());
            assert_eq!(powers.map(f32::to_bits)[..S::N], want[..S::N], "{x:?}");
        }
    }

    /// Runs a test with all registers of this processor.
    macro_rules! with_each {
        ($($test:ident: $of:ident;)*) => {$(
            #[test]
            fn $test() {
                for registers in Registers::all() {
                    with_registers!(registers, s => $of(s));
                }
            }
        )*};
    }
    with_each! {
        powers_of_two_in_registers: powers_are_those_of_single_floats;
        a_running_softmax_of_no_keys_and_of_several_blocks: softmax_of_two;
        a_running_softmax_of_one_query_is_that_of_several: softmax_of_one;
    }

    fn softmax_of_two<S: FloatLanes>(s: S) {
        let inf = f32::NEG_INFINITY;
        // Two queries, the others as the first one.
        let two = |a: f32, b: f32| std::array::from_fn(|i| if i == 1 { b } else { a });
        let (mut max, mut sum) = ([inf; MOST], [0.0; MOST]);
        let mut soften = |x: &mut [[f32; MOST]]| {
            let factor = soften(s, x, &mut max, &mut sum);
            (factor, max, sum)
        };
        assert_eq!(soften(&mut [[inf; MOST]]), (None, [inf; MOST], [0.0; MOST]));
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

    fn softmax_of_one<S: FloatLanes>(s: S) {
        let inf = f32::NEG_INFINITY;
        let (mut max, mut sum, mut maxes, mut sums) = (inf, [0.0; MOST], [inf; MOST], [0.0; MOST]);
        for block in 0..6 {
            let score = |i: usize| match block {
                0 => inf,
                5 if i == 9 => f32::NAN,
                _ if i % 5 == block => inf,
                _ => ((i * 29 + block * 17) % 64) as f32 * 0.37 + block as f32,
            };
            let mut row: [f32; KEYS] = std::array::from_fn(score);
            let mut rows = row.map(|x| [x; MOST]);
            let factor = soften_row(s, &mut row, &mut max, &mut sum);
            let factors = soften(s, &mut rows, &mut maxes, &mut sums);
            assert_eq!((factor, max), (factors.map(|f| f[0]), maxes[0]), "{block}");
            let sum: f32 = sum.iter().sum();
            assert!((sum - sums[0]).abs() <= 1e-6 * sums[0] || sum.is_nan() && sums[0].is_nan(), "{block}");
            assert_eq!(row.map(f32::to_bits), rows.map(|of| of[0].to_bits()), "{block}");
        }
        assert!(sum.iter().sum::<f32>().is_nan());
    }
}
