//! Which products are computed in AMX tiles; products of floats for graphs that are run backwards: on the CPU by ops
//! of our own, elsewhere by ops every backend has.

use ggml::eight_bits::has_eight_bit_product;
use ggml::graph::Builder;
use ggml::integers::has_integer_product;
use ggml::short_floats::has_short_product;
use ggml::tensor::Tensor;
use ggml::{DType, Result};

use super::Capabilities;

/// Tokens from which on a product in tiles is faster than ggml's, measured on Sapphire Rapids. K-quants and i-quants
/// take longer to convert, and ggml has fast products of theirs. Tiles are right to 16 bits of each float: more than
/// ggml keeps of what it multiplies with these types, and less than F32 has, which stays as it is.
fn tiles_from(dtype: DType) -> Option<usize> {
    match dtype {
        DType::F32 => None,
        DType::Q4_1 | DType::Q5_1 | DType::Q8_0 => Some(16),
        DType::Q4_0 | DType::Q5_0 | DType::Q6_K | DType::F16 | DType::BF16 => Some(32),
        _ => Some(64),
    }
}

/// Tokens from which on a node of its own rounds them to 8 bits for several products. Of fewer, the threads of each product round
/// them in less time than it takes to wait for one another once more.
const SHARED_FROM: usize = 16;

/// Tokens from which on our products of weights in 16-bit floats pay for laying these out anew (Zen 5).
const SHORT_FROM: usize = 96;

/// Builds products of F32 tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Products<'a, 'c> {
    pub(crate) b: &'a Builder<'c>,
    pub(crate) capabilities: Capabilities,
}

impl<'c> Products<'_, 'c> {
    /// Whether the product of a weight of this type with `x [.., T]` is computed in tiles.
    pub(crate) fn in_tiles(&self, dtype: DType, x: Tensor<'c>) -> bool {
        let faster = tiles_from(dtype).is_some_and(|from| x.ne()[1] >= from);
        self.capabilities.tiles && faster && dtype.can_dequantize()
    }

    /// Whether the product of a weight of this type with `x [.., T]` is computed in integers.
    pub(crate) fn in_integers(&self, dtype: DType, x: Tensor<'c>) -> bool {
        let other_way = self.in_eight_bits(dtype, x) || self.in_tiles(dtype, x);
        self.capabilities.integers && !other_way && has_integer_product(dtype)
    }

    /// Whether the product of a weight of this type with `x [.., T]` is computed in 8-bit integers that other products of `x` can
    /// share.
    pub(crate) fn in_shared_eight_bits(&self, dtype: DType, x: Tensor<'c>) -> bool {
        x.ne()[1] >= SHARED_FROM && self.in_eight_bits(dtype, x) && !self.in_tiles(dtype, x)
    }

    /// Whether the product of a weight of this type, of 16-bit floats, with `x [.., T]` is ours.
    pub(crate) fn in_short_floats(&self, dtype: DType, x: Tensor<'c>) -> bool {
        self.capabilities.short_floats && x.ne()[1] >= SHORT_FROM && has_short_product(dtype)
    }

    /// Whether the product of a weight of this type with `x [.., T]` is computed in 8-bit integers.
    pub(crate) fn in_eight_bits(&self, dtype: DType, x: Tensor<'c>) -> bool {
        x.ne()[1] <= self.capabilities.eight_bits && has_eight_bit_product(dtype)
    }

    /// A weight `[k, m]` of any type and `x [k, n]` to `[m, n]`, in the way that is fastest without dequantising it.
    pub(crate) fn weight_times(&self, w: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        if self.in_tiles(w.dtype(), x) {
            self.b.packed_product(w, self.b.pack(x)?)
        } else if self.in_short_floats(w.dtype(), x) {
            self.b.short_product(w, x)
        } else if self.in_integers(w.dtype(), x) {
            self.b.integer_product(w, self.b.rounded(x)?)
        } else if self.in_eight_bits(w.dtype(), x) {
            if x.ne()[1] < SHARED_FROM {
                self.b.eight_bit_product(w, x)
            } else {
                self.b.shared_eight_bit_product(w, self.b.eight_bits(x, w.dtype())?)
            }
        } else {
            self.b.mul_mat(w, x)
        }
    }

    /// `a [k, m]` and `x [k, n]` to `[m, n]`.
    pub(crate) fn times(&self, a: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        if a.dtype() == DType::BF16 && self.capabilities.train_bf16 {
            self.b.short_product(a, x)
        } else if self.capabilities.custom_ops {
            self.b.gemm(a, x)
        } else {
            self.b.mul_mat(a, x)
        }
    }

    /// `a [m, k]` and `x [k, n]` to `[m, n]`.
    pub(crate) fn times_transposed(&self, a: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        if a.dtype() == DType::BF16 && self.capabilities.train_bf16 {
            self.b.short_product_t(a, x)
        } else if self.capabilities.custom_ops {
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

    /// Another shape of `a`, a copy where its rows do not lie side by side.
    pub(crate) fn reshape(&self, a: Tensor<'c>, shape: &[usize]) -> Result<Tensor<'c>> {
        let ([n0, n1, n2, _], nb) = (a.ne(), a.nb());
        let packed = nb == [4, 4 * n0, 4 * n0 * n1, 4 * n0 * n1 * n2];
        self.b.reshape(if packed { a } else { self.b.cont(a)? }, shape)
    }

    fn transposed(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        self.b.cont(self.b.permute(a, [1, 0, 2, 3])?)
    }
}
