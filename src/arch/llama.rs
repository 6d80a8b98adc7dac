//! Llama 1/2/3, Mistral, SmolLM2, TinyLlama: pre-norm attention and a gated feed-forward.

use ggml::tensor::Tensor;
use ggml::Result;

use super::{Arch, Layer};
use crate::graph::{Graph, Pairing, Qkv};
use crate::ids::{NormRole, Role};
use crate::layers::{Bias, LayerLoader, Linear, Norm};

pub(super) static LLAMA: Arch = Arch {
    name: "llama",
    pairing: Pairing::Adjacent,
    layer: |loader| Ok(Box::new(LlamaLayer::load(loader, Bias::No)?)),
};

/// The layer that Llama and its kin share.
#[derive(Debug)]
pub(super) struct LlamaLayer {
    attn_norm: Norm,
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    ffn_norm: Norm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl LlamaLayer {
    /// `qkv_bias`: whether queries, keys and values have biases.
    pub(super) fn load(loader: &LayerLoader<'_, '_>, qkv_bias: Bias) -> Result<LlamaLayer> {
        let (n_embd, n_ff) = (loader.hp().n_embd, loader.n_ff());
        let (n_q, n_kv) = (loader.attention().n_embd_q(), loader.attention().n_embd_kv());
        Ok(LlamaLayer {
            attn_norm: loader.norm(NormRole::Attn, n_embd)?,
            q: loader.linear(Role::Q, n_embd, n_q, qkv_bias)?,
            k: loader.linear(Role::K, n_embd, n_kv, qkv_bias)?,
            v: loader.linear(Role::V, n_embd, n_kv, qkv_bias)?,
            o: loader.linear(Role::O, n_q, n_embd, Bias::No)?,
            ffn_norm: loader.norm(NormRole::Ffn, n_embd)?,
            gate: loader.linear(Role::Gate, n_embd, n_ff, Bias::No)?,
            up: loader.linear(Role::Up, n_embd, n_ff, Bias::No)?,
            down: loader.linear(Role::Down, n_ff, n_embd, Bias::No)?,
        })
    }
}

impl Layer for LlamaLayer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Qkv<'c>> {
        let h = g.norm(x, &self.attn_norm)?;
        let [q, k, v] = g.linears(h, [&self.q, &self.k, &self.v])?;
        Ok(Qkv { q, k, v })
    }

    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let x = g.add(g.linear(attn_out, &self.o)?, x)?;
        let h = g.norm(x, &self.ffn_norm)?;
        let [gate, up] = g.linears(h, [&self.gate, &self.up])?;
        g.add(g.linear(g.swiglu(gate, up)?, &self.down)?, x)
    }
}
