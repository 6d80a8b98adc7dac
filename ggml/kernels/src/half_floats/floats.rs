//! Matrices of floats rounded to bfloat16, laid out for the loops of `avx512`. Functions are for processors that have the
//! instructions they name.

use std::arch::x86_64::*;

use super::avx512::{first, LANES};
use super::ROWS;
use crate::gemm::Matrix;
use crate::simd::lanes::transposed;

/// Up to 32 floats, rounded: pairs in their order.
///
/// # Safety
/// The first `n` floats from `at` on may be read.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn stretch(at: *const f32, n: usize, factor: __m512) -> __m512i {
    let lanes = first(n);
    // SAFETY: only the lanes of floats that are there are read.
    let [low, high] = unsafe {
        [
            _mm512_maskz_loadu_ps(lanes as u16, at),
            _mm512_maskz_loadu_ps((lanes >> LANES) as u16, at.wrapping_add(LANES)),
        ]
    };
    pair(_mm512_mul_ps(low, factor), _mm512_mul_ps(high, factor))
}

/// Two registers rounded to halves of one.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pair(low: __m512, high: __m512) -> __m512i {
    // SAFETY: a register of numbers is a register of bits.
    unsafe { std::mem::transmute(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Which numbers are adjacent: each of the lower half next to the same one of the upper half.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn halves() -> __m512i {
    let of: [u16; 2 * LANES] = std::array::from_fn(|i| (i / 2 + i % 2 * LANES) as u16);
    // SAFETY: a register of numbers.
    unsafe { _mm512_loadu_epi16(of.as_ptr().cast()) }
}

/// Lays out up to [`ROWS`] rows: for each pair of columns a word of each row. Rows that are missing are 0.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn pack(a: Matrix<'_>, panel: &mut [u32]) {
    let (rows, cols, words) = (a.n_rows(), a.n_cols(), a.n_cols().div_ceil(2));
    assert!(rows <= ROWS && panel.len() >= words * ROWS);
    let [rs, cs] = a.steps();
    if rs == 1 {
        let (lanes, order) = (first(rows), halves());
        for (word, to) in panel.chunks_exact_mut(ROWS).take(words).enumerate() {
            for half in 0..ROWS / LANES {
                let column = |k: usize| {
                    let lanes = if k < cols { (lanes >> (half * LANES)) as u16 } else { 0 };
                    // SAFETY: only rows that are there are read, of a column that is there.
                    unsafe { _mm512_maskz_loadu_ps(lanes, a.first().wrapping_add(k * cs + half * LANES)) }
                };
                let both = _mm512_permutexvar_epi16(order, pair(column(2 * word), column(2 * word + 1)));
                let to = &mut to[half * LANES..][..LANES];
                // SAFETY: a register of words.
                unsafe { _mm512_storeu_epi32(to.as_mut_ptr().cast(), both) }
            }
        }
        return;
    }
    assert!(cs == 1, "elements of rows or of columns lie side by side");
    let one = _mm512_set1_ps(1.0);
    for half in 0..ROWS / LANES {
        for from in (0..words).step_by(LANES) {
            let square = std::array::from_fn(|i| {
                let row = half * LANES + i;
                let n = if row < rows { cols - 2 * from } else { 0 };
                // SAFETY: what is left of a row that is there.
                unsafe { stretch(a.first().wrapping_add(row * rs + 2 * from), n, one) }
            });
            for (i, column) in transposed(square).into_iter().enumerate().take(words - from) {
                let to = &mut panel[(from + i) * ROWS + half * LANES..][..LANES];
                // SAFETY: a register of words.
                unsafe { _mm512_storeu_epi32(to.as_mut_ptr().cast(), column) }
            }
        }
    }
}

/// Lays out columns, each times `factor`: of each its pairs of elements, one column after the other.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn columns(b: Matrix<'_>, factor: f32, out: &mut [u32]) {
    let (rows, cols, words) = (b.n_rows(), b.n_cols(), b.n_rows().div_ceil(2));
    assert!(out.len() >= words * cols);
    let factor = _mm512_set1_ps(factor);
    let [rs, cs] = b.steps();
    if rs == 1 {
        for (j, out) in out.chunks_exact_mut(words).enumerate().take(cols) {
            for (at, out) in out.chunks_mut(LANES).enumerate() {
                let from = 2 * LANES * at;
                // SAFETY: what is left of a column; words that are there are written.
                unsafe {
                    let both = stretch(b.first().wrapping_add(j * cs + from), rows - from, factor);
                    _mm512_mask_storeu_epi32(out.as_mut_ptr().cast(), first(out.len()) as u16, both);
                }
            }
        }
        return;
    }
    assert!(cs == 1, "elements of rows or of columns lie side by side");
    let order = halves();
    for j in (0..cols).step_by(LANES) {
        let n = LANES.min(cols - j);
        for from in (0..words).step_by(LANES) {
            let square = std::array::from_fn(|i| {
                let row = |k: usize| {
                    let lanes = if k < rows { first(n) as u16 } else { 0 };
                    // SAFETY: only columns that are there are read, of a row that is there.
                    let row = unsafe { _mm512_maskz_loadu_ps(lanes, b.first().wrapping_add(k * rs + j)) };
                    _mm512_mul_ps(row, factor)
                };
                let k = 2 * (from + i);
                _mm512_permutexvar_epi16(order, pair(row(k), row(k + 1)))
            });
            for (i, column) in transposed(square).into_iter().enumerate().take(n) {
                let to = &mut out[(j + i) * words + from..][..LANES.min(words - from)];
                // SAFETY: words that are there are written.
                unsafe { _mm512_mask_storeu_epi32(to.as_mut_ptr().cast(), first(to.len()) as u16, column) }
            }
        }
    }
}
