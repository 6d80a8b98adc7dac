//! A model: its numbers, vocabulary, weights and architecture.

use std::path::Path;

use ggml::backend::Device;
use ggml::tensor::StoreTensor;

use crate::arch::{self, Arch, ARCHS};
use crate::graph::Tensors;
use crate::hparams::Hparams;
use crate::weights::Weights;
use crate::{gguf, vocab::Vocab};

/// Why a model or session cannot be had, or failed. One line: file, key, expected, found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// From the ggml layer.
    #[error(transparent)]
    Ggml(#[from] ggml::Error),
    /// From the rope layer.
    #[error(transparent)]
    Rope(#[from] crate::rope::RopeError),
    /// The caller asked for something that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// Cancelled by the caller.
    #[error("interrupted")]
    Interrupted,
}

/// Results of the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// How to load a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelParams {
    /// `auto`, `cpu`, `cuda:0`: see [`ggml::backend::Device::find`].
    pub device: String,
}

impl ModelParams {
    /// The best device.
    pub fn auto() -> Self {
        ModelParams { device: "auto".into() }
    }

    /// The CPU.
    pub fn cpu() -> Self {
        ModelParams { device: "cpu".into() }
    }
}

/// A loaded model. `Send + Sync`; sessions borrow it.
#[derive(Debug)]
pub struct Model {
    file: gguf::File,
    hparams: Hparams,
    vocab: Vocab,
    weights: Weights,
    arch: &'static Arch,
    device: Device,
    device_name: String,
    chat_template: Option<String>,
}

impl Model {
    /// Opens a GGUF file: every part of it is checked before any is used.
    pub fn load(path: &Path, params: &ModelParams) -> Result<Model> {
        let device = Device::find(&params.device)?;
        let mut file = gguf::File::open(path)?;
        let name: String = file.get("general.architecture")?;
        let Some(arch) = arch::find(&name) else {
            let known: Vec<&str> = ARCHS.iter().map(|a| a.name).collect();
            let found: String = name.chars().take(40).collect();
            let what = format!("expected one of {}, found {found:?}", known.join(", "));
            return Err(file.error("general.architecture", what).into());
        };
        let hparams = Hparams::from_gguf(&file)?;
        let vocab = Vocab::load(&file)?;
        if vocab.n_tokens() > hparams.n_vocab {
            let what = format!(
                "expected at most the {} rows of the embedding, found {}",
                hparams.n_vocab,
                vocab.n_tokens()
            );
            return Err(file.error("tokenizer.ggml.tokens", what).into());
        }
        for key in ["tokens", "merges", "scores", "token_type"] {
            file.forget(&format!("tokenizer.ggml.{key}"));
        }
        let weights = Weights::load(&file, &(arch.tensors)(&hparams), device)?;
        let chat_template = file.get_opt::<String>("tokenizer.chat_template")?;
        Ok(Model { file, hparams, vocab, weights, arch, device, device_name: device.name(), chat_template })
    }

    /// Its numbers.
    pub fn hparams(&self) -> &Hparams {
        &self.hparams
    }

    /// Its tokenizer.
    pub fn vocab(&self) -> &Vocab {
        &self.vocab
    }

    /// Its file. The vocabulary's long arrays have been dropped from its metadata: [`Model::vocab`] has them.
    pub fn file(&self) -> &gguf::File {
        &self.file
    }

    /// The device's name as users write it: `cpu`, `cuda:0`.
    pub fn device(&self) -> &str {
        &self.device_name
    }

    /// `tokenizer.chat_template`, if the file has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Bytes of its weights on the device.
    pub fn n_bytes(&self) -> usize {
        self.weights.n_bytes()
    }

    /// A tensor of it, if it has one of this name.
    pub fn tensor(&self, name: &str) -> Option<&StoreTensor> {
        self.weights.get(name)
    }

    /// The tensors its architecture may have.
    pub(crate) fn tensor_specs(&self) -> Vec<crate::weights::TensorSpec> {
        (self.arch.tensors)(&self.hparams)
    }

    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }

    pub(crate) fn tensors(&self) -> Tensors<'_> {
        Tensors { weights: &self.weights, adapters: &[] }
    }

    pub(crate) fn arch(&self) -> &'static Arch {
        self.arch
    }

    pub(crate) fn backend_device(&self) -> Device {
        self.device
    }
}
