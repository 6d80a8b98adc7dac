//! Attention of one token over several branches by the device's flash attention, which reads keys and values once and in
//! their own type. It returns no log-sum-exp, so branches cannot be put together from its values alone. What is missing is
//! found like this.
//!
//! The log-sum-exp of all branches but the longest is made of their scores: windows, as a rule, and much shorter than the
//! rest. That sum is the *sink* of the longest branch: a score that takes its share of the softmax and has no value. The
//! values of the longest branch come out multiplied by the branch's share in all, and the others' have what is left of one.
//! The share itself is the ratio of these values to those of the same attention without a sink. Both are columns of one op:
//! each query stands there twice, side by side with those that read the same keys.
//!
//! A sink is one number for each head, so this is for one token. Longer batches go by tiles.
//!
//! Tiles transpose and convert values. With an F16 cache they move three times the bytes of flash attention, with Q8_0
//! twelve times, and decoding is limited by memory bandwidth. On the CPU (`portable`), the cost of flash attention
//! grows with the number of columns, so float caches use tiles there.
//! On Vulkan, tiles are slow for one token: ggml's matrix-vector kernel takes several columns only if there is one KV head, keys
//! that are not contiguous are copied, and values are copied to F32 and transposed.

use ggml::attention::{AttentionBranch, Scoring};
use ggml::graph::Builder;
use ggml::tensor::Tensor;
use ggml::{Error, Result};

use super::{soft_max, Attended, Part};

/// A sink that takes nothing.
const NO_SINK: f32 = -1e30;

/// Values shorter than the root of this count as none: then the longest branch has no share.
const NO_VALUE: f32 = 1e-30;

/// Attention of the heads of a layer to the keys of all parts, for one token, under one softmax. Ranges of parts do not count.
#[derive(Debug, Clone, Copy)]
pub struct Single<'a, 'c> {
    pub b: &'a Builder<'c>,
    /// F16 `[n_keys, 1]`: 0 where a key is seen, and where it is not [`UNSEEN`].
    pub mask: Tensor<'c>,
    pub mask_f32: Tensor<'c>,
    pub scoring: Scoring<'c>,
}

/// Penalty added to scores of keys that are not seen, as the bits of an F16: -32,768. It is finite, so that a branch
/// without a visible key has a log-sum-exp, which is too small to count.
pub const UNSEEN: u16 = 0xf800;

/// Upper bound of the tensors of [`Single::forward`] for `n_parts` parts.
pub fn n_tensors(n_parts: usize) -> usize {
    64 + 48 * n_parts
}

impl<'c> Single<'_, 'c> {
    /// The values of all heads, `[d, n_head, 1]`.
    pub fn forward(&self, parts: &[Part<'c>]) -> Result<Tensor<'c>> {
        let b = self.b;
        let longest = (0..parts.len()).max_by_key(|&i| parts[i].branch.k.ne()[1]);
        let longest =
            longest.ok_or_else(|| Error::Op { op: "attention", what: "no part has a key".into() })?;
        let mut others: Option<Attended<'c>> = None;
        for (_, part) in parts.iter().enumerate().filter(|(i, _)| *i != longest) {
            let this = self.with_lse(part)?;
            others = Some(others.map_or(Ok(this), |before| before.and(b, this))?);
        }
        let Some(others) = others else {
            return self.flash(&parts[longest], parts[longest].branch.q, self.scoring.sinks);
        };
        let others = self.scoring.sinks.map_or(Ok(others), |sinks| others.and_sinks(b, sinks))?;
        self.onto(&parts[longest], others)
    }

    /// Flash attention of queries `[d, n_head, 1]`.
    fn flash(&self, part: &Part<'c>, q: Tensor<'c>, sinks: Option<Tensor<'c>>) -> Result<Tensor<'c>> {
        let (b, AttentionBranch { k, v, .. }) = (self.b, part.branch);
        let mask = b.columns(self.mask, part.first, k.ne()[1])?;
        b.flash_attn(b.permute(q, [0, 2, 1, 3])?, k, v, mask, Scoring { sinks, ..self.scoring })
    }

    /// The values of a part and the log-sum-exp of its scores.
    fn with_lse(&self, part: &Part<'c>) -> Result<Attended<'c>> {
        let (b, AttentionBranch { q, k, .. }) = (self.b, part.branch);
        let ([d, n_head, ..], [_, n_keys, n_head_kv, _]) = (q.ne(), k.ne());
        let scoring = Scoring { sinks: None, ..self.scoring };
        let values = self.flash(part, q, None)?;
        let q = b.scale(q, scoring.scale / scoring.softcap.unwrap_or(1.0))?;
        let n_rep = n_head / n_head_kv.max(1);
        let (k, q) = if k.dtype().is_quantized() {
            // In one product with all heads that share them, keys in four bytes are read once.
            (b.to_f32(k)?, b.reshape(q, &[d, n_rep, n_head_kv])?)
        } else {
            // Heads in the outer dimension, as they are in the cache: devices multiply these without a copy of the keys.
            (k, b.view(q, [d, 1, n_head, 1], [4 * d * n_head, 4 * d, 4 * d * n_head], 0)?)
        };
        let scores = b.mul_mat(k, q)?;
        let scores = scoring.softcap.map_or(Ok(scores), |cap| b.scale(b.tanh(scores)?, cap))?;
        let [_, lse] = soft_max(b, b.add(scores, b.columns(self.mask_f32, part.first, n_keys)?)?)?;
        let values = b.reshape(values, &[d, n_rep, n_head_kv])?;
        let lse = b.reshape(lse, &[1, n_rep, n_head_kv])?;
        Ok(Attended { values, lse, n: 1 })
    }

    /// The values of a part and of all others together.
    fn onto(&self, part: &Part<'c>, others: Attended<'c>) -> Result<Tensor<'c>> {
        let (b, [d, n_rep, n_head_kv, _]) = (self.b, others.values.ne());
        let twice = |x: Tensor<'c>, y: Tensor<'c>| b.concat(x, y, 1);
        let q = b.reshape(part.branch.q, &[d, n_rep, n_head_kv])?;
        let q = b.reshape(twice(q, q)?, &[d, 2 * n_rep * n_head_kv, 1])?;
        let sinks = twice(b.clamp(others.lse, NO_SINK, NO_SINK)?, others.lse)?;
        let sinks = b.reshape(sinks, &[2 * n_rep * n_head_kv])?;
        let both = self.flash(part, q, Some(sinks))?;
        let half = |i: usize| {
            let (head, heads) = (4 * d, 8 * d * n_rep);
            let at = i * n_rep * head;
            b.view(both, [d, n_rep, n_head_kv, 1], [head, heads, heads * n_head_kv], at)
        };
        let (alone, among) = (half(0)?, half(1)?);
        let norm = b.clamp(b.sum_rows(b.mul(alone, alone)?)?, NO_VALUE, f32::INFINITY)?;
        let share = b.div(b.sum_rows(b.mul(among, alone)?)?, norm)?;
        // Where values of the branch nearly cancel, the ratio is mostly rounding.
        let share = b.clamp(share, 0.0, 1.0)?;
        let left = b.sub(others.values, b.mul(others.values, share)?)?;
        b.reshape(b.add(left, among)?, &[d, n_rep * n_head_kv, 1])
    }
}
