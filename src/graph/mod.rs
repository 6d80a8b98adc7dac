//! Graphs of a model. `blocks` has all that works on each token alone, `tape` runs that backwards with the products of
//! `products`; `attend` is attention through a cache under the plan in force, `rotate` its positions.

mod attend;
mod blocks;
mod products;
mod rotate;
mod tape;

use ggml::DType;

use crate::kv::Span;
use crate::rope::MAX_BRANCHES;

pub use attend::{Cached, GraphInputs};
pub use blocks::Graph;
pub use rotate::{Pairing, Rotation, RotationInputs, Rotations, RotationsInputs};
pub use tape::{Gradient, Recording, SavedActivation};

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

/// Ways of computing that a device and the settings of a session allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Ops of our own, which exist on the CPU.
    pub custom_ops: bool,
    /// The type weights are dequantised to for large batches, where that is faster than their own product.
    pub dequantize: Option<DType>,
    /// Attention without the score matrix.
    pub flash: bool,
}
