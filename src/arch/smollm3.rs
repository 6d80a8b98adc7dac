//! SmolLM3: Llama's layers, of which every fourth is not rotated (`core/hparams/rules.rs` says
//! which).

use super::llama::LlamaLayer;
use super::Arch;
use crate::layers::Bias;

pub(super) static SMOLLM3: Arch = Arch {
    name: "smollm3",
    layer: |loader| Ok(Box::new(LlamaLayer::load(loader, Bias::Optional, Bias::Optional)?)),
    ..Arch::LIKE_LLAMA
};
