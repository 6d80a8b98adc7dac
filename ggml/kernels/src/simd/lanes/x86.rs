//! The registers of AVX2 and AVX-512.

use std::arch::x86_64::*;

use super::Lanes;
use crate::simd::MOST;

/// Registers of 256 bits.
#[derive(Clone, Copy)]
pub(crate) struct Narrow(());

/// Registers of 512 bits.
#[derive(Clone, Copy)]
pub(crate) struct Wide(());

macro_rules! crossed {
    ($name:ident, $ints:ty, $low:ident, $high:ident, $low_pairs:ident, $high_pairs:ident) => {
        /// Within each four lanes, registers as lanes.
        ///
        /// # Safety
        /// The processor has the instructions.
        #[inline(always)]
        unsafe fn $name([a, b, c, d]: [$ints; 4]) -> [$ints; 4] {
            // SAFETY: the caller's promise.
            unsafe {
                let [ab, cd] = [$low(a, b), $low(c, d)];
                let [ab_high, cd_high] = [$high(a, b), $high(c, d)];
                [
                    $low_pairs(ab, cd),
                    $high_pairs(ab, cd),
                    $low_pairs(ab_high, cd_high),
                    $high_pairs(ab_high, cd_high),
                ]
            }
        }
    };
}

crossed!(
    crossed_256,
    __m256i,
    _mm256_unpacklo_epi32,
    _mm256_unpackhi_epi32,
    _mm256_unpacklo_epi64,
    _mm256_unpackhi_epi64
);
crossed!(
    crossed_512,
    __m512i,
    _mm512_unpacklo_epi32,
    _mm512_unpackhi_epi32,
    _mm512_unpacklo_epi64,
    _mm512_unpackhi_epi64
);

macro_rules! lanes {
    (
        $name:ident, $ints:ty, $load:ident, $store:ident, $rows:ident => $transposed:expr,
        $crossed:ident, $fours:ident, $to:ident => $store_fours:expr,
        $($of:ident($($arg:ident: $type:ty),*) -> $result:ty = $call:expr;)*
    ) => {
        impl Lanes for $name {
            type Ints = $ints;

            #[inline(always)]
            unsafe fn new() -> Self {
                $name(())
            }

            #[inline(always)]
            unsafe fn load(self, from: *const i32) -> $ints {
                // SAFETY: the processor has the instructions (`new`); the caller's promise.
                unsafe { $load(from.cast()) }
            }

            #[inline(always)]
            unsafe fn store(self, a: $ints, to: *mut i32) {
                // SAFETY: the processor has the instructions (`new`); the caller's promise.
                unsafe { $store(to.cast(), a) }
            }

            #[inline(always)]
            unsafe fn transposed(self, $rows: [*const u8; MOST]) -> [$ints; 4] {
                // SAFETY: the processor has the instructions (`new`); the caller's promise.
                unsafe { $transposed }
            }

            #[inline(always)]
            unsafe fn store_fours(self, floats: [Self::Floats; 4], to: [*mut f32; MOST], at: usize) {
                let [a, b, c, d] = floats;
                let $to = to.map(|to| to.wrapping_add(at).cast::<__m128i>());
                // SAFETY: the processor has the instructions (`new`); the caller's promise.
                unsafe {
                    let $fours = $crossed([self.as_ints(a), self.as_ints(b), self.as_ints(c), self.as_ints(d)]);
                    $store_fours
                }
            }

            $(
                #[inline(always)]
                fn $of(self, $($arg: $type),*) -> $result {
                    // SAFETY: the processor has the instructions (`new`).
                    unsafe { $call }
                }
            )*
        }
    };
}

lanes!(
    Narrow, __m256i, _mm256_loadu_si256, _mm256_storeu_si256,
    rows => {
        let two = |i: usize| {
            let (low, high) = (_mm_loadu_si128(rows[i].cast()), _mm_loadu_si128(rows[4 + i].cast()));
            _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
        };
        crossed_256([two(0), two(1), two(2), two(3)])
    },
    crossed_256, fours, to => for (i, four) in fours.into_iter().enumerate() {
        _mm_storeu_si128(to[i], _mm256_castsi256_si128(four));
        _mm_storeu_si128(to[4 + i], _mm256_extracti128_si256::<1>(four));
    },
    all(x: i32) -> __m256i = _mm256_set1_epi32(x);
    and(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
    or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
    add(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
    mul(a: __m256i, b: __m256i) -> __m256i = _mm256_mullo_epi32(a, b);
    sub_bytes(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi8(a, b);
    sub_pairs(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi16(a, b);
    mul_pairs(a: __m256i, b: __m256i) -> __m256i = _mm256_mullo_epi16(a, b);
    add_products(sum: __m256i, a: __m256i, b: __m256i) -> __m256i =
        _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    left(a: __m256i, by: usize) -> __m256i = _mm256_sll_epi32(a, _mm_cvtsi32_si128(by as i32));
    right(a: __m256i, by: usize) -> __m256i = _mm256_srl_epi32(a, _mm_cvtsi32_si128(by as i32));
    signed_byte(a: __m256i, byte: usize) -> __m256i =
        _mm256_srai_epi32::<24>(_mm256_sll_epi32(a, _mm_cvtsi32_si128(24 - 8 * byte as i32)));
    byte_pairs(a: __m256i) -> [__m256i; 2] =
        [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a)), _mm256_srai_epi16::<8>(a)];
    lookup(table: &[i8; 16], places: __m256i) -> __m256i =
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())), places);
    words(words: [u32; MOST]) -> __m256i = {
        let [a, b, c, d, e, f, g, h, ..] = words.map(|w| w as i32);
        _mm256_setr_epi32(a, b, c, d, e, f, g, h)
    };
    floats(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
    as_floats(a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
    as_ints(a: __m256) -> __m256i = _mm256_castps_si256(a);
    two_halves(a: __m256i) -> [__m256; 2] = {
        let low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
        let both = _mm256_packus_epi32(low, _mm256_srli_epi32::<16>(a));
        let both = _mm256_permute4x64_epi64::<0b11_01_10_00>(both);
        [_mm256_cvtph_ps(_mm256_castsi256_si128(both)), _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(both))]
    };
);

lanes!(
    Wide, __m512i, _mm512_loadu_si512, _mm512_storeu_si512,
    rows => {
        let four = |i: usize| {
            let row = |j: usize| _mm_loadu_si128(rows[4 * j + i].cast());
            let two = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(row(0)), row(1));
            _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(two, row(2)), row(3))
        };
        crossed_512([four(0), four(1), four(2), four(3)])
    },
    crossed_512, fours, to => for (i, four) in fours.into_iter().enumerate() {
        _mm_storeu_si128(to[i], _mm512_castsi512_si128(four));
        _mm_storeu_si128(to[4 + i], _mm512_extracti32x4_epi32::<1>(four));
        _mm_storeu_si128(to[8 + i], _mm512_extracti32x4_epi32::<2>(four));
        _mm_storeu_si128(to[12 + i], _mm512_extracti32x4_epi32::<3>(four));
    },
    all(x: i32) -> __m512i = _mm512_set1_epi32(x);
    and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
    or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
    add(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
    mul(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
    sub_bytes(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi8(a, b);
    sub_pairs(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi16(a, b);
    mul_pairs(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi16(a, b);
    add_products(sum: __m512i, a: __m512i, b: __m512i) -> __m512i =
        _mm512_dpwssd_epi32(sum, a, b);
    left(a: __m512i, by: usize) -> __m512i = _mm512_sll_epi32(a, _mm_cvtsi32_si128(by as i32));
    right(a: __m512i, by: usize) -> __m512i = _mm512_srl_epi32(a, _mm_cvtsi32_si128(by as i32));
    signed_byte(a: __m512i, byte: usize) -> __m512i =
        _mm512_srai_epi32::<24>(_mm512_sll_epi32(a, _mm_cvtsi32_si128(24 - 8 * byte as i32)));
    byte_pairs(a: __m512i) -> [__m512i; 2] =
        [_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(a)), _mm512_srai_epi16::<8>(a)];
    lookup(table: &[i8; 16], places: __m512i) -> __m512i =
        _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), places);
    words(words: [u32; MOST]) -> __m512i = {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = words.map(|w| w as i32);
        _mm512_setr_epi32(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
    };
    floats(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
    as_floats(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
    as_ints(a: __m512) -> __m512i = _mm512_castps_si512(a);
    two_halves(a: __m512i) -> [__m512; 2] = [
        _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)),
        _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(a))),
    ];
);

/// Sixteen rows of words as columns.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn transposed(mut a: [__m512i; MOST]) -> [__m512i; MOST] {
    let mut columns = a;
    // Within each 128 bits, blocks of four by four words.
    for four in a.as_chunks_mut::<4>().0 {
        let [p, q] = [0, 2].map(|i| _mm512_unpacklo_epi32(four[i], four[i + 1]));
        let [r, s] = [0, 2].map(|i| _mm512_unpackhi_epi32(four[i], four[i + 1]));
        *four = [
            _mm512_unpacklo_epi64(p, q),
            _mm512_unpackhi_epi64(p, q),
            _mm512_unpacklo_epi64(r, s),
            _mm512_unpackhi_epi64(r, s),
        ];
    }
    // Then the blocks.
    for i in 0..4 {
        let even = [0, 8].map(|j| _mm512_shuffle_i32x4::<0x88>(a[i + j], a[i + j + 4]));
        let odd = [0, 8].map(|j| _mm512_shuffle_i32x4::<0xdd>(a[i + j], a[i + j + 4]));
        columns[i] = _mm512_shuffle_i32x4::<0x88>(even[0], even[1]);
        columns[4 + i] = _mm512_shuffle_i32x4::<0x88>(odd[0], odd[1]);
        columns[8 + i] = _mm512_shuffle_i32x4::<0xdd>(even[0], even[1]);
        columns[12 + i] = _mm512_shuffle_i32x4::<0xdd>(odd[0], odd[1]);
    }
    columns
}
