//! Qwen2 and Qwen2.5: Llama's layer with biases on q, k and v, and pairs of dimensions formed of halves.

use super::llama::LlamaLayer;
use super::Arch;
use crate::graph::Pairing;
use crate::layers::Bias;

pub(super) static QWEN2: Arch = Arch {
    name: "qwen2",
    pairing: Pairing::Halves,
    layer: |loader| Ok(Box::new(LlamaLayer::load(loader, Bias::Yes, Bias::No)?)),
    ..Arch::LIKE_LLAMA
};
