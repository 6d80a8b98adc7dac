//! The largest element of each row, for a softmax over rows that come in pieces.

use crate::graph::Builder;
use crate::ops::{call, check, contiguous};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// Elements that one step of [`Builder::row_max`] looks at.
const WINDOW: usize = 64;

impl<'c> Builder<'c> {
    /// The largest of each row: `[n, ..]` to `[1, ..]`. What is below the smallest finite number counts as that number.
    ///
    /// No backend has such an op, but all of them have pooling: here of windows of a row, then of their results.
    pub fn row_max(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        check(a.dtype() == DType::F32 && contiguous(a), "row_max", "contiguous f32", &[a])?;
        let mut out = self.window_max(a)?;
        while out.ne()[0] > 1 {
            out = self.window_max(out)?;
        }
        Ok(out)
    }

    fn window_max(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        let width = a.ne()[0].min(WINDOW);
        // ggml leaves off an unfinished window at the end: half of what it lacks goes in front, where nothing is looked at.
        let pad = (a.ne()[0].next_multiple_of(width) - a.ne()[0]).div_ceil(2);
        let (k, pad) = (width as i32, pad as f32);
        call!(self, "row_max", ggml_pool_2d(a; sys::GGML_OP_POOL_MAX, k, 1, k, 1, pad, 0.0))
    }
}
