//! The layer of most architectures: attention and a feed-forward, each added to the residual stream, with norms where the
//! architecture has them.

use ggml::tensor::{StoreTensor, Tensor};
use ggml::Result;

use super::parts::{FeedForward, NormedHeads, QkvMaps};
use super::{Arch, Layer};
use crate::graph::{Graph, Mixing};
use crate::ids::{NormRole, Role};
use crate::layers::{LayerLoader, Linear, Norm};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Norms {
    /// Before attention, and, by the name of this role, before the feed-forward.
    Before(NormRole),
    /// Before attention; the feed-forward reads the same norm of the layer's input.
    Shared,
    /// Before and after both.
    Around,
    /// After both.
    After,
}

#[derive(Debug)]
pub(super) struct Block {
    attn_norm: Option<Norm>,
    qkv: QkvMaps,
    heads: Option<NormedHeads>,
    sinks: Option<StoreTensor>,
    o: Linear,
    attn_post_norm: Option<Norm>,
    ffn_norm: Option<Norm>,
    ffn: FeedForward,
    ffn_post_norm: Option<Norm>,
    /// True if the feed-forward reads the layer's input, not what attention made of it.
    parallel: bool,
    residual_scale: f32,
}

impl Block {
    pub(super) fn load(arch: &Arch, loader: &LayerLoader<'_, '_>) -> Result<Box<dyn Layer>> {
        let (hp, norms) = (loader.hp(), arch.norms);
        let norm = |is: bool, role| is.then(|| loader.norm(role, hp.n_embd)).transpose();
        let after = matches!(norms, Norms::Around | Norms::After);
        let attn_norm = norm(norms != Norms::After, NormRole::Attn)?;
        Ok(Box::new(Block {
            qkv: QkvMaps::load(loader, arch.qkv_bias)?,
            heads: NormedHeads::load(loader, arch.qk_norms)?,
            sinks: arch.sinks.then(|| loader.sinks()).transpose()?,
            o: loader.linear(Role::O, loader.attention()?.n_embd_q(), hp.n_embd, arch.o_bias)?,
            attn_post_norm: norm(after, NormRole::AttnPost)?,
            ffn_norm: match norms {
                Norms::Before(role) => norm(true, role)?,
                Norms::Shared => attn_norm.clone(),
                Norms::Around => norm(true, NormRole::Ffn)?,
                Norms::After => None,
            },
            ffn: FeedForward::load(loader, arch.ffn)?,
            ffn_post_norm: norm(after, NormRole::FfnPost)?,
            attn_norm,
            parallel: hp.parallel_residual || norms == Norms::Shared,
            residual_scale: hp.residual_scale,
        }))
    }
}

impl Layer for Block {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Mixing<'_, 'c>> {
        let qkv = self.qkv.apply(g, normed(g, x, &self.attn_norm)?)?;
        let qkv = self.heads.as_ref().map_or(Ok(qkv), |heads| heads.apply(g, qkv))?;
        Ok(Mixing::Attention(qkv))
    }

    fn sinks(&self) -> Option<&StoreTensor> {
        self.sinks.as_ref()
    }

    fn after_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>, out: Tensor<'c>) -> Result<Tensor<'c>> {
        let out = normed(g, g.linear(out, &self.o)?, &self.attn_post_norm)?;
        let attended = g.add(g.scale(out, self.residual_scale)?, x)?;
        let read = if self.parallel { x } else { attended };
        let h = self.ffn.apply(g, normed(g, read, &self.ffn_norm)?)?;
        g.add(g.scale(normed(g, h, &self.ffn_post_norm)?, self.residual_scale)?, attended)
    }
}

/// The norm of `x`, or `x` where there is none.
fn normed<'c>(g: &Graph<'_, 'c>, x: Tensor<'c>, norm: &Option<Norm>) -> Result<Tensor<'c>> {
    norm.as_ref().map_or(Ok(x), |norm| g.norm(x, norm))
}
