//! The loops: weights laid out in panels, and products of panels with floats. Functions are for processors that have the
//! instructions they name.

use std::arch::x86_64::*;
use std::ops::Range;

use super::{Format, Weights, ROWS};
use crate::simd::lanes::transposed;

/// Numbers of a register.
pub(super) const LANES: usize = 16;

/// A mask of the first `n` of as many lanes as it has bits.
#[inline(always)]
pub(super) fn first(n: usize) -> u32 {
    ((1u64 << n.min(32)) - 1) as u32
}

/// Rounds floats to pairs of bfloat16; an odd one is paired with 0.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) fn round(x: &[f32], out: &mut [u32]) {
    assert_eq!(out.len(), x.len().div_ceil(2));
    for (x, out) in x.chunks(2 * LANES).zip(out.chunks_mut(LANES)) {
        let lanes = first(x.len());
        // SAFETY: only the lanes of floats that are there are read, and of words that are there written.
        unsafe {
            let low = _mm512_maskz_loadu_ps(lanes as u16, x.as_ptr());
            let high = _mm512_maskz_loadu_ps((lanes >> LANES) as u16, x.as_ptr().wrapping_add(LANES));
            let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
            _mm512_mask_storeu_epi32(out.as_mut_ptr().cast(), first(out.len()) as u16, both);
        }
    }
}

/// Lays out some rows of the result, and some words of their terms; rows that are missing are 0.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) fn pack(w: &Weights<'_>, rows: &Range<usize>, words: &Range<usize>, panel: &mut [u32]) {
    let in_word = w.format.in_word();
    assert!(rows.len() <= ROWS && rows.end <= w.m && words.end * in_word < w.k + in_word);
    assert!(panel.len() >= words.len() * ROWS);
    if w.transposed {
        assert!(w.format == Format::Bf16, "only weights in bfloat16 are multiplied transposed");
        let lanes = first(rows.len());
        let low = beside(0);
        let high = beside(LANES as u16);
        for (pair, to) in words.clone().zip(panel.chunks_exact_mut(ROWS)) {
            let row = |k: usize| {
                let lanes = if k < w.k { lanes } else { 0 };
                let at = w.bits.as_ptr().wrapping_add(k * w.m + rows.start);
                // SAFETY: only the lanes of numbers that are there are read: rows of term k.
                unsafe { _mm512_maskz_loadu_epi16(lanes, at.cast()) }
            };
            let (a, b) = (row(2 * pair), row(2 * pair + 1));
            // SAFETY: a row of a panel is two registers.
            unsafe {
                let to = to.as_mut_ptr().cast::<i32>();
                _mm512_storeu_epi32(to, _mm512_permutex2var_epi16(a, low, b));
                _mm512_storeu_epi32(to.add(LANES), _mm512_permutex2var_epi16(a, high, b));
            }
        }
        return;
    }
    for half in 0..ROWS / LANES {
        for from in words.clone().step_by(LANES) {
            let n = LANES.min(words.end - from);
            let square: [__m512i; LANES] = std::array::from_fn(|i| {
                let row = rows.start + half * LANES + i;
                // By single numbers, for the last term of an odd number of them is alone.
                let there = if row < rows.end { (w.k - in_word * from).min(in_word * n) } else { 0 };
                let at = w.bits.as_ptr().wrapping_add(row * w.k + in_word * from);
                // SAFETY: only the lanes of numbers that are there are read: terms of the row.
                let numbers = unsafe { _mm512_maskz_loadu_epi16(first(there), at.cast()) };
                match w.format {
                    Format::Bf16 => numbers,
                    Format::F16 => _mm512_castps_si512(_mm512_cvtph_ps(_mm512_castsi512_si256(numbers))),
                }
            });
            for (i, column) in transposed(square).into_iter().enumerate().take(n) {
                let at = (from - words.start + i) * ROWS + half * LANES;
                let to = &mut panel[at..at + LANES];
                // SAFETY: a register of words.
                unsafe { _mm512_storeu_epi32(to.as_mut_ptr().cast(), column) }
            }
        }
    }
}

/// Which numbers of two registers are adjacent: those of the first from one on, each next to that of the second.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn beside(from: u16) -> __m512i {
    let of: [u16; 2 * LANES] =
        std::array::from_fn(|i| from + i as u16 / 2 + if i % 2 == 0 { 0 } else { 2 * LANES as u16 });
    // SAFETY: a register of numbers.
    unsafe { _mm512_loadu_epi16(of.as_ptr().cast()) }
}

/// Adds products of the words of two registers to sums.
///
/// # Safety
/// The processor has the instructions.
pub(super) trait Dot {
    unsafe fn dot(sum: __m512, w: __m512i, x: __m512i) -> __m512;
}

pub(super) struct Pairs;
struct Floats;

impl Dot for Pairs {
    #[inline(always)]
    unsafe fn dot(sum: __m512, w: __m512i, x: __m512i) -> __m512 {
        // SAFETY: the caller's promise; the bits of a register are numbers of either type.
        unsafe {
            _mm512_dpbf16_ps(
                sum,
                std::mem::transmute::<__m512i, __m512bh>(w),
                std::mem::transmute::<__m512i, __m512bh>(x),
            )
        }
    }
}

impl Dot for Floats {
    #[inline(always)]
    unsafe fn dot(sum: __m512, w: __m512i, x: __m512i) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_castsi512_ps(x), sum) }
    }
}

/// Products of a panel with one to six rows of words, a stride apart: the first `n` of each are written to rows of the result, or
/// added to what is there.
///
/// # Safety
/// The result has one row per row of words, at its stride; these rows can be written, and read if `add`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn tile_bf16(
    panel: &[u32],
    x: (&[u32], usize),
    n: usize,
    out: (*mut f32, usize),
    add: bool,
) {
    // SAFETY: the caller's promise.
    unsafe { tile::<Pairs>(panel, x, n, out, add) }
}

/// The same of floats.
///
/// # Safety
/// The promise of [`tile_bf16`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn tile_f32(
    panel: &[u32],
    x: (&[u32], usize),
    n: usize,
    out: (*mut f32, usize),
    add: bool,
) {
    // SAFETY: the caller's promise.
    unsafe { tile::<Floats>(panel, x, n, out, add) }
}

/// # Safety
/// The promise of [`tile_bf16`], and the processor has the instructions.
#[inline(always)]
unsafe fn tile<D: Dot>(
    panel: &[u32],
    (x, stride): (&[u32], usize),
    n: usize,
    out: (*mut f32, usize),
    add: bool,
) {
    let words = panel.len() / ROWS;
    // Behind the last row's words of this part others of it may be left out.
    let tokens = (x.len() + stride - words) / stride;
    // SAFETY: the caller's promise.
    unsafe {
        match tokens {
            1 => rows::<D, 1>(panel, x, stride, n, out, add),
            2 => rows::<D, 2>(panel, x, stride, n, out, add),
            3 => rows::<D, 3>(panel, x, stride, n, out, add),
            4 => rows::<D, 4>(panel, x, stride, n, out, add),
            5 => rows::<D, 5>(panel, x, stride, n, out, add),
            _ => rows::<D, 6>(panel, x, stride, n, out, add),
        }
    }
}

/// # Safety
/// The promise of [`tile`], for R rows.
#[inline(always)]
unsafe fn rows<D: Dot, const R: usize>(
    panel: &[u32],
    x: &[u32],
    stride: usize,
    n: usize,
    (out, row): (*mut f32, usize),
    add: bool,
) {
    let words = panel.len() / ROWS;
    assert!(x.len() >= (R - 1) * stride + words && n <= ROWS);
    let lanes = first(n);
    // SAFETY: the caller's promise. A row of a panel is two registers, R rows of words are there by the assertion, and of the
    // result only the lanes of elements that are there are read and written.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); 2]; R];
        for (word, w) in panel.as_chunks::<ROWS>().0.iter().enumerate() {
            let w = [0, LANES].map(|at| _mm512_loadu_si512(w.as_ptr().add(at).cast()));
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(*x.get_unchecked(r * stride + word) as i32);
                *sums = [D::dot(sums[0], w[0], x), D::dot(sums[1], w[1], x)];
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (half, sum) in sums.into_iter().enumerate() {
                let lanes = (lanes >> (half * LANES)) as u16;
                let to = out.wrapping_add(r * row + half * LANES);
                let sum = if add { _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, to), sum) } else { sum };
                _mm512_mask_storeu_ps(to, lanes, sum);
            }
        }
    }
}
