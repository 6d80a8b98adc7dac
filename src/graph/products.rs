//! Matrix products by the kernels that `matmul` chooses, forward and backward. A graph packs or quantizes activations
//! once for all products that read them.

use std::cell::RefCell;
use std::collections::HashMap;

use ggml::matmul::Prepared;
use ggml::tensor::Tensor;
use ggml::{DType, Error, Result};

use super::blocks::Graph;
use super::{Choice, Kernel, Pass};

/// Activations as kernels read them, by tensor: in one layout or more, as types of weights differ in theirs.
#[derive(Debug, Default)]
pub(crate) struct PreparedInputs<'c>(RefCell<HashMap<usize, Vec<Prepared<'c>>>>);

/// One or more tensors joined, first to last.
pub fn reduce<'c>(
    parts: impl IntoIterator<Item = Result<Tensor<'c>>>,
    join: impl Fn(Tensor<'c>, Tensor<'c>) -> Result<Tensor<'c>>,
) -> Result<Tensor<'c>> {
    let mut parts = parts.into_iter();
    let none = Error::Op { op: "reduce", what: "expected at least one tensor, found none".into() };
    let first = parts.next().unwrap_or(Err(none))?;
    parts.try_fold(first, |all, part| join(all, part?))
}

impl<'c> Graph<'_, 'c> {
    /// How a weight of this type is multiplied with `x [.., T]`.
    pub(super) fn choose(&self, weight: DType, x: Tensor<'c>) -> Choice {
        let pass = if self.tape.is_some() { Pass::Training } else { Pass::Inference };
        self.capabilities.matmul.choose(weight, x.ne()[1], pass)
    }

    /// Multiplies a weight with `x` as chosen. Several weights, which are dequantized first, are joined in this order.
    pub fn product(&self, choice: Choice, weights: &[Tensor<'c>], x: Tensor<'c>) -> Result<Tensor<'c>> {
        let w = choice.dequantize.map_or(Ok(weights[0]), |to| self.b.dequantize(weights, to))?;
        self.multiply(choice.kernel, w, x, false)
    }

    /// A weight `[k, m]` and `x [k, n]` to `[m, n]`. `transposed`, the weight is `[m, k]`: the gradient of a product's input
    /// from that of its result.
    pub(super) fn multiply(
        &self,
        kernel: Kernel,
        w: Tensor<'c>,
        x: Tensor<'c>,
        transposed: bool,
    ) -> Result<Tensor<'c>> {
        if !kernel.prepares() {
            return self.b.matmul(kernel, w, x, transposed);
        }
        let mut inputs = self.prepared.0.borrow_mut();
        let inputs = inputs.entry(x.id()).or_default();
        let known = inputs.iter().find(|prepared| prepared.serves(kernel, w.dtype())).copied();
        let prepared = known.map_or_else(|| self.b.prepare(kernel, x, w.dtype()), Ok)?;
        if known.is_none() {
            inputs.push(prepared);
        }
        self.b.matmul_prepared(w, prepared, transposed)
    }

    /// The kernel of products of floats in graphs that are run backwards, of matrices with as many rows and columns as the least
    /// of these.
    fn floats(&self, sizes: [usize; 2]) -> Kernel {
        self.capabilities.matmul.choose(DType::F32, sizes[0].min(sizes[1]), Pass::Training).kernel
    }

    /// `a [k, m]` and `x [k, n]`, both F32, to `[m, n]`.
    pub(super) fn times(&self, a: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        self.multiply(self.floats([a.ne()[1], x.ne()[1]]), a, x, false)
    }

    /// `a [m, k]` and `x [k, n]`, both F32, to `[m, n]`.
    pub(super) fn times_transposed(&self, a: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        self.multiply(self.floats([a.ne()[0], x.ne()[1]]), a, x, true)
    }

    /// `a [m, k]` and `b [n, k]` to `[m, n]`: a sum over tokens.
    pub(super) fn outer(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        match self.floats([a.ne()[0], b.ne()[0]]) {
            kernel @ (Kernel::F32 | Kernel::F32Tiles) => self.b.gemm_outer(kernel, a, b),
            _ => self.b.mul_mat(self.transposed(a)?, self.transposed(b)?),
        }
    }

    /// `[n, k]` to `[n]`: a sum over tokens (or heads and tokens, `[n, heads, T]`).
    pub(super) fn sum_rows(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        let [n, heads, n_tokens, _] = a.ne();
        let rows = if n_tokens > 1 { self.b.reshape(a, &[n, heads * n_tokens])? } else { a };
        self.b.reshape(self.b.sum_rows(self.transposed(rows)?)?, &[n])
    }

    /// Another shape of `a`, a copy where its rows do not lie side by side.
    pub(super) fn reshape(&self, a: Tensor<'c>, shape: &[usize]) -> Result<Tensor<'c>> {
        let ([n0, n1, n2, _], nb) = (a.ne(), a.nb());
        let packed = nb == [4, 4 * n0, 4 * n0 * n1, 4 * n0 * n1 * n2];
        self.b.reshape(if packed { a } else { self.b.cont(a)? }, shape)
    }

    fn transposed(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        self.b.cont(self.b.permute(a, [1, 0, 2, 3])?)
    }
}
