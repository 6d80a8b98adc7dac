//! Architectures: a row of [`ARCHS`] each. The layer of most is a `block`, with the parts that the row names; another
//! layer has its file.
// Only `internals` shows these items: those whose names and types say all have no doc comments.
#![allow(missing_docs)]

mod block;
mod parts;
mod qwen35;

use std::fmt::Debug;

use ggml::tensor::{StoreTensor, Tensor};
use ggml::Result;

use crate::adapter::Adapter;
use crate::graph::{Graph, Mixing, Pairing};
use crate::hparams::Hparams;
use crate::ids::{NormRole, ParamId};
use crate::layers::{Bias, LayerLoader, Linear, LinearShape, Loader, Norm, NormKind};
use crate::weights::{TensorSpec, Weights};
use block::{Block, Norms};
use parts::{Activation, Ffn, QkNorms};

/// One architecture: a row of [`ARCHS`].
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture`.
    pub name: &'static str,
    /// Which dimensions of a head are rotated together.
    pub pairing: Pairing,
    pub norm: NormKind,
    pub output_bias: Bias,
    norms: Norms,
    qk_norms: QkNorms,
    qkv_bias: Bias,
    o_bias: Bias,
    sinks: bool,
    ffn: Ffn,
    layer: fn(&Arch, &LayerLoader<'_, '_>) -> Result<Box<dyn Layer>>,
}

impl Arch {
    /// The row that others name their differences from.
    const LLAMA: Arch = Arch {
        name: "llama",
        pairing: Pairing::Adjacent,
        norm: NormKind::Rms,
        output_bias: Bias::No,
        norms: Norms::Before(NormRole::Ffn),
        qk_norms: QkNorms::No,
        qkv_bias: Bias::Optional,
        o_bias: Bias::Optional,
        sinks: false,
        ffn: Ffn::Gated(Activation::Silu, Bias::Optional),
        layer: Block::load,
    };

    /// Llama's without biases, with pairs of dimensions formed of halves.
    const BARE: Arch = Arch {
        pairing: Pairing::Halves,
        qkv_bias: Bias::No,
        o_bias: Bias::No,
        ffn: Ffn::Gated(Activation::Silu, Bias::No),
        ..Arch::LLAMA
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

    /// Computes the layer's output, F32 `[n_embd, T]`, from its input `x` of that shape and `out`, the output
    /// of attention, `[n_head * d, T]`, or of what is in its place.
    fn after_attention<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>, out: Tensor<'c>) -> Result<Tensor<'c>>;
}

pub static ARCHS: &[Arch] = &[
    // Command R7B and Command A. Three of four layers have a window and are rotated; the others see everything and are
    // not.
    Arch {
        name: "cohere2",
        pairing: Pairing::Adjacent,
        norm: NormKind::Layer(Bias::No),
        norms: Norms::Shared,
        ..Arch::BARE
    },
    // Every second layer has a window, scores are capped.
    Arch { name: "gemma2", norms: Norms::Around, ffn: Ffn::Gated(Activation::Gelu, Bias::No), ..Arch::BARE },
    // Text alone. Five of six layers have a window and another rotation.
    Arch {
        name: "gemma3",
        norms: Norms::Around,
        qk_norms: QkNorms::EachHead,
        ffn: Ffn::Gated(Activation::Gelu, Bias::No),
        ..Arch::BARE
    },
    // A window in every second layer. The norm before the feed-forward has the name of one after attention.
    Arch {
        name: "gpt-oss",
        norms: Norms::Before(NormRole::AttnPost),
        qkv_bias: Bias::Optional,
        o_bias: Bias::Yes,
        sinks: true,
        ffn: Ffn::OaiMixture,
        ..Arch::BARE
    },
    // GPT-NeoX and Pythia. A part of each head is rotated; the file says whether the feed-forward reads the layer's
    // input or what attention made of it.
    Arch {
        name: "gptneox",
        norm: NormKind::Layer(Bias::Yes),
        qkv_bias: Bias::Yes,
        o_bias: Bias::Yes,
        ffn: Ffn::Plain(Bias::Yes),
        ..Arch::BARE
    },
    // Granite 3 and dense Granite 4: factors on embedding, residual stream, scores and logits are in the file.
    Arch { name: "granite", ..Arch::LLAMA },
    // With Mistral, SmolLM2 and TinyLlama.
    Arch::LLAMA,
    // Ministral 3: YaRN and an attention temperature are in the file.
    Arch { name: "mistral3", ..Arch::LLAMA },
    // OLMo 2, and OLMo 3, which has a window in three of four layers.
    Arch { name: "olmo2", norms: Norms::After, qk_norms: QkNorms::AllHeads, ..Arch::BARE },
    // Phi-1, Phi-1.5 and Phi-2. A part of each head is rotated.
    Arch {
        name: "phi2",
        norm: NormKind::Layer(Bias::Yes),
        output_bias: Bias::Yes,
        norms: Norms::Shared,
        qkv_bias: Bias::Yes,
        o_bias: Bias::Yes,
        ffn: Ffn::Plain(Bias::Yes),
        ..Arch::BARE
    },
    // Phi-3, Phi-3.5, Phi-4 and Phi-4-mini. A sliding window in the file is not used, as in llama.cpp.
    Arch { name: "phi3", ffn: Ffn::FusedGate, ..Arch::BARE },
    // Qwen2 and Qwen2.5.
    Arch { name: "qwen2", qkv_bias: Bias::Yes, ..Arch::BARE },
    Arch { name: "qwen3", qkv_bias: Bias::Optional, qk_norms: QkNorms::EachHead, ..Arch::BARE },
    qwen35::QWEN35,
    qwen35::QWEN35MOE,
    Arch { name: "qwen3moe", qk_norms: QkNorms::EachHead, ffn: Ffn::Mixture { shared: false }, ..Arch::BARE },
    // Every fourth layer is not rotated (`core/hparams/rules.rs` says which).
    Arch { name: "smollm3", ..Arch::LLAMA },
];

pub fn find(name: &str) -> Option<&'static Arch> {
    ARCHS.iter().find(|a| a.name == name)
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
            (0..loader.hp.n_layer).map(|il| (arch.layer)(arch, &loader.layer(il))).collect::<Result<_>>()?;
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
    pub fn tensors(arch: &Arch, hp: &Hparams, has: &dyn Fn(&str) -> bool) -> Result<Vec<TensorSpec>> {
        let loader = Loader::listing(hp, arch.norm, has)?;
        Transformer::resolve(arch, &loader)?;
        Ok(loader.into_specs())
    }

    /// Final norm and output matrix: F32 `[n_embd, T]` to logits `[n_vocab, T]`.
    pub fn logits<'c>(&self, g: &Graph<'_, 'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        self.scaled(g, g.linear(g.norm(x, &self.output_norm)?, &self.output)?)
    }

    /// The same with the logit of the landmark token last, `[n_vocab + 1, T]`, if there is one. Training predicts it;
    /// in inference, the places of landmarks are known.
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
