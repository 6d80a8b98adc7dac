//! Products of weights in 16-bit floats with floats, by AVX-512. Those in bfloat16 are multiplied with floats rounded to it, by an
//! instruction that does twice as many products as of floats in the same time; of those in half precision nothing is rounded.
//!
//! Weights are laid out anew a panel at a time, so that a register holds a word of each of sixteen rows of the result: two numbers
//! of bfloat16, or a float.

use std::ops::Range;

use crate::aligned::Aligned;
use crate::output::Output;

/// Rows of the result that a panel has: two registers.
const ROWS: usize = 32;
/// Words of a row of a panel, which stays in the first cache.
const WORDS: usize = 256;
/// Rows of the result for which a part of all floats stays in a cache; more at a time would be read from too many places.
const BESIDE: usize = 8 * ROWS;
/// Rows of floats that are multiplied with a panel at once.
const TOKENS: usize = 6;

/// The types of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// bfloat16
    Bf16,
    /// IEEE half precision
    F16,
}

impl Format {
    /// Whether this processor has the instructions.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && (self == Format::F16 || is_x86_feature_detected!("avx512bf16"))
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Numbers in a word.
    fn in_word(self) -> usize {
        match self {
            Format::Bf16 => 2,
            Format::F16 => 1,
        }
    }
}

/// Bits of numbers: `m` rows of `k` terms, or where they are transposed `k` rows of `m`.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    format: Format,
    bits: &'a [u16],
    k: usize,
    m: usize,
    transposed: bool,
}

impl<'a> Weights<'a> {
    /// Rows one after the other.
    ///
    /// # Panics
    /// Where there are not so many numbers.
    pub fn new(format: Format, bits: &'a [u16], [k, m]: [usize; 2], transposed: bool) -> Weights<'a> {
        assert_eq!(Some(bits.len()), k.checked_mul(m));
        Weights { format, bits, k, m, transposed }
    }

    /// Terms of a sum.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Rows of the result.
    pub fn m(&self) -> usize {
        self.m
    }
}

/// Buffers a thread keeps between calls.
#[derive(Default)]
pub struct Scratch {
    /// `[word][ROWS]`
    panel: Aligned<u32>,
    /// `[row][word]`
    x: Aligned<u32>,
}

impl Scratch {
    /// Element `i` of row `j` of the output becomes the sum over `k` of weights `(k, i)` times `x(j)[k]`, for some elements and
    /// rows. No bit depends on which are computed in one call.
    ///
    /// # Panics
    /// Where the processor lacks the instructions, or something is outside.
    pub fn multiply<'x>(
        &mut self,
        w: &Weights<'_>,
        x: impl Fn(usize) -> &'x [f32],
        columns: Range<usize>,
        rows: Range<usize>,
        out: Output,
    ) {
        assert!(w.format.available() && columns.end <= w.m && w.m <= out.m);
        let words = w.k.div_ceil(w.format.in_word());
        self.x.resize(rows.len() * words);
        self.panel.resize(WORDS.min(words) * ROWS);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions. Elements of the output that are asked for may be written, as `Output::new`
        // was promised.
        unsafe {
            for (j, to) in rows.clone().zip(self.x.chunks_exact_mut(words.max(1))) {
                let x = x(j);
                assert_eq!(x.len(), w.k);
                match w.format {
                    Format::Bf16 => avx512::round(x, to),
                    Format::F16 => to.iter_mut().zip(x).for_each(|(to, x)| *to = x.to_bits()),
                }
            }
            for beside in columns.clone().step_by(BESIDE) {
                let beside = beside..columns.end.min(beside + BESIDE);
                for from in (0..words).step_by(WORDS) {
                    let part = from..words.min(from + WORDS);
                    for first in beside.clone().step_by(ROWS) {
                        let some = first..beside.end.min(first + ROWS);
                        avx512::pack(w, &some, &part, &mut self.panel);
                        let panel = &self.panel[..part.len() * ROWS];
                        let mut next =
                            Next::new(w, some.end..beside.end.min(some.end + ROWS), &part, rows.len());
                        for (at, j) in rows.clone().enumerate().step_by(TOKENS) {
                            next.prefetch();
                            let x = &self.x[at * words..][..TOKENS.min(rows.len() - at) * words];
                            let x = (&x[part.start..], words);
                            let out = (out.out.add(j * out.m + first), out.m);
                            match w.format {
                                Format::Bf16 => avx512::tile_bf16(panel, x, some.len(), out, from > 0),
                                Format::F16 => avx512::tile_f32(panel, x, some.len(), out, from > 0),
                            }
                        }
                    }
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{rows:?}, {}: no other processor has them", x(0).len());
    }
}

/// Memory of the weights that are laid out next: so many short stretches are more than hardware prefetchers follow. Asked for a
/// little at a time, for what is read meanwhile waits behind it.
#[cfg(target_arch = "x86_64")]
struct Next<'a> {
    bits: &'a [u16],
    /// Distance of stretches, and of cache lines in one, in numbers.
    steps: [usize; 2],
    lines: usize,
    left: Range<usize>,
    at_once: usize,
}

#[cfg(target_arch = "x86_64")]
impl<'a> Next<'a> {
    /// Words of rows of the result, while `n` rows of floats are multiplied.
    fn new(w: &Weights<'a>, rows: Range<usize>, part: &Range<usize>, n: usize) -> Next<'a> {
        const LINE: usize = 32;
        let terms = part.start * w.format.in_word()..w.k.min(part.end * w.format.in_word());
        let (first, step, n_stretches, len) = if w.transposed {
            (terms.start * w.m + rows.start, w.m, terms.len(), rows.len())
        } else {
            (rows.start * w.k + terms.start, w.k, rows.len(), terms.len())
        };
        let lines = len.div_ceil(LINE);
        let total = n_stretches * lines;
        let bits = w.bits.get(first..).unwrap_or_default();
        Next {
            bits,
            steps: [step, LINE],
            lines,
            left: 0..total,
            at_once: total.div_ceil(n.div_ceil(TOKENS).max(1)),
        }
    }

    fn prefetch(&mut self) {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T1};
        for i in self.left.by_ref().take(self.at_once) {
            let at = i / self.lines * self.steps[0] + i % self.lines * self.steps[1];
            // SAFETY: a prefetch has no effect that could be seen, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.bits.as_ptr().wrapping_add(at).cast()) }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::{Format, Weights, ROWS};

    /// Numbers of a register.
    const LANES: usize = 16;

    /// A mask of the first `n` of as many lanes as it has bits.
    fn first(n: usize) -> u32 {
        ((1u64 << n.min(32)) - 1) as u32
    }

    /// Rounds floats to pairs of bfloat16; an odd one is beside 0.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
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
    #[target_feature(enable = "avx512f,avx512bw")]
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

    /// Which numbers of two registers lie side by side: those of the first from one on, each beside that of the second.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn beside(from: u16) -> __m512i {
        let of: [u16; 2 * LANES] =
            std::array::from_fn(|i| from + i as u16 / 2 + if i % 2 == 0 { 0 } else { 2 * LANES as u16 });
        // SAFETY: a register of numbers.
        unsafe { _mm512_loadu_epi16(of.as_ptr().cast()) }
    }

    /// Turns a square of words.
    #[target_feature(enable = "avx512f")]
    fn transposed(a: [__m512i; LANES]) -> [__m512i; LANES] {
        let b: [__m512i; LANES] = std::array::from_fn(|i| {
            let (x, y) = (a[i / 2 * 2], a[i / 2 * 2 + 1]);
            if i % 2 == 0 {
                _mm512_unpacklo_epi32(x, y)
            } else {
                _mm512_unpackhi_epi32(x, y)
            }
        });
        // Register 4 g + j has, in its quarter l, column 4 l + j of rows 4 g to 4 g + 3.
        let c: [__m512i; LANES] = std::array::from_fn(|i| {
            let (x, y) = (b[i / 4 * 4 + i % 4 / 2], b[i / 4 * 4 + i % 4 / 2 + 2]);
            if i % 2 == 0 {
                _mm512_unpacklo_epi64(x, y)
            } else {
                _mm512_unpackhi_epi64(x, y)
            }
        });
        let even = |x, y| _mm512_shuffle_i32x4::<0x88>(x, y);
        let odd = |x, y| _mm512_shuffle_i32x4::<0xdd>(x, y);
        std::array::from_fn(|i| {
            let (l, j) = (i / 4, i % 4);
            let (x, y) = if l % 2 == 0 {
                (even(c[j], c[4 + j]), even(c[8 + j], c[12 + j]))
            } else {
                (odd(c[j], c[4 + j]), odd(c[8 + j], c[12 + j]))
            };
            if l < 2 {
                even(x, y)
            } else {
                odd(x, y)
            }
        })
    }

    /// Adds products of the words of two registers to sums.
    ///
    /// # Safety
    /// The processor has the instructions.
    trait Dot {
        unsafe fn dot(sum: __m512, w: __m512i, x: __m512i) -> __m512;
    }

    struct Pairs;
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
    /// As many rows of the result, each so far apart as said, may be written, and read if `add`.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
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
    /// As [`tile_bf16`] says.
    #[target_feature(enable = "avx512f,avx512bw")]
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
    /// As [`tile_bf16`] says, and the processor has the instructions.
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
    /// As [`tile`] says, of R rows.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: Format, [k, m, n]: [usize; 3], transposed: bool) {
        let rounded =
            |x: f32| f64::from(if format == Format::Bf16 { half::bf16::from_f32(x).to_f32() } else { x });
        let weight = |w: f32| match format {
            Format::Bf16 => (half::bf16::from_f32(w).to_bits(), rounded(w)),
            Format::F16 => (half::f16::from_f32(w).to_bits(), half::f16::from_f32(w).to_f64()),
        };
        let value = |i: usize, by: f32| ((i as f32 * by).sin() * 1.7 + 0.1) * (1.0 + (i % 7) as f32);
        let w: Vec<f32> = (0..k * m).map(|i| value(i, 0.37)).collect();
        let x: Vec<f32> = (0..k * n).map(|i| value(i, 0.61)).collect();
        let bits: Vec<u16> = w.iter().map(|w| weight(*w).0).collect();
        let weights = Weights::new(format, &bits, [k, m], transposed);
        let run = |parts: &[(Range<usize>, Range<usize>)]| {
            let mut all = vec![f32::NAN; m * n];
            let mut scratch = Scratch::default();
            for (columns, rows) in parts {
                // SAFETY: n rows of m floats, which nobody else writes.
                let out = unsafe { Output::new(all.as_mut_ptr(), m) };
                scratch.multiply(&weights, |j| &x[j * k..][..k], columns.clone(), rows.clone(), out);
            }
            all
        };
        let all = run(&[(0..m, 0..n)]);
        for (j, row) in all.chunks_exact(m).enumerate() {
            for (i, found) in row.iter().enumerate() {
                let (mut sum, mut size) = (0.0, 0.0);
                for (at, x) in x[j * k..][..k].iter().enumerate() {
                    let term = weight(w[if transposed { at * m + i } else { i * k + at }]).1 * rounded(*x);
                    sum += term;
                    size += term.abs();
                }
                let off = (f64::from(*found) - sum).abs();
                assert!(
                    off <= 1e-5 * size,
                    "{format:?} {k} {m} {n} {transposed}: {i} {j}: {found}, expected {sum}"
                );
            }
        }
        let (a, b) = (m / 3, n / 2);
        let parts = run(&[(0..a, 0..n), (a..m, b..n), (a..m, 0..b)]);
        assert_eq!(parts, all, "{format:?} {k} {m} {n} {transposed}: in parts");
    }

    #[test]
    fn products() {
        for (format, transposed) in [(Format::Bf16, false), (Format::Bf16, true), (Format::F16, false)] {
            if !format.available() {
                eprintln!("skipped, for this processor has no instructions for it: products of {format:?}");
                continue;
            }
            for shape in
                [[1, 1, 1], [2, 33, 7], [31, 5, 6], [64, 100, 13], [515, 31, 4], [1100, 70, 9], [513, 64, 12]]
            {
                check(format, shape, transposed);
            }
        }
    }
}
