//! Granite 3 and dense Granite 4: Llama's layer with factors on embedding, residual stream, scores and logits.

use super::llama::LlamaLayer;
use super::Arch;
use crate::layers::Bias;

pub(super) static GRANITE: Arch = Arch {
    name: "granite",
    layer: |loader| Ok(Box::new(LlamaLayer::load(loader, Bias::Optional, Bias::Optional)?)),
    ..Arch::LIKE_LLAMA
};
