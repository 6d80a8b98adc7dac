//! What an architecture builds its layers from. All but attention works on each token alone: `blocks` has that, `tape` runs it
//! backwards. `attend` is attention through a cache under the plan in force, `rotate` its positions.

mod attend;
mod blocks;
mod rotate;
mod tape;

use ggml::DType;

use crate::kv::Span;
use crate::rope::MAX_BRANCHES;

pub use attend::{Cached, GraphInputs};
pub use blocks::{Graph, Tensors};
pub use rotate::{Pairing, Rotation, RotationInputs, Rotations, RotationsInputs};
pub use tape::{Gradient, Handover, Recording};

/// What of a graph can change between micro-batches; graphs of equal shape are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Tokens computed.
    pub n_tokens: usize,
    /// Rows of logits.
    pub n_out: usize,
    /// Cells each branch of the plan attends to.
    pub spans: [Span; MAX_BRANCHES],
}

impl Shape {
    /// Columns of the mask: the cells of every branch side by side.
    pub fn n_columns(&self) -> usize {
        self.spans.iter().map(|s| s.len).sum()
    }
}

/// What the device allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Abilities {
    /// Ops of our own (CPU only).
    pub custom_ops: bool,
    /// The type weights are widened to for large batches, where that is faster than their own product.
    pub widen: Option<DType>,
    /// Attention without the score matrix.
    pub flash: bool,
}
