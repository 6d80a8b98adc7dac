//! SmolLM3: Llama's layers, of which every fourth is not rotated (`LAYER_RULES` in `core/hparams.rs` says
//! which).

use super::llama::LlamaLayer;
use super::Arch;
use crate::graph::Pairing;
use crate::layers::Bias;

pub(super) static SMOLLM3: Arch = Arch {
    name: "smollm3",
    pairing: Pairing::Adjacent,
    layer: |loader| Ok(Box::new(LlamaLayer::load(loader, Bias::No)?)),
};
