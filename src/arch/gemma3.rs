//! Gemma 3 (text): norms before and after attention and feed-forward, a norm on each query and key head, and a
//! gate through GELU. Five of six layers have a window and a rotation of their own.

use ggml::tensor::Tensor;
use ggml::Result;

use super::parts::{Activation, Attention, FeedForward, HeadNorms};
use super::{Arch, Layer};
use crate::graph::{Graph, Mixing, Pairing};
use crate::ids::NormRole;
use crate::layers::{Bias, LayerLoader, Norm};

pub(super) static GEMMA3: Arch = Arch {
    name: "gemma3",
    pairing: Pairing::Halves,
    layer: |loader| Ok(Box::new(GemmaLayer::load(loader, Some(HeadNorms::load(loader)?))?)),
    ..Arch::LIKE_LLAMA
};

/// The layer of Gemma 2 and 3.
#[derive(Debug)]
pub(super) struct GemmaLayer {
    attention: Attention,
    head_norms: Option<HeadNorms>,
    attn_post_norm: Norm,
    ffn_norm: Norm,
    ffn: FeedForward,
    ffn_post_norm: Norm,
}

impl GemmaLayer {
    pub(super) fn load(loader: &LayerLoader<'_, '_>, head_norms: Option<HeadNorms>) -> Result<GemmaLayer> {
        let n_embd = loader.hp().n_embd;
        Ok(GemmaLayer {
            attention: Attention::load(loader, Bias::No, Bias::No)?,
            head_norms,
            attn_post_norm: loader.norm(NormRole::AttnPost, n_embd)?,
            ffn_norm: loader.norm(NormRole::Ffn, n_embd)?,
            ffn: FeedForward::gated(loader, Activation::Gelu, Bias::No)?,
            ffn_post_norm: loader.norm(NormRole::FfnPost, n_embd)?,
        })
    }
}

impl Layer for GemmaLayer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Mixing<'_, 'c>> {
        let qkv = self.attention.qkv(g, x)?;
        let qkv = self.head_norms.as_ref().map_or(Ok(qkv), |norms| norms.apply(g, qkv))?;
        Ok(Mixing::Attention(qkv))
    }

    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let x = g.add(g.norm(self.attention.out(g, attn_out)?, &self.attn_post_norm)?, x)?;
        let h = self.ffn.apply(g, g.norm(x, &self.ffn_norm)?)?;
        g.add(g.norm(h, &self.ffn_post_norm)?, x)
    }
}
