//! Ops for training: gradients of the forward ops, sums, and results added to stored tensors.
//!
//! An op named after another with `_back` takes `grad`, the gradient of the other's result, and returns the
//! gradient of its input.

use crate::graph::Builder;
use crate::ops::{apart, call, check, contiguous, f32_rows, root, share_memory, writable};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// Returns true if `t` is a tensor of a writable store or a view of one in which no two elements share memory.
pub(crate) fn target(t: Tensor<'_>) -> bool {
    // Tensors of the graph itself have no memory before it is built; those of planned stores have an address,
    // but no buffer.
    !root(t).data.is_null() && writable(t) && apart(t)
}

impl<'c> Builder<'c> {
    /// The sum of each row: `[n, ..]` to `[1, ..]`.
    pub fn sum_rows(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        check(f32_rows(a), "sum_rows", "f32 rows", &[a])?;
        call!(self, "sum_rows", ggml_sum_rows(a))
    }

    /// The gradient of `x` where `grad` is that of `rms_norm(x, eps)`: `(grad - y mean(grad * y)) / rms`, `y`
    /// the result. Vulkan's backend takes any `x` and reads its rows as if they lay one after the other.
    pub fn rms_norm_back(&self, grad: Tensor<'c>, x: Tensor<'c>, eps: f32) -> Result<Tensor<'c>> {
        let rows = |t| f32_rows(t) && contiguous(t);
        let ok = grad.ne() == x.ne() && rows(grad) && rows(x) && eps >= 0.0;
        check(ok, "rms_norm_back", "contiguous f32 of one shape, eps >= 0", &[grad, x])?;
        if self.own {
            return self.rms_norm_back_rows(grad, x, eps);
        }
        call!(self, "rms_norm_back", ggml_rms_norm_back(grad, x; eps))
    }

    /// The gradient of `x` where `grad` is that of `silu(x)`. Vulkan's backend takes any rows and reads them as if they lay one
    /// after the other.
    pub fn silu_back(&self, grad: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let rows = |t| f32_rows(t) && contiguous(t);
        let ok = grad.ne() == x.ne() && rows(grad) && rows(x);
        check(ok, "silu_back", "contiguous f32 of one shape", &[grad, x])?;
        call!(self, "silu_back", ggml_silu_back(grad, x))
    }

    /// Adds `x` to `stored`, an F32 tensor of a writable store or a view of one, in place; the result is
    /// `stored` after it.
    pub fn add_into(&self, stored: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let ok = stored.ne() == x.ne() && f32_rows(stored) && x.dtype() == DType::F32;
        check(
            ok && target(stored) && !share_memory(stored, x),
            "add_into",
            "f32 rows of a writable store, and f32 of their shape that is not of that tensor",
            &[stored, x],
        )?;
        call!(self, "add_into", ggml_add_inplace(stored, x))
    }
}
