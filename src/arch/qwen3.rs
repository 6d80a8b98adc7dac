//! Qwen3 (dense): Llama's layer with an RMS norm on each query and key head, and pairs of dimensions formed
//! of halves.

use ggml::tensor::Tensor;
use ggml::Result;

use super::llama::LlamaLayer;
use super::{Arch, Layer};
use crate::graph::{Graph, Pairing, Qkv};
use crate::ids::NormRole;
use crate::layers::{Bias, LayerLoader, Norm};

pub(super) static QWEN3: Arch =
    Arch { name: "qwen3", pairing: Pairing::Halves, layer: |loader| Ok(Box::new(Qwen3Layer::load(loader)?)) };

#[derive(Debug)]
struct Qwen3Layer {
    llama: LlamaLayer,
    q_norm: Norm,
    k_norm: Norm,
}

impl Qwen3Layer {
    fn load(loader: &LayerLoader<'_, '_>) -> Result<Qwen3Layer> {
        let d = loader.attention().n_embd_head;
        Ok(Qwen3Layer {
            llama: LlamaLayer::load(loader, Bias::No)?,
            q_norm: loader.norm(NormRole::Q, d)?,
            k_norm: loader.norm(NormRole::K, d)?,
        })
    }
}

impl Layer for Qwen3Layer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Qkv<'c>> {
        let Qkv { q, k, v } = self.llama.before_attention(g, x)?;
        Ok(Qkv { q: g.head_norm(q, &self.q_norm)?, k: g.head_norm(k, &self.k_norm)?, v })
    }

    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        self.llama.after_attention(g, x, attn_out)
    }
}
