//! Products of Q4_1 weights with few rows of floats, as in decoding: for processors with AVX-512 and its VNNI, which
//! multiply bytes. Floats are rounded to eight bits in blocks of 32, as ggml does it for this type.
//!
//! ggml's own product of this type goes over a block at a time with half of a register, and waits for its one sum.
//! Here two blocks fill a register, a scale and a minimum beside it are used as they lie, and several rows are under
//! way at once.

use crate::aligned::Aligned;

/// Values of a block.
const BLOCK: usize = 32;
/// Bytes of a block of Q4_1: a scale and a minimum, half-precision, then four bits a value.
const BLOCK_BYTES: usize = 20;
/// Rows of floats multiplied at a time, at most.
pub const MOST: usize = 4;

/// Whether the program is built for processors that have the instructions.
pub const AVAILABLE: bool = inner::BUILT;

/// Rows of floats rounded to eight bits, two blocks after two blocks.
#[derive(Default)]
pub struct Rounded {
    n_pairs: usize,
    /// `[row][pair][64]`
    bytes: Aligned<i8>,
    /// `[row][pair][16]`: in even lanes the scale of the lane's block, in odd ones a quarter of the block's sum.
    factors: Aligned<f32>,
}

impl Rounded {
    /// Takes rows of `k` floats, whole blocks.
    pub fn set<'a>(&mut self, k: usize, rows: impl ExactSizeIterator<Item = &'a [f32]>) {
        self.n_pairs = k.div_ceil(2 * BLOCK);
        let (n_bytes, n_factors) = (self.n_pairs * 2 * BLOCK, self.n_pairs * 16);
        self.bytes.refill(rows.len() * n_bytes, 0);
        self.factors.refill(rows.len() * n_factors, 0.0);
        let parts = self.bytes.chunks_exact_mut(n_bytes).zip(self.factors.chunks_exact_mut(n_factors));
        for (row, (bytes, factors)) in rows.zip(parts) {
            let blocks = row[..k].chunks_exact(BLOCK).zip(bytes.chunks_exact_mut(BLOCK));
            for ((x, bytes), factors) in blocks.zip(factors.chunks_exact_mut(8)) {
                let largest = x.iter().fold(0.0f32, |m, x| if x.abs() > m { x.abs() } else { m });
                let (scale, inverse) = (largest / 127.0, if largest > 0.0 { 127.0 / largest } else { 0.0 });
                let mut sum = 0i32;
                for (byte, x) in bytes.iter_mut().zip(x) {
                    *byte = (x * inverse).round_ties_even() as i8;
                    sum += i32::from(*byte);
                }
                // What is no number stays none.
                let scale = if x.iter().any(|x| x.is_nan()) { f32::NAN } else { scale };
                for pair in factors.chunks_exact_mut(2) {
                    (pair[0], pair[1]) = (scale, scale * sum as f32 / 4.0);
                }
            }
        }
    }
}

/// Products of a Q4_1 weight's rows, each of `row_bytes`, with the rounded rows `first..first + N`: `out` gets the row's
/// number, counted from 0, and its products.
///
/// # Panics
/// Where [`AVAILABLE`] is false, or `rows` are not as long as the rounded rows.
pub fn q4_1<const N: usize>(
    rows: &[u8],
    row_bytes: usize,
    x: &Rounded,
    first: usize,
    mut out: impl FnMut(usize, [f32; N]),
) {
    assert!(
        AVAILABLE && row_bytes.is_multiple_of(BLOCK_BYTES) && rows.len().is_multiple_of(row_bytes.max(1))
    );
    assert!((row_bytes / BLOCK_BYTES).div_ceil(2) == x.n_pairs);
    let (n_bytes, n_factors) = (x.n_pairs * 2 * BLOCK, x.n_pairs * 16);
    let bytes: [&[i8]; N] = std::array::from_fn(|i| &x.bytes[(first + i) * n_bytes..][..n_bytes]);
    let factors: [&[f32]; N] = std::array::from_fn(|i| &x.factors[(first + i) * n_factors..][..n_factors]);
    let quads = rows.chunks_exact(4 * row_bytes.max(1));
    let rest = quads.remainder();
    for (i, quad) in quads.enumerate() {
        inner::prefetch(quad.as_ptr().wrapping_add(2 * quad.len()), quad.len());
        let sums =
            inner::dots::<4, N>(std::array::from_fn(|r| &quad[r * row_bytes..][..row_bytes]), bytes, factors);
        sums.into_iter().enumerate().for_each(|(r, sums)| out(4 * i + r, sums));
    }
    let done = rows.len() / row_bytes.max(1) / 4 * 4;
    for (i, row) in rest.chunks_exact(row_bytes.max(1)).enumerate() {
        let [sums] = inner::dots::<1, N>([row], bytes, factors);
        out(done + i, sums);
    }
}

#[cfg(all(
    target_arch = "x86_64",
    target_feature = "avx512f",
    target_feature = "avx512bw",
    target_feature = "avx512vl",
    target_feature = "avx512vnni"
))]
mod inner {
    use std::arch::x86_64::*;

    use super::{BLOCK, BLOCK_BYTES};

    pub(super) const BUILT: bool = true;

    /// Asks for memory that will be read soon, if there is any: hardware sees short rows too late.
    #[inline(always)]
    pub(super) fn prefetch(at: *const u8, n: usize) {
        for line in (0..n).step_by(64) {
            // SAFETY: a prefetch has no effect that could be seen, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line).cast()) };
        }
    }

    /// Products of R rows of blocks with N rows of bytes.
    #[inline(always)]
    pub(super) fn dots<const R: usize, const N: usize>(
        rows: [&[u8]; R],
        bytes: [&[i8]; N],
        factors: [&[f32]; N],
    ) -> [[f32; N]; R] {
        let n_blocks = rows[0].len() / BLOCK_BYTES;
        let n_pairs = n_blocks.div_ceil(2);
        assert!(rows.iter().all(|row| row.len() == n_blocks * BLOCK_BYTES));
        assert!(bytes.iter().all(|b| b.len() == n_pairs * 2 * BLOCK));
        assert!(factors.iter().all(|f| f.len() == n_pairs * 16));
        // SAFETY: the build has the instructions. By the assertions a pair's bytes and factors are inside; the blocks
        // of a pair begin inside a row, and 16 bytes after their four are the rest of a block.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); N]; R];
            let low_bits = _mm256_set1_epi8(15);
            // Sixteen low halves, sixteen high halves; of the first block, then of the second.
            let order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
            for pair in 0..n_pairs {
                let first = 2 * pair * BLOCK_BYTES;
                // A last block without another is its own second one, whose factors are zero.
                let second = if 2 * pair + 1 < n_blocks { first + BLOCK_BYTES } else { first };
                let x: [__m512i; N] = std::array::from_fn(|t| {
                    _mm512_loadu_si512(bytes[t].as_ptr().add(pair * 2 * BLOCK).cast())
                });
                let factor: [__m512; N] =
                    std::array::from_fn(|t| _mm512_loadu_ps(factors[t].as_ptr().add(pair * 16)));
                for r in 0..R {
                    let (a, b) = (rows[r].as_ptr().add(first), rows[r].as_ptr().add(second));
                    let heads = [a, b].map(|at| _mm_set1_epi32(at.cast::<i32>().read_unaligned()));
                    let scales = _mm512_cvtph_ps(_mm256_set_m128i(heads[1], heads[0]));
                    let [a, b] = [a, b].map(|at| _mm_loadu_si128(at.add(4).cast()));
                    let packed = _mm256_set_m128i(b, a);
                    let low = _mm256_and_si256(packed, low_bits);
                    let high = _mm256_and_si256(_mm256_srli_epi16::<4>(packed), low_bits);
                    let weights = _mm512_permutex2var_epi64(
                        _mm512_castsi256_si512(low),
                        order,
                        _mm512_castsi256_si512(high),
                    );
                    for t in 0..N {
                        let dot =
                            _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), weights, x[t]));
                        // Even lanes: sums of two lanes, by the scale; odd lanes: the block's sum, by the minimum.
                        let both = _mm512_add_ps(dot, _mm512_permute_ps::<0b10_11_00_01>(dot));
                        let both = _mm512_mask_mul_ps(factor[t], 0x5555, both, factor[t]);
                        sums[r][t] = _mm512_fmadd_ps(scales, both, sums[r][t]);
                    }
                }
            }
            sums.map(|row| row.map(|sum| _mm512_reduce_add_ps(sum)))
        }
    }
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_feature = "avx512f",
    target_feature = "avx512bw",
    target_feature = "avx512vl",
    target_feature = "avx512vnni"
)))]
mod inner {
    pub(super) const BUILT: bool = false;

    pub(super) fn prefetch(_: *const u8, _: usize) {}

    pub(super) fn dots<const R: usize, const N: usize>(
        _: [&[u8]; R],
        _: [&[i8]; N],
        _: [&[f32]; N],
    ) -> [[f32; N]; R] {
        unreachable!("the caller has asked whether this is available")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(n: usize, n_blocks: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..n * n_blocks * BLOCK_BYTES).map(|i| (i * 7919 % 251) as u8).collect();
        for (i, block) in bytes.chunks_exact_mut(BLOCK_BYTES).enumerate() {
            let of = |x: f32| half::f16::from_f32(x).to_le_bytes();
            block[..2].copy_from_slice(&of(0.01 + (i % 7) as f32 * 0.003));
            block[2..4].copy_from_slice(&of((i % 5) as f32 * 0.02 - 0.05));
        }
        bytes
    }

    fn check<const N: usize>(n_rows: usize, n_blocks: usize) {
        let k = n_blocks * BLOCK;
        let weights = rows(n_rows, n_blocks);
        let x: Vec<f32> = (0..N * k).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i / 32 % 3) as f32)).collect();
        let mut rounded = Rounded::default();
        rounded.set(k, x.chunks_exact(k));
        let mut seen = vec![false; n_rows];
        q4_1::<N>(&weights, n_blocks * BLOCK_BYTES, &rounded, 0, |row, products| {
            seen[row] = true;
            let mut floats = vec![0.0; k];
            crate::dequantize::q4_1(
                &weights[row * n_blocks * BLOCK_BYTES..][..n_blocks * BLOCK_BYTES],
                &mut floats,
            );
            for (t, product) in products.into_iter().enumerate() {
                // The same rounding, in f64.
                let mut sum = 0.0;
                let mut size = 0.0;
                for (w, x) in floats.chunks_exact(BLOCK).zip(x[t * k..][..k].chunks_exact(BLOCK)) {
                    let scale = x.iter().fold(0.0f32, |m, x| m.max(x.abs())) / 127.0;
                    for (w, x) in w.iter().zip(x) {
                        let rounded = f64::from((x / scale).round_ties_even()) * f64::from(scale);
                        sum += f64::from(*w) * rounded;
                        size += (f64::from(*w) * rounded).abs();
                    }
                }
                assert!(
                    (f64::from(product) - sum).abs() < 1e-4 * size,
                    "{row} {t}: {product}, expected {sum}"
                );
            }
        });
        assert!(seen.iter().all(|s| *s));
    }

    #[test]
    fn products() {
        if AVAILABLE {
            for (n_rows, n_blocks) in [(1, 1), (3, 2), (4, 3), (9, 18), (5, 48)] {
                check::<1>(n_rows, n_blocks);
                check::<3>(n_rows, n_blocks);
                check::<4>(n_rows, n_blocks);
            }
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        if AVAILABLE {
            let mut x = vec![1.0; 64];
            x[40] = f32::NAN;
            let mut rounded = Rounded::default();
            rounded.set(64, [&x[..], &[0.0; 64]].into_iter());
            let mut products = [0.0; 2];
            q4_1::<2>(&rows(1, 2), 2 * BLOCK_BYTES, &rounded, 0, |_, found| products = found);
            assert!(products[0].is_nan() && products[1] == 0.0);
        }
    }
}
