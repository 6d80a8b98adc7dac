//! Architectures: which tensors a file must have, and how one layer is built around attention. One file each, one registry line.

mod llama;
mod qwen2;

use ggml::tensor::Tensor;
use ggml::Result;

use crate::graph::{Graph, Pairing};
use crate::hparams::Hparams;
use crate::weights::TensorSpec;

/// One architecture.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`.
    pub name: &'static str,
    /// Which dimensions of a head are rotated together.
    pub pairing: Pairing,
    /// The tensors of a file, besides the rope factors that `hparams` reads.
    pub tensors: fn(&Hparams) -> Vec<TensorSpec>,
    /// Layer `il` up to attention: F32 `[n_embd, T]` to queries `[n_head * d, T]`, keys and values `[n_head_kv * d, T]`,
    /// not yet rotated. Local to each token, and built from blocks that know their gradient.
    pub qkv: for<'a, 'c> fn(&Graph<'a, 'c>, il: usize, x: Tensor<'c>) -> Result<[Tensor<'c>; 3]>,
    /// The rest of the layer, of its input and what attention found (`[n_head * d, T]`): F32 `[n_embd, T]`. Local, too.
    pub rest:
        for<'a, 'c> fn(&Graph<'a, 'c>, il: usize, x: Tensor<'c>, attn: Tensor<'c>) -> Result<Tensor<'c>>,
    /// F32 `[n_embd, T]` to logits `[n_vocab, T]`.
    pub head: for<'a, 'c> fn(&Graph<'a, 'c>, x: Tensor<'c>) -> Result<Tensor<'c>>,
}

/// All architectures.
pub static ARCHS: &[&Arch] = &[&llama::LLAMA, &qwen2::QWEN2];

/// The architecture of this name.
pub fn find(name: &str) -> Option<&'static Arch> {
    ARCHS.iter().copied().find(|a| a.name == name)
}
