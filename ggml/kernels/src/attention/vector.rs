//! A SIMD register of floats. Without it, the compiler vectorizes a block of sums or not depending on the code the
//! loop is inlined into, and can use half of a register where the full one is faster: LLVM prefers half of an AVX-512
//! register. Loops where speed matters therefore use this type.

#[cfg(all(target_arch = "x86_64", target_feature = "fma", target_feature = "f16c"))]
use std::arch::x86_64 as arch;

/// `a * b + c`, fused where that is an instruction and not a function call.
#[inline(always)]
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// Operations of vectors, of which the expressions take `self` last.
macro_rules! operations {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*): $call:expr;)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(self, $($arg: Vector),*) -> Vector {
            // SAFETY: the build is for processors that have the instruction (or this is plain arithmetic).
            Vector(unsafe { $call($($arg.0,)* self.0) })
        }
    )*};
}

/// Defines `Vector`: the register, its length, and its operations as expressions.
macro_rules! vector {
    (
        $register:ty, $n:literal, splat: $splat:expr, load: $load:expr, halves: $halves:expr, store: $store:expr,
        fma: $fma:expr,
        add: $add:expr, sub: $sub:expr, max: $max:expr, add_exponent: $add_exponent:expr, from: $from:expr,
        mul: $mul:expr, bytes: $bytes:expr, looked_up: $looked_up:expr, quad: $quad:expr, join: $join:expr
    ) => {
        #[derive(Clone, Copy)]
        pub(crate) struct Vector($register);

        pub(crate) const N: usize = $n;

        #[allow(unused_unsafe)]
        impl Vector {
            operations! {
                /// `self + a * b`.
                add_product(a, b): $fma;
                plus(x): $add;
                minus(x): $sub;
                /// The larger one; `self` where `x` is NaN.
                max(x): $max;
                /// `self` with the lowest bits of `n` added to its exponent.
                add_exponent(n): $add_exponent;
                times(x): $mul;
                /// `self` where `x` is at least `least` or NaN, else 0.
                from(least, x): $from;
            }

            #[inline(always)]
            pub(crate) fn splat(x: f32) -> Vector {
                // SAFETY: the build is for processors that have the instruction (or this is plain
                // arithmetic).
                Vector(unsafe { $splat(x) })
            }
            #[inline(always)]
            pub(crate) fn load(x: &[f32; N]) -> Vector {
                // SAFETY: as above, and N floats are read from N, at any alignment.
                Vector(unsafe { $load(x.as_ptr()) })
            }
            /// Half-precision floats, by their bits.
            #[inline(always)]
            pub(crate) fn of_halves(x: &[u16; N]) -> Vector {
                // SAFETY: as above, of N halves.
                Vector(unsafe { $halves(x.as_ptr()) })
            }
            #[inline(always)]
            pub(crate) fn store(self, x: &mut [f32; N]) {
                // SAFETY: as above, and N floats are written to N, at any alignment.
                unsafe { $store(x.as_mut_ptr(), self.0) }
            }
            /// Bytes with a sign.
            #[inline(always)]
            pub(crate) fn of_bytes(x: &[u8; N]) -> Vector {
                // SAFETY: as above, of N bytes.
                Vector(unsafe { $bytes(x.as_ptr()) })
            }
            /// The elements of a table that four bits of each byte, from bit SHIFT on, are the indices of.
            #[inline(always)]
            pub(crate) fn looked_up<const SHIFT: u32>(table: [Vector; 16 / N], codes: &[u8; N]) -> Vector {
                // SAFETY: as above, of N bytes; of an index no more than four bits are used.
                Vector(unsafe { $looked_up(table.map(|t| t.0), codes.as_ptr(), SHIFT) })
            }
            /// The first half of the sums over the elements of four vectors: a part of what [`Vector::join`] takes.
            #[inline(always)]
            pub(crate) fn quad(of: [Vector; 4]) -> Vector {
                // SAFETY: as above.
                Vector(unsafe { $quad(of.map(|v| v.0)) })
            }
            /// The sum of each vector's elements, of N vectors that were given to [`Vector::quad`].
            #[inline(always)]
            pub(crate) fn join(of: [Vector; N / 4]) -> Vector {
                // SAFETY: as above.
                Vector(unsafe { $join(of.map(|v| v.0)) })
            }
        }
    };
}

#[cfg(all(
    target_arch = "x86_64",
    target_feature = "fma",
    target_feature = "f16c",
    target_feature = "avx512f"
))]
vector!(
    arch::__m512, 16,
    splat: arch::_mm512_set1_ps,
    load: arch::_mm512_loadu_ps,
    halves: |x: *const u16| arch::_mm512_cvtph_ps(arch::_mm256_loadu_si256(x.cast())),
    store: arch::_mm512_storeu_ps,
    fma: arch::_mm512_fmadd_ps,
    add: arch::_mm512_add_ps,
    sub: |x, y| arch::_mm512_sub_ps(y, x),
    max: arch::_mm512_max_ps,
    add_exponent: |n, x| {
        let n = arch::_mm512_slli_epi32::<23>(arch::_mm512_castps_si512(n));
        arch::_mm512_castsi512_ps(arch::_mm512_add_epi32(arch::_mm512_castps_si512(x), n))
    },
    from: |least, x, y| {
        arch::_mm512_maskz_mov_ps(arch::_mm512_cmp_ps_mask::<{ arch::_CMP_NLT_UQ }>(x, least), y)
    },
    mul: arch::_mm512_mul_ps,
    bytes: |x: *const u8| {
        arch::_mm512_cvtepi32_ps(arch::_mm512_cvtepi8_epi32(arch::_mm_loadu_si128(x.cast())))
    },
    looked_up: |table: [arch::__m512; 1], codes: *const u8, shift: u32| {
        let codes = arch::_mm512_cvtepu8_epi32(arch::_mm_loadu_si128(codes.cast()));
        let codes = arch::_mm512_srl_epi32(codes, arch::_mm_cvtsi32_si128(shift as i32));
        arch::_mm512_permutexvar_ps(codes, table[0])
    },
    // Each step leaves half as many vectors, of sums of twice as many elements.
    quad: |a: [arch::__m512; 4]| {
        use arch::*;
        let two = |x, y| {
            let sums = _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
            _mm512_castps_pd(sums)
        };
        let (x, y) = (two(a[0], a[1]), two(a[2], a[3]));
        let (low, high) = (_mm512_unpacklo_pd(x, y), _mm512_unpackhi_pd(x, y));
        _mm512_add_ps(_mm512_castpd_ps(low), _mm512_castpd_ps(high))
    },
    join: |c: [arch::__m512; 4]| {
        use arch::*;
        let quarters =
            |x, y| _mm512_add_ps(_mm512_shuffle_f32x4::<0x88>(x, y), _mm512_shuffle_f32x4::<0xdd>(x, y));
        quarters(quarters(c[0], c[1]), quarters(c[2], c[3]))
    }
);

#[cfg(all(
    target_arch = "x86_64",
    target_feature = "fma",
    target_feature = "f16c",
    not(target_feature = "avx512f")
))]
vector!(
    arch::__m256, 8,
    splat: arch::_mm256_set1_ps,
    load: arch::_mm256_loadu_ps,
    halves: |x: *const u16| arch::_mm256_cvtph_ps(arch::_mm_loadu_si128(x.cast())),
    store: arch::_mm256_storeu_ps,
    fma: arch::_mm256_fmadd_ps,
    add: arch::_mm256_add_ps,
    sub: |x, y| arch::_mm256_sub_ps(y, x),
    max: arch::_mm256_max_ps,
    add_exponent: |n, x| {
        let n = arch::_mm256_slli_epi32::<23>(arch::_mm256_castps_si256(n));
        arch::_mm256_castsi256_ps(arch::_mm256_add_epi32(arch::_mm256_castps_si256(x), n))
    },
    from: |least, x, y| arch::_mm256_and_ps(y, arch::_mm256_cmp_ps::<{ arch::_CMP_NLT_UQ }>(x, least)),
    mul: arch::_mm256_mul_ps,
    bytes: |x: *const u8| {
        arch::_mm256_cvtepi32_ps(arch::_mm256_cvtepi8_epi32(arch::_mm_loadl_epi64(x.cast())))
    },
    // Each half of the table by the lower three bits, one of them by the fourth.
    looked_up: |table: [arch::__m256; 2], codes: *const u8, shift: u32| {
        use arch::*;
        let codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(codes.cast()));
        let codes = _mm256_srl_epi32(codes, _mm_cvtsi32_si128(shift as i32));
        let of = table.map(|half| _mm256_permutevar8x32_ps(half, codes));
        _mm256_blendv_ps(of[0], of[1], _mm256_castsi256_ps(_mm256_slli_epi32::<28>(codes)))
    },
    quad: |a: [arch::__m256; 4]| {
        arch::_mm256_hadd_ps(arch::_mm256_hadd_ps(a[0], a[1]), arch::_mm256_hadd_ps(a[2], a[3]))
    },
    join: |c: [arch::__m256; 2]| {
        use arch::*;
        let (low, high) = (_mm256_permute2f128_ps::<0x20>(c[0], c[1]), _mm256_permute2f128_ps::<0x31>(c[0], c[1]));
        _mm256_add_ps(low, high)
    }
);

#[cfg(not(all(target_arch = "x86_64", target_feature = "fma", target_feature = "f16c")))]
vector!(
    [f32; 8], 8,
    splat: |x| [x; 8],
    load: |x: *const f32| *x.cast::<[f32; 8]>(),
    halves: |x: *const u16| (*x.cast::<[u16; 8]>()).map(|x| half::f16::from_bits(x).to_f32()),
    store: |to: *mut f32, x| *to.cast::<[f32; 8]>() = x,
    fma: |a: [f32; 8], b: [f32; 8], c: [f32; 8]| std::array::from_fn(|i| fma(a[i], b[i], c[i])),
    add: |a: [f32; 8], b: [f32; 8]| std::array::from_fn(|i| a[i] + b[i]),
    sub: |a: [f32; 8], b: [f32; 8]| std::array::from_fn(|i| b[i] - a[i]),
    max: |a: [f32; 8], b: [f32; 8]| std::array::from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] }),
    add_exponent: |n: [f32; 8], x: [f32; 8]| {
        std::array::from_fn(|i| f32::from_bits(x[i].to_bits().wrapping_add(n[i].to_bits() << 23)))
    },
    from: |least: [f32; 8], x: [f32; 8], y: [f32; 8]| {
        std::array::from_fn(|i| if x[i] < least[i] { 0.0 } else { y[i] })
    },
    mul: |a: [f32; 8], b: [f32; 8]| std::array::from_fn(|i| a[i] * b[i]),
    bytes: |x: *const u8| (*x.cast::<[i8; 8]>()).map(f32::from),
    looked_up: |table: [[f32; 8]; 2], codes: *const u8, shift: u32| {
        (*codes.cast::<[u8; 8]>()).map(|code| table.as_flattened()[usize::from(code >> shift & 15)])
    },
    quad: |a: [[f32; 8]; 4]| {
        std::array::from_fn(|i| a[i % 4][i / 4 * 4..][..4].iter().sum())
    },
    join: |c: [[f32; 8]; 2]| std::array::from_fn(|i| c[i / 4][i % 4] + c[i / 4][i % 4 + 4])
);
