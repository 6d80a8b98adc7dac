//! Attention of one layer in the branches of a rope method, under one softmax: each branch has queries and keys at
//! positions of its own, and no pair is in two. Without such a method there is one branch.

use ggml::graph::Builder;
use ggml::tensor::Tensor;
use ggml::Result;

use super::attention::Attend;
use super::cache::LayerCache;
use crate::graph::reduce;
use crate::rope::PosMap;

/// Keys under each map of positions, and values; or the gradients of these.
#[derive(Debug)]
pub(super) struct Stored<'c> {
    pub(super) keys: Vec<Keys<'c>>,
    pub(super) v: Tensor<'c>,
}

/// Keys under one map of positions, or their gradients.
#[derive(Debug)]
pub(super) struct Keys<'c> {
    pub(super) map: PosMap,
    pub(super) rows: Tensor<'c>,
}

impl<'c> Stored<'c> {
    /// Keys and values of the cache, or their gradients.
    pub(super) fn of(b: &Builder<'c>, cache: &LayerCache, gradients: bool) -> Result<Stored<'c>> {
        let stored = |value, gradient| b.stored(if gradients { gradient } else { value });
        let keys = cache.keys.iter().map(|key| Ok(Keys { map: key.map, rows: stored(&key.k, &key.dk)? }));
        Ok(Stored { keys: keys.collect::<Result<_>>()?, v: stored(&cache.v, &cache.dv)? })
    }
}

/// One branch: its rotated queries, and which keys they see.
pub(super) struct AttendPart<'c> {
    /// `[d, n_head, n]`.
    pub(super) q: Tensor<'c>,
    pub(super) q_pos: PosMap,
    /// Index of its keys among those of [`Stored`].
    pub(super) key: usize,
    pub(super) attend: Attend<'c>,
}

impl<'c> AttendPart<'c> {
    /// Attention of all branches over keys and values of the cache: F32 `[d + 1, n_head, n]`, see [`Attend::forward`].
    pub(super) fn forward(parts: &[Self], b: &Builder<'c>, stored: &Stored<'c>) -> Result<Tensor<'c>> {
        let of = |part: &Self| part.attend.forward(b, part.q, stored.keys[part.key].rows, stored.v);
        let outs = parts.iter().map(of).collect::<Result<Vec<_>>>()?;
        match outs[..] {
            [out] => Ok(out),
            _ => b.attention_merge(&outs),
        }
    }

    /// The gradient of the branch's rotated queries, from the output of [`AttendPart::forward`] and the gradient of its
    /// heads, `[d, n_head, n]`. Those of keys and values are added to `sums`, which are complete after the nodes of all
    /// branches.
    pub(super) fn backward(
        &self,
        b: &Builder<'c>,
        stored: &Stored<'c>,
        out: Tensor<'c>,
        d_out: Tensor<'c>,
        sums: &Stored<'c>,
    ) -> Result<Tensor<'c>> {
        let of = |stored: &Stored<'c>| [stored.keys[self.key].rows, stored.v];
        self.attend.backward(b, self.q, of(stored), out, d_out, of(sums))
    }
}

/// The sum of one or more tensors of equal shape.
pub(super) fn sum<'c>(b: &Builder<'c>, terms: &[Tensor<'c>]) -> Result<Tensor<'c>> {
    reduce(terms.iter().copied().map(Ok), |sum, term| b.add(sum, term))
}
