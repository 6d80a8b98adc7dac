//! Command R7B and Command A: attention and feed-forward read the same LayerNorm, which has no bias. Three of
//! four layers have a window and are rotated; the others see everything and are not.

use super::parts::{Activation, FeedForward};
use super::phi2::ParallelLayer;
use super::Arch;
use crate::layers::{Bias, NormKind};

pub(super) static COHERE2: Arch = Arch {
    name: "cohere2",
    norm: NormKind::Layer(Bias::No),
    layer: |loader| {
        let ffn = FeedForward::gated(loader, Activation::Silu, Bias::No)?;
        Ok(Box::new(ParallelLayer::load(loader, Bias::No, ffn)?))
    },
    ..Arch::LIKE_LLAMA
};
