//! Parts that layers of several architectures share: queries, keys and values, and the feed-forward.

use ggml::experts::{Gating, GatingKind};
use ggml::tensor::Tensor;
use ggml::{Error, Result};

use crate::graph::{Graph, Qkv};
use crate::hparams::{keys, Gelu};
use crate::ids::{NormRole, Role};
use crate::layers::{Bias, ExpertActivation, Experts, LayerLoader, Linear, Norm, SharedExpert};

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

/// Norms of queries and keys, as an architecture declares them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QkNorms {
    No,
    EachHead,
    /// One of all query heads at once, and of all key heads.
    AllHeads,
}

#[derive(Debug)]
pub(super) struct NormedHeads {
    q: Norm,
    k: Norm,
    each: bool,
}

impl NormedHeads {
    pub(super) fn load(loader: &LayerLoader<'_, '_>, norms: QkNorms) -> Result<Option<NormedHeads>> {
        let (a, each) = (loader.attention()?, norms == QkNorms::EachHead);
        let (q, k) = match norms {
            QkNorms::No => return Ok(None),
            QkNorms::EachHead => (a.n_embd_head, a.n_embd_head),
            QkNorms::AllHeads => (a.n_embd_q(), a.n_embd_kv()),
        };
        Ok(Some(NormedHeads { q: loader.norm(NormRole::Q, q)?, k: loader.norm(NormRole::K, k)?, each }))
    }

    pub(super) fn apply<'c>(&self, g: &Graph<'_, 'c>, qkv: Qkv<'c>) -> Result<Qkv<'c>> {
        let norm = |x, norm: &Norm| if self.each { g.head_norm(x, norm) } else { g.norm(x, norm) };
        Ok(Qkv { q: norm(qkv.q, &self.q)?, k: norm(qkv.k, &self.k)?, ..qkv })
    }
}

/// The function that a gate is passed through.
#[derive(Debug, Clone, Copy)]
pub(super) enum Activation {
    Silu,
    Gelu,
}

/// A feed-forward network, as an architecture declares it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ffn {
    Gated(Activation, Bias),
    FusedGate,
    Plain(Bias),
    /// Experts chosen and weighted by a softmax over all, plus one that every token is given to if `shared`.
    Mixture {
        shared: bool,
    },
    /// That of gpt-oss: another activation, experts weighted by a softmax over those chosen.
    OaiMixture,
}

#[derive(Debug)]
pub(super) enum FeedForward {
    /// `down(act(gate(x)) * up(x))`.
    Gated { gate: Box<Linear>, up: Linear, down: Linear, act: Activation },
    /// The same with SiLU and one map to gate and up, in this order.
    FusedGate { gate_up: Linear, down: Linear },
    /// `down(gelu(up(x)))`.
    Plain { up: Linear, down: Linear, gelu: Gelu },
    /// Some of many, chosen for each token, and in some models one that every token is given to.
    Mixture { chosen: Box<Experts>, shared: Option<Box<SharedExpert>> },
}

impl FeedForward {
    pub(super) fn load(loader: &LayerLoader<'_, '_>, ffn: Ffn) -> Result<FeedForward> {
        let (hp, n_ff) = (loader.hp(), loader.n_ff());
        let wide = |role, n_out, bias| loader.linear(role, hp.n_embd, n_out, bias);
        let down = |bias| loader.linear(Role::Down, n_ff, hp.n_embd, bias);
        Ok(match ffn {
            Ffn::Gated(Activation::Gelu, _) if hp.gelu == Gelu::Erf => {
                let what = "found erf, expected tanh: a gate through GELU has no other form here";
                return Err(Error::Argument(format!("{}: {what}", keys::GELU)));
            }
            Ffn::Gated(act, bias) => FeedForward::Gated {
                gate: Box::new(wide(Role::Gate, n_ff, bias)?),
                up: wide(Role::Up, n_ff, bias)?,
                down: down(bias)?,
                act,
            },
            Ffn::FusedGate => {
                FeedForward::FusedGate { gate_up: wide(Role::Up, 2 * n_ff, Bias::No)?, down: down(Bias::No)? }
            }
            Ffn::Plain(bias) => {
                FeedForward::Plain { up: wide(Role::Up, n_ff, bias)?, down: down(bias)?, gelu: hp.gelu }
            }
            Ffn::Mixture { shared } => {
                let normalised = hp.experts.is_none_or(|experts| experts.normalised);
                let gating = Gating { kind: GatingKind::Softmax, normalised };
                let chosen = Box::new(loader.experts(gating, ExpertActivation::SwiGlu, Bias::No)?);
                let shared = shared.then(|| loader.shared_expert().map(Box::new)).transpose()?;
                FeedForward::Mixture { chosen, shared }
            }
            Ffn::OaiMixture => {
                let gating = Gating { kind: GatingKind::SoftmaxOfChosen, normalised: false };
                // Alpha and limit: `LLM_FFN_SWIGLU_OAI_MOE` in llama.cpp's `llama-graph.cpp`.
                let activation = ExpertActivation::SwiGluOai([1.702, 7.0]);
                let chosen = Box::new(loader.experts(gating, activation, Bias::Yes)?);
                FeedForward::Mixture { chosen, shared: None }
            }
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
            FeedForward::Mixture { chosen, shared } => {
                let out = g.experts(x, chosen)?;
                shared.as_ref().map_or(Ok(out), |shared| g.add(out, g.shared_expert(x, shared)?))
            }
            FeedForward::Plain { up, down, gelu } => g.linear(g.gelu(g.linear(x, up)?, *gelu)?, down),
        }
    }
}
