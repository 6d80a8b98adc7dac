//! Qwen3 (mixture of experts): Qwen3's layer whose feed-forward is a mixture, with the weights of the experts chosen
//! normalized.

use ggml::experts::{Gating, GatingKind};

use super::llama::LlamaLayer;
use super::parts::{FeedForward, HeadNorms};
use super::qwen3::Qwen3Layer;
use super::Arch;
use crate::graph::Pairing;
use crate::layers::{Bias, ExpertActivation};

pub(super) static QWEN3MOE: Arch = Arch {
    name: "qwen3moe",
    pairing: Pairing::Halves,
    layer: |loader| {
        let normalised = loader.hp().experts.is_none_or(|experts| experts.normalised);
        let gating = Gating { kind: GatingKind::Softmax, normalised };
        let llama = LlamaLayer::with(loader, Bias::No, Bias::No, |loader| {
            let experts = loader.experts(gating, ExpertActivation::SwiGlu, Bias::No)?;
            Ok(FeedForward::Mixture(Box::new(experts)))
        })?;
        Ok(Box::new(Qwen3Layer { llama, head_norms: HeadNorms::load(loader)? }))
    },
    ..Arch::LIKE_LLAMA
};
