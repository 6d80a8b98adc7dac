//! Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: Llama's layer with queries, keys and values of one map, gate and up of
//! another, and pairs of dimensions formed of halves. A sliding window in the file is not used, as in llama.cpp.

use super::llama::LlamaLayer;
use super::parts::FeedForward;
use super::Arch;
use crate::graph::Pairing;
use crate::layers::Bias;

pub(super) static PHI3: Arch = Arch {
    name: "phi3",
    pairing: Pairing::Halves,
    layer: |loader| Ok(Box::new(LlamaLayer::with(loader, Bias::No, Bias::No, FeedForward::fused_gate)?)),
    ..Arch::LIKE_LLAMA
};
