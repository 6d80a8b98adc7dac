//! Attention over keys in parts under one softmax, an op of our own for the CPU: the results of
//! [`Builder::attention_lse`] over each part become the result over all of them.
//!
//! Backward needs no new op. With P = exp(S - lse) and D = rowsum(dO * O) the gradients of a part are those
//! that [`Builder::attention_back`] takes from the joined result: its log-sum-exp and its output are of all keys.

use kernels::attention_train::merge;

use crate::custom::MAX_ARGS;
use crate::graph::Builder;
use crate::node::Part;
use crate::ops::{check, contiguous};
use crate::tensor::Tensor;
use crate::{DType, Result};

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
            _ => self.custom(op, DType::F32, parts[0].ne(), parts, run_merge),
        }
    }
}

fn run_merge(part: Part<'_>) {
    let sources: Vec<&[f32]> = part.sources().map(|source| source.all::<f32>()).collect();
    let mut parts = Vec::with_capacity(sources.len());
    for (row, out) in part.rows::<f32>() {
        parts.clear();
        parts.extend(sources.iter().map(|all| &all[row * out.len()..][..out.len()]));
        merge(&parts, out);
    }
}
