//! Products of quantised weights with few rows of floats, as in decoding. Floats are rounded to eight bits in blocks of 32;
//! ggml rounds them alike beside most types, and in blocks of 256 beside K-quants.
//!
//! ggml's own products go over one row at a time, and wait for its one sum; here several rows are under way at once, and the
//! codes of weights are multiplied as they lie, without their offset, which is taken off sums that are known beforehand.

use crate::aligned::Aligned;
use crate::codes::Kind;

/// Values that are rounded together.
const BLOCK: usize = 32;
/// Rows of floats multiplied at a time, at most.
pub const MOST: usize = 4;

/// A set of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instructions {
    /// AVX2 with fused multiply-adds of floats.
    Avx2,
    /// VNNI on registers of AVX-512's 256-bit form.
    Vnni,
    /// VNNI without AVX-512.
    AvxVnni,
}

impl Instructions {
    /// All that this processor has, the best one first.
    fn all() -> impl Iterator<Item = Instructions> {
        [Instructions::Vnni, Instructions::AvxVnni, Instructions::Avx2].into_iter().filter(|i| i.are_here())
    }

    fn are_here(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        match self {
            Instructions::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            Instructions::Vnni => {
                is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512vl")
                    && Instructions::Avx2.are_here()
            }
            Instructions::AvxVnni => is_x86_feature_detected!("avxvnni") && Instructions::Avx2.are_here(),
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// What is taken off a code for the instructions to multiply it: they take one factor without a sign.
    fn offset(self, kind: Kind) -> i32 {
        match (self, kind.signed()) {
            // Signs are moved to the other factor instead.
            (Instructions::Avx2, true) => 0,
            (_, true) => 128,
            (_, false) => i32::from(kind.offset()),
        }
    }
}

/// Whether this processor has the instructions.
pub fn available() -> bool {
    Instructions::all().next().is_some()
}

/// Rows of floats rounded to eight bits, for weights of one type.
#[derive(Default)]
pub struct Rounded {
    kind: Option<(Instructions, Kind)>,
    n_blocks: usize,
    /// `[row][block][32]`
    bytes: Aligned<i8>,
    /// `[row][block]`
    scales: Aligned<f32>,
    /// `[row][block][8]`: of each four values their sum, as a float times the scale where a type adds, else as a whole
    /// number times the negative offset of codes.
    sums: Aligned<i32>,
}

impl Rounded {
    /// Takes rows of `k` floats, whole blocks, to be multiplied with weights of this type.
    ///
    /// # Panics
    /// Where [`available`] is false.
    pub fn set<'a>(&mut self, kind: Kind, k: usize, rows: impl ExactSizeIterator<Item = &'a [f32]>) {
        let with = Instructions::all().next().expect("the caller has asked whether there are instructions");
        self.set_for(with, kind, k, rows);
    }

    fn set_for<'a>(
        &mut self,
        with: Instructions,
        kind: Kind,
        k: usize,
        rows: impl ExactSizeIterator<Item = &'a [f32]>,
    ) {
        assert!(k.is_multiple_of(kind.block().0));
        (self.kind, self.n_blocks) = (Some((with, kind)), k / BLOCK);
        self.bytes.refill(rows.len() * k, 0);
        self.scales.refill(rows.len() * self.n_blocks, 0.0);
        self.sums.refill(rows.len() * self.n_blocks * 8, 0);
        let heads = self.scales.chunks_exact_mut(self.n_blocks.max(1));
        let sums = self.sums.as_chunks_mut::<8>().0.chunks_exact_mut(self.n_blocks.max(1));
        let parts = self.bytes.as_chunks_mut::<BLOCK>().0.chunks_exact_mut(self.n_blocks.max(1));
        let factor = (!kind.adds()).then(|| -with.offset(kind));
        for (row, ((bytes, scales), sums)) in rows.zip(parts.zip(heads).zip(sums)) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: whatever the instructions, the processor has AVX2.
            unsafe {
                x86::round(&row[..k], bytes, scales, sums, factor);
            }
            #[cfg(not(target_arch = "x86_64"))]
            unreachable!("{row:?} {bytes:?} {scales:?} {sums:?} {factor:?}: the caller has asked");
        }
    }

    /// Products of rows of weights, each of `row_bytes`, with the rounded rows `first..first + N`, at most [`MOST`]: `out`
    /// gets the weight's row, counted from 0, and its products.
    ///
    /// # Panics
    /// Where rows are not as long as the rounded ones, or these are fewer.
    pub fn products<const N: usize>(
        &self,
        rows: &[u8],
        row_bytes: usize,
        first: usize,
        mut out: impl FnMut(usize, [f32; N]),
    ) {
        let Some((with, kind)) = self.kind else { panic!("rows are rounded before they are multiplied") };
        let (block, block_bytes) = kind.block();
        assert!(row_bytes == self.n_blocks * BLOCK / block * block_bytes && row_bytes > 0);
        assert!(rows.len().is_multiple_of(row_bytes) && (first + N) * self.n_blocks <= self.scales.len());
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions that rows were rounded for.
        unsafe {
            use crate::codes::with_codes;
            match with {
                Instructions::Avx2 => {
                    with_codes!(kind, x86::avx2::<_, N>(self, rows, row_bytes, first, &mut out))
                }
                Instructions::Vnni => {
                    with_codes!(kind, x86::vnni::<_, N>(self, rows, row_bytes, first, &mut out))
                }
                Instructions::AvxVnni => {
                    with_codes!(kind, x86::avx_vnni::<_, N>(self, rows, row_bytes, first, &mut out));
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{with:?}: no rows were rounded");
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Rounded, BLOCK};
    use crate::codes::x86::Codes;

    /// Rows of weights under way at once.
    const ROWS: usize = 4;

    /// Rounds blocks to bytes and scales; sums of four are multiplied by `factor`, or by the scale where there is none.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn round(
        row: &[f32],
        bytes: &mut [[i8; BLOCK]],
        scales: &mut [f32],
        sums: &mut [[i32; 8]],
        factor: Option<i32>,
    ) {
        let blocks = row.as_chunks::<BLOCK>().0.iter().zip(bytes);
        for ((x, bytes), (to, sums)) in blocks.zip(scales.iter_mut().zip(sums)) {
            let largest = x.iter().fold(0.0f32, |m, x| if x.abs() > m { x.abs() } else { m });
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            // What is no number stays none.
            let finite = x.iter().fold(true, |all, x| all & x.is_finite());
            let scale = if finite { largest / 127.0 } else { f32::NAN };
            bytes.iter_mut().zip(x).for_each(|(byte, x)| *byte = (x * inverse).round_ties_even() as i8);
            *to = scale;
            for (sum, four) in sums.iter_mut().zip(bytes.as_chunks::<4>().0) {
                let four: i32 = four.iter().map(|x| i32::from(*x)).sum();
                *sum = match factor {
                    Some(factor) => factor * four,
                    None => (four as f32 * scale).to_bits() as i32,
                };
            }
        }
    }

    /// A set of instructions that multiply bytes.
    trait Bytes {
        /// `sum` and, in each lane, four products: of codes without a sign, at most 63 with AVX2.
        unsafe fn unsigned(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i;

        /// The same of codes with a sign, where `sum` has been made for their offset.
        unsafe fn signed(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i;
    }

    struct Avx2;
    struct Vnni;
    struct AvxVnni;

    impl Bytes for Avx2 {
        #[inline(always)]
        unsafe fn unsigned(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
            // SAFETY: the processor has AVX2, as the caller's callers have asked.
            unsafe {
                let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1));
                _mm256_add_epi32(sum, pairs)
            }
        }

        #[inline(always)]
        unsafe fn signed(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
            // SAFETY: as above. Two products of 128 and 127 fit in 16 bits.
            unsafe { Self::unsigned(sum, _mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes)) }
        }
    }

    /// The bytes of codes with a sign, 128 added.
    #[inline(always)]
    unsafe fn raised(codes: __m256i) -> __m256i {
        // SAFETY: the processor has AVX2, as the caller's callers have asked.
        unsafe { _mm256_xor_si256(codes, _mm256_set1_epi8(-128)) }
    }

    impl Bytes for Vnni {
        #[inline(always)]
        unsafe fn unsigned(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
            // SAFETY: the processor has the instruction, as the caller's callers have asked.
            unsafe { _mm256_dpbusd_epi32(sum, codes, x) }
        }

        #[inline(always)]
        unsafe fn signed(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
            // SAFETY: as above.
            unsafe { Self::unsigned(sum, raised(codes), x) }
        }
    }

    impl Bytes for AvxVnni {
        #[inline(always)]
        unsafe fn unsigned(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
            // SAFETY: the processor has the instruction, as the caller's callers have asked.
            unsafe { _mm256_dpbusd_avx_epi32(sum, codes, x) }
        }

        #[inline(always)]
        unsafe fn signed(sum: __m256i, codes: __m256i, x: __m256i) -> __m256i {
            // SAFETY: as above.
            unsafe { Self::unsigned(sum, raised(codes), x) }
        }
    }

    /// Products of R rows of weights with rounded rows `first..first + N`.
    #[inline(always)]
    unsafe fn dots<T: Codes, B: Bytes, const R: usize, const N: usize>(
        rows: [&[T::Block]; R],
        x: &Rounded,
        first: usize,
    ) -> [[f32; N]; R] {
        let n = x.n_blocks;
        assert!(rows.iter().all(|row| row.len() * T::PARTS == n) && (first + N) * n <= x.scales.len());
        let kind = T::KIND;
        // SAFETY: the processor has the instructions, as callers' callers have asked. Blocks are counted up to those that rows
        // have, and those of rounded rows are there by the assertion, with 32 bytes and eight sums each.
        unsafe {
            let bytes: [_; N] = std::array::from_fn(|t| x.bytes.as_ptr().add((first + t) * n * BLOCK));
            let scales: [_; N] = std::array::from_fn(|t| x.scales.as_ptr().add((first + t) * n));
            let sums: [_; N] = std::array::from_fn(|t| x.sums.as_ptr().add((first + t) * n * 8));
            let mut totals = [[_mm256_setzero_ps(); N]; R];
            for at in 0..n / T::PARTS {
                let blocks: [&T::Block; R] = std::array::from_fn(|r| rows[r].get_unchecked(at));
                // What is read of blocks of 256 beforehand: factors and numbers added, of sixteen weights each.
                let mut heads = [[0.0f32; 32]; R];
                if T::PARTS > 1 {
                    for (heads, b) in heads.iter_mut().zip(blocks) {
                        let of = T::heads(b);
                        for i in 0..16 {
                            heads[i] = of.factor * f32::from(of.factors[i]);
                            heads[16 + i] = of.added[i];
                        }
                    }
                }
                for part in 0..T::PARTS {
                    let at = at * T::PARTS + part;
                    for r in 0..R {
                        let codes = T::codes(blocks[r], part);
                        let [factors, added] = if T::PARTS > 1 {
                            [0, 16].map(|of| {
                                let at = heads[r].as_ptr().add(of + 2 * part);
                                if T::HALVES {
                                    _mm256_set_m128(_mm_broadcast_ss(&*at.add(1)), _mm_broadcast_ss(&*at))
                                } else {
                                    _mm256_broadcast_ss(&*at)
                                }
                            })
                        } else {
                            T::head(blocks[r]).map(|bits| _mm256_cvtph_ps(_mm_set1_epi16(bits)))
                        };
                        for t in 0..N {
                            let values = _mm256_loadu_si256(bytes[t].add(at * BLOCK).cast());
                            let known = _mm256_loadu_si256(sums[t].add(at * 8).cast());
                            let sum = if kind.adds() { _mm256_setzero_si256() } else { known };
                            let sum = if kind.signed() {
                                B::signed(sum, codes, values)
                            } else {
                                B::unsigned(sum, codes, values)
                            };
                            let factors = _mm256_mul_ps(factors, _mm256_broadcast_ss(&*scales[t].add(at)));
                            let total = &mut totals[r][t];
                            *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), factors, *total);
                            if kind.adds() {
                                *total = _mm256_fmadd_ps(added, _mm256_castsi256_ps(known), *total);
                            }
                        }
                    }
                }
            }
            totals.map(|row| {
                row.map(|x| {
                    let x = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
                    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
                    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
                })
            })
        }
    }

    #[inline(always)]
    unsafe fn all_rows<T: Codes, B: Bytes, const N: usize>(
        x: &Rounded,
        rows: &[u8],
        row_bytes: usize,
        first: usize,
        out: &mut impl FnMut(usize, [f32; N]),
    ) {
        let row = |i: usize| T::blocks(&rows[i * row_bytes..][..row_bytes]);
        let n = rows.len() / row_bytes;
        let whole = n / ROWS * ROWS;
        for at in (0..whole).step_by(ROWS) {
            prefetch(&rows[at * row_bytes..], ROWS * row_bytes);
            // SAFETY: the processor has the instructions, as callers' callers have asked.
            let sums = unsafe { dots::<T, B, ROWS, N>(std::array::from_fn(|r| row(at + r)), x, first) };
            sums.into_iter().enumerate().for_each(|(r, sums)| out(at + r, sums));
        }
        for at in whole..n {
            // SAFETY: as above.
            let [sums] = unsafe { dots::<T, B, 1, N>([row(at)], x, first) };
            out(at, sums);
        }
    }

    /// Asks for the rows that come two steps later, if there are any: hardware sees short rows too late.
    #[inline(always)]
    fn prefetch(rows: &[u8], n: usize) {
        for line in (0..n).step_by(64) {
            // SAFETY: a prefetch has no effect that could be seen, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(rows.as_ptr().wrapping_add(2 * n + line).cast()) };
        }
    }

    macro_rules! loops {
        ($($name:ident, $features:literal, $with:ty;)*) => {$(
            #[target_feature(enable = $features)]
            pub(super) fn $name<T: Codes, const N: usize>(
                x: &Rounded,
                rows: &[u8],
                row_bytes: usize,
                first: usize,
                out: &mut impl FnMut(usize, [f32; N]),
            ) {
                // SAFETY: this function has the instructions.
                unsafe { all_rows::<T, $with, N>(x, rows, row_bytes, first, out) }
            }
        )*};
    }

    loops! {
        avx2, "avx2,fma,f16c", Avx2;
        vnni, "avx2,fma,f16c,avx512vnni,avx512vl", Vnni;
        avx_vnni, "avx2,fma,f16c,avxvnni", AvxVnni;
    }
}

#[cfg(test)]
mod tests;
