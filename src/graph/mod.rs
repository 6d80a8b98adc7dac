//! Graphs of a model. `blocks` has the ops that work on one token alone, `tape` their gradients, and `products` the
//! matrix products of both. `matmul` chooses their kernels (`listing` for a whole file). `activations`, `experts`, and
//! `rotate` are activation functions, mixtures of experts, and the rotary position embedding. `moments` has sums for
//! importance matrices. `attend` is attention through a cache, `online` the same with its gradient in ops of every
//! backend, and `delta_net` its counterpart in recurrent layers.
// Only `internals` shows these items: those whose names and types say all have no doc comments.
#![allow(missing_docs)]

mod activations;
mod attend;
mod blocks;
mod delta_net;
mod experts;
mod listing;
mod matmul;
mod moments;
mod online;
mod products;
mod rotate;
mod tape;

use std::ops::Range;

use ggml::backend::Device;
use ggml::graph::{Executor, OutputId};
use ggml::tensor::Tensor;
use ggml::DType;

use crate::hparams::{Hparams, LayerAttention};
use crate::kv::Span;
use crate::layers::DeltaNet;
use crate::math::Math;
use crate::rope::MAX_BRANCHES;

pub(crate) use attend::is_single;
pub use attend::{Cached, GraphInputs, KindInputs, SeenInputs};
pub use blocks::Graph;
pub use delta_net::{DeltaInputs, Regroup, SeqGroups};
pub use ggml::matmul::Kernel;
pub use listing::{list, Listed};
pub use matmul::{Choice, Isa, MatmulPolicy, Pass, LAST_THRESHOLD};
pub use moments::Moments;
pub use online::{
    cut, middle_and_half, n_tensors as n_tensors_of_tiles, n_tensors_of_single, tiles, Online, Part, Places,
    Single, MAX_PLACE, MOST_TILES, NOWHERE, TILE_BYTES, UNSEEN,
};
pub use products::reduce;
pub use rotate::{turns, Pairing, Positions, Rotation};
pub use tape::{Gradient, Recording, SavedActivation};

/// The cells that each branch of one kind of layer attends to.
pub type Spans = [Span; MAX_BRANCHES];

/// The size of the tables with which landmark attention finds keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Positions of a block, the last of which is a landmark.
    pub block: usize,
    pub n_positions: usize,
    pub n_tables: usize,
    /// Earlier blocks that each query head selects, and positions of a piece, if it does not see all of them.
    pub top: Option<(usize, usize)>,
}

/// The parameters of a graph that vary between micro-batches. Graphs of equal shape are reused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    pub n_tokens: usize,
    /// Tokens that are cached once more, as first positions.
    pub n_starts: usize,
    pub n_out: usize,
    /// For each kind of layer, the cells attended to.
    pub spans: Vec<Spans>,
    /// Most sequences that the tokens belong to.
    pub n_seqs: usize,
    /// How recurrent layers see the tokens; [`SeqGroups::one`] without such layers.
    pub groups: SeqGroups,
    /// Under landmark attention, which uses tables instead of spans.
    pub tables: Option<TableShape>,
    /// Layers whose rotated queries are outputs; empty in all but graphs that show attention.
    pub probed: Range<usize>,
    /// True if the outputs are the second moments of the inputs of linear maps, in place of logits.
    pub moments: bool,
}

/// The rotated queries of one branch of one layer, F32 `[d, n_head, n_tokens]`, as an output of a graph.
#[derive(Debug, Clone, Copy)]
pub struct ProbedQueries {
    pub layer: usize,
    /// Index into the branches of its plan.
    pub branch: usize,
    pub output: OutputId,
}

/// Columns of a mask: those of every branch side by side.
pub fn n_columns(spans: &Spans) -> usize {
    spans.iter().map(|s| s.columns).sum()
}

/// Queries, keys and values of some tokens, not yet rotated.
#[derive(Debug, Clone, Copy)]
pub struct Qkv<'c> {
    /// F32 `[n_head * d, T]`.
    pub q: Tensor<'c>,
    /// F32 `[n_head_kv * d, T]`.
    pub k: Tensor<'c>,
    /// F32 `[n_head_kv * d, T]`.
    pub v: Tensor<'c>,
    /// F32 `[n_head * d, T]`, of which the sigmoid is multiplied with the output of attention (Qwen3.5).
    pub gate: Option<Tensor<'c>>,
}

/// How the tokens of a layer come together, with what each contributes.
#[derive(Debug, Clone, Copy)]
pub enum Mixing<'l, 'c> {
    Attention(Qkv<'c>),
    /// A gated delta-net, and what it reads, F32 `[n_embd, T]`.
    DeltaNet(&'l DeltaNet, Tensor<'c>),
}

/// Ways of computing that a device and the settings of a session allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Ops of our own, which exist on the CPU.
    pub custom_ops: bool,
    pub matmul: MatmulPolicy,
    /// Attention without the score matrix.
    pub flash: bool,
    /// The same for a single token in several branches, out of ops of every backend.
    pub single: bool,
}

impl Capabilities {
    /// The ways of a device, or of any device if `portable`.
    pub fn new(device: Device, portable: bool, math: Math) -> Capabilities {
        let matmul = MatmulPolicy::new(device, portable, math);
        Capabilities { custom_ops: matmul.custom_ops, matmul, flash: true, single: false }
    }

    /// The same in a session of a model with a cache of this type. On the CPU ggml's flash attention takes its time for each
    /// head, not for each key, so tiles are the faster ones there, unless they have keys and values to convert first.
    pub fn with_cache(self, device: Device, hp: &Hparams, kv_type: DType) -> Capabilities {
        // ggml's CUDA backend has kernels with a softcap for these heads only. It accepts others, and then ends the process.
        let has_kernel = |l: &LayerAttention| l.softcap.is_none() || matches!(l.n_embd_head, 128 | 256);
        let flash =
            self.flash && (!device.name().starts_with("cuda:") || hp.attention.iter().all(has_kernel));
        let single = !self.custom_ops && (!device.is_cpu() || kv_type.is_quantized());
        Capabilities { flash, single, ..self }
    }

    pub fn executor(&self, device: Device, n_threads: usize) -> ggml::Result<Executor> {
        match self.custom_ops || !device.is_cpu() {
            true => Executor::new(device, n_threads),
            false => Executor::portable(device),
        }
    }

    /// Returns true if attention is our own op, whose masks have an index.
    pub fn branched_attention(&self) -> bool {
        self.flash && self.custom_ops
    }
}
