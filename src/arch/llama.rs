//! Llama 1/2/3, Mistral, SmolLM2, TinyLlama: pre-norm attention and a gated feed-forward.

use ggml::tensor::Tensor;
use ggml::Result;

use super::parts::{Activation, Attention, FeedForward};
use super::{Arch, Layer};
use crate::graph::{Graph, Mixing, Qkv};
use crate::ids::NormRole;
use crate::layers::{Bias, LayerLoader, Norm};

pub(super) static LLAMA: Arch = Arch {
    name: "llama",
    layer: |loader| Ok(Box::new(LlamaLayer::load(loader, Bias::Optional, Bias::Optional)?)),
    ..Arch::LIKE_LLAMA
};

/// The layer that Llama and its kin share.
#[derive(Debug)]
pub(super) struct LlamaLayer {
    attention: Attention,
    ffn_norm: Norm,
    ffn: FeedForward,
    residual_scale: f32,
}

impl LlamaLayer {
    /// `qkv_bias`: whether queries, keys and values have biases; `bias`: whether the other maps have.
    pub(super) fn load(loader: &LayerLoader<'_, '_>, qkv_bias: Bias, bias: Bias) -> Result<LlamaLayer> {
        let ffn = |loader: &LayerLoader<'_, '_>| FeedForward::gated(loader, Activation::Silu, bias);
        LlamaLayer::with(loader, qkv_bias, bias, ffn)
    }

    /// With another feed-forward.
    pub(super) fn with(
        loader: &LayerLoader<'_, '_>,
        qkv_bias: Bias,
        o_bias: Bias,
        ffn: impl Fn(&LayerLoader<'_, '_>) -> Result<FeedForward>,
    ) -> Result<LlamaLayer> {
        Ok(LlamaLayer {
            attention: Attention::load(loader, qkv_bias, o_bias)?,
            ffn_norm: loader.norm(NormRole::Ffn, loader.hp().n_embd)?,
            ffn: ffn(loader)?,
            residual_scale: loader.hp().residual_scale,
        })
    }

    pub(super) fn qkv<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Qkv<'c>> {
        self.attention.qkv(g, x)
    }
}

impl Layer for LlamaLayer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Mixing<'_, 'c>> {
        self.qkv(g, x).map(Mixing::Attention)
    }

    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let x = g.add(g.scale(self.attention.out(g, attn_out)?, self.residual_scale)?, x)?;
        let h = self.ffn.apply(g, g.norm(x, &self.ffn_norm)?)?;
        g.add(g.scale(h, self.residual_scale)?, x)
    }
}
