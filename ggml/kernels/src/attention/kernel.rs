//! The inner loops of attention: products of queries and keys, the running softmax, and sums of weighted
//! values.
//!
//! Products keep a block of twelve vectors of sums: enough independent fused multiply-adds to hide their
//! latency, and few enough that operands fit in the rest of 16 registers.

use super::vector::{fma, Vector, N};

/// Columns of values in one block of sums: two vectors.
pub(super) const BLOCK: usize = 2 * N;
/// Rows of sums in a block.
pub(super) const PANEL: usize = 6;

/// `2^x` for x <= 0 within 2e-7 of its value; 0 below -125 (of which `e^x` is -86.6), so for -inf too.
#[inline(always)]
pub fn exp2(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // 2^r = 1 + r P(r) on -0.5..=0.5, least relative error: 9.1e-8.
    #[allow(clippy::approx_constant)]
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

/// One step of the running softmax for W queries: scores `[n_keys][W]`, in units of log 2, become weights
/// relative to the new maximum. Returns the factors that the weighted sums so far must be multiplied by, if a
/// maximum has changed.
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
    // In a row that has seen no key yet the maximum is -inf, and -inf - -inf would be NaN.
    let base = new.map(|m| if m == f32::NEG_INFINITY { 0.0 } else { m });
    // Three passes: the compiler unrolls one pass over blocks of few lanes and then does not vectorise it.
    for s in s.iter_mut() {
        s.iter_mut().zip(&base).for_each(|(s, base)| *s -= base);
    }
    s.as_flattened_mut().iter_mut().for_each(|s| *s = exp2(*s));
    let mut total = [0.0; W];
    for s in s.iter() {
        total.iter_mut().zip(s).for_each(|(total, s)| *total += s);
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

/// Adds weighted values to R rows of sums, `stride` blocks apart: weights `[n_keys][W]` from lane `lane` on,
/// values `[n_keys][BLOCK]`.
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
        for x in [-125.001, -1e4, -1e30, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp2(x), 0.0, "{x}");
        }
        assert!(exp2(f32::NAN).is_nan());
    }

    #[test]
    fn a_running_softmax_of_no_keys_and_of_several_blocks() {
        let inf = f32::NEG_INFINITY;
        let (mut max, mut sum) = ([inf; 2], [0.0; 2]);
        assert_eq!(soften(&mut [[inf, inf]], &mut max, &mut sum), None);
        assert_eq!((max, sum), ([inf; 2], [0.0; 2]));
        assert_eq!(soften(&mut [[1.0, inf], [0.0, inf]], &mut max, &mut sum), Some([0.0, 0.0]));
        assert_eq!((max, sum), ([1.0, inf], [1.5, 0.0]));
        assert_eq!(soften(&mut [[3.0, -200.0]], &mut max, &mut sum), Some([0.25, 0.0]));
        assert_eq!((max, sum), ([3.0, -200.0], [1.375, 1.0]));
    }

    #[test]
    fn products() {
        // Small whole numbers, so that sums are exact in any order.
        let number = |i: usize| ((i * 7) % 11) as f32 - 5.0;
        const W: usize = 3 * N;
        let d = 5;
        let (q, k): (Vec<f32>, Vec<f32>) =
            ((0..d * W).map(number).collect(), (0..4 * d).map(|i| number(i + 3)).collect());
        let mut out = vec![f32::NAN; 4 * W];
        scores::<3, 4>(&q, &k, &mut out);
        for (i, out) in out.iter().enumerate() {
            assert_eq!(*out, (0..d).map(|j| k[i / W * d + j] * q[j * W + i % W]).sum::<f32>());
        }

        let p: [[f32; N]; 3] = std::array::from_fn(|i| std::array::from_fn(|j| number(i * N + j)));
        let v: [[f32; BLOCK]; 3] = std::array::from_fn(|i| std::array::from_fn(|j| number(i + 5 * j)));
        let mut sums = [[1.0; BLOCK]; 12];
        weigh::<N, 6>(&p, 2, &v, &mut sums, 2);
        for (row, sums) in sums.iter().enumerate() {
            for (c, sum) in sums.iter().enumerate() {
                let added = (0..3).map(|i| p[i][2 + row / 2] * v[i][c]).sum::<f32>();
                assert_eq!(*sum, if row % 2 == 0 { 1.0 + added } else { 1.0 });
            }
        }
    }
}
