//! Keys and values into the cache, attention over what is there: one softmax over the keys of every branch.

use ggml::attention::AttentionPart as Part;
use ggml::tensor::Tensor;
use ggml::{Error, Result};

use super::Graph;

impl<'c> Graph<'_, 'c> {
    /// Rotates and stores keys, stores values, attends: q `[n_head * d, T]`, k and v `[n_head_kv * d, T]` (rows may lie
    /// apart) to `[n_head * d, T]`.
    pub(super) fn attend(
        &self,
        q: Tensor<'c>,
        k: Tensor<'c>,
        v: Tensor<'c>,
        il: usize,
    ) -> Result<Tensor<'c>> {
        let (b, hp) = (self.b, self.hp);
        let (d, n, row) = (hp.n_embd_head, self.shape.n_tokens, hp.n_embd_head * hp.n_head_kv);
        let heads = |x: Tensor<'c>, n_heads: usize| {
            b.view(x, [d, n_heads, n, 1], [4 * d, x.nb()[1], x.nb()[1] * n], 0)
        };
        let (q, k) = (heads(q, hp.n_head)?, heads(k, hp.n_head_kv)?);
        let mut keys = Vec::with_capacity(self.key_maps.len());
        for (i, &map) in self.key_maps.iter().enumerate() {
            let k = self.rotation.keys(b, k, map)?;
            b.name(k, &format!("k_rope-{il}"));
            keys.push(b.set_rows(b.stored(&self.kv.k(il, i))?, b.reshape(k, &[row, n])?, self.cells)?);
        }
        let v = b.set_rows(b.stored(&self.kv.v(il))?, v, self.cells)?;
        keys.iter().for_each(|&k| b.expand(k));
        b.expand(v);
        let cached = |t: Tensor<'c>, start: usize, len: usize| {
            let head = t.dtype().row_bytes(d).unwrap_or(0);
            b.view(t, [d, len, hp.n_head_kv, 1], [t.nb()[1], head, t.nb()[2]], start * t.nb()[1])
        };
        let mut parts = Vec::with_capacity(self.branches.len());
        for (branch, span) in self.branches.iter().zip(&self.shape.spans).filter(|(_, s)| s.len > 0) {
            let q = self.rotation.queries(b, q, branch.q_pos)?;
            b.name(q, &format!("q_rope-{il}"));
            let at = self.key_maps.iter().position(|m| *m == branch.k_pos).unwrap_or(0);
            parts.push(Part {
                q,
                k: cached(keys[at], span.start, span.len)?,
                v: cached(v, span.start, span.len)?,
            });
        }
        let scale = 1.0 / (d as f32).sqrt();
        let out = match parts[..] {
            _ if self.abilities.flash && self.abilities.custom_ops => {
                b.attention(&parts, self.mask, scale)?
            }
            [Part { q, k, v }] if self.abilities.flash => {
                b.flash_attn(b.permute(q, [0, 2, 1, 3])?, k, v, self.mask, scale)?
            }
            _ => self.explicit(&parts, scale)?,
        };
        b.reshape(out, &[d * hp.n_head, n])
    }

    /// With the whole score matrix, in ops that every backend has.
    fn explicit(&self, parts: &[Part<'c>], scale: f32) -> Result<Tensor<'c>> {
        let b = self.b;
        let mut scores: Option<Tensor<'c>> = None;
        for part in parts {
            let s = b.mul_mat(part.k, b.permute(part.q, [0, 2, 1, 3])?)?;
            scores = Some(scores.map_or(Ok(s), |before| b.concat(before, s, 0))?);
        }
        let nothing = || Error::Op { op: "attention", what: "no branch reaches a key".into() };
        let p = b.soft_max(scores.ok_or_else(nothing)?, self.mask, scale)?;
        let (mut out, mut from): (Option<Tensor<'c>>, usize) = (None, 0);
        for part in parts {
            let v = b.cont(b.permute(b.to_f32(part.v)?, [1, 0, 2, 3])?)?;
            let n = part.k.ne()[1];
            let o = b.mul_mat(v, b.columns(p, from, n)?)?;
            out = Some(out.map_or(Ok(o), |before| b.add(before, o))?);
            from += n;
        }
        b.cont(b.permute(out.ok_or_else(nothing)?, [0, 2, 1, 3])?)
    }
}
