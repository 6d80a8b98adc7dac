//! Products of the matrices of a tile.

use crate::bf16x3::Matrices;
use crate::gemm::{assert_holds, multiply, Matrix};
use crate::half_floats::Scratch;

/// Rounding of the factors of products of floats in training. Sums and the softmax are in F32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Factors {
    /// They are not.
    #[default]
    Floats,
    /// To 16 bits, in AMX tiles.
    Bf16x3,
    /// bfloat16, on processors with instructions for it.
    Bf16,
}

/// Products of a thread.
#[derive(Debug, Default)]
pub(super) struct Products {
    pub(super) factors: Factors,
    halves: Matrices,
    short: Scratch,
}

impl Products {
    /// [`multiply`] with these factors.
    ///
    /// # Safety
    /// The promise of [`multiply`].
    pub(super) unsafe fn multiply(
        &mut self,
        out: *mut f32,
        cs: usize,
        add: bool,
        a: Matrix<'_>,
        b: Matrix<'_>,
        factor: f32,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.factors {
                Factors::Floats => multiply(out, cs, add, a, b, factor),
                Factors::Bf16x3 => self.halves.product(out, cs, add, a, b, factor),
                Factors::Bf16 => self.short.product(out, cs, add, a, b, factor),
            }
        }
    }

    /// [`multiply_into`] with these factors.
    pub(super) fn multiply_into(
        &mut self,
        out: &mut [f32],
        cs: usize,
        add: bool,
        a: Matrix<'_>,
        b: Matrix<'_>,
        factor: f32,
    ) {
        assert_holds(out, cs, a, b);
        // SAFETY: the result lies in the slice, and the borrow keeps everybody else, a and b too, out of it.
        unsafe { self.multiply(out.as_mut_ptr(), cs, add, a, b, factor) }
    }
}
