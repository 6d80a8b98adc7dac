//! Attention over keys in parts under one softmax, an op of our own for the CPU: the results of
//! [`Builder::attention_lse`] over each part become the result over all of them.
//!
//! Backward needs no op of its own. With P = exp(S - lse) and D = rowsum(dO * O) the gradients of a part are those
//! that [`Builder::attention_back`] takes from the joined result: its log-sum-exp and its output are of all keys.

use std::ffi::c_void;

use kernels::attention_train::merge;

use crate::custom::{share, MAX_ARGS};
use crate::graph::Builder;
use crate::ops::{check, contiguous};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

impl<'c> Builder<'c> {
    /// The results of [`Builder::attention_lse`] over parts of the keys, of which none has a key of another, as that over
    /// all of them: F32 `[d_v + 1, n_head, T]` each, one to nine. Sinks are to be counted in one of the parts. For the
    /// CPU; elsewhere the graph is refused.
    pub fn attention_merge(&self, parts: &[Tensor<'c>]) -> Result<Tensor<'c>> {
        let op = "attention_merge";
        let alike = |t: &Tensor<'_>| {
            t.dtype() == DType::F32 && contiguous(*t) && t.ne() == parts[0].ne() && t.ne()[3] == 1
        };
        let fits = (1..MAX_ARGS).contains(&parts.len()) && parts.iter().all(alike);
        check(fits, op, "one to nine contiguous f32 [d_v+1,n_head,T]", parts)?;
        match parts {
            [one] => Ok(*one),
            _ => self.custom(DType::F32, parts[0].ne(), parts, run_merge, parts.len()),
        }
    }
}

unsafe extern "C" fn run_merge(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `attention_merge`, whose user data is the number of its sources.
    let (dst, n_parts) = unsafe { (&*dst, *(data as *const usize)) };
    let (width, n_rows) = (dst.ne[0] as usize, (dst.ne[1] * dst.ne[2]) as usize);
    let mut parts = Vec::with_capacity(n_parts);
    for row in share(n_rows, ith, nth) {
        parts.clear();
        // SAFETY: the sources are contiguous F32 of dst's shape, checked in `attention_merge`, computed before, and stay
        // as they are while it runs.
        parts.extend(dst.src[..n_parts].iter().map(|&source| unsafe {
            std::slice::from_raw_parts(((*source).data as *const f32).add(row * width), width)
        }));
        // SAFETY: dst is contiguous F32, custom ops do not run in place, and threads take disjoint rows.
        let out = unsafe { std::slice::from_raw_parts_mut((dst.data as *mut f32).add(row * width), width) };
        merge(&parts, out);
    }
}
