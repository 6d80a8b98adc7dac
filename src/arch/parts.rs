//! Parts that layers of several architectures share: queries, keys and values, and the feed-forward.

use ggml::tensor::Tensor;
use ggml::{Error, Result};

use crate::graph::{Graph, Qkv};
use crate::hparams::{keys, Gelu};
use crate::ids::{NormRole, Role};
use crate::layers::{Bias, Experts, LayerLoader, Linear, Norm, SharedExpert};

/// The maps to queries, keys and values.
#[derive(Debug)]
pub(super) enum QkvMaps {
    /// One for each.
    Apart(Box<[Linear; 3]>),
    /// One whose output is queries, keys and values, of these widths.
    Fused(Linear, [usize; 3]),
}

impl QkvMaps {
    /// The file's `attn_qkv`, or else its `attn_q`, `attn_k` and `attn_v`.
    pub(super) fn load(loader: &LayerLoader<'_, '_>, bias: Bias) -> Result<QkvMaps> {
        let n_embd = loader.hp().n_embd;
        let (q, kv) = (loader.attention()?.n_embd_q(), loader.attention()?.n_embd_kv());
        if loader.has(Role::Qkv) {
            return Ok(QkvMaps::Fused(loader.linear(Role::Qkv, n_embd, q + 2 * kv, bias)?, [q, kv, kv]));
        }
        let one = |role, n_out| loader.linear(role, n_embd, n_out, bias);
        Ok(QkvMaps::Apart(Box::new([one(Role::Q, q)?, one(Role::K, kv)?, one(Role::V, kv)?])))
    }

    /// From what attention reads, `[n_embd, T]`.
    pub(super) fn apply<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Qkv<'c>> {
        let [q, k, v] = match self {
            QkvMaps::Apart(maps) => {
                let [q, k, v] = &**maps;
                g.linears(x, [q, k, v])?
            }
            QkvMaps::Fused(map, widths) => g.split(g.linear(x, map)?, *widths)?,
        };
        Ok(Qkv { q, k, v, gate: None })
    }
}

/// The parts around attention: the norm of the layer's input, the maps of it, and the map back.
#[derive(Debug)]
pub(super) struct Attention {
    norm: Norm,
    qkv: QkvMaps,
    o: Linear,
}

impl Attention {
    pub(super) fn load(loader: &LayerLoader<'_, '_>, qkv_bias: Bias, o_bias: Bias) -> Result<Attention> {
        let n_embd = loader.hp().n_embd;
        Ok(Attention {
            norm: loader.norm(NormRole::Attn, n_embd)?,
            qkv: QkvMaps::load(loader, qkv_bias)?,
            o: loader.linear(Role::O, loader.attention()?.n_embd_q(), n_embd, o_bias)?,
        })
    }

    /// The layer's input as attention reads it, `[n_embd, T]`.
    pub(super) fn normed<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        g.norm(x, &self.norm)
    }

    /// From the layer's input, `[n_embd, T]`.
    pub(super) fn qkv<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Qkv<'c>> {
        self.qkv.apply(g, self.normed(g, x)?)
    }

    /// From the output of attention, `[n_head * d, T]`, to `[n_embd, T]`.
    pub(super) fn out<'c>(&self, g: &Graph<'_, 'c>, attn_out: Tensor<'c>) -> Result<Tensor<'c>> {
        g.linear(attn_out, &self.o)
    }
}

/// Norms of each query and key head.
#[derive(Debug)]
pub(super) struct HeadNorms {
    q: Norm,
    k: Norm,
}

impl HeadNorms {
    pub(super) fn load(loader: &LayerLoader<'_, '_>) -> Result<HeadNorms> {
        let d = loader.attention()?.n_embd_head;
        Ok(HeadNorms { q: loader.norm(NormRole::Q, d)?, k: loader.norm(NormRole::K, d)? })
    }

    pub(super) fn apply<'c>(&self, g: &Graph<'_, 'c>, qkv: Qkv<'c>) -> Result<Qkv<'c>> {
        Ok(Qkv { q: g.head_norm(qkv.q, &self.q)?, k: g.head_norm(qkv.k, &self.k)?, ..qkv })
    }
}

/// The function that a gate is passed through.
#[derive(Debug, Clone, Copy)]
pub(super) enum Activation {
    Silu,
    Gelu,
}

/// A feed-forward network.
#[derive(Debug)]
pub(super) enum FeedForward {
    /// `down(act(gate(x)) * up(x))`.
    Gated { gate: Box<Linear>, up: Linear, down: Linear, act: Activation },
    /// The same with SiLU and one map to gate and up, in this order.
    FusedGate { gate_up: Linear, down: Linear },
    /// `down(gelu(up(x)))`.
    Plain { up: Linear, down: Linear, gelu: Gelu },
    /// Some of many, chosen for each token.
    Mixture(Box<Experts>),
    /// The same, and one that every token is given to.
    MixtureAndShared { chosen: Box<Experts>, shared: Box<SharedExpert> },
}

impl FeedForward {
    pub(super) fn gated(loader: &LayerLoader<'_, '_>, act: Activation, bias: Bias) -> Result<FeedForward> {
        let (n_embd, n_ff) = (loader.hp().n_embd, loader.n_ff());
        if let (Activation::Gelu, Gelu::Erf) = (act, loader.hp().gelu) {
            let what = "found erf, expected tanh: a gate through GELU has no other form here";
            return Err(Error::Argument(format!("{}: {what}", keys::GELU)));
        }
        Ok(FeedForward::Gated {
            gate: Box::new(loader.linear(Role::Gate, n_embd, n_ff, bias)?),
            up: loader.linear(Role::Up, n_embd, n_ff, bias)?,
            down: loader.linear(Role::Down, n_ff, n_embd, bias)?,
            act,
        })
    }

    pub(super) fn fused_gate(loader: &LayerLoader<'_, '_>) -> Result<FeedForward> {
        let (n_embd, n_ff) = (loader.hp().n_embd, loader.n_ff());
        Ok(FeedForward::FusedGate {
            gate_up: loader.linear(Role::Up, n_embd, 2 * n_ff, Bias::No)?,
            down: loader.linear(Role::Down, n_ff, n_embd, Bias::No)?,
        })
    }

    pub(super) fn plain(loader: &LayerLoader<'_, '_>, bias: Bias) -> Result<FeedForward> {
        let (n_embd, n_ff) = (loader.hp().n_embd, loader.n_ff());
        Ok(FeedForward::Plain {
            up: loader.linear(Role::Up, n_embd, n_ff, bias)?,
            down: loader.linear(Role::Down, n_ff, n_embd, bias)?,
            gelu: loader.hp().gelu,
        })
    }

    /// `[n_embd, T]` to the same.
    pub(super) fn apply<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        match self {
            FeedForward::Gated { gate, up, down, act } => {
                let [gate, up] = g.linears(x, [&**gate, up])?;
                let h = match act {
                    Activation::Silu => g.swiglu(gate, up)?,
                    Activation::Gelu => g.geglu(gate, up)?,
                };
                g.linear(h, down)
            }
            FeedForward::FusedGate { gate_up, down } => {
                let n_ff = down.n_in();
                let [gate, up] = g.split(g.linear(x, gate_up)?, [n_ff, n_ff])?;
                g.linear(g.swiglu(gate, up)?, down)
            }
            FeedForward::Mixture(experts) => g.experts(x, experts),
            FeedForward::MixtureAndShared { chosen, shared } => {
                g.add(g.experts(x, chosen)?, g.shared_expert(x, shared)?)
            }
            FeedForward::Plain { up, down, gelu } => g.linear(g.gelu(g.linear(x, up)?, *gelu)?, down),
        }
    }
}
