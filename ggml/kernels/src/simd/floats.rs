//! Registers of floats. A loop that is written in terms of [`FloatLanes`] is compiled for each set of instructions, and
//! the program chooses one at run time. Without it, the compiler vectorizes a block of sums or not depending on the code
//! that the loop is inlined into, and can use half of a register where the full one is faster: LLVM prefers half of an
//! AVX-512 register.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;
use std::array::from_fn;

#[cfg(target_arch = "x86_64")]
use super::lanes::{Narrow, Wide};

/// Lanes of the widest register.
pub(crate) const MOST: usize = 16;

/// `a * b + c`, fused where that is an instruction of the build and not a function call.
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// Operations of registers of floats of one width. A value stands for a processor that has the instructions, and they
/// are fast inside [`FloatLanes::run`] only.
pub(crate) trait FloatLanes: Copy {
    /// Lanes of a register, at most [`MOST`].
    const N: usize;
    type Floats: Copy;

    /// Calls a function compiled for the instructions.
    fn run<R>(self, f: impl FnOnce() -> R) -> R;

    fn none(self) -> Self::Floats;
    fn splat(self, x: f32) -> Self::Floats;
    fn sum(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a - b`
    fn minus(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    fn times(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a * b + c`
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;
    /// The larger one; `a` where either is NaN.
    fn max(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;
    /// `a` with the lowest bits of `n` added to its exponent.
    fn add_exponent(self, a: Self::Floats, n: Self::Floats) -> Self::Floats;
    /// `a` where `x` is at least `least` or NaN, else 0.
    fn from(self, a: Self::Floats, least: Self::Floats, x: Self::Floats) -> Self::Floats;
    /// The first lanes of a slice, which has as many.
    fn read(self, x: &[f32]) -> Self::Floats;
    fn write(self, a: Self::Floats, to: &mut [f32]);
    /// Half-precision floats, by their bits.
    fn halves(self, x: &[u16]) -> Self::Floats;
    /// Bytes with a sign.
    fn bytes(self, x: &[u8]) -> Self::Floats;
    /// The elements of a table of 16 that four bits of each byte, from bit SHIFT on, are the indices of. The table is in
    /// as many registers as it takes.
    fn picked<const SHIFT: u32>(self, table: [Self::Floats; 2], codes: &[u8]) -> Self::Floats;
    /// The first half of the sums over the elements of four registers: a part of what [`FloatLanes::join`] takes.
    fn quad(self, of: [Self::Floats; 4]) -> Self::Floats;
    /// The sum of each register's elements, of as many registers as lanes that were given to [`FloatLanes::quad`]. Those
    /// after them are not looked at.
    fn join(self, of: [Self::Floats; MOST / 4]) -> Self::Floats;
}

/// Eight floats, on any processor.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

type Eight = [f32; 8];

macro_rules! floats {
    (
        $name:ident, $n:literal, $floats:ty, $(#[$features:meta])? picked($table:ident, $codes:ident, $shift:ident) = $picked:expr;
        $($of:ident($($arg:ident: $type:ty),*) -> $result:ty = $call:expr;)*
    ) => {
        // Plain Rust is not unsafe.
        #[allow(unused_unsafe)]
        impl FloatLanes for $name {
            const N: usize = $n;
            type Floats = $floats;

            #[inline(always)]
            fn run<R>(self, f: impl FnOnce() -> R) -> R {
                #[inline]
                $(#[$features])?
                fn compiled<R>(f: impl FnOnce() -> R) -> R {
                    f()
                }
                // SAFETY: the processor has the instructions (`new`).
                unsafe { compiled(f) }
            }

            #[inline(always)]
            fn picked<const SHIFT: u32>(self, $table: [$floats; 2], $codes: &[u8]) -> $floats {
                let $shift = SHIFT as i32;
                // SAFETY: as below.
                unsafe { $picked }
            }

            $(
                #[inline(always)]
                fn $of(self, $($arg: $type),*) -> $result {
                    // SAFETY: the processor has the instructions (`new`), and as many elements as lanes are read or
                    // written, of slices cut to so many.
                    unsafe { $call }
                }
            )*
        }
    };
}

floats!(
    Plain, 8, Eight, picked(table, codes, shift) =
        codes.as_chunks().0[0].map(|code: u8| table.as_flattened()[usize::from(code >> shift & 15)]);
    none() -> Eight = [0.0; 8];
    splat(x: f32) -> Eight = [x; 8];
    sum(a: Eight, b: Eight) -> Eight = from_fn(|i| a[i] + b[i]);
    minus(a: Eight, b: Eight) -> Eight = from_fn(|i| a[i] - b[i]);
    times(a: Eight, b: Eight) -> Eight = from_fn(|i| a[i] * b[i]);
    mul_add(a: Eight, b: Eight, c: Eight) -> Eight = from_fn(|i| fma(a[i], b[i], c[i]));
    max(a: Eight, b: Eight) -> Eight = from_fn(|i| if b[i] > a[i] { b[i] } else { a[i] });
    add_exponent(a: Eight, n: Eight) -> Eight =
        from_fn(|i| f32::from_bits(a[i].to_bits().wrapping_add(n[i].to_bits() << 23)));
    from(a: Eight, least: Eight, x: Eight) -> Eight = from_fn(|i| if x[i] < least[i] { 0.0 } else { a[i] });
    read(x: &[f32]) -> Eight = x.as_chunks().0[0];
    write(a: Eight, to: &mut [f32]) -> () = to[..8].copy_from_slice(&a);
    halves(x: &[u16]) -> Eight = x.as_chunks().0[0].map(|x| half::f16::from_bits(x).to_f32());
    bytes(x: &[u8]) -> Eight = x.as_chunks().0[0].map(|x: u8| f32::from(x.cast_signed()));
    quad(a: [Eight; 4]) -> Eight = from_fn(|i| a[i % 4][i / 4 * 4..][..4].iter().sum());
    join(c: [Eight; 4]) -> Eight = from_fn(|i| c[i / 4][i % 4] + c[i / 4][i % 4 + 4]);
);

#[cfg(target_arch = "x86_64")]
floats!(
    Narrow, 8, __m256, #[target_feature(enable = "avx2,fma,f16c")]
    // Each half of the table by the lower three bits, one of them by the fourth.
    picked(table, codes, shift) = {
        let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes[..8].as_ptr().cast()));
        let codes = _mm256_srl_epi32(codes, _mm_cvtsi32_si128(shift));
        let of = table.map(|half| _mm256_permutevar8x32_ps(half, codes));
        _mm256_blendv_ps(of[0], of[1], _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes)))
    };
    none() -> __m256 = _mm256_setzero_ps();
    splat(x: f32) -> __m256 = _mm256_set1_ps(x);
    sum(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
    minus(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
    times(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
    mul_add(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
    max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(b, a);
    add_exponent(a: __m256, n: __m256) -> __m256 = {
        let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(n));
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), n))
    };
    from(a: __m256, least: __m256, x: __m256) -> __m256 =
        _mm256_and_ps(a, _mm256_cmp_ps::<_CMP_NLT_UQ>(x, least));
    read(x: &[f32]) -> __m256 = _mm256_loadu_ps(x[..8].as_ptr());
    write(a: __m256, to: &mut [f32]) -> () = _mm256_storeu_ps(to[..8].as_mut_ptr(), a);
    halves(x: &[u16]) -> __m256 = _mm256_cvtph_ps(_mm_loadu_si128(x[..8].as_ptr().cast()));
    bytes(x: &[u8]) -> __m256 =
        _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(x[..8].as_ptr().cast())));
    quad(a: [__m256; 4]) -> __m256 = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    join(c: [__m256; 4]) -> __m256 = {
        let low = _mm256_permute2f128_ps::<0x20>(c[0], c[1]);
        _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(c[0], c[1]))
    };
);

#[cfg(target_arch = "x86_64")]
floats!(
    Wide, 16, __m512, #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    picked(table, codes, shift) = {
        let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(codes[..16].as_ptr().cast()));
        _mm512_permutexvar_ps(_mm512_srl_epi32(codes, _mm_cvtsi32_si128(shift)), table[0])
    };
    none() -> __m512 = _mm512_setzero_ps();
    splat(x: f32) -> __m512 = _mm512_set1_ps(x);
    sum(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
    minus(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
    times(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
    mul_add(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
    max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(b, a);
    add_exponent(a: __m512, n: __m512) -> __m512 = {
        let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
        _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), n))
    };
    from(a: __m512, least: __m512, x: __m512) -> __m512 =
        _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, least), a);
    read(x: &[f32]) -> __m512 = _mm512_loadu_ps(x[..16].as_ptr());
    write(a: __m512, to: &mut [f32]) -> () = _mm512_storeu_ps(to[..16].as_mut_ptr(), a);
    halves(x: &[u16]) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(x[..16].as_ptr().cast()));
    bytes(x: &[u8]) -> __m512 =
        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x[..16].as_ptr().cast())));
    // Each step leaves half as many registers, of sums of twice as many elements.
    quad(a: [__m512; 4]) -> __m512 = {
        let two = |x, y| _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y)));
        let (x, y) = (two(a[0], a[1]), two(a[2], a[3]));
        let (low, high) = (_mm512_unpacklo_pd(x, y), _mm512_unpackhi_pd(x, y));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    };
    join(c: [__m512; 4]) -> __m512 = {
        let quarters =
            |x, y| _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(x, y), _mm512_shuffle_f32x4::<0xdd>(x, y));
        quarters(quarters(c[0], c[1]), quarters(c[2], c[3]))
    };
);
