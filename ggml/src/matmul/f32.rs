//! Products of floats, ops of our own for the CPU: a matrix with rows, with its transpose, and sums over
//! tokens.
//!
//! ggml's product of floats wants both operands contracted over their rows, and is slower; the kernels of
//! crate `gemm` take any strides. Each part of a node computes a part of the result with them alone.

use std::cell::RefCell;

use kernels::bf16x3::Matrices;
use kernels::gemm::{divide, multiply, Matrix};

use super::Kernel;

use crate::graph::Builder;
use crate::node::{Part, Source};
use crate::ops::{check, f32_rows};
use crate::tensor::Tensor;
use crate::{DType, Result};

/// Which dimension of each operand is summed over.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Contraction {
    /// Both contracted over `ne0`.
    Rows,
    /// `a` contracted over `ne1`.
    Transposed,
    /// Both contracted over `ne1`.
    Outer,
}

impl<'c> Builder<'c> {
    /// [`Builder::matmul`] of F32 matrices whose rows are contiguous.
    pub(super) fn gemm(
        &self,
        kernel: Kernel,
        a: Tensor<'c>,
        b: Tensor<'c>,
        transposed: bool,
    ) -> Result<Tensor<'c>> {
        let ([k, m, ..], [l, n, ..]) = (a.ne(), b.ne());
        match transposed {
            false => self.product(kernel, Contraction::Rows, [a, b], [k, l], [m, n]),
            true => self.product(kernel, Contraction::Transposed, [a, b], [m, l], [k, n]),
        }
    }

    /// F32 `[m, n]`: the sum over tokens `i` of row `i` of `a` `[m, k]` by row `i` of `b` `[n, k]`; with
    /// inputs and gradients of results, the gradient of a weight `[m, n]`. F32 matrices whose rows are contiguous, by
    /// [`Kernel::F32`] or [`Kernel::F32Tiles`]; for the CPU; the result does not depend on the number of threads.
    pub fn gemm_outer(&self, kernel: Kernel, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        let ([m, k, ..], [n, l, ..]) = (a.ne(), b.ne());
        self.product(kernel, Contraction::Outer, [a, b], [k, l], [m, n])
    }

    fn product(
        &self,
        kernel: Kernel,
        contraction: Contraction,
        [a, b]: [Tensor<'c>; 2],
        [k, l]: [usize; 2],
        [m, n]: [usize; 2],
    ) -> Result<Tensor<'c>> {
        let op = if contraction == Contraction::Outer { "gemm_outer" } else { "matmul" };
        let in_tiles = kernel == Kernel::F32Tiles;
        kernel.check(op, DType::F32, false)?;
        let plain = |t: Tensor<'_>| f32_rows(t) && t.ne()[2] * t.ne()[3] == 1 && t.nb()[1].is_multiple_of(4);
        check(
            k == l && plain(a) && plain(b) && (in_tiles || kernel == Kernel::F32),
            op,
            "two f32 matrices that agree in the summed dimension",
            &[a, b],
        )?;
        self.custom(op, DType::F32, [m, n, 1, 1], &[a, b], move |part| {
            run_product(part, contraction, in_tiles)
        })
    }
}

/// A 2-D F32 tensor with its rows as columns, so that element `(i, j)` is `ne0 = i`, `ne1 = j`.
fn matrix(t: Source<'_>) -> Matrix<'_> {
    let ([n_rows, n_cols, ..], [_, step, ..]) = (t.ne(), t.tensor().nb);
    // SAFETY: the elements of a source, which has values and stays as it is; strides are those of the tensor, whole floats.
    unsafe { Matrix::at(t.float_rows(), n_rows, n_cols, 1, step / 4) }
}

thread_local! {
    static TILES: RefCell<Matrices> = RefCell::default();
}

fn run_product(part: Part<'_>, contraction: Contraction, in_tiles: bool) {
    let [a, b] = [0, 1].map(|i| matrix(part.source(i)));
    let a = if contraction == Contraction::Rows { a.transposed() } else { a };
    let b = if contraction == Contraction::Outer { b.transposed() } else { b };
    let (m, n) = (a.n_rows(), b.n_cols());
    let (rows, cols) = divide(m, n, part.ith(), part.nth());
    if rows.is_empty() || cols.is_empty() {
        return;
    }
    let (a, b) = (a.part(rows.clone(), 0..a.n_cols()), b.part(0..b.n_rows(), cols.clone()));
    let out = part.node().data as *mut f32;
    // SAFETY: the result is contiguous F32 [m, n], and no source's memory; parts of a node are of different elements.
    unsafe {
        let out = out.add(rows.start + cols.start * m);
        match in_tiles {
            false => multiply(out, m, false, a, b, 1.0),
            true => TILES.with_borrow_mut(|tiles| tiles.product(out, m, false, a, b, 1.0)),
        }
    };
}
