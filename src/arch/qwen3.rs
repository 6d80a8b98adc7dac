//! Qwen3 (dense): Llama's layer with an RMS norm on each query and key head, and pairs of dimensions formed
//! of halves.

use ggml::tensor::Tensor;
use ggml::Result;

use super::llama::LlamaLayer;
use super::parts::HeadNorms;
use super::{Arch, Layer};
use crate::graph::{Graph, Mixing, Pairing};
use crate::layers::Bias;

pub(super) static QWEN3: Arch = Arch {
    name: "qwen3",
    pairing: Pairing::Halves,
    layer: |loader| {
        let llama = LlamaLayer::load(loader, Bias::Optional, Bias::No)?;
        Ok(Box::new(Qwen3Layer { llama, head_norms: HeadNorms::load(loader)? }))
    },
    ..Arch::LIKE_LLAMA
};

#[derive(Debug)]
pub(super) struct Qwen3Layer {
    pub(super) llama: LlamaLayer,
    pub(super) head_norms: HeadNorms,
}

impl Layer for Qwen3Layer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Mixing<'_, 'c>> {
        self.head_norms.apply(g, self.llama.qkv(g, x)?).map(Mixing::Attention)
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
