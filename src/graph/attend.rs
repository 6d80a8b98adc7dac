//! Keys and values into the cache, attention over what is there: one softmax over the keys of every branch.

use ggml::attention::AttentionPart as Part;
use ggml::graph::{Builder, InputId};
use ggml::tensor::Tensor;
use ggml::{DType, Error, Result};

use super::rotate::{Rotations, RotationsInputs};
use super::{Graph, Pairing, Shape};
use crate::hparams::Hparams;
use crate::kv::KvCache;
use crate::rope::{Branch, Plan, PosMap};

/// Inputs every graph has.
#[derive(Debug, Clone)]
pub struct GraphInputs {
    /// F32 `[n_embd, n_tokens]`.
    pub embd: InputId,
    /// I64 `[n_tokens]`: the cell each token's key goes to.
    pub cells: InputId,
    /// F16 `[n_columns, n_tokens]`: 0 where a token sees a cell through the column's branch, -inf elsewhere.
    pub mask: InputId,
    /// Angles.
    pub rotation: RotationsInputs,
    /// I32 `[n_out]`: tokens whose logits are wanted, when not all are.
    pub out_ids: Option<InputId>,
}

/// Attention through a cache, its inputs declared.
#[derive(Debug)]
pub struct Cached<'a, 'c> {
    hp: &'a Hparams,
    kv: &'a KvCache,
    shape: Shape,
    branches: &'a [Branch],
    key_maps: Vec<PosMap>,
    rotation: Rotations<'c>,
    cells: Tensor<'c>,
    mask: Tensor<'c>,
    out_ids: Option<Tensor<'c>>,
}

impl<'a, 'c> Cached<'a, 'c> {
    /// Declares the inputs; gives them, and the embedded tokens F32 `[n_embd, n_tokens]`.
    pub fn new(
        g: &Graph<'a, 'c>,
        hp: &'a Hparams,
        kv: &'a KvCache,
        plan: &'a Plan,
        pairing: Pairing,
        shape: Shape,
    ) -> Result<(Self, GraphInputs, Tensor<'c>)> {
        let b = g.b;
        let (embd, x) = b.input("embd", DType::F32, &[hp.n_embd, shape.n_tokens])?;
        let (cells_id, cells) = b.input("cells", DType::I64, &[shape.n_tokens])?;
        let (mask_id, mask) = b.input("mask", DType::F16, &[shape.n_columns(), shape.n_tokens])?;
        let key_maps = plan.key_maps();
        let used = plan.branches.iter().zip(&shape.spans).filter(|(_, span)| span.len > 0);
        let maps = key_maps.iter().copied().chain(used.map(|(branch, _)| branch.q_pos));
        let (rotation, rotation_ids) =
            Rotations::new(b, hp, plan, pairing, shape.n_tokens, g.capabilities.custom_ops, maps)?;
        let wanted = (shape.n_out > 0 && shape.n_out < shape.n_tokens)
            .then(|| b.input("out_ids", DType::I32, &[shape.n_out]))
            .transpose()?;
        let inputs = GraphInputs {
            embd,
            cells: cells_id,
            mask: mask_id,
            rotation: rotation_ids,
            out_ids: wanted.as_ref().map(|(id, _)| *id),
        };
        let out_ids = wanted.map(|(_, t)| t);
        let branches = &plan.branches;
        Ok((Cached { hp, kv, shape, branches, key_maps, rotation, cells, mask, out_ids }, inputs, x))
    }

    /// In the last layer, once keys and values are stored, only tokens whose logits are wanted go on.
    pub fn wanted(&self, g: &Graph<'a, 'c>, x: Tensor<'c>, il: usize) -> Result<Tensor<'c>> {
        match self.out_ids {
            Some(ids) if il + 1 == self.hp.n_layer => g.b.get_rows(x, ids),
            _ => Ok(x),
        }
    }

    /// Rotates and stores keys, stores values, attends: q `[n_head * d, T]`, k and v `[n_head_kv * d, T]` (rows may lie
    /// apart) to `[n_head * d, T]`.
    pub fn attend(
        &self,
        g: &Graph<'a, 'c>,
        q: Tensor<'c>,
        k: Tensor<'c>,
        v: Tensor<'c>,
        il: usize,
    ) -> Result<Tensor<'c>> {
        let (b, hp) = (g.b, self.hp);
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
            _ if g.capabilities.flash && g.capabilities.custom_ops => {
                b.attention(&parts, self.mask, scale)?
            }
            [Part { q, k, v }] if g.capabilities.flash => {
                b.flash_attn(b.permute(q, [0, 2, 1, 3])?, k, v, self.mask, scale)?
            }
            _ => explicit(b, &parts, self.mask, scale)?,
        };
        b.reshape(out, &[d * hp.n_head, n])
    }
}

/// With the whole score matrix, in ops that every backend has.
fn explicit<'c>(b: &Builder<'c>, parts: &[Part<'c>], mask: Tensor<'c>, scale: f32) -> Result<Tensor<'c>> {
    let mut scores: Option<Tensor<'c>> = None;
    for part in parts {
        let s = b.mul_mat(part.k, b.permute(part.q, [0, 2, 1, 3])?)?;
        scores = Some(scores.map_or(Ok(s), |before| b.concat(before, s, 0))?);
    }
    let nothing = || Error::Op { op: "attention", what: "no branch reaches a key".into() };
    let p = b.soft_max(scores.ok_or_else(nothing)?, mask, scale)?;
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
