//! What works on each token alone: norms, linear maps, feed-forward, the head. With a tape, each is recorded as it is built.

use ggml::graph::Builder;
use ggml::tensor::{StoreTensor, Tensor};
use ggml::{DType, Result};

use super::tape::{Step, Tape};
use super::Abilities;
use crate::adapter::{Adapter, Pair};
use crate::hparams::Hparams;
use crate::weights::{Weights, TOKEN_EMBD};

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

/// A model's tensors and what adapters change of them.
#[derive(Debug, Clone, Copy)]
pub struct Tensors<'a> {
    /// The model's own.
    pub weights: &'a Weights,
    /// Adapters in force, all at once.
    pub adapters: &'a [Adapter],
}

impl<'a> Tensors<'a> {
    /// The tensor of this name, or what an adapter puts in its place.
    pub fn get(&self, name: &str) -> Option<&'a StoreTensor> {
        self.whole(name).or_else(|| self.weights.get(name))
    }

    /// What an adapter puts in a tensor's place.
    pub fn whole(&self, name: &str) -> Option<&'a StoreTensor> {
        self.adapters.iter().rev().find_map(|a| a.whole(name))
    }

    pub(super) fn pairs<'n>(&self, name: &'n str) -> impl Iterator<Item = &'a Pair> + use<'a, 'n> {
        self.adapters.iter().filter_map(move |a| a.pair(name))
    }
}

/// A model's graph under construction, as far as it is local to a token.
#[derive(Debug)]
pub struct Graph<'a, 'c> {
    /// ggml's side.
    pub b: &'a Builder<'c>,
    /// The model's numbers.
    pub hp: &'a Hparams,
    pub(super) tensors: Tensors<'a>,
    pub(super) abilities: Abilities,
    pub(super) tape: Option<Tape<'a, 'c>>,
}

impl<'a, 'c> Graph<'a, 'c> {
    /// A graph that only runs forwards.
    pub fn new(b: &'a Builder<'c>, hp: &'a Hparams, tensors: Tensors<'a>, abilities: Abilities) -> Self {
        Graph { b, hp, tensors, abilities, tape: None }
    }

    pub(super) fn stored(&self, name: &str) -> Result<&'a StoreTensor> {
        self.tensors
            .get(name)
            .ok_or_else(|| ggml::Error::Op { op: "weight", what: format!("the model has no tensor {name}") })
    }

    fn record(&self, step: impl FnOnce() -> Step<'c>) {
        if let Some(tape) = &self.tape {
            tape.push(step());
        }
    }

    fn bias(&self, x: Tensor<'c>, name: &str) -> Result<Tensor<'c>> {
        match self.tensors.get(&format!("{name}.bias")) {
            Some(bias) => self.b.add(x, self.b.stored(bias)?),
            None => Ok(x),
        }
    }

    /// What a weight of this type is better widened to for a product over `n` tokens.
    fn widens(&self, dtype: DType, n: usize) -> Option<DType> {
        self.abilities.widen.filter(|&to| to != dtype && widen_from(dtype).is_some_and(|from| n >= from))
    }

    /// `W x + bias`, and what adapters add to it: `[n_in, T]` to `[n_out, T]` with the tensors `{name}.weight` and, where the
    /// file has it, `{name}.bias`.
    pub fn linear(&self, x: Tensor<'c>, name: &str) -> Result<Tensor<'c>> {
        let weight = format!("{name}.weight");
        if let Some(tape) = &self.tape {
            return tape.linear(self, x, &weight, |y| self.bias(y, name));
        }
        let y = self.product(x, &weight)?;
        self.bias(self.low_rank(y, x, &weight)?, name)
    }

    fn product(&self, x: Tensor<'c>, weight: &str) -> Result<Tensor<'c>> {
        let stored = self.stored(weight)?;
        let w = self.b.stored(stored)?;
        match self.widens(stored.def().dtype, x.ne()[1]) {
            Some(to) => self.b.mul_mat(self.b.widen(&[w], to)?, x),
            None => self.b.mul_mat(w, x),
        }
    }

    fn low_rank(&self, mut y: Tensor<'c>, x: Tensor<'c>, weight: &str) -> Result<Tensor<'c>> {
        for Pair { a, b, scale } in self.tensors.pairs(weight) {
            let h = self.b.scale(self.b.mul_mat(self.b.stored(a)?, x)?, *scale)?;
            y = self.b.add(y, self.b.mul_mat(self.b.stored(b)?, h)?)?;
        }
        Ok(y)
    }

    /// Several linear maps of one input, as one product where the weights are widened and small.
    pub fn linears<const N: usize>(&self, x: Tensor<'c>, names: [&str; N]) -> Result<[Tensor<'c>; N]> {
        let mut out = [x; N];
        let mut ws = Vec::with_capacity(N);
        let mut bytes = 0;
        for name in names.iter().filter(|_| self.tape.is_none()) {
            let stored = self.stored(&format!("{name}.weight"))?;
            if self.widens(stored.def().dtype, x.ne()[1]).is_some() {
                let w = self.b.stored(stored)?;
                bytes += w.ne()[0] * w.ne()[1] * 4;
                ws.push(w);
            }
        }
        let to = self.abilities.widen.filter(|_| ws.len() == N && bytes <= FUSED_MAX);
        if let Some(to) = to {
            let all = self.b.mul_mat(self.b.widen(&ws, to)?, x)?;
            let mut from = 0;
            for ((out, w), name) in out.iter_mut().zip(&ws).zip(names) {
                let y = self.b.columns(all, from, w.ne()[1])?;
                *out = self.bias(self.low_rank(y, x, &format!("{name}.weight"))?, name)?;
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
        let name = format!("{name}.weight");
        let w = self.b.stored(self.stored(&name)?)?;
        let normed = self.b.rms_norm(x, self.hp.rms_eps)?;
        let out = self.b.mul(normed, w)?;
        self.record(|| Step::Norm { out, x, normed, w, name });
        Ok(out)
    }

    /// `a + b`, of one shape.
    pub fn add(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        let out = self.b.add(a, b)?;
        self.record(|| Step::Add { out, a, b });
        Ok(out)
    }

    /// `silu(gate) * up`.
    pub fn swiglu(&self, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        let out = self.b.swiglu(gate, up)?;
        self.record(|| Step::SwiGlu { out, gate, up });
        Ok(out)
    }

    /// Pre-norm projections `attn_{q,k,v}`: `[n_embd, T]` to q, k and v.
    pub fn qkv(&self, x: Tensor<'c>, il: usize) -> Result<[Tensor<'c>; 3]> {
        let blk = |part: &str| format!("blk.{il}.{part}");
        let normed = self.norm(x, &blk("attn_norm"))?;
        self.linears(normed, [&blk("attn_q"), &blk("attn_k"), &blk("attn_v")])
    }

    /// What attention found, projected by `attn_output`: the residual to add.
    pub fn attn_output(&self, attn: Tensor<'c>, il: usize) -> Result<Tensor<'c>> {
        let out = self.linear(attn, &format!("blk.{il}.attn_output"))?;
        self.b.name(out, &format!("attn_out-{il}"));
        Ok(out)
    }

    /// Pre-norm gated feed-forward `ffn_{gate,up,down}`: `[n_embd, T]` to the residual to add.
    pub fn swiglu_ffn(&self, x: Tensor<'c>, il: usize) -> Result<Tensor<'c>> {
        let blk = |part: &str| format!("blk.{il}.{part}");
        let normed = self.norm(x, &blk("ffn_norm"))?;
        let [gate, up] = self.linears(normed, [&blk("ffn_gate"), &blk("ffn_up")])?;
        let out = self.linear(self.swiglu(gate, up)?, &blk("ffn_down"))?;
        self.b.name(out, &format!("ffn_out-{il}"));
        Ok(out)
    }

    /// Final norm and logits; the output matrix is the token embedding where the file has none of its own.
    pub fn logits(&self, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let x = self.norm(x, "output_norm")?;
        let tied = self.tensors.get("output.weight").is_none();
        self.linear(x, if tied { TOKEN_EMBD.trim_end_matches(".weight") } else { "output" })
    }
}
