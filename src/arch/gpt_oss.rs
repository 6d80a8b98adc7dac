//! gpt-oss: attention sinks, a window in every second layer, biases on every map, and a mixture of experts with an
//! activation of its own, weighted by a softmax over the experts chosen.

use ggml::experts::{Gating, GatingKind};
use ggml::tensor::{StoreTensor, Tensor};
use ggml::Result;

use super::parts::Attention;
use super::{Arch, Layer};
use crate::graph::{Graph, Mixing, Pairing};
use crate::ids::NormRole;
use crate::layers::{Bias, ExpertActivation, Experts, LayerLoader, Norm};

pub(super) static GPT_OSS: Arch = Arch {
    name: "gpt-oss",
    pairing: Pairing::Halves,
    layer: |loader| Ok(Box::new(GptOssLayer::load(loader)?)),
    ..Arch::LIKE_LLAMA
};

/// Alpha and limit of the activation (`LLM_FFN_SWIGLU_OAI_MOE` in llama.cpp's `llama-graph.cpp`).
const ACTIVATION: [f32; 2] = [1.702, 7.0];

#[derive(Debug)]
struct GptOssLayer {
    attention: Attention,
    sinks: StoreTensor,
    /// Before the feed-forward, by the name of a norm behind attention.
    ffn_norm: Norm,
    experts: Experts,
}

impl GptOssLayer {
    fn load(loader: &LayerLoader<'_, '_>) -> Result<GptOssLayer> {
        let gating = Gating { kind: GatingKind::SoftmaxOfChosen, normalised: false };
        Ok(GptOssLayer {
            attention: Attention::load(loader, Bias::Optional, Bias::Yes)?,
            sinks: loader.sinks()?,
            ffn_norm: loader.norm(NormRole::AttnPost, loader.hp().n_embd)?,
            experts: loader.experts(gating, ExpertActivation::SwiGluOai(ACTIVATION), Bias::Yes)?,
        })
    }
}

impl Layer for GptOssLayer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Mixing<'_, 'c>> {
        self.attention.qkv(g, x).map(Mixing::Attention)
    }

    fn sinks(&self) -> Option<&StoreTensor> {
        Some(&self.sinks)
    }

    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let x = g.add(self.attention.out(g, attn_out)?, x)?;
        g.add(g.experts(g.norm(x, &self.ffn_norm)?, &self.experts)?, x)
    }
}
