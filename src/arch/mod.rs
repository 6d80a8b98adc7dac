//! Architectures: the tensors of a layer, and its computation before and after attention. One file and one
//! line of [`ARCHS`] each.

mod cohere2;
mod gemma2;
mod gemma3;
mod gpt_oss;
mod gptneox;
mod granite;
mod llama;
mod mistral3;
mod olmo2;
mod parts;
mod phi2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod smollm3;

use std::fmt::Debug;

use ggml::tensor::{StoreTensor, Tensor};
use ggml::{Error, Result};

use crate::adapter::Adapter;
use crate::graph::{Graph, Mixing, Pairing};
use crate::hparams::Hparams;
use crate::ids::ParamId;
use crate::layers::{Bias, LayerLoader, Linear, LinearShape, Loader, Norm, NormKind};
use crate::weights::{TensorSpec, Weights};

/// One architecture.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`.
    pub name: &'static str,
    /// Which dimensions of a head are rotated together.
    pub pairing: Pairing,
    /// Kind of norm.
    pub norm: NormKind,
    /// Bias of the logits.
    pub output_bias: Bias,
    /// Resolves the tensors of one layer.
    pub layer: fn(&LayerLoader<'_, '_>) -> Result<Box<dyn Layer>>,
}

impl Arch {
    /// Properties of Llama, which an architecture states only where it differs.
    const LIKE_LLAMA: Arch = Arch {
        name: "",
        pairing: Pairing::Adjacent,
        norm: NormKind::Rms,
        output_bias: Bias::No,
        layer: |_| Err(Error::Argument("an architecture without layers".into())),
    };
}

/// One layer of a model, with its tensors resolved. Both functions work on each token alone and are built
/// from the ops of [`Graph`], which have gradients, so a layer that can be run can be trained.
pub trait Layer: Debug + Send + Sync {
    /// Computes what a token brings to attention, or to what the layer has in its place, from the layer's input `x`, F32
    /// `[n_embd, T]`.
    fn before_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Mixing<'_, 'c>>;

    /// Attention sinks, F32 `[n_head]`: for each query head a score that takes part in the softmax of attention, and that
    /// no value belongs to.
    fn sinks(&self) -> Option<&StoreTensor> {
        None
    }

    /// Computes the layer's output, F32 `[n_embd, T]`, from its input `x` of that shape and the output of
    /// attention, `[n_head * d, T]`, or of what is in its place.
    fn after_attention<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        attn_out: Tensor<'c>,
    ) -> Result<Tensor<'c>>;
}

/// All architectures.
pub static ARCHS: &[&Arch] = &[
    &cohere2::COHERE2,
    &gemma2::GEMMA2,
    &gemma3::GEMMA3,
    &gpt_oss::GPT_OSS,
    &gptneox::GPTNEOX,
    &granite::GRANITE,
    &llama::LLAMA,
    &mistral3::MISTRAL3,
    &olmo2::OLMO2,
    &phi2::PHI2,
    &phi3::PHI3,
    &qwen2::QWEN2,
    &qwen3::QWEN3,
    &qwen35::QWEN35,
    &qwen35moe::QWEN35MOE,
    &qwen3moe::QWEN3MOE,
    &smollm3::SMOLLM3,
];

/// The architecture of this name.
pub fn find(name: &str) -> Option<&'static Arch> {
    ARCHS.iter().copied().find(|a| a.name == name)
}

/// The landmark token of an adapter: what the embedding and the output matrix of the model's file have no rows for.
#[derive(Debug, Clone)]
pub struct LandmarkRows {
    /// Embedding of the landmark token, F32 `[n_embd]`.
    pub embedding: StoreTensor,
    /// Row of the landmark token in the output matrix, F32 `[n_embd]`.
    pub output: StoreTensor,
}

/// The layers of a model, with the embedding before and the output matrix after them.
#[derive(Debug)]
pub struct Transformer {
    /// The token embedding F32 `[n_embd, n_vocab]`, where an adapter replaces the file's.
    pub embedding: Option<StoreTensor>,
    /// The layers, first to last.
    pub layers: Vec<Box<dyn Layer>>,
    /// The landmark token, where an adapter has one.
    pub landmark: Option<LandmarkRows>,
    output_norm: Norm,
    output: Linear,
    linears: Vec<LinearShape>,
    norms: Vec<(ParamId, usize)>,
    logit_scale: f32,
    logit_softcap: Option<f32>,
}

impl Transformer {
    fn resolve(arch: &Arch, loader: &Loader<'_>) -> Result<Transformer> {
        let embedding = loader.embedding()?;
        let layers =
            (0..loader.hp.n_layer).map(|il| (arch.layer)(&loader.layer(il))).collect::<Result<_>>()?;
        let (output_norm, output) = (loader.output_norm()?, loader.output(arch.output_bias)?);
        Ok(Transformer {
            embedding,
            layers,
            landmark: None,
            output_norm,
            output,
            linears: loader.linears(),
            norms: loader.norms(),
            logit_scale: loader.hp.logit_scale,
            logit_softcap: loader.hp.logit_softcap,
        })
    }

    /// A loaded model's layers under these adapters.
    pub fn load(arch: &Arch, hp: &Hparams, weights: &Weights, adapters: &[Adapter]) -> Result<Transformer> {
        let transformer = Transformer::resolve(arch, &Loader::model(hp, arch.norm, weights, adapters))?;
        let added = |id| adapters.iter().find_map(|a| a.module(id)).cloned();
        let rows = added(ParamId::LandmarkEmbedding).zip(added(ParamId::LandmarkOutput));
        let landmark = rows.map(|(embedding, output)| LandmarkRows { embedding, output });
        Ok(Transformer { landmark, ..transformer })
    }

    /// The tensors that a file of this architecture has, besides the rope factors: the embedding, layer by
    /// layer, then norm and matrix of the output. `has` says which of the tensors that may be stored in more
    /// than one way there are.
    ///
    /// # Errors
    /// The CPU backend cannot be loaded.
    pub fn tensors(arch: &Arch, hp: &Hparams, has: &dyn Fn(&str) -> bool) -> Result<Vec<TensorSpec>> {
        let loader = Loader::listing(hp, arch.norm, has)?;
        Transformer::resolve(arch, &loader)?;
        Ok(loader.into_specs())
    }

    /// Final norm and output matrix: F32 `[n_embd, T]` to logits `[n_vocab, T]`.
    pub fn logits<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        self.scaled(g, g.linear(g.norm(x, &self.output_norm)?, &self.output)?)
    }

    /// The same with the logit of the landmark token last, `[n_vocab + 1, T]`, where there is one. Training predicts
    /// it; whoever reads the text knows where landmarks are.
    pub fn all_logits<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let Some(landmark) = &self.landmark else { return self.logits(g, x) };
        let x = g.norm(x, &self.output_norm)?;
        let logits = g.linear(x, &self.output)?;
        self.scaled(g, g.with_row(logits, x, &landmark.output, ParamId::LandmarkOutput)?)
    }

    fn scaled<'c>(&self, g: &Graph<'_, 'c>, logits: Tensor<'c>) -> Result<Tensor<'c>> {
        let logits = g.scale(logits, self.logit_scale)?;
        self.logit_softcap.map_or(Ok(logits), |cap| g.softcap(logits, cap))
    }

    /// Final norm, and what the output matrix reads as an output of a watched graph; without the logits, which are as
    /// wide as the vocabulary.
    pub fn watch_output<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<()> {
        g.watch(g.norm(x, &self.output_norm)?, &self.output)
    }

    /// Every linear map, layer by layer, the output matrix last.
    pub fn linears(&self) -> &[LinearShape] {
        &self.linears
    }

    /// Scale and bias of every norm with its width, layer by layer, those of the output last.
    pub fn norms(&self) -> &[(ParamId, usize)] {
        &self.norms
    }
}
