//! Phi-1, Phi-1.5 and Phi-2: attention and feed-forward read the same LayerNorm of the layer's input; biases
//! everywhere, on the output matrix, too; a part of each head is rotated.

use ggml::tensor::Tensor;
use ggml::Result;

use super::parts::{Attention, FeedForward};
use super::{Arch, Layer};
use crate::graph::{Graph, Mixing, Pairing};
use crate::layers::{Bias, LayerLoader, NormKind};

pub(super) static PHI2: Arch = Arch {
    name: "phi2",
    pairing: Pairing::Halves,
    norm: NormKind::Layer(Bias::Yes),
    output_bias: Bias::Yes,
    layer: |loader| {
        let ffn = FeedForward::plain(loader, Bias::Yes)?;
        Ok(Box::new(ParallelLayer::load(loader, Bias::Yes, ffn)?))
    },
};

/// A layer whose attention and feed-forward both read one norm of its input.
#[derive(Debug)]
pub(super) struct ParallelLayer {
    attention: Attention,
    ffn: FeedForward,
}

impl ParallelLayer {
    /// `bias`: whether the maps of attention have biases.
    pub(super) fn load(loader: &LayerLoader<'_, '_>, bias: Bias, ffn: FeedForward) -> Result<ParallelLayer> {
        Ok(ParallelLayer { attention: Attention::load(loader, bias, bias)?, ffn })
    }
}

impl Layer for ParallelLayer {
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
        g.add(self.ffn.apply(g, self.attention.normed(g, x)?)?, attended)
    }
}
