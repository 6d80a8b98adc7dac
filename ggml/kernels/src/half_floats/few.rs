//! Products of bfloat16 weights with few rows of floats: weights are read once, as they lie, and nothing is laid out again.

use std::arch::x86_64::*;

use super::avx512::{first, Dot, Pairs, LANES};
use super::{Format, Weights};
use crate::output::Output;
use crate::simd::lanes::{Lanes as _, Wide};
use crate::simd::FloatLanes as _;

/// Rows of the result, and rows of floats, that are multiplied at once.
const SIDE: usize = 4;
/// Numbers ahead that memory is asked for.
const AHEAD: usize = 2048;
/// Numbers of a register.
const PAIRS: usize = 2 * LANES;

/// [`super::Scratch::multiply`] of words. Their sums have another order than those of panels.
///
/// # Panics
/// As there, and where weights are half-precision or transposed.
pub(super) fn multiply(w: &Weights<'_>, x: &[u32], out: &Output<'_>) {
    let (columns, rows, words) = (out.columns(), out.rows(), w.k.div_ceil(2));
    assert!(w.format == Format::Bf16 && !w.transposed && w.format.available() && columns.end <= w.m);
    assert!(x.len() >= rows.len() * words, "{} words", x.len());
    // SAFETY: the processor has the instructions. Each row of weights and of words is read as far as it goes, and all columns and
    // rows that are written are the output's.
    unsafe {
        for column in columns.clone().step_by(SIDE) {
            let n = SIDE.min(columns.end - column);
            let mut starts = [w.bits.as_ptr(); SIDE];
            for (i, start) in starts.iter_mut().enumerate() {
                *start = start.add((column + i.min(n - 1)) * w.k);
            }
            for (at, j) in rows.clone().enumerate().step_by(SIDE) {
                let x = x.as_ptr().add(at * words);
                let to = (out.at(j, column), out.step());
                match rows.len() - at {
                    1 => square::<1>(starts, w.k, x, to, n),
                    2 => square::<2>(starts, w.k, x, to, n),
                    3 => square::<3>(starts, w.k, x, to, n),
                    _ => square::<SIDE>(starts, w.k, x, to, n),
                }
            }
        }
    }
}

/// The products of four rows of `k` weights with T rows of words after one another. The first `n` of each row are written.
///
/// # Safety
/// So many weights and words may be read, and T rows of the result written, a step apart.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn square<const T: usize>(
    starts: [*const u16; SIDE],
    k: usize,
    x: *const u32,
    (out, step): (*mut f32, usize),
    n: usize,
) {
    let (words, whole) = (k.div_ceil(2), k / PAIRS * PAIRS);
    let mut sums = [[_mm512_setzero_ps(); SIDE]; T];
    // SAFETY: the caller's promise. Only lanes of numbers that are there are read and written.
    unsafe {
        for at in (0..whole).step_by(PAIRS) {
            add_step(&mut sums, starts, x, words, at, PAIRS);
        }
        if whole < k {
            add_step(&mut sums, starts, x, words, whole, k - whole);
        }
        let lanes = Wide::new();
        let mut quads = [_mm512_setzero_ps(); SIDE];
        for (quad, sums) in quads.iter_mut().zip(sums) {
            *quad = lanes.quad(sums);
        }
        let mut all = [0.0f32; SIDE * SIDE];
        _mm512_storeu_ps(all.as_mut_ptr(), lanes.join(quads));
        for (t, sums) in all.as_chunks::<SIDE>().0[..T].iter().enumerate() {
            _mm_mask_storeu_ps(out.add(t * step), first(n) as u8, _mm_loadu_ps(sums.as_ptr()));
        }
    }
}

/// Adds the products of `n` weights of each row, from one on, at most as many as a register has.
///
/// # Safety
/// So many weights, and the words of T rows, may be read. The processor has the instructions.
#[inline(always)]
unsafe fn add_step<const T: usize>(
    sums: &mut [[__m512; SIDE]; T],
    starts: [*const u16; SIDE],
    x: *const u32,
    words: usize,
    at: usize,
    n: usize,
) {
    let (of_w, of_x) = (first(n), first(n.div_ceil(2)) as u16);
    // SAFETY: the caller's promise.
    unsafe {
        let mut w = [_mm512_setzero_si512(); SIDE];
        for (w, start) in w.iter_mut().zip(starts) {
            *w = _mm512_maskz_loadu_epi16(of_w, start.add(at).cast());
            _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(at + AHEAD).cast());
        }
        for (t, sums) in sums.iter_mut().enumerate() {
            let x = _mm512_maskz_loadu_epi32(of_x, x.add(t * words + at / 2).cast());
            for (sum, w) in sums.iter_mut().zip(w) {
                *sum = Pairs::dot(*sum, w, x);
            }
        }
    }
}
