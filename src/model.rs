//! A model: its numbers, vocabulary, weights and architecture.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ggml::backend::Device as Backend;

use crate::adapter::{self, Adapter, AdapterReader, AdapterSpec};
use crate::arch::{self, Arch, Transformer, ARCHS};
use crate::hparams::{keys, Hparams};
use crate::landmark::Landmarks;
use crate::rope::{Plan, RopeError, Spec};
use crate::weights::{self, TensorSpec, Weights};
use crate::{gguf, vocab::Vocab, Token};

pub use crate::error::{Error, Result};

/// Blocks that our kernel holds.
const _: () = assert!(crate::landmark::MAX_BLOCK == ggml::attention_landmark::MAX_BLOCK);

/// The device that a model is loaded onto, and computed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// The first GPU, or the CPU if there is none.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A device by name, such as `cuda:0`.
    Named(String),
}

impl Device {
    fn name(&self) -> &str {
        match self {
            Device::Auto => "auto",
            Device::Cpu => "cpu",
            Device::Named(name) => name,
        }
    }
}

impl From<&str> for Device {
    /// `auto`, `cpu`, or the name of a device. Whether it exists is known when a model is loaded.
    fn from(name: &str) -> Self {
        match name {
            "auto" => Device::Auto,
            "cpu" => Device::Cpu,
            name => Device::Named(name.to_owned()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

ropewalk_core::setters! {
    /// Settings for loading a model.
    #[derive(Debug, Clone, PartialEq)]
    pub struct ModelParams {
        /// The device; a name that does not exist is an error that lists the devices.
        pub device: Device,
        /// Adapters in force, all at once.
        pub adapters: Vec<AdapterSpec>,
        /// Jinja chat template that replaces the file's.
        pub chat_template: Option<String>,
    }
}

impl ModelParams {
    /// Loads onto the best device, without adapters.
    pub fn auto() -> Self {
        ModelParams { device: Device::Auto, adapters: Vec::new(), chat_template: None }
    }

    /// Loads onto the CPU, without adapters.
    pub fn cpu() -> Self {
        ModelParams { device: Device::Cpu, ..ModelParams::auto() }
    }
}

/// A loaded model: a handle that many can hold. A clone costs nothing and shares the weights, which are freed with the
/// last handle; sessions, trainers and evaluations each keep one.
#[derive(Debug, Clone)]
pub struct Model(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: Arc<Base>,
    hparams: Hparams,
    specs: Vec<AdapterSpec>,
    adapters: Vec<Adapter>,
    transformer: Transformer,
}

/// The parts that do not depend on adapters.
#[derive(Debug)]
struct Base {
    file: gguf::File,
    vocab: Vocab,
    weights: Weights,
    tensors: Vec<TensorSpec>,
    arch: &'static Arch,
    device: Backend,
    device_name: String,
    chat_template: Option<String>,
}

impl Model {
    /// Loads a model from a GGUF file. The structure of the whole file is checked before any of it is used. Errors name the
    /// file, except that of a device that does not exist.
    ///
    /// # Errors
    /// A device that does not exist; a file that is broken or of another architecture; an adapter that does
    /// not suit it; too little memory.
    pub fn load(path: impl AsRef<Path>, params: &ModelParams) -> Result<Model> {
        let (device, path) = (Backend::find(params.device.name())?, path.as_ref());
        let name = path.display().to_string();
        let names = |e: &Error| {
            let (text, adapters) = (e.to_string(), params.adapters.iter().map(|a| a.path.as_path()));
            adapters.chain([path]).any(|path| text.contains(&path.display().to_string()))
        };
        Model::load_from(path, params, device).map_err(|e| if names(&e) { e } else { Error::during(name, e) })
    }

    fn load_from(path: &Path, params: &ModelParams, device: Backend) -> Result<Model> {
        let mut file = gguf::File::open(path)?;
        let name: String = file.get("general.architecture")?;
        let Some(arch) = arch::find(&name) else {
            let known: Vec<&str> = ARCHS.iter().map(|a| a.name).collect();
            let found: String = name.chars().take(40).collect();
            let what = format!("expected one of {}, found {found:?}", known.join(", "));
            return Err(file.error("general.architecture", what).into());
        };
        let mut hparams = Hparams::from_gguf(&file)?;
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
        let tensors = Transformer::tensors(arch, &hparams, &|name| file.tensor(name).is_some())?;
        let opened = adapter::open_all(&params.adapters, &file)?;
        hparams.clex = adapter::clex_net(&opened, &hparams)?.map(Arc::new);
        let weights = Weights::load(&file, &hparams, &tensors, device)?;
        let chat_template = match &params.chat_template {
            Some(given) => Some(given.clone()),
            None => file.get_opt::<String>("tokenizer.chat_template")?,
        };
        let device_name = device.name();
        let base = Base { file, vocab, weights, tensors, arch, device, device_name, chat_template };
        Model::under(Arc::new(base), hparams, params.adapters.clone(), &opened, &[])
    }

    /// A loaded model under adapters, of which the first are on the device.
    fn under(
        base: Arc<Base>,
        hparams: Hparams,
        specs: Vec<AdapterSpec>,
        opened: &[(AdapterReader, f32)],
        loaded: &[Adapter],
    ) -> Result<Model> {
        let new = opened.iter().skip(loaded.len());
        let new = new.map(|(o, scale)| Adapter::load(o, *scale, &base.file, &base.tensors, base.device));
        let adapters = loaded.iter().cloned().map(Ok).chain(new).collect::<ggml::Result<Vec<_>>>()?;
        let transformer = Transformer::load(base.arch, &hparams, &base.weights, &adapters)?;
        Ok(Model(Arc::new(Inner { base, hparams, specs, adapters, transformer })))
    }

    /// The same model with more adapters in force. Both share the weights, and the adapters that were in force.
    ///
    /// # Errors
    /// An adapter that does not suit the model, or those in force; too little memory.
    pub fn with_adapters(&self, more: &[AdapterSpec]) -> Result<Model> {
        let Inner { base, hparams, specs, adapters, .. } = &*self.0;
        let specs = [specs.as_slice(), more].concat();
        let opened = adapter::open_all(&specs, &base.file)?;
        let mut hparams = hparams.clone();
        hparams.clex = adapter::clex_net(&opened, &hparams)?.map(Arc::new);
        Model::under(Arc::clone(base), hparams, specs, &opened, adapters)
    }

    /// Returns the model's hyperparameters, with the ones that adapters add: the network of CLEX.
    pub fn hparams(&self) -> &Hparams {
        &self.0.hparams
    }

    /// Returns the tokenizer.
    pub fn vocab(&self) -> &Vocab {
        &self.0.base.vocab
    }

    /// Returns the file. The vocabulary's long arrays have been dropped from its metadata: [`Model::vocab`] has them.
    pub fn file(&self) -> &gguf::File {
        &self.0.base.file
    }

    /// The device's name as users write it: `cpu`, `cuda:0`.
    pub fn device(&self) -> &str {
        &self.0.base.device_name
    }

    /// The chat template: [`ModelParams::chat_template`], or the file's `tokenizer.chat_template`, if it has one.
    pub fn chat_template(&self) -> Option<&str> {
        self.0.base.chat_template.as_deref()
    }

    /// The chat template, if it is not the file's.
    pub(crate) fn other_template(&self) -> Option<&str> {
        let of_file = self.file().get_opt::<String>("tokenizer.chat_template").ok().flatten();
        self.chat_template().filter(|given| of_file.as_deref() != Some(*given))
    }

    /// Bytes of its weights and adapters on the device.
    pub fn n_bytes(&self) -> usize {
        self.0.base.weights.n_bytes() + self.0.adapters.iter().map(Adapter::n_bytes).sum::<usize>()
    }

    /// Adapters in force.
    pub fn adapters(&self) -> &[Adapter] {
        &self.0.adapters
    }

    /// The spec that sessions open under when none is asked for: the one that the file declares, else the one
    /// that the first adapter which names one was trained under.
    pub fn default_rope(&self) -> Result<Spec> {
        let of_file = |e: RopeError| e.at(self.0.base.file.path().display());
        let declared = Spec::declared(&self.0.hparams).map_err(of_file)?;
        let trained = self.0.adapters.iter().find_map(Adapter::trained);
        match trained {
            Some((_, spec)) if declared == Spec::plain() => Ok(spec.clone()),
            _ => Ok(declared),
        }
    }

    /// Returns true if [`Model::default_rope`] is an adapter's.
    pub fn takes_trained_rope(&self) -> bool {
        let none_declared = Spec::declared(&self.0.hparams).is_ok_and(|own| own == Spec::plain());
        none_declared && self.0.adapters.iter().any(|a| a.trained().is_some())
    }

    /// The landmarks that an adapter was trained with: then sessions put them into every text.
    pub fn landmarks(&self) -> Option<Landmarks> {
        self.0.adapters.iter().find_map(Adapter::landmarks)
    }

    /// Positions that a text of `n` tokens takes, landmarks among them.
    pub(crate) fn n_positions(&self, n: usize) -> usize {
        self.landmarks().map_or(n, |landmarks| landmarks.n_positions(n))
    }

    /// The token that stands for a landmark: one past the vocabulary.
    pub(crate) fn landmark_token(&self) -> Token {
        self.0.hparams.n_vocab as Token
    }

    /// Checks that landmark attention is defined for this model under this plan, and that there is an op for it where
    /// `own_ops` says whether ops of our own run.
    ///
    /// # Errors
    /// A device or setting without our own ops; a reach of a rope method, sliding windows, softcaps or attention sinks,
    /// under which the method is not defined.
    pub(crate) fn check_landmarks(&self, plan: &Plan, own_ops: bool) -> Result<()> {
        let refuse = |what: &str| Err(Error::Unsupported(format!("landmark attention: {what}")));
        let (layers, hp) = (&self.0.transformer.layers, &self.0.hparams);
        let own_reach = hp.attention.iter().zip(plan.kinds()).all(|(layer, plan)| plan.is_own_reach(layer));
        match () {
            () if !own_ops => refuse("its op runs on the CPU alone, and not among ops of every backend"),
            () if !own_reach => refuse("expected a rope method of frequencies only, found one with a reach"),
            () if hp.attention.iter().any(|l| l.window.is_some()) => {
                refuse("expected layers that see the whole context, found some with a sliding window")
            }
            () if hp.attention.iter().any(|l| l.softcap.is_some()) => {
                refuse("expected scores without softcap, found some with")
            }
            () if layers.iter().any(|l| l.sinks().is_some()) => {
                refuse("expected layers without attention sinks, found some with")
            }
            () => Ok(()),
        }
    }

    /// Checks that a session's plan is the one the adapters were trained under. Plans are compared, not the
    /// text of specs.
    ///
    /// # Errors
    /// An adapter that was trained under another plan, unless adapters are forced.
    pub fn check_rope(&self, plan: &Plan) -> Result<()> {
        let forced = self.0.specs.iter().any(|adapter| adapter.force);
        for (path, spec) in self.0.adapters.iter().filter_map(Adapter::trained).filter(|_| !forced) {
            let key = keys::LORA_ROPE;
            let trained =
                Plan::of_file(spec, &self.0.hparams, plan.n_ctx).map_err(|e| e.at(key).at(path.display()))?;
            if !trained.same_positions(plan) {
                let (path, found) = (path.display(), &plan.spec);
                return Err(Error::Unsupported(format!(
                    "{path}: {key}: it was trained under {spec}, found {found} (force it to run it all the same)"
                )));
            }
        }
        Ok(())
    }

    /// Embedding rows of tokens with the model's factor, F32 `[n_embd, T]`: an adapter's where one replaces them.
    pub(crate) fn embed(&self, tokens: &[Token], out: &mut [f32]) -> Result<(), ggml::Error> {
        self.embed_with(&self.0.transformer, tokens, out)
    }

    /// Embedding rows from the tables of `transformer`, or from the file where it has none.
    pub(crate) fn embed_with(
        &self,
        transformer: &Transformer,
        tokens: &[Token],
        out: &mut [f32],
    ) -> Result<(), ggml::Error> {
        // The landmark token is none of the table's: its row is filled in after.
        let landmark = transformer.landmark.as_ref().map(|rows| (rows, self.landmark_token()));
        let is_landmark = |t: Token| landmark.is_some_and(|(_, token)| t == token);
        let known: Vec<Token> = tokens.iter().map(|&t| if is_landmark(t) { 0 } else { t }).collect();
        match &transformer.embedding {
            Some(table) => weights::embed_stored(table, &known, out)?,
            None => weights::embed(&self.0.base.file, &self.0.hparams, &known, out)?,
        }
        if let Some((rows, _)) = landmark {
            let places = tokens.iter().zip(out.chunks_exact_mut(self.0.hparams.n_embd));
            for (_, out) in places.filter(|(&t, _)| is_landmark(t)) {
                weights::embed_stored(&rows.embedding, &[0], out)?;
            }
        }
        let factor = self.0.hparams.embedding_scale;
        if factor != 1.0 {
            out.iter_mut().for_each(|x| *x *= factor);
        }
        Ok(())
    }

    /// The layers, with the adapters in force.
    pub(crate) fn transformer(&self) -> &Transformer {
        &self.0.transformer
    }

    /// The layers with `adapter` alone, instead of the adapters in force.
    pub(crate) fn with_adapter(&self, adapter: &Adapter) -> Result<Transformer> {
        let adapters = std::slice::from_ref(adapter);
        Ok(Transformer::load(self.0.base.arch, &self.0.hparams, &self.0.base.weights, adapters)?)
    }

    pub(crate) fn arch(&self) -> &'static Arch {
        self.0.base.arch
    }

    pub(crate) fn backend_device(&self) -> Backend {
        self.0.base.device
    }
}
