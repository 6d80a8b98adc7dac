//! The inner loops: sums of products of 16-bit numbers, for each set of instructions that has a fast one. Which of them a
//! processor has is asked when the program runs.

use super::{Tokens, BLOCK};
use crate::simd::Instructions;

/// Most tokens that [`Instructions::panel`] takes.
pub(super) const PANEL_TOKENS: usize = 6;
/// Most rows of a panel under any instructions.
pub(super) const MOST_ROWS: usize = 32;

/// Rows that [`Instructions::transpose`] takes.
pub(super) const SQUARE: usize = 8;

/// Rows of a weight side by side: pairs of numbers `[k / 2][rows][2]`, factors `[blocks][rows]`, and what is added
/// `[2 * blocks][rows]`, if anything.
pub(super) struct Panel<'a> {
    pub(super) values: &'a [u32],
    pub(super) factors: &'a [f32],
    pub(super) added: Option<&'a [f32]>,
}

impl Instructions {
    pub(super) fn rows(self) -> usize {
        match self {
            Instructions::Avx2 | Instructions::AvxVnni => 16,
            Instructions::Avx512 => 32,
        }
    }

    /// Products of a panel with blocks `from..` of tokens, `[PANEL_TOKENS]` at most, into rows of floats `stride` apart:
    /// written there, or added to what is there.
    ///
    /// # Safety
    /// The processor has the instructions. From `out` on as many rows as tokens, each of a panel's rows, may be written,
    /// and read if `add`.
    pub(super) unsafe fn panel(
        self,
        panel: &Panel<'_>,
        x: Tokens<'_>,
        from: usize,
        add: bool,
        out: *mut f32,
        stride: usize,
    ) {
        let (n_blocks, rows) = (panel.factors.len() / self.rows(), self.rows());
        assert!(panel.factors.len() == n_blocks * rows && panel.values.len() == n_blocks * BLOCK / 2 * rows);
        assert!(panel.added.is_none_or(|a| a.len() == 2 * n_blocks * rows) && x.holds(from, n_blocks));
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promises, and by the assertions all that is read is there.
        unsafe {
            let each = match self {
                Instructions::Avx2 | Instructions::AvxVnni => avx2::panels(),
                Instructions::Avx512 => vnni::panels(),
            };
            each[x.len() - 1](panel, n_blocks, x, from, add, out, stride);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{add} {out:?} {stride}: other processors have none of the instructions");
    }

    /// Turns [`SQUARE`] rows of numbers into as many columns: two numbers of each in a row of `side` words.
    ///
    /// # Safety
    /// The processor has the instructions.
    pub(super) unsafe fn transpose(self, rows: &[i16], out: &mut [u32], side: usize) {
        let n = rows.len() / SQUARE / 2;
        assert!(rows.len() == 2 * SQUARE * n && n.is_multiple_of(SQUARE) && side >= SQUARE);
        assert!(n == 0 || out.len() >= (n - 1) * side + SQUARE);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's promise: all of them have AVX2. Squares are inside by the assertions.
        unsafe {
            for at in (0..n).step_by(SQUARE) {
                square(rows.as_ptr().cast::<u32>().add(at), n, out.as_mut_ptr().add(at * side), side);
            }
        }
    }
}

/// Turns a square of words; rows are `from` words apart, and those of the result `to`.
///
/// # Safety
/// Both squares are there.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn square(rows: *const u32, from: usize, out: *mut u32, to: usize) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise.
    unsafe {
        let a: [__m256; SQUARE] = std::array::from_fn(|i| _mm256_loadu_ps(rows.add(i * from).cast()));
        // Pairs of words, then of pairs, then of halves.
        let b: [__m256d; SQUARE] = std::array::from_fn(|i| {
            let (x, y) = (a[i / 2 * 2], a[i / 2 * 2 + 1]);
            _mm256_castps_pd(if i % 2 == 0 { _mm256_unpacklo_ps(x, y) } else { _mm256_unpackhi_ps(x, y) })
        });
        let c: [__m256d; SQUARE] = std::array::from_fn(|i| {
            let (x, y) = (b[i / 4 * 4 + i % 4 / 2], b[i / 4 * 4 + i % 4 / 2 + 2]);
            if i % 2 == 0 {
                _mm256_unpacklo_pd(x, y)
            } else {
                _mm256_unpackhi_pd(x, y)
            }
        });
        for i in 0..SQUARE / 2 {
            let low = _mm256_permute2f128_pd::<0x20>(c[i], c[i + 4]);
            let high = _mm256_permute2f128_pd::<0x31>(c[i], c[i + 4]);
            _mm256_storeu_pd(out.add(i * to).cast(), low);
            _mm256_storeu_pd(out.add((i + 4) * to).cast(), high);
        }
    }
}

/// The loops for one set of instructions: `$dot` adds products of pairs of numbers to sums.
#[cfg(target_arch = "x86_64")]
macro_rules! loops {
    (
        $name:ident, $features:literal, $lanes:literal, $float:ty, $int:ty,
        zero: $zero:expr, zeros: $zeros:expr, load: $load:expr, loads: $loads:expr, store: $store:expr,
        splat: $splat:expr, splats: $splats:expr,
        dot: $dot:expr, floats: $floats:expr, times: $times:expr, plus: $plus:expr, fma: $fma:expr
    ) => {
        mod $name {
            use std::arch::x86_64::*;

            use super::Panel;
            use crate::integers::{Tokens, BLOCK};

            const LANES: usize = $lanes;

            pub(super) type PanelLoop =
                unsafe fn(&Panel<'_>, usize, Tokens<'_>, usize, bool, *mut f32, usize);

            /// The loop for each number of tokens from 1 on.
            pub(super) fn panels() -> [PanelLoop; super::PANEL_TOKENS] {
                [panel::<1>, panel::<2>, panel::<3>, panel::<4>, panel::<5>, panel::<6>]
            }

            /// # Safety
            /// The panel has `n_blocks` blocks, and R tokens have as many from `from` on; from `out` on R rows of the panel's
            /// rows, `stride` apart, may be written, and read if `add`.
            #[target_feature(enable = $features)]
            unsafe fn panel<const R: usize>(
                p: &Panel<'_>,
                n_blocks: usize,
                x: Tokens<'_>,
                from: usize,
                add: bool,
                out: *mut f32,
                stride: usize,
            ) {
                const ROWS: usize = 2 * LANES;
                let (numbers, scales, halves) = (x.numbers(from), x.scales(from), x.halves(from));
                let mut totals = [[$zero(); 2]; R];
                for b in 0..n_blocks {
                    let mut sums = [[$zeros(); 2]; R];
                    // SAFETY: the caller's promise: the panel has so many blocks, and so have the tokens.
                    unsafe {
                        let w = p.values.as_ptr().add(b * BLOCK / 2 * ROWS);
                        for i in 0..BLOCK / 2 {
                            let w: [$int; 2] = [$loads(w.add(i * ROWS)), $loads(w.add(i * ROWS + LANES))];
                            for (r, sums) in sums.iter_mut().enumerate() {
                                let x = $splats(*numbers.add(r * x.stride() + b * BLOCK / 2 + i));
                                *sums = [$dot(sums[0], w[0], x), $dot(sums[1], w[1], x)];
                            }
                        }
                        let at = |row: usize| [0, LANES].map(|lane| row * ROWS + lane);
                        let factors = at(b).map(|at| $load(p.factors.as_ptr().add(at)));
                        for (r, (totals, sums)) in totals.iter_mut().zip(sums).enumerate() {
                            let scale = $splat(*scales.add(r * x.stride() + b));
                            for ((total, sum), factor) in totals.iter_mut().zip(sums).zip(factors) {
                                *total = $fma($floats(sum), $times(factor, scale), *total);
                            }
                        }
                        if let Some(added) = p.added {
                            for half in [2 * b, 2 * b + 1] {
                                let added = at(half).map(|at| $load(added.as_ptr().add(at)));
                                for (r, totals) in totals.iter_mut().enumerate() {
                                    let x = $splat(*halves.add(r * x.stride() + half));
                                    *totals = [$fma(added[0], x, totals[0]), $fma(added[1], x, totals[1])];
                                }
                            }
                        }
                    }
                }
                for (r, totals) in totals.into_iter().enumerate() {
                    for (i, total) in totals.into_iter().enumerate() {
                        // SAFETY: the caller's promise, of R rows of ROWS floats.
                        unsafe {
                            let out = out.add(r * stride + i * LANES);
                            $store(out, if add { $plus(total, $load(out.cast_const())) } else { total });
                        }
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
loops!(
    avx2, "avx2,fma", 8, __m256, __m256i,
    zero: || _mm256_setzero_ps(),
    zeros: || _mm256_setzero_si256(),
    load: |at: *const f32| _mm256_loadu_ps(at),
    loads: |at: *const u32| _mm256_loadu_si256(at.cast()),
    store: |at: *mut f32, x| _mm256_storeu_ps(at, x),
    splat: |x: f32| _mm256_set1_ps(x),
    splats: |x: u32| _mm256_set1_epi32(x as i32),
    dot: |sum, a, b| _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)),
    floats: |x| _mm256_cvtepi32_ps(x),
    times: |a, b| _mm256_mul_ps(a, b),
    plus: |a, b| _mm256_add_ps(a, b),
    fma: |a, b, c| _mm256_fmadd_ps(a, b, c)
);

#[cfg(target_arch = "x86_64")]
loops!(
    vnni, "avx512f,avx512bw,avx512vnni", 16, __m512, __m512i,
    zero: || _mm512_setzero_ps(),
    zeros: || _mm512_setzero_si512(),
    load: |at: *const f32| _mm512_loadu_ps(at),
    loads: |at: *const u32| _mm512_loadu_si512(at.cast()),
    store: |at: *mut f32, x| _mm512_storeu_ps(at, x),
    splat: |x: f32| _mm512_set1_ps(x),
    splats: |x: u32| _mm512_set1_epi32(x as i32),
    dot: |sum, a, b| _mm512_dpwssd_epi32(sum, a, b),
    floats: |x| _mm512_cvtepi32_ps(x),
    times: |a, b| _mm512_mul_ps(a, b),
    plus: |a, b| _mm512_add_ps(a, b),
    fma: |a, b, c| _mm512_fmadd_ps(a, b, c)
);
