//! GPT-NeoX and Pythia: LayerNorm, biases everywhere, a feed-forward without a gate, and a part of each head
//! rotated. Attention and feed-forward read the layer's input both, or one after the other, as the file says.

use ggml::tensor::Tensor;
use ggml::Result;

use super::parts::{FeedForward, QkvMaps};
use super::{Arch, Layer};
use crate::graph::{Graph, Pairing, Qkv};
use crate::ids::{NormRole, Role};
use crate::layers::{Bias, LayerLoader, Linear, Norm, NormKind};

pub(super) static GPTNEOX: Arch = Arch {
    name: "gptneox",
    pairing: Pairing::Halves,
    norm: NormKind::Layer(Bias::Yes),
    layer: |loader| Ok(Box::new(NeoxLayer::load(loader)?)),
    ..Arch::LIKE_LLAMA
};

#[derive(Debug)]
struct NeoxLayer {
    attn_norm: Norm,
    qkv: QkvMaps,
    o: Linear,
    ffn_norm: Norm,
    ffn: FeedForward,
    parallel: bool,
}

impl NeoxLayer {
    fn load(loader: &LayerLoader<'_, '_>) -> Result<NeoxLayer> {
        let n_embd = loader.hp().n_embd;
        Ok(NeoxLayer {
            attn_norm: loader.norm(NormRole::Attn, n_embd)?,
            qkv: QkvMaps::load(loader, Bias::Yes)?,
            o: loader.linear(Role::O, loader.attention().n_embd_q(), n_embd, Bias::Yes)?,
            ffn_norm: loader.norm(NormRole::Ffn, n_embd)?,
            ffn: FeedForward::plain(loader, Bias::Yes)?,
            parallel: loader.hp().parallel_residual,
        })
    }
}

impl Layer for NeoxLayer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Qkv<'c>> {
        self.qkv.apply(g, g.norm(x, &self.attn_norm)?)
    }

    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let attended = g.add(g.linear(attn_out, &self.o)?, x)?;
        let read = if self.parallel { x } else { attended };
        g.add(self.ffn.apply(g, g.norm(read, &self.ffn_norm)?)?, attended)
    }
}
