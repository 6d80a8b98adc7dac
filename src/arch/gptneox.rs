//! GPT-NeoX and Pythia: LayerNorm, biases everywhere, a feed-forward without a gate, and a part of each head
//! rotated. Attention and feed-forward read the layer's input both, or one after the other, as the file says.

use ggml::tensor::Tensor;
use ggml::Result;

use super::parts::{Attention, FeedForward};
use super::{Arch, Layer};
use crate::graph::{Graph, Mixing, Pairing};
use crate::ids::NormRole;
use crate::layers::{Bias, LayerLoader, Norm, NormKind};

pub(super) static GPTNEOX: Arch = Arch {
    name: "gptneox",
    pairing: Pairing::Halves,
    norm: NormKind::Layer(Bias::Yes),
    layer: |loader| Ok(Box::new(NeoxLayer::load(loader)?)),
    ..Arch::LIKE_LLAMA
};

#[derive(Debug)]
struct NeoxLayer {
    attention: Attention,
    ffn_norm: Norm,
    ffn: FeedForward,
    parallel: bool,
}

impl NeoxLayer {
    fn load(loader: &LayerLoader<'_, '_>) -> Result<NeoxLayer> {
        Ok(NeoxLayer {
            attention: Attention::load(loader, Bias::Yes, Bias::Yes)?,
            ffn_norm: loader.norm(NormRole::Ffn, loader.hp().n_embd)?,
            ffn: FeedForward::plain(loader, Bias::Yes)?,
            parallel: loader.hp().parallel_residual,
        })
    }
}

impl Layer for NeoxLayer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Mixing<'_, 'c>> {
        self.attention.qkv(g, x).map(Mixing::Attention)
    }

    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let attended = g.add(self.attention.out(g, attn_out)?, x)?;
        let read = if self.parallel { x } else { attended };
        g.add(self.ffn.apply(g, g.norm(read, &self.ffn_norm)?)?, attended)
    }
}
