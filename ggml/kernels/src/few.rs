//! Products of quantised weights with few rows of floats, as in decoding. Floats are rounded to eight bits in blocks of 32;
//! ggml rounds them alike beside most types, and in blocks of 256 beside K-quants.
//!
//! ggml's own products wait for one sum of a row; here four are under way at once, and the codes of weights are multiplied as
//! they lie: their offset is taken off sums that are known beforehand.

use crate::aligned::Aligned;
use crate::codes::Kind;

/// Values that are rounded together.
const BLOCK: usize = 32;
/// Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;
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
                    with_codes!(kind, x86::avx2::products::<_, N>(self, rows, row_bytes, first, &mut out))
                }
                Instructions::Vnni => {
                    with_codes!(kind, x86::vnni::products::<_, N>(self, rows, row_bytes, first, &mut out))
                }
                Instructions::AvxVnni => {
                    with_codes!(
                        kind,
                        x86::avx_vnni::products::<_, N>(self, rows, row_bytes, first, &mut out)
                    );
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{with:?}: no rows were rounded");
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Rounded, BLOCK, ROUND};

    /// Sums of a row under way at once: blocks take turns, so that none waits for the one before.
    const SUMS: usize = 4;

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
            bytes.iter_mut().zip(x).for_each(|(byte, x)| *byte = (x * inverse + ROUND).to_bits() as i8);
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

    /// Where N rounded rows lie.
    struct Floats<const N: usize> {
        n_blocks: usize,
        bytes: [*const i8; N],
        scales: [*const f32; N],
        sums: [*const i32; N],
    }

    impl<const N: usize> Floats<N> {
        /// Rows `first..first + N`.
        fn new(x: &Rounded, first: usize) -> Floats<N> {
            let n = x.n_blocks;
            Floats {
                n_blocks: n,
                bytes: std::array::from_fn(|t| x.bytes[(first + t) * n * BLOCK..][..n * BLOCK].as_ptr()),
                scales: std::array::from_fn(|t| x.scales[(first + t) * n..][..n].as_ptr()),
                sums: std::array::from_fn(|t| x.sums[(first + t) * n * 8..][..n * 8].as_ptr()),
            }
        }
    }

    /// The loops for one set of instructions: `$unsigned` adds in each lane four products to a sum, of codes without a sign, and
    /// `$signed` of codes with one, where the sum has been made for their offset.
    macro_rules! loops {
        ($name:ident, $features:literal, unsigned: $unsigned:expr, signed: $signed:expr) => {
            pub(super) mod $name {
                use std::arch::x86_64::*;

                use super::{Floats, Rounded, BLOCK, SUMS};
                use crate::codes::x86::Codes;

                /// Products of all rows with the rounded rows `first..first + N`, for `out`.
                #[target_feature(enable = $features)]
                pub(in super::super) fn products<T: Codes, const N: usize>(
                    x: &Rounded,
                    rows: &[u8],
                    row_bytes: usize,
                    first: usize,
                    out: &mut impl FnMut(usize, [f32; N]),
                ) {
                    let x = Floats::new(x, first);
                    for (i, row) in rows.chunks_exact(row_bytes).enumerate() {
                        let row = T::blocks(row);
                        assert!(row.len() * T::PARTS == x.n_blocks);
                        let mut totals = [[_mm256_setzero_ps(); N]; SUMS];
                        // SAFETY: the processor has the instructions, and blocks are counted up to those that the row and, by
                        // the assertion, rounded rows have.
                        unsafe {
                            if T::PARTS > 1 {
                                for (at, b) in row.iter().enumerate() {
                                    large::<T, N>(b, &x, at * T::PARTS, &mut totals);
                                }
                            } else {
                                let (fours, rest) = row.as_chunks::<SUMS>();
                                for (at, four) in fours.iter().enumerate() {
                                    for i in 0..SUMS {
                                        small::<T, N>(&four[i], &x, at * SUMS + i, &mut totals[i]);
                                    }
                                }
                                for (i, b) in rest.iter().enumerate() {
                                    small::<T, N>(b, &x, fours.len() * SUMS + i, &mut totals[0]);
                                }
                            }
                        }
                        let mut products = [0.0; N];
                        for (t, product) in products.iter_mut().enumerate() {
                            let all = _mm256_add_ps(
                                _mm256_add_ps(totals[0][t], totals[1][t]),
                                _mm256_add_ps(totals[2][t], totals[3][t]),
                            );
                            let half =
                                _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps::<1>(all));
                            let pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
                            *product = _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
                        }
                        out(i, products);
                    }
                }

                /// Adds products of a block of 32, which is block `at` of rows.
                ///
                /// # Safety
                /// Rounded rows have this block.
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn small<T: Codes, const N: usize>(
                    b: &T::Block,
                    x: &Floats<N>,
                    at: usize,
                    totals: &mut [__m256; N],
                ) {
                    let head = T::head(b);
                    let [factors, added] = if T::ADDS {
                        let both = _mm256_cvtph_ps(_mm_set1_epi32(head));
                        [_mm256_moveldup_ps(both), _mm256_movehdup_ps(both)]
                    } else {
                        [_mm256_cvtph_ps(_mm_set1_epi16(head as i16)); 2]
                    };
                    // SAFETY: the processor has AVX2; the caller's promise.
                    unsafe { add::<T, N>(T::codes(b, 0), factors, added, x, at, totals) }
                }

                /// Adds products of a block of 256, whose first part is block `at` of rows.
                ///
                /// # Safety
                /// Rounded rows have these blocks.
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn large<T: Codes, const N: usize>(
                    b: &T::Block,
                    x: &Floats<N>,
                    at: usize,
                    totals: &mut [[__m256; N]; SUMS],
                ) {
                    let heads = T::heads(b);
                    // Factors, then numbers added.
                    let mut floats = [0.0f32; 32];
                    let (factors, added) = floats.split_at_mut(16);
                    spread(&heads.factors, heads.factor, factors);
                    if T::ADDS {
                        spread(&heads.times, heads.added, added);
                    }
                    for part in 0..T::PARTS {
                        let [factors, added] = [0, 16].map(|of| {
                            if T::HALVES {
                                let [low, high] = [floats[of + 2 * part], floats[of + 2 * part + 1]];
                                _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low))
                            } else {
                                _mm256_set1_ps(floats[of + part])
                            }
                        });
                        // SAFETY: the processor has AVX2; the caller's promise.
                        unsafe {
                            let codes = T::codes(b, part);
                            add::<T, N>(codes, factors, added, x, at + part, &mut totals[part % SUMS]);
                        }
                    }
                }

                /// Sixteen whole numbers times a factor.
                #[inline]
                #[target_feature(enable = $features)]
                fn spread(codes: &[i8; 16], factor: f32, to: &mut [f32]) {
                    for (codes, to) in codes.as_chunks::<8>().0.iter().zip(to.as_chunks_mut::<8>().0) {
                        // SAFETY: eight bytes are read from eight, eight floats are written to eight.
                        unsafe {
                            let codes = _mm256_cvtepi8_epi32(_mm_loadl_epi64(codes.as_ptr().cast()));
                            let floats = _mm256_mul_ps(_mm256_cvtepi32_ps(codes), _mm256_set1_ps(factor));
                            _mm256_storeu_ps(to.as_mut_ptr(), floats);
                        }
                    }
                }

                /// Adds products of 32 codes with block `at` of rounded rows.
                ///
                /// # Safety
                /// These have the block.
                #[inline]
                #[target_feature(enable = $features)]
                unsafe fn add<T: Codes, const N: usize>(
                    codes: __m256i,
                    factors: __m256,
                    added: __m256,
                    x: &Floats<N>,
                    at: usize,
                    totals: &mut [__m256; N],
                ) {
                    for (t, total) in totals.iter_mut().enumerate() {
                        // SAFETY: the caller's promise: 32 bytes, eight sums and a scale for each block.
                        let (values, known, scale) = unsafe {
                            (
                                _mm256_loadu_si256(x.bytes[t].add(at * BLOCK).cast()),
                                _mm256_loadu_si256(x.sums[t].add(at * 8).cast()),
                                *x.scales[t].add(at),
                            )
                        };
                        let sum = if T::ADDS { _mm256_setzero_si256() } else { known };
                        let sum = if T::SIGNED {
                            $signed(sum, codes, values)
                        } else {
                            $unsigned(sum, codes, values)
                        };
                        let factors = _mm256_mul_ps(factors, _mm256_set1_ps(scale));
                        *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), factors, *total);
                        if T::ADDS {
                            *total = _mm256_fmadd_ps(added, _mm256_castsi256_ps(known), *total);
                        }
                    }
                }
            }
        };
    }

    loops!(
        avx2, "avx2,fma,f16c",
        unsigned: |sum, codes, x| {
            let pairs = _mm256_maddubs_epi16(codes, x);
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        },
        // Two products of 128 and 127 fit in 16 bits.
        signed: |sum, codes, x| {
            let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
            _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        }
    );
    loops!(
        vnni, "avx2,fma,f16c,avx512vnni,avx512vl",
        unsigned: |sum, codes, x| _mm256_dpbusd_epi32(sum, codes, x),
        signed: |sum, codes, x| {
            _mm256_dpbusd_epi32(sum, _mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x)
        }
    );
    loops!(
        avx_vnni, "avx2,fma,f16c,avxvnni",
        unsigned: |sum, codes, x| _mm256_dpbusd_avx_epi32(sum, codes, x),
        signed: |sum, codes, x| {
            _mm256_dpbusd_avx_epi32(sum, _mm256_xor_si256(codes, _mm256_set1_epi8(-128)), x)
        }
    );
}

#[cfg(test)]
mod tests;
