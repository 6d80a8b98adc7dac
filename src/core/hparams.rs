//! A model's numbers, read from GGUF metadata and validated once.
//!
//! Names and defaults are llama.cpp's (`llama_model_base::load_hparams`); where it would abort or compute
//! with nonsense, reading fails here with the file, the key, what was expected and what was found.

mod clex;
mod delta_net;
mod layer;
mod names;
mod read;
mod rules;
mod scaling;

use std::sync::Arc;

use gguf::{Defect, File, GgufError, Result};

pub use clex::ClexNet;
pub use layer::{
    AttentionTemperature, DeltaNetHparams, ExpertHparams, LayerAttention, LayerHparams, LayerRotation,
};
pub use names::standard_name;
pub(crate) use read::check_factors;
use read::KeyReader;
pub use scaling::RopeScaling;

/// Keys of ropewalk, which `convert` writes in addition to the standard ones.
///
/// A converted file's standard keys (`context_length`, `rope.freq_base`, `rope.scaling.*`) say as much of the
/// method as other programs can follow; what they said before is kept under [`ORIG`](keys::ORIG), so that
/// nothing is applied twice.
pub mod keys {
    /// The resolved rope spec the file is to be opened under (string). Absent from files written for
    /// llama.cpp alone.
    pub const SPEC: &str = "ropewalk.rope.spec";
    /// The spec that the list of bases in [`SPEC`] was worked out from (string), where there is one.
    pub const DERIVED_FROM: &str = "ropewalk.rope.derived_from";
    /// The context the spec was resolved for, tokens (u32).
    pub const N_CTX: &str = "ropewalk.rope.n_ctx";
    /// The trained window the spec counts from, tokens (u32); the spec's `original` says the same.
    pub const N_CTX_ORIG: &str = "ropewalk.rope.n_ctx_orig";
    /// One base per KV head (f64 array), for methods that have them; the spec says the same.
    pub const BASES: &str = "ropewalk.rope.bases";
    /// The form of GELU in feed-forwards without a gate (string): `tanh`, which llama.cpp computes for every model and
    /// is meant where there is no such key, or `erf`.
    pub const GELU: &str = "ropewalk.gelu";
    /// Windows of an architecture that has none in llama.cpp (u32 array, one entry per layer): how many tokens a query sees,
    /// itself among them; 0 for every earlier one.
    pub const WINDOWS: &str = "ropewalk.windows";
    /// True if the weights of the experts of a token are scaled to a sum of 1 (bool). llama.cpp always does that after
    /// softmax, and a file without this key means that.
    pub const EXPERT_WEIGHTS_NORM: &str = "ropewalk.expert_weights_norm";
    /// The repository that a model's config.json names, `ORG/REPO` (string). Not in files of changed weights.
    pub const SOURCE: &str = "ropewalk.source";
    /// Version of the program that wrote the file (string).
    pub const VERSION: &str = "ropewalk.version";
    /// In front of the name (less the architecture) of each standard key as it was before the first
    /// conversion.
    pub const ORIG: &str = "ropewalk.orig";
    /// `context_length` before the first conversion: every converted file has it.
    pub const ORIG_CONTEXT_LENGTH: &str = "ropewalk.orig.context_length";
    /// `rope_freqs.weight` before a method was baked into it (f32 array; empty when there was none).
    pub const ORIG_ROPE_FREQS: &str = "ropewalk.orig.rope_freqs";
    /// Present (bool, false) where `rope_factors_long.weight` and `rope_factors_short.weight` were written by a conversion,
    /// and the model had none.
    pub const ORIG_ROPE_FACTORS: &str = "ropewalk.orig.rope_factors";

    /// The resolved spec an importance matrix was collected under (string). Its context is `imatrix.chunk_size`.
    pub const IMATRIX_ROPE: &str = "ropewalk.imatrix.rope";

    /// llama.cpp's alpha of a LoRA adapter, to be divided by the rank (f32).
    pub const LORA_ALPHA: &str = "adapter.lora.alpha";
    /// The resolved spec an adapter was trained under (string).
    pub const LORA_ROPE: &str = "ropewalk.lora.rope";
    /// The context it was trained at, tokens (u32).
    pub const LORA_N_CTX: &str = "ropewalk.lora.n_ctx";
    /// Fingerprint of the model it was trained on (string).
    pub const LORA_BASE: &str = "ropewalk.lora.base";
    /// Optimizer steps (u64).
    pub const LORA_STEPS: &str = "ropewalk.lora.steps";
    /// The texts it was trained on (string).
    pub const LORA_DATA: &str = "ropewalk.lora.data";
    /// The attention of its training, where that was not the model's own (string): `s2`.
    pub const LORA_ATTENTION: &str = "ropewalk.lora.attention";
    /// Tokens it was trained on (u64).
    pub const LORA_TOKENS: &str = "ropewalk.lora.tokens";
    /// The token of the texts, in their order of training, after the last that was trained on (u64).
    pub const LORA_DATA_END: &str = "ropewalk.lora.data_end";
    /// A hash of the texts and their order of training (string).
    pub const LORA_DATA_ORDER: &str = "ropewalk.lora.data_order";
    /// The runs of training that it went on from, first to last: a list in JSON (string).
    pub const LORA_LINEAGE: &str = "ropewalk.lora.lineage";
    /// True if alpha is meant to be divided by the square root of the rank (bool).
    pub const LORA_RSLORA: &str = "ropewalk.lora.rslora";
    /// True if the embedding of an adapter is for the input only, in a model whose output is its embedding.
    pub const LORA_KEEPS_OUTPUT: &str = "ropewalk.lora.keeps_output";
}

/// A form of GELU, the activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Gelu {
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`
    #[default]
    Tanh,
    /// `x / 2 (1 + erf(x / sqrt(2)))`
    Erf,
}

/// Where the base of the frequencies is from.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BaseFrom {
    /// The architecture: the file has no key, and every published model of it has this base.
    Architecture,
    /// llama.cpp uses 10,000 if a file has no key. Models of the architecture also have other bases.
    Guess,
    /// This metadata key.
    #[serde(untagged)]
    Key(String),
}

/// A model's numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Hparams {
    /// `general.architecture`.
    pub arch: String,
    /// Layers, without those that draft.
    pub n_layer: usize,
    /// Layers of the file after the others that draft further tokens (multi-token prediction). Nothing here reads them.
    pub n_draft: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// `context_length`: tokens the model was trained for (or says it handles).
    pub n_ctx_train: usize,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// Factor on embedding rows; 1 in most architectures.
    pub embedding_scale: f32,
    /// Factor on what attention and feed-forward add to the residual stream; 1 in most architectures.
    pub residual_scale: f32,
    /// Factor on logits; 1 in most architectures.
    pub logit_scale: f32,
    /// Cap c of logits, which become `c * tanh(logits / c)`.
    pub logit_softcap: Option<f32>,
    /// True if attention and feed-forward both read the layer's input (GPT-NeoX, if its file says so).
    pub parallel_residual: bool,
    /// GELU in feed-forwards without a gate.
    pub gelu: Gelu,
    /// Experts, where feed-forwards are mixtures of them.
    pub experts: Option<ExpertHparams>,
    /// The gated delta-nets of layers that have no attention.
    pub delta_net: Option<DeltaNetHparams>,
    /// The distinct kinds of attention, one at least, in the order of the first layer of each.
    pub attention: Vec<LayerAttention>,
    /// A record for each layer, `[n_layer]`.
    pub layers: Vec<LayerHparams>,
    /// The rope scaling that the file declares.
    pub rope_scaling: RopeScaling,
    /// Keys of rotation and attention that nothing here reads and that may change what the model computes, each with its
    /// value.
    pub unread: Vec<String>,
    /// The key that the base of the frequencies is from; `None` where the file has none.
    pub freq_base_key: Option<String>,
    /// The same for the layers with a window that have a base apart.
    pub freq_base_swa_key: Option<String>,
    /// The network of the rope method `clex`, where an adapter in force brings one; no model file has it.
    pub clex: Option<Arc<ClexNet>>,
}

/// Positions are i32 in ggml, so no context is longer.
const MAX_CTX: usize = i32::MAX as usize;
/// Above every width and count of a real model, and small enough that products of two cannot overflow.
const MAX_DIM: usize = 1 << 24;
/// Bases this large make the slowest pair's factor overflow the f32 that ggml takes.
const MAX_FREQ_BASE: f64 = 1e30;
/// Limit of layers, as llama.cpp's `LLAMA_MAX_LAYERS`.
const MAX_LAYERS: usize = 512;
/// Limit of experts, as llama.cpp's `LLAMA_MAX_EXPERTS`.
const MAX_EXPERTS: usize = 512;

/// A model of no layers, whose factors are 1: what is left to say once the numbers are there.
impl Default for Hparams {
    fn default() -> Self {
        Hparams {
            arch: String::new(),
            n_layer: 0,
            n_draft: 0,
            n_embd: 0,
            n_vocab: 0,
            n_ctx_train: 0,
            norm_eps: 1e-5,
            embedding_scale: 1.0,
            residual_scale: 1.0,
            logit_scale: 1.0,
            logit_softcap: None,
            parallel_residual: false,
            gelu: Gelu::Tanh,
            experts: None,
            delta_net: None,
            attention: Vec::new(),
            layers: Vec::new(),
            rope_scaling: RopeScaling::default(),
            unread: Vec::new(),
            freq_base_key: None,
            freq_base_swa_key: None,
            clex: None,
        }
    }
}

impl Hparams {
    /// The window the weights were trained on, tokens: what the declared scaling counts from, else
    /// `n_ctx_train`.
    pub fn n_ctx_orig(&self) -> usize {
        self.rope_scaling.n_ctx_orig.filter(|n| *n > 0).map_or(self.n_ctx_train, |n| n as usize)
    }

    /// The attention of layer `il`; `None` where it is a gated delta-net, or is no layer of the model.
    pub fn attention_of(&self, il: usize) -> Option<&LayerAttention> {
        self.attention.get(self.layers.get(il)?.kind?)
    }

    /// The layers of a kind, ascending.
    pub fn layers_of(&self, kind: usize) -> impl Iterator<Item = usize> + '_ {
        self.layers.iter().enumerate().filter(move |(_, l)| l.kind == Some(kind)).map(|(il, _)| il)
    }

    /// The layers without attention, ascending.
    pub fn recurrent_layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.layers.iter().enumerate().filter(|(_, l)| l.kind.is_none()).map(|(il, _)| il)
    }

    /// Where the base of a kind's frequencies is from; `None` for layers without rotation.
    pub fn base_from(&self, kind: usize) -> Option<BaseFrom> {
        let layer = self.attention.get(kind).filter(|layer| layer.rotation.is_some())?;
        let sliding = layer.window.is_some() && rules::has_sliding_base(&self.arch);
        let key = self.freq_base_swa_key.as_ref().filter(|_| sliding);
        // Windowed layers of Gemma 3 have a base of their own whatever the file says of the others.
        let fixed = sliding && self.arch == "gemma3";
        Some(match key.or(self.freq_base_key.as_ref().filter(|_| !fixed)) {
            Some(key) => BaseFrom::Key(key.clone()),
            None if fixed || rules::one_base(&self.arch) => BaseFrom::Architecture,
            None => BaseFrom::Guess,
        })
    }

    /// Reads and checks the numbers of a model. Where layers of its architecture differ in how they see
    /// positions, the file `rules.rs` says how. Nothing is allocated in proportion to an unchecked number.
    ///
    /// # Errors
    /// A missing key, one of the wrong type or out of range, or numbers that contradict each other or the
    /// tensors.
    pub fn from_gguf(file: &File) -> Result<Hparams> {
        Self::read(file, false)
    }

    /// The numbers as they were before `convert` wrote any method into the file; those of
    /// [`Hparams::from_gguf`] for other files.
    ///
    /// # Errors
    /// Returns the errors of [`Hparams::from_gguf`].
    pub fn as_trained(file: &File) -> Result<Hparams> {
        Self::read(file, true)
    }

    fn read(file: &File, as_trained: bool) -> Result<Hparams> {
        if file.get::<String>("general.type").is_ok_and(|kind| kind == "adapter") {
            return Err(GgufError { path: file.path().to_owned(), defect: Defect::Adapter }.into());
        }
        let arch: String = file.get("general.architecture")?;
        let plausible = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if arch.is_empty() || arch.len() > 64 || !arch.chars().all(plausible) {
            return Err(file.error("general.architecture", "expected an architecture's name"));
        }
        let rules = rules::Rules::of(&arch);
        let seen = names::Seen::default();
        let keys = KeyReader { file, prefix: &arch, seen: &seen };
        let spec = read::read_spec(file)?;
        let converted = file.value(self::keys::ORIG_CONTEXT_LENGTH).is_some();
        // A spec of ours is resolved against the model as trained: what a method put in the standard keys
        // must not count again.
        let original = converted && (as_trained || spec.is_some());
        let rope_keys = if original { KeyReader { prefix: self::keys::ORIG, ..keys } } else { keys };

        let n_draft = keys.n_draft()?;
        let n_layer = keys.count("block_count", n_draft + 1, MAX_LAYERS)? - n_draft;
        let n_embd = keys.count("embedding_length", 1, MAX_DIM)?;
        let (attention, layers) = read_layers(&keys, &rope_keys, n_layer, n_embd, rules.layer)?;
        let n_vocab = read::n_vocab(file, n_embd)?;
        let ctx_keys = if as_trained { &rope_keys } else { &keys };
        let n_ctx_train = ctx_keys.count("context_length", 1, MAX_CTX)?;
        let (rms, layer) = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon");
        let norm_eps = keys.positive(rms)?.map_or_else(|| keys.positive(layer), |eps| Ok(Some(eps)))?;
        let norm_eps = norm_eps.ok_or_else(|| keys.missing(rms))? as f32;

        let n_rot = scaling::n_rot(file, &attention)?;
        let mut rope_scaling = RopeScaling::from_gguf(&rope_keys, n_rot)?;
        if !as_trained {
            rope_scaling.spec = spec;
            if original && rope_scaling.n_ctx_orig.is_none() {
                let n = rope_keys.count("context_length", 1, MAX_CTX)?;
                rope_scaling.n_ctx_orig = u32::try_from(n).ok();
                rope_scaling.n_ctx_orig_kept = rope_scaling.n_ctx_orig.is_some();
            }
        } else if let Some(n_rot) = n_rot {
            rope_scaling.restore_factors(file, n_rot)?;
        }
        let mut hp = Hparams {
            arch: arch.clone(),
            n_layer,
            n_draft,
            n_embd,
            n_vocab,
            n_ctx_train,
            norm_eps,
            attention,
            layers,
            rope_scaling,
            gelu: read::gelu(file)?,
            ..Hparams::default()
        };
        (rules.model)(&keys, &mut hp)?;
        // What a conversion kept is the model's own key.
        let kept = |key: String| key.replacen(self::keys::ORIG, &hp.arch, 1);
        hp.freq_base_key = rope_keys.source("rope.freq_base").map(kept);
        hp.freq_base_swa_key =
            keys.source("rope.freq_base_swa").filter(|_| rules::has_sliding_base(&hp.arch));
        hp.unread = names::unread(&keys);
        Ok(hp)
    }

    /// Returns a sentence about the keys that nothing reads, if there are some.
    pub fn unread_note(&self) -> Option<String> {
        const MOST: usize = 12;
        let more = self.unread.len().saturating_sub(MOST);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let list: Vec<&str> = self.unread.iter().take(MOST).map(String::as_str).collect();
        (!list.is_empty()).then(|| {
            format!(
                "ropewalk does not read these keys, so the model may not run as intended: {}{rest}.",
                list.join(", ")
            )
        })
    }
}

/// The record of every layer, with the distinct kinds of attention gathered.
fn read_layers(
    keys: &KeyReader<'_>,
    rope_keys: &KeyReader<'_>,
    n_layer: usize,
    n_embd: usize,
    rule: rules::LayerRule,
) -> Result<(Vec<LayerAttention>, Vec<LayerHparams>)> {
    let n_ff = keys.per_layer("feed_forward_length", n_layer)?;
    // Mixtures of experts may have only theirs.
    let of_experts = || keys.per_layer("expert_feed_forward_length", n_layer);
    let n_ff = n_ff.map_or_else(of_experts, |n_ff| Ok(Some(n_ff)))?;
    let n_ff = n_ff.ok_or_else(|| keys.missing("feed_forward_length"))?;
    let n_head = keys.per_layer("attention.head_count", n_layer)?;
    let n_head = n_head.ok_or_else(|| keys.missing("attention.head_count"))?;
    let n_head_kv = keys.heads_kv(n_layer)?;
    let n_head_kv = n_head_kv.unwrap_or_else(|| n_head.clone());
    let at = |il: usize, (key, what): (&str, String)| {
        let keys = if key.starts_with("rope.") { rope_keys } else { keys };
        keys.error(key, if il == 0 { what } else { format!("layer {il}: {what}") })
    };
    for (il, (n_head, n_kv)) in n_head.iter().zip(&n_head_kv).enumerate() {
        layer::check_heads(*n_head, *n_kv).map_err(|e| at(il, e))?;
    }
    // As in llama.cpp, the width that follows from the head count is that of the first layer in all of them.
    let n_embd_head = keys.head_width(n_embd, n_head[0])?;
    let n_rot = keys.count_opt("rope.dimension_count", 2, n_embd_head)?.unwrap_or(n_embd_head);
    let freq_base = rope_keys.positive("rope.freq_base")?.unwrap_or(10_000.0);
    let windows = keys.own_windows(n_layer)?;

    let (mut kinds, mut layers) = (Vec::new(), Vec::with_capacity(n_layer));
    for il in 0..n_layer {
        let mut layer = LayerAttention::new(n_head[il], n_head_kv[il], n_embd_head).rotated(freq_base, n_rot);
        rule(keys, il, &mut layer)?;
        if let Some(windows) = &windows {
            layer.window = windows[il];
        }
        layer.check().map_err(|e| at(il, e))?;
        let kind = kinds.iter().position(|k| *k == layer).unwrap_or(kinds.len());
        if kind == kinds.len() {
            kinds.push(layer);
        }
        layers.push(LayerHparams { kind: Some(kind), n_ff: n_ff[il] });
    }
    Ok((kinds, layers))
}
