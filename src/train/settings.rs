//! Settings of a trainer, and its input text.

use super::params::{LoraParams, Trainable};
use super::saved::{Checkpointing, SavedType};
use super::seen::TrainAttention;
use crate::math::Math;
use crate::rope::Spec;
use crate::Token;

ropewalk_core::setters! {
    /// Settings of a [`Trainer`](super::Trainer). Data, schedule and number of steps are the caller's.
    #[derive(Debug, Clone, PartialEq)]
    pub struct TrainParams {
        /// Tokens of a sequence.
        pub n_ctx: usize,
        /// The context that the rope method is made for and positions stay below, where it is longer than
        /// sequences are (PoSE); `None` is `n_ctx`.
        pub n_positions: Option<usize>,
        /// The rope method trained under; `None` takes the one that the file declares.
        pub rope: Option<Spec>,
        /// Which keys queries see while gradients are computed.
        pub attention: TrainAttention,
        /// The tensors that are trained.
        pub trainable: Trainable,
        /// Tokens computed at once.
        pub n_block: usize,
        /// Threads; 0 is [`default_threads`](ggml::backend::default_threads).
        pub n_threads: usize,
        /// Activation checkpointing; `None` saves as much as fits into half of the free memory on a
        /// CPU, and inputs alone on a GPU.
        pub checkpointing: Option<Checkpointing>,
        /// The type activations are saved as.
        pub saved_type: SavedType,
        /// Bytes that a weight dequantized to floats may take at once.
        pub dequantize_bytes: usize,
        /// Rounding allowed in products: [`Math::Auto`], [`Math::F32`] or [`Math::Bf16`].
        pub math: Math,
        /// Only ops every backend has; on the CPU with one thread.
        pub portable: bool,
        /// True if the optimizer keeps a moving average of the trained tensors, for which [`MemoryPlan`](super::MemoryPlan)
        /// counts the memory.
        pub average: bool,
    }
}

impl TrainParams {
    /// Defaults at this context.
    pub fn new(n_ctx: usize) -> TrainParams {
        TrainParams {
            n_ctx,
            n_positions: None,
            rope: None,
            attention: TrainAttention::Full,
            trainable: Trainable::Lora(LoraParams::default()),
            n_block: 512,
            n_threads: 0,
            checkpointing: None,
            saved_type: SavedType::F32,
            dequantize_bytes: 128 << 20,
            math: Math::Auto,
            portable: false,
            average: false,
        }
    }

    /// Returns the settings with these low-rank pairs.
    #[must_use]
    pub fn lora(self, lora: LoraParams) -> Self {
        self.trainable(Trainable::Lora(lora))
    }

    /// The context that the plan is made for.
    pub(crate) fn planned_ctx(&self) -> usize {
        self.n_positions.unwrap_or(self.n_ctx).max(self.n_ctx)
    }
}

/// Text to learn from: `tokens[i + 1]` is predicted from `tokens[..=i]`.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// Two to `n_ctx + 1` tokens.
    pub tokens: &'a [Token],
    /// Weight of the loss at each of `tokens[1..]`; empty for 1 each.
    pub weights: &'a [f32],
    /// Positions, ascending, at which attention starts again; empty for one segment. These are cumulative
    /// sequence lengths (`cu_seqlens`) without their first and last entry.
    pub segment_starts: &'a [u32],
    /// The RoPE position of each token except the last, ascending; empty for 0, 1, 2, and so on. Attention follows the
    /// order of tokens.
    pub positions: &'a [u32],
}

impl<'a> Sequence<'a> {
    /// Plain text.
    pub fn new(tokens: &'a [Token]) -> Self {
        Sequence { tokens, weights: &[], segment_starts: &[], positions: &[] }
    }
}
