//! Phi-1, Phi-1.5 and Phi-2: attention and feed-forward read the same LayerNorm of the layer's input; biases
//! everywhere, on the output matrix, too; a part of each head is rotated.

use ggml::tensor::Tensor;
use ggml::Result;

use super::parts::{FeedForward, QkvMaps};
use super::{Arch, Layer};
use crate::graph::{Graph, Pairing, Qkv};
use crate::ids::{NormRole, Role};
use crate::layers::{Bias, LayerLoader, Linear, Norm, NormKind};

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
    norm: Norm,
    qkv: QkvMaps,
    o: Linear,
    ffn: FeedForward,
}

impl ParallelLayer {
    /// `bias`: whether the maps of attention have biases.
    pub(super) fn load(loader: &LayerLoader<'_, '_>, bias: Bias, ffn: FeedForward) -> Result<ParallelLayer> {
        let n_embd = loader.hp().n_embd;
        Ok(ParallelLayer {
            norm: loader.norm(NormRole::Attn, n_embd)?,
            qkv: QkvMaps::load(loader, bias)?,
            o: loader.linear(Role::O, loader.attention().n_embd_q(), n_embd, bias)?,
            ffn,
        })
    }
}

impl Layer for ParallelLayer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Qkv<'c>> {
        self.qkv.apply(g, g.norm(x, &self.norm)?)
    }

    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let attended = g.add(g.linear(attn_out, &self.o)?, x)?;
        g.add(self.ffn.apply(g, g.norm(x, &self.norm)?)?, attended)
    }
}
