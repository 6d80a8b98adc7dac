//! What an architecture builds its layers from: norms, linear maps, attention under the plan in force.

mod attend;
mod rotate;

use ggml::graph::{Builder, InputId};
use ggml::tensor::{StoreTensor, Tensor};
use ggml::{DType, Result};

use crate::hparams::Hparams;
use crate::kv::{KvCache, Span};
use crate::rope::{Branch, Plan, PosMap, MAX_BRANCHES};
use crate::weights::Weights;

pub use rotate::{Pairing, Rotation, RotationInputs, Rotations, RotationsInputs};

/// Tokens from which on the product of a weight is faster once the weight is widened to F32, measured on Sapphire Rapids;
/// on an AVX2 machine prefill is 1.4 times faster with them too.
/// K-quants and most i-quants have tiled kernels of their own that nothing beats.
fn widen_from(dtype: DType) -> Option<usize> {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::F16 => Some(64),
        DType::Q5_0 | DType::IQ4_NL | DType::BF16 => Some(128),
        DType::Q4_0 | DType::Q8_0 => Some(192),
        _ => None,
    }
}

/// Widened weights are joined into one product up to this many bytes: beyond, the memory counts more than the saved op.
const FUSED_MAX: usize = 4 << 20;

/// What of a graph can change between micro-batches; graphs of equal shape are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Tokens computed.
    pub n_tokens: usize,
    /// Rows of logits.
    pub n_out: usize,
    /// Cells each branch of the plan attends to.
    pub spans: [Span; MAX_BRANCHES],
}

impl Shape {
    /// Columns of the mask: the cells of every branch side by side.
    pub fn n_columns(&self) -> usize {
        self.spans.iter().map(|s| s.len).sum()
    }
}

/// What the device allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Ops of our own (CPU only).
    pub custom_ops: bool,
    /// The type weights are widened to for large batches, where that is faster than their own product.
    pub widen: Option<DType>,
    /// Attention without the score matrix.
    pub flash: bool,
}

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

/// A model's graph under construction.
#[derive(Debug)]
pub struct Graph<'a, 'c> {
    /// ggml's side.
    pub b: &'a Builder<'c>,
    /// The model's numbers.
    pub hp: &'a Hparams,
    weights: &'a Weights,
    kv: &'a KvCache,
    shape: Shape,
    abilities: Abilities,
    branches: &'a [Branch],
    key_maps: Vec<PosMap>,
    rotation: Rotations<'c>,
    cells: Tensor<'c>,
    mask: Tensor<'c>,
    out_ids: Option<Tensor<'c>>,
}

impl<'a, 'c> Graph<'a, 'c> {
    /// Declares the inputs; gives the graph, its ids, and the embedded tokens F32 `[n_embd, n_tokens]`.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        b: &'a Builder<'c>,
        hp: &'a Hparams,
        weights: &'a Weights,
        kv: &'a KvCache,
        plan: &'a Plan,
        pairing: Pairing,
        shape: Shape,
        abilities: Abilities,
    ) -> Result<(Self, GraphInputs, Tensor<'c>)> {
        let (embd, x) = b.input("embd", DType::F32, &[hp.n_embd, shape.n_tokens])?;
        let (cells_id, cells) = b.input("cells", DType::I64, &[shape.n_tokens])?;
        let (mask_id, mask) = b.input("mask", DType::F16, &[shape.n_columns(), shape.n_tokens])?;
        let key_maps = plan.key_maps();
        let used = plan.branches.iter().zip(&shape.spans).filter(|(_, span)| span.len > 0);
        let maps = key_maps.iter().copied().chain(used.map(|(branch, _)| branch.q_pos));
        let (rotation, rotation_ids) =
            Rotations::new(b, hp, plan, pairing, shape.n_tokens, abilities.custom_ops, maps)?;
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
        let graph = Graph {
            b,
            hp,
            weights,
            kv,
            shape,
            abilities,
            branches: &plan.branches,
            key_maps,
            rotation,
            cells,
            mask,
            out_ids,
        };
        Ok((graph, inputs, x))
    }

    fn weight(&self, name: &str) -> Result<(&'a StoreTensor, Tensor<'c>)> {
        let stored = self.weights.get(name).ok_or_else(|| ggml::Error::Op {
            op: "weight",
            what: format!("the model has no tensor {name}"),
        })?;
        Ok((stored, self.b.stored(stored)?))
    }

    fn bias(&self, x: Tensor<'c>, name: &str) -> Result<Tensor<'c>> {
        match self.weights.get(&format!("{name}.bias")) {
            Some(bias) => self.b.add(x, self.b.stored(bias)?),
            None => Ok(x),
        }
    }

    /// What a weight of this type is better widened to for a product over `n` tokens.
    fn widens(&self, dtype: DType, n: usize) -> Option<DType> {
        self.abilities.widen.filter(|&to| to != dtype && widen_from(dtype).is_some_and(|from| n >= from))
    }

    /// `x W^T + bias`: `[n_in, T]` to `[n_out, T]` with the tensors `{name}.weight` and, where the file has it, `{name}.bias`.
    pub fn linear(&self, x: Tensor<'c>, name: &str) -> Result<Tensor<'c>> {
        self.bias(self.product(x, &format!("{name}.weight"))?, name)
    }

    fn product(&self, x: Tensor<'c>, weight: &str) -> Result<Tensor<'c>> {
        let (stored, w) = self.weight(weight)?;
        match self.widens(stored.def().dtype, x.ne()[1]) {
            Some(to) => self.b.mul_mat(self.b.widen(&[w], to)?, x),
            None => self.b.mul_mat(w, x),
        }
    }

    /// Several linear maps of one input, as one product where the weights are widened and small.
    pub fn linears<const N: usize>(&self, x: Tensor<'c>, names: [&str; N]) -> Result<[Tensor<'c>; N]> {
        let mut out = [x; N];
        let mut ws = Vec::with_capacity(N);
        let mut bytes = 0;
        for name in names {
            let (stored, w) = self.weight(&format!("{name}.weight"))?;
            if self.widens(stored.def().dtype, x.ne()[1]).is_some() {
                bytes += w.ne()[0] * w.ne()[1] * 4;
                ws.push(w);
            }
        }
        let to = self.abilities.widen.filter(|_| ws.len() == N && bytes <= FUSED_MAX);
        if let Some(to) = to {
            let all = self.b.mul_mat(self.b.widen(&ws, to)?, x)?;
            let mut from = 0;
            for ((out, w), name) in out.iter_mut().zip(&ws).zip(names) {
                *out = self.bias(self.b.columns(all, from, w.ne()[1])?, name)?;
                from += w.ne()[1];
            }
        } else {
            for (out, name) in out.iter_mut().zip(names) {
                *out = self.linear(x, name)?;
            }
        }
        Ok(out)
    }

    /// RMS norm with the scale `{name}.weight`.
    pub fn norm(&self, x: Tensor<'c>, name: &str) -> Result<Tensor<'c>> {
        let (_, w) = self.weight(&format!("{name}.weight"))?;
        self.b.mul(self.b.rms_norm(x, self.hp.rms_eps)?, w)
    }

    /// Pre-norm attention with projections `attn_{q,k,v,output}`: `[n_embd, T]` to the residual to add.
    pub fn attention(&self, x: Tensor<'c>, il: usize) -> Result<Tensor<'c>> {
        let blk = |part: &str| format!("blk.{il}.{part}");
        let normed = self.norm(x, &blk("attn_norm"))?;
        let [q, k, v] = self.linears(normed, [&blk("attn_q"), &blk("attn_k"), &blk("attn_v")])?;
        let out = self.attend(q, k, v, il)?;
        let out = self.linear(self.wanted(out, il)?, &blk("attn_output"))?;
        self.b.name(out, &format!("attn_out-{il}"));
        Ok(out)
    }

    /// Pre-norm gated feed-forward `ffn_{gate,up,down}`: `[n_embd, T]` to the residual to add.
    pub fn swiglu_ffn(&self, x: Tensor<'c>, il: usize) -> Result<Tensor<'c>> {
        let blk = |part: &str| format!("blk.{il}.{part}");
        let normed = self.norm(x, &blk("ffn_norm"))?;
        let [gate, up] = self.linears(normed, [&blk("ffn_gate"), &blk("ffn_up")])?;
        let out = self.linear(self.b.swiglu(gate, up)?, &blk("ffn_down"))?;
        self.b.name(out, &format!("ffn_out-{il}"));
        Ok(out)
    }

    /// Final norm and logits; the output matrix is the token embedding where the file has none of its own.
    pub fn logits(&self, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let x = self.norm(x, "output_norm")?;
        let name = if self.weights.get("output.weight").is_some() {
            "output.weight"
        } else {
            crate::weights::TOKEN_EMBD
        };
        self.product(x, name)
    }

    /// In the last layer, once keys and values are stored, only tokens whose logits are wanted go on.
    pub fn wanted(&self, x: Tensor<'c>, il: usize) -> Result<Tensor<'c>> {
        match self.out_ids {
            Some(ids) if il + 1 == self.hp.n_layer => self.b.get_rows(x, ids),
            _ => Ok(x),
        }
    }
}
