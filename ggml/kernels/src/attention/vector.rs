//! A SIMD register of floats, for the two products of attention. Without it, the compiler vectorises a block
//! of sums or not depending on the code the loop is inlined into.

#[cfg(all(target_arch = "x86_64", target_feature = "fma"))]
use std::arch::x86_64 as arch;

/// `a * b + c`, fused where that is an instruction and not a function call.
#[inline(always)]
pub(super) fn fma(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// Defines `Vector`: the register, its length, and its operations as expressions.
macro_rules! vector {
    ($register:ty, $n:literal, $splat:expr, $load:expr, $store:expr, $fma:expr) => {
        #[derive(Clone, Copy)]
        pub(super) struct Vector($register);

        /// Floats of a vector.
        pub(super) const N: usize = $n;

        impl Vector {
            #[inline(always)]
            pub(super) fn splat(x: f32) -> Vector {
                // SAFETY: the build is for processors that have the instruction (or this is plain
                // arithmetic).
                #[allow(unused_unsafe)]
                Vector(unsafe { $splat(x) })
            }
            #[inline(always)]
            pub(super) fn load(x: &[f32; N]) -> Vector {
                // SAFETY: as above, and N floats are read from N, at any alignment.
                #[allow(unused_unsafe)]
                Vector(unsafe { $load(x.as_ptr()) })
            }
            #[inline(always)]
            pub(super) fn store(self, x: &mut [f32; N]) {
                // SAFETY: as above, and N floats are written to N, at any alignment.
                #[allow(unused_unsafe)]
                unsafe {
                    $store(x.as_mut_ptr(), self.0)
                }
            }
            /// `self + a * b`.
            #[inline(always)]
            pub(super) fn add_product(self, a: Vector, b: Vector) -> Vector {
                // SAFETY: as above.
                #[allow(unused_unsafe)]
                Vector(unsafe { $fma(a.0, b.0, self.0) })
            }
        }
    };
}

#[cfg(all(target_arch = "x86_64", target_feature = "avx512f"))]
vector!(
    arch::__m512,
    16,
    arch::_mm512_set1_ps,
    arch::_mm512_loadu_ps,
    arch::_mm512_storeu_ps,
    arch::_mm512_fmadd_ps
);

#[cfg(all(target_arch = "x86_64", target_feature = "fma", not(target_feature = "avx512f")))]
vector!(
    arch::__m256,
    8,
    arch::_mm256_set1_ps,
    arch::_mm256_loadu_ps,
    arch::_mm256_storeu_ps,
    arch::_mm256_fmadd_ps
);

#[cfg(not(all(target_arch = "x86_64", target_feature = "fma")))]
vector!(
    [f32; 8],
    8,
    |x| [x; 8],
    |x: *const f32| *x.cast::<[f32; 8]>(),
    |to: *mut f32, x| *to.cast::<[f32; 8]>() = x,
    |a: [f32; 8], b: [f32; 8], c: [f32; 8]| std::array::from_fn(|i| fma(a[i], b[i], c[i]))
);
