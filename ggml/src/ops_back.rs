//! Ops for training: gradients of the forward ops, sums, and results added to stored tensors.
//!
//! An op named after another with `_back` takes `grad`, the gradient of the other's result, and returns the
//! gradient of its input.

use std::ffi::c_void;

use kernels::attention::exp2;

use crate::custom::share;
use crate::graph::Builder;
use crate::ops::{
    apart, broadcasts, call, check, contiguous, even_rows, f32_rows, possible, root, share_memory, writable,
    RopeParams,
};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// Whether `t` is a tensor of a writable store or a view of one in which no two elements share memory.
pub(crate) fn target(t: Tensor<'_>) -> bool {
    // Tensors of the graph itself have no memory before it is built; those of planned stores have an address,
    // but no buffer.
    !root(t).data.is_null() && writable(t) && apart(t)
}

impl<'c> Builder<'c> {
    /// `a - b`, `b` repeated to `a`'s shape.
    pub fn sub(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        let ok = broadcasts(b.ne(), a.ne()) && f32_rows(a) && b.dtype() == DType::F32;
        check(ok, "sub", "f32 rows, b to repeat into a", &[a, b])?;
        call!(self, "sub", ggml_sub(a.ptr.as_ptr(), b.ptr.as_ptr()))
    }

    /// The sum of each row: `[n, ..]` to `[1, ..]`.
    pub fn sum_rows(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        check(f32_rows(a), "sum_rows", "f32 rows", &[a])?;
        call!(self, "sum_rows", ggml_sum_rows(a.ptr.as_ptr()))
    }

    /// The gradient of `x` where `grad` is that of `rms_norm(x, eps)`: `(grad - y mean(grad * y)) / rms`, `y`
    /// the result.
    pub fn rms_norm_back(&self, grad: Tensor<'c>, x: Tensor<'c>, eps: f32) -> Result<Tensor<'c>> {
        let ok = grad.ne() == x.ne() && f32_rows(grad) && f32_rows(x) && eps >= 0.0;
        check(ok, "rms_norm_back", "f32 rows of one shape, eps >= 0", &[grad, x])?;
        call!(self, "rms_norm_back", ggml_rms_norm_back(grad.ptr.as_ptr(), x.ptr.as_ptr(), eps))
    }

    /// `x / (1 + exp(-x))`, element by element.
    pub fn silu(&self, x: Tensor<'c>) -> Result<Tensor<'c>> {
        check(f32_rows(x) && even_rows(x), "silu", "f32 rows at one distance", &[x])?;
        call!(self, "silu", ggml_silu(x.ptr.as_ptr()))
    }

    /// The gradient of `x` where `grad` is that of `silu(x)`.
    pub fn silu_back(&self, grad: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let rows = |t| f32_rows(t) && even_rows(t);
        let ok = grad.ne() == x.ne() && rows(grad) && rows(x);
        check(ok, "silu_back", "f32 rows of one shape at one distance", &[grad, x])?;
        call!(self, "silu_back", ggml_silu_back(grad.ptr.as_ptr(), x.ptr.as_ptr()))
    }

    /// The gradients of `gate` and `up` where `grad` is that of `swiglu(gate, up)`, all `[n, T]` F32: `[2n,
    /// T]`, each row the gate's gradient and then the other's. For the CPU; elsewhere the graph is refused.
    pub fn swiglu_back(&self, grad: Tensor<'c>, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        let op = "swiglu_back";
        let args = [grad, gate, up];
        let n = grad.ne();
        let ok = args.iter().all(|&t| f32_rows(t) && t.ne() == n && t.nb()[1].is_multiple_of(4));
        check(ok && n[2] * n[3] == 1, op, "three f32 matrices of one shape", &args)?;
        let ne = [n[0].saturating_mul(2), n[1], 1, 1];
        possible(op, DType::F32, ne)?;
        self.custom(DType::F32, ne, &args, run_swiglu_back, ())
    }

    /// The gradient of `x` where `y = soft_max(scale * x)` and `grad` is that of `y`: `scale * y (grad -
    /// sum(grad * y))`.
    pub fn soft_max_back(&self, grad: Tensor<'c>, y: Tensor<'c>, scale: f32) -> Result<Tensor<'c>> {
        let plain = |t: Tensor<'_>| t.dtype() == DType::F32 && contiguous(t);
        let ok = grad.ne() == y.ne() && plain(grad) && plain(y) && scale.is_finite();
        check(ok, "soft_max_back", "contiguous f32 of one shape, a finite scale", &[grad, y])?;
        call!(self, "soft_max_back", ggml_soft_max_ext_back(grad.ptr.as_ptr(), y.ptr.as_ptr(), scale, 0.0))
    }

    /// The gradient of `x` where `grad` is that of [`Builder::rope`] with these arguments: the rotation by
    /// the opposite angles.
    pub fn rope_back(
        &self,
        grad: Tensor<'c>,
        pos: Tensor<'c>,
        factors: Option<Tensor<'c>>,
        p: &RopeParams,
    ) -> Result<Tensor<'c>> {
        let (mode, factors) = self.rope_args("rope_back", grad, pos, factors, p)?;
        let (grad, pos, n_dims) = (grad.ptr.as_ptr(), pos.ptr.as_ptr(), p.n_dims as i32);
        let (base, scale, mscale) = (p.freq_base, p.freq_scale, p.mscale);
        call!(
            self,
            "rope_back",
            ggml_rope_ext_back(grad, pos, factors, n_dims, mode, 0, base, scale, 0.0, mscale, 32.0, 1.0)
        )
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
        call!(self, "add_into", ggml_add_inplace(stored.ptr.as_ptr(), x.ptr.as_ptr()))
    }
}

/// `1 / (1 + exp(-x))`, within a few units in the last place.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    let z = exp2(-x.abs() * std::f32::consts::LOG2_E);
    let near = if x < 0.0 { z } else { 1.0 };
    near / (1.0 + z)
}

unsafe extern "C" fn run_swiglu_back(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, _: *mut c_void) {
    // SAFETY: ggml passes the node made in `swiglu_back`, alive while the graph is, with the three sources
    // checked there.
    let (dst, args) = unsafe {
        let dst = &*dst;
        (dst, [&*dst.src[0], &*dst.src[1], &*dst.src[2]])
    };
    let n = args[0].ne[0] as usize;
    for row in share(dst.ne[1] as usize, ith, nth) {
        // SAFETY: each source has n contiguous f32 in this row, computed before this node.
        let [d, gate, up] = args.map(|t| unsafe {
            let at = (t.data as *const u8).add(row * t.nb[1]);
            std::slice::from_raw_parts(at.cast::<f32>(), n)
        });
        // SAFETY: dst is contiguous [2n, T]; threads take disjoint rows, and custom ops do not run in place.
        let out = unsafe { std::slice::from_raw_parts_mut((dst.data as *mut f32).add(row * 2 * n), 2 * n) };
        let (d_gate, d_up) = out.split_at_mut(n);
        let inputs = d.iter().zip(gate).zip(up);
        for (((d, &g), u), (d_gate, d_up)) in inputs.zip(d_gate.iter_mut().zip(d_up)) {
            let s = sigmoid(g);
            *d_gate = d * u * s * (1.0 + g * (1.0 - s));
            *d_up = d * g * s;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sigmoids() {
        for i in -100_000..100_000 {
            let x = i as f32 / 1000.0;
            let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
            // Below exp(-86.6) it is 0.
            assert!((f64::from(sigmoid(x)) - exact).abs() <= 5e-6 * exact + 1e-37, "{x}");
        }
        assert!(sigmoid(f32::NAN).is_nan());
        assert_eq!([sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)], [1.0, 0.0]);
    }
}
