//! Qwen3.5 and 3.6 (mixtures of experts, text): Qwen3.5's layer whose feed-forward is a mixture, with normalized
//! weights of the chosen experts, plus one shared expert with a separate gate.

use ggml::experts::{Gating, GatingKind};

use super::parts::FeedForward;
use super::qwen35::Qwen35Layer;
use super::Arch;
use crate::graph::Pairing;
use crate::layers::{Bias, ExpertActivation};

pub(super) static QWEN35MOE: Arch = Arch {
    name: "qwen35moe",
    pairing: Pairing::Halves,
    layer: |loader| {
        let normalised = loader.hp().experts.is_none_or(|experts| experts.normalised);
        let gating = Gating { kind: GatingKind::Softmax, normalised };
        Ok(Box::new(Qwen35Layer::with(loader, |loader| {
            let chosen = Box::new(loader.experts(gating, ExpertActivation::SwiGlu, Bias::No)?);
            Ok(FeedForward::MixtureAndShared { chosen, shared: Box::new(loader.shared_expert()?) })
        })?))
    },
    ..Arch::LIKE_LLAMA
};
