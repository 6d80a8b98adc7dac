//! Gemma 2: the layer of Gemma 3 without norms on heads; every second layer has a window, scores are capped.

use super::gemma3::GemmaLayer;
use super::Arch;
use crate::graph::Pairing;

pub(super) static GEMMA2: Arch = Arch {
    name: "gemma2",
    pairing: Pairing::Halves,
    layer: |loader| Ok(Box::new(GemmaLayer::load(loader, None)?)),
    ..Arch::LIKE_LLAMA
};
