//! Products of floats for graphs that are run backwards: on the CPU by ops of our own, elsewhere by ops every
//! backend has.

use ggml::graph::Builder;
use ggml::tensor::Tensor;
use ggml::Result;

use super::Capabilities;

/// Builds products of F32 tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Products<'a, 'c> {
    pub(crate) b: &'a Builder<'c>,
    pub(crate) capabilities: Capabilities,
}

impl<'c> Products<'_, 'c> {
    /// `a [k, m]` and `x [k, n]` to `[m, n]`.
    pub(crate) fn times(&self, a: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        if self.capabilities.custom_ops {
            self.b.gemm(a, x)
        } else {
            self.b.mul_mat(a, x)
        }
    }

    /// `a [m, k]` and `x [k, n]` to `[m, n]`.
    pub(crate) fn times_transposed(&self, a: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        if self.capabilities.custom_ops {
            self.b.gemm_t(a, x)
        } else {
            self.b.mul_mat(self.transposed(a)?, x)
        }
    }

    /// `a [m, k]` and `b [n, k]` to `[m, n]`: a sum over tokens.
    pub(crate) fn outer(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        if self.capabilities.custom_ops {
            self.b.gemm_outer(a, b)
        } else {
            self.b.mul_mat(self.transposed(a)?, self.transposed(b)?)
        }
    }

    /// `[n, k]` to `[n]`: a sum over tokens (or heads and tokens, `[n, heads, T]`).
    pub(crate) fn sum_rows(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        let [n, heads, n_tokens, _] = a.ne();
        let rows = if n_tokens > 1 { self.b.reshape(a, &[n, heads * n_tokens])? } else { a };
        self.b.reshape(self.b.sum_rows(self.transposed(rows)?)?, &[n])
    }

    fn transposed(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        self.b.cont(self.b.permute(a, [1, 0, 2, 3])?)
    }
}
