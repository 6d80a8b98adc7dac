//! Ministral 3: Llama's layer; YaRN and an attention temperature are in the file.

use super::llama::LlamaLayer;
use super::Arch;
use crate::layers::Bias;

pub(super) static MISTRAL3: Arch = Arch {
    name: "mistral3",
    layer: |loader| Ok(Box::new(LlamaLayer::load(loader, Bias::Optional, Bias::Optional)?)),
    ..Arch::LIKE_LLAMA
};
