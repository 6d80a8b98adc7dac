//! Softmax, and attention by ggml's own ops.

use crate::attention::Scoring;
use crate::graph::Builder;
use crate::ops::{call, check, contiguous, f32_rows, matrix, possible};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// The largest alignment that Vulkan's devices may ask of what a kernel reads (`minStorageBufferOffsetAlignment`).
const DEVICE_ALIGNMENT: usize = 256;

impl<'c> Builder<'c> {
    /// `softmax(a)` over rows.
    pub fn soft_max(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        check(a.dtype() == DType::F32 && contiguous(a), "soft_max", "contiguous f32", &[a])?;
        call!(self, "soft_max", ggml_soft_max(a))
    }

    /// Attention without the score matrix: q `[d, T, H]`, k and v `[d, n_kv, H_kv]`, mask F16 `[n_kv, T]`; gives `[d,
    /// H, T]`. On devices views begin at multiples of 256 bytes: Vulkan's backend aborts on others.
    pub fn flash_attn(
        &self,
        q: Tensor<'c>,
        k: Tensor<'c>,
        v: Tensor<'c>,
        mask: Tensor<'c>,
        scoring: impl Into<Scoring<'c>>,
    ) -> Result<Tensor<'c>> {
        let scoring = scoring.into();
        scoring.check("flash_attn", q.ne()[2])?;
        let (a, b, c, m) = (q.ne(), k.ne(), v.ne(), mask.ne());
        let heads =
            b[2] > 0 && a[2].is_multiple_of(b[2]) && b[2] == c[2] && a[3] == 1 && b[3] == 1 && c[3] == 1;
        let shapes = a[0] == b[0] && b[1] == c[1] && m == [b[1], a[1], 1, 1] && heads;
        let types = mask.dtype() == DType::F16 && contiguous(mask);
        check(
            shapes && types && f32_rows(q) && matrix(k) && matrix(v),
            "flash_attn",
            "q [d,T,H], k and v [d,n_kv,H_kv], mask f16 [n_kv,T]",
            &[q, k, v, mask],
        )?;
        let aligned = |t: Tensor<'_>| t.raw().view_offs.is_multiple_of(DEVICE_ALIGNMENT);
        let ok = self.device.is_cpu() || [q, k, v, mask].into_iter().all(aligned);
        check(ok, "flash_attn", "views that begin at multiples of 256 bytes", &[q, k, v, mask])?;
        possible("flash_attn", DType::F32, [c[0], a[2], a[1], 1])?;
        let (scale, softcap) = (scoring.scale, scoring.softcap.unwrap_or(0.0));
        let out = call!(self, "flash_attn", ggml_flash_attn_ext(q, k, v, mask; scale, 0.0, softcap))?;
        // SAFETY: the node was just made by flash_attn_ext; the sinks were checked against its heads.
        unsafe {
            sys::ggml_flash_attn_ext_set_prec(out.ptr.as_ptr(), sys::GGML_PREC_F32);
            if let Some(sinks) = scoring.sinks {
                sys::ggml_flash_attn_ext_add_sinks(out.ptr.as_ptr(), sinks.ptr.as_ptr());
            }
        }
        Ok(out)
    }
}
