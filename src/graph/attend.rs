//! Keys and values into the cache, attention over what is there.

use ggml::tensor::Tensor;
use ggml::Result;

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
        let q = self.rotation.queries(b, heads(q, hp.n_head)?)?;
        let k = self.rotation.keys(b, heads(k, hp.n_head_kv)?)?;
        b.name(q, &format!("q_rope-{il}"));
        b.name(k, &format!("k_rope-{il}"));
        let k = b.set_rows(b.stored(&self.kv.k(il))?, b.reshape(k, &[row, n])?, self.cells)?;
        let v = b.set_rows(b.stored(&self.kv.v(il))?, v, self.cells)?;
        b.expand(k);
        b.expand(v);
        let cached = |t: Tensor<'c>| {
            let head = t.dtype().row_bytes(d).unwrap_or(0);
            b.view(t, [d, self.shape.n_kv, hp.n_head_kv, 1], [t.nb()[1], head, t.nb()[2]], 0)
        };
        let (k, v) = (cached(k)?, cached(v)?);
        let q = b.permute(q, [0, 2, 1, 3])?;
        let scale = 1.0 / (d as f32).sqrt();
        let out = if self.abilities.flash {
            b.flash_attn(q, k, v, self.mask, scale)?
        } else {
            let scores = b.soft_max(b.mul_mat(k, q)?, self.mask, scale)?;
            let v = b.cont(b.permute(b.to_f32(v)?, [1, 0, 2, 3])?)?;
            b.cont(b.permute(b.mul_mat(v, scores)?, [0, 2, 1, 3])?)?
        };
        b.reshape(out, &[d * hp.n_head, n])
    }
}
