//! OLMo 2 and OLMo 3: norms after attention and feed-forward and none before them, and norms over all query
//! heads and all key heads at once. OLMo 3 has a window in three of four layers.

use ggml::tensor::Tensor;
use ggml::Result;

use super::parts::{Activation, FeedForward, QkvMaps};
use super::{Arch, Layer};
use crate::graph::{Graph, Mixing, Pairing, Qkv};
use crate::ids::{NormRole, Role};
use crate::layers::{Bias, LayerLoader, Linear, Norm};

pub(super) static OLMO2: Arch = Arch {
    name: "olmo2",
    pairing: Pairing::Halves,
    layer: |loader| Ok(Box::new(OlmoLayer::load(loader)?)),
    ..Arch::LIKE_LLAMA
};

#[derive(Debug)]
struct OlmoLayer {
    qkv: QkvMaps,
    q_norm: Norm,
    k_norm: Norm,
    o: Linear,
    attn_post_norm: Norm,
    ffn: FeedForward,
    ffn_post_norm: Norm,
}

impl OlmoLayer {
    fn load(loader: &LayerLoader<'_, '_>) -> Result<OlmoLayer> {
        let (n_embd, n_embd_q) = (loader.hp().n_embd, loader.attention()?.n_embd_q());
        Ok(OlmoLayer {
            qkv: QkvMaps::load(loader, Bias::No)?,
            q_norm: loader.norm(NormRole::Q, n_embd_q)?,
            k_norm: loader.norm(NormRole::K, loader.attention()?.n_embd_kv())?,
            o: loader.linear(Role::O, n_embd_q, n_embd, Bias::No)?,
            attn_post_norm: loader.norm(NormRole::AttnPost, n_embd)?,
            ffn: FeedForward::gated(loader, Activation::Silu, Bias::No)?,
            ffn_post_norm: loader.norm(NormRole::FfnPost, n_embd)?,
        })
    }
}

impl Layer for OlmoLayer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Mixing<'_, 'c>> {
        let qkv = self.qkv.apply(g, x)?;
        let (q, k) = (g.norm(qkv.q, &self.q_norm)?, g.norm(qkv.k, &self.k_norm)?);
        Ok(Mixing::Attention(Qkv { q, k, ..qkv }))
    }

    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let x = g.add(g.norm(g.linear(attn_out, &self.o)?, &self.attn_post_norm)?, x)?;
        g.add(g.norm(self.ffn.apply(g, x)?, &self.ffn_post_norm)?, x)
    }
}
