//! Qwen3.5, 3.6 and 3.8 (text): three of four layers are gated delta-nets. The fourth attends, with a norm on each query
//! and key head and a gate on its output, which comes out of the same map as the queries. The second norm of a layer has
//! the name of one after attention.

use ggml::tensor::Tensor;
use ggml::Result;

use super::parts::{FeedForward, Ffn};
use super::{Arch, Layer};
use crate::graph::{Graph, Mixing, Qkv};
use crate::ids::{NormRole, Role};
use crate::layers::{Bias, DeltaNet, LayerLoader, Linear, Norm};

pub(super) const QWEN35: Arch = Arch { name: "qwen35", layer: Qwen35Layer::load, ..Arch::BARE };

pub(super) const QWEN35MOE: Arch = Arch { name: "qwen35moe", ffn: Ffn::Mixture { shared: true }, ..QWEN35 };

#[derive(Debug)]
struct Qwen35Layer {
    norm: Norm,
    mixer: Mixer,
    ffn_norm: Norm,
    ffn: FeedForward,
}

#[derive(Debug)]
enum Mixer {
    Attention(Box<GatedAttention>),
    DeltaNet(Box<DeltaNet>),
}

impl Qwen35Layer {
    fn load(arch: &Arch, loader: &LayerLoader<'_, '_>) -> Result<Box<dyn Layer>> {
        let n_embd = loader.hp().n_embd;
        Ok(Box::new(Qwen35Layer {
            norm: loader.norm(NormRole::Attn, n_embd)?,
            mixer: match loader.delta_net()? {
                Some(net) => Mixer::DeltaNet(Box::new(net)),
                None => Mixer::Attention(Box::new(GatedAttention::load(loader)?)),
            },
            ffn_norm: loader.norm(NormRole::AttnPost, n_embd)?,
            ffn: FeedForward::load(loader, arch.ffn)?,
        }))
    }
}

impl Layer for Qwen35Layer {
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Mixing<'_, 'c>> {
        let x = g.norm(x, &self.norm)?;
        match &self.mixer {
            Mixer::Attention(attention) => attention.qkv(g, x).map(Mixing::Attention),
            Mixer::DeltaNet(net) => Ok(Mixing::DeltaNet(net, x)),
        }
    }

    fn after_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>, out: Tensor<'c>) -> Result<Tensor<'c>> {
        let o = match &self.mixer {
            Mixer::Attention(attention) => &attention.o,
            Mixer::DeltaNet(net) => &net.out,
        };
        let x = g.add(g.linear(out, o)?, x)?;
        g.add(self.ffn.apply(g, g.norm(x, &self.ffn_norm)?)?, x)
    }
}

#[derive(Debug)]
struct GatedAttention {
    /// To each head's query and then its gate.
    q_and_gate: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: Norm,
    k_norm: Norm,
}

impl GatedAttention {
    fn load(loader: &LayerLoader<'_, '_>) -> Result<GatedAttention> {
        let (n_embd, attention) = (loader.hp().n_embd, loader.attention()?);
        let (q, kv, d) = (attention.n_embd_q(), attention.n_embd_kv(), attention.n_embd_head);
        Ok(GatedAttention {
            q_and_gate: loader.linear(Role::Q, n_embd, 2 * q, Bias::Optional)?,
            k: loader.linear(Role::K, n_embd, kv, Bias::Optional)?,
            v: loader.linear(Role::V, n_embd, kv, Bias::Optional)?,
            o: loader.linear(Role::O, q, n_embd, Bias::No)?,
            q_norm: loader.norm(NormRole::Q, d)?,
            k_norm: loader.norm(NormRole::K, d)?,
        })
    }

    /// From the normed input, `[n_embd, T]`.
    fn qkv<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Qkv<'c>> {
        let [both, k, v] = g.linears(x, [&self.q_and_gate, &self.k, &self.v])?;
        let d = self.q_norm.weight.def().ne[0];
        let [q, gate] = g.split(g.heads(both, 2 * d)?, [d, d])?;
        let q = g.flat(g.norm(q, &self.q_norm)?)?;
        Ok(Qkv { q, k: g.head_norm(k, &self.k_norm)?, v, gate: Some(g.flat(gate)?) })
    }
}
