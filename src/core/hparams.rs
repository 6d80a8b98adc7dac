//! A model's numbers, read from GGUF metadata and validated once.
//!
//! Names and defaults are llama.cpp's (`llama_model_base::load_hparams`); where it would abort or compute with
//! nonsense, reading fails here with the file, the key, what was expected and what was found.

use gguf::{Array, DType, File, FromValue, Result, Value};

/// Keys of ropewalk's own, which `convert` writes beside the standard ones.
///
/// A converted file's standard keys (`context_length`, `rope.freq_base`, `rope.scaling.*`) say what other programs can follow of the
/// method; what they said before is kept under [`ORIG`](keys::ORIG), so that nothing is ever applied twice.
pub mod keys {
    /// The resolved rope spec the file is to be opened under (string). Absent from files written for llama.cpp alone.
    pub const SPEC: &str = "ropewalk.rope.spec";
    /// The spec that the list of bases in [`SPEC`] was worked out from (string), where there is one.
    pub const DERIVED_FROM: &str = "ropewalk.rope.derived_from";
    /// The context the spec was resolved for, tokens (u32).
    pub const N_CTX: &str = "ropewalk.rope.n_ctx";
    /// The trained window the spec counts from, tokens (u32); the spec's `original` says the same.
    pub const N_CTX_ORIG: &str = "ropewalk.rope.n_ctx_orig";
    /// One base per KV head (f64 array), for methods that have them; the spec says the same.
    pub const BASES: &str = "ropewalk.rope.bases";
    /// Version of the program that wrote the file (string).
    pub const VERSION: &str = "ropewalk.version";
    /// In front of the name (less the architecture) of each standard key as it was before the first conversion.
    pub const ORIG: &str = "ropewalk.orig";
    /// `context_length` before the first conversion: every converted file has it.
    pub const ORIG_CONTEXT_LENGTH: &str = "ropewalk.orig.context_length";
    /// `rope_freqs.weight` before a method was baked into it (f32 array; empty when there was none).
    pub const ORIG_ROPE_FREQS: &str = "ropewalk.orig.rope_freqs";

    /// llama.cpp's alpha of a LoRA adapter, to be divided by the rank (f32).
    pub const LORA_ALPHA: &str = "adapter.lora.alpha";
    /// The resolved spec an adapter was trained under (string).
    pub const LORA_ROPE: &str = "ropewalk.lora.rope";
    /// The context it was trained at, tokens (u32).
    pub const LORA_N_CTX: &str = "ropewalk.lora.n_ctx";
    /// Fingerprint of the model it was trained on (string).
    pub const LORA_BASE: &str = "ropewalk.lora.base";
    /// Optimiser steps (u64).
    pub const LORA_STEPS: &str = "ropewalk.lora.steps";
    /// What it was trained on (string).
    pub const LORA_DATA: &str = "ropewalk.lora.data";
    /// Whether its alpha was meant over the square root of the rank (bool).
    pub const LORA_RSLORA: &str = "ropewalk.lora.rslora";
}

/// The rope scaling a file declares for itself (`{arch}.rope.scaling.*`), with its factor tensors.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RopeScaling {
    /// `none`, `linear`, `yarn`, `longrope`; absent when the file says nothing. A factor without a type is `linear`, as in llama.cpp.
    pub kind: Option<String>,
    /// `scaling.factor`, or `rope.scale_linear` of old files; above 0 (a stored 0 means unset).
    pub factor: Option<f64>,
    /// The trained window where `context_length` is an extended one: `scaling.original_context_length`, else what
    /// `convert` kept of `context_length`; tokens.
    pub n_ctx_orig: Option<u32>,
    /// `scaling.attn_factor`.
    pub attn_factor: Option<f64>,
    /// `scaling.yarn_ext_factor`; absent when negative, which is how files say unset.
    pub yarn_ext_factor: Option<f64>,
    /// `scaling.yarn_attn_factor`.
    pub yarn_attn_factor: Option<f64>,
    /// `scaling.yarn_beta_fast`.
    pub yarn_beta_fast: Option<f64>,
    /// `scaling.yarn_beta_slow`.
    pub yarn_beta_slow: Option<f64>,
    /// `rope_freqs.weight`: what the angle of each pair is divided by, `[n_rot/2]`.
    pub freq_factors: Option<Vec<f32>>,
    /// `rope_factors_long.weight`, `[n_rot/2]`.
    pub long_factors: Option<Vec<f32>>,
    /// `rope_factors_short.weight`, `[n_rot/2]`.
    pub short_factors: Option<Vec<f32>>,
    /// `ropewalk.rope.spec`: the whole spec as ropewalk's `convert` wrote it.
    pub spec: Option<String>,
}

/// A model's numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Hparams {
    /// `general.architecture`.
    pub arch: String,
    /// Layers.
    pub n_layer: usize,
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Width of the feed-forward.
    pub n_ff: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key-value heads; divides `n_head`.
    pub n_head_kv: usize,
    /// Width of one head.
    pub n_embd_head: usize,
    /// Rotary dimensions of a head: even, at most `n_embd_head`.
    pub n_rot: usize,
    /// Tokens in the vocabulary.
    pub n_vocab: usize,
    /// `context_length`: tokens the model was trained for (or says it handles).
    pub n_ctx_train: usize,
    /// `attention.sliding_window`: tokens that layers with a sliding window see, in models that have such layers.
    pub n_swa: Option<usize>,
    /// Epsilon of the RMS norms.
    pub rms_eps: f32,
    /// `rope.freq_base`, 10000 when absent; in a file with a spec of ours, what it was before `convert` put a method's base there.
    pub freq_base: f64,
    /// What the file declares about rope scaling.
    pub rope_scaling: RopeScaling,
}

/// Positions are i32 in ggml, so no context is longer.
const MAX_CTX: usize = i32::MAX as usize;
/// Above every width and count of a real model, and small enough that products of two cannot overflow.
const MAX_DIM: usize = 1 << 24;
/// Bases this large make the slowest pair's factor overflow the f32 that ggml takes.
const MAX_FREQ_BASE: f64 = 1e30;
/// As llama.cpp's `LLAMA_MAX_LAYERS`.
const MAX_LAYERS: usize = 512;
/// Longer specs are not written by anything.
const MAX_SPEC: usize = 1 << 16;

impl Hparams {
    /// The window the weights were trained on, tokens: what the declared scaling counts from, else `n_ctx_train`.
    pub fn n_ctx_orig(&self) -> usize {
        self.rope_scaling.n_ctx_orig.filter(|n| *n > 0).map_or(self.n_ctx_train, |n| n as usize)
    }

    /// Reads and checks the numbers of a model. Nothing is allocated in proportion to an unchecked number.
    ///
    /// # Errors
    /// A missing key, one of the wrong type or out of range, or numbers that contradict each other or the tensors.
    pub fn from_gguf(file: &File) -> Result<Hparams> {
        Self::read(file, false)
    }

    /// The numbers as they were before `convert` wrote any method into the file; those of [`Hparams::from_gguf`] for other files.
    ///
    /// # Errors
    /// As [`Hparams::from_gguf`].
    pub fn as_trained(file: &File) -> Result<Hparams> {
        Self::read(file, true)
    }

    fn read(file: &File, as_trained: bool) -> Result<Hparams> {
        let arch: String = file.get("general.architecture")?;
        let plausible = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if arch.is_empty() || arch.len() > 64 || !arch.chars().all(plausible) {
            return Err(file.error("general.architecture", "expected an architecture's name"));
        }
        let keys = Keys { file, prefix: &arch };
        let spec = read_spec(file)?;
        let converted = file.value(self::keys::ORIG_CONTEXT_LENGTH).is_some();
        // A spec of ours is resolved against the model as trained: what a method put in the standard keys must not count again.
        let original = converted && (as_trained || spec.is_some());
        let rope_keys =
            if original { Keys { file, prefix: self::keys::ORIG } } else { Keys { file, prefix: &arch } };

        let n_layer = keys.count("block_count", 1, MAX_LAYERS)?;
        let n_embd = keys.count("embedding_length", 1, MAX_DIM)?;
        let n_ff = keys.per_layer("feed_forward_length", n_layer, MAX_DIM)?;
        let n_ff = n_ff.ok_or_else(|| keys.missing("feed_forward_length"))?;
        let n_head = keys.per_layer("attention.head_count", n_layer, MAX_DIM)?;
        let n_head = n_head.ok_or_else(|| keys.missing("attention.head_count"))?;
        let n_head_kv = keys.per_layer("attention.head_count_kv", n_layer, n_head)?.unwrap_or(n_head);
        if !n_head.is_multiple_of(n_head_kv) {
            let what = format!("expected a divisor of attention.head_count = {n_head}, found {n_head_kv}");
            return Err(keys.error("attention.head_count_kv", what));
        }
        let n_embd_head = keys.head_width(n_embd, n_head)?;
        let n_rot = keys.count_opt("rope.dimension_count", 2, n_embd_head)?.unwrap_or(n_embd_head);
        if !n_rot.is_multiple_of(2) {
            return Err(keys.error("rope.dimension_count", format!("expected an even number, found {n_rot}")));
        }
        if n_head.saturating_mul(n_embd_head) > MAX_DIM {
            let what = format!("{n_head} heads of width {n_embd_head} are more than {MAX_DIM} values");
            return Err(keys.error("attention.head_count", what));
        }
        let n_vocab = n_vocab(file, n_embd)?;
        let ctx_keys = if as_trained { &rope_keys } else { &keys };
        let n_ctx_train = ctx_keys.count("context_length", 1, MAX_CTX)?;
        let rms_eps = keys.positive("attention.layer_norm_rms_epsilon")?;
        let rms_eps = rms_eps.ok_or_else(|| keys.missing("attention.layer_norm_rms_epsilon"))? as f32;

        let freq_base = rope_keys.positive("rope.freq_base")?.unwrap_or(10_000.0);
        if !(freq_base > 1.0 && freq_base <= MAX_FREQ_BASE) {
            let what = format!("expected a number above 1, at most {MAX_FREQ_BASE:e}, found {freq_base:e}");
            return Err(rope_keys.error("rope.freq_base", what));
        }
        let mut rope_scaling = RopeScaling::from_gguf(&rope_keys, n_rot)?;
        if !as_trained {
            rope_scaling.spec = spec;
            if original && rope_scaling.n_ctx_orig.is_none() {
                let n = rope_keys.count("context_length", 1, MAX_CTX)?;
                rope_scaling.n_ctx_orig = u32::try_from(n).ok();
            }
        } else if let Some(factors) = file.get_opt::<Vec<f32>>(self::keys::ORIG_ROPE_FREQS)? {
            rope_scaling.freq_factors = match factors.is_empty() {
                true => None,
                false => Some(checked_factors(file, self::keys::ORIG_ROPE_FREQS, factors, n_rot)?),
            };
        }
        let n_swa = keys.count_opt("attention.sliding_window", 0, MAX_CTX)?.filter(|&n| n > 0);
        Ok(Hparams {
            n_layer,
            n_embd,
            n_ff,
            n_head,
            n_head_kv,
            n_embd_head,
            n_rot,
            n_vocab,
            n_ctx_train,
            n_swa,
            rms_eps,
            freq_base,
            rope_scaling,
            arch,
        })
    }
}

impl RopeScaling {
    fn from_gguf(keys: &Keys<'_>, n_rot: usize) -> Result<RopeScaling> {
        let file = keys.file;
        let scaling = |name: &str| -> Result<Option<f64>> { keys.positive(&format!("rope.scaling.{name}")) };
        let mut kind: Option<String> = file.get_opt(&keys.key("rope.scaling.type"))?;
        if let Some(kind) = &kind {
            if !["none", "linear", "yarn", "longrope"].contains(&kind.as_str()) {
                let what = format!("expected none, linear, yarn or longrope, found {:?}", clip(kind));
                return Err(keys.error("rope.scaling.type", what));
            }
        }
        let mut factor = keys.non_negative("rope.scaling.factor")?;
        if factor.is_none() {
            factor = keys.non_negative("rope.scale_linear")?;
        }
        let factor = factor.filter(|&f| f != 0.0);
        if kind.is_none() && factor.is_some() {
            kind = Some("linear".into());
        }
        let n_ctx_orig = keys.count_opt("rope.scaling.original_context_length", 0, MAX_CTX)?;
        let ext_factor = keys.finite("rope.scaling.yarn_ext_factor")?.filter(|&x| x >= 0.0);
        Ok(RopeScaling {
            kind,
            factor,
            n_ctx_orig: n_ctx_orig.filter(|&n| n > 0).and_then(|n| u32::try_from(n).ok()),
            attn_factor: scaling("attn_factor")?,
            yarn_ext_factor: ext_factor,
            yarn_attn_factor: scaling("yarn_attn_factor")?,
            yarn_beta_fast: scaling("yarn_beta_fast")?,
            yarn_beta_slow: scaling("yarn_beta_slow")?,
            freq_factors: factors(file, "rope_freqs.weight", n_rot)?,
            long_factors: factors(file, "rope_factors_long.weight", n_rot)?,
            short_factors: factors(file, "rope_factors_short.weight", n_rot)?,
            spec: None,
        })
    }
}

/// The keys of a file under one prefix: an architecture's, or what `convert` kept of them.
struct Keys<'a> {
    file: &'a File,
    prefix: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }
    fn error(&self, name: &str, what: impl Into<String>) -> gguf::Error {
        self.file.error(&self.key(name), what)
    }
    fn missing(&self, name: &str) -> gguf::Error {
        self.error(name, "expected a number, found no such key")
    }
    fn count(&self, name: &str, min: usize, max: usize) -> Result<usize> {
        self.count_opt(name, min, max)?.ok_or_else(|| self.missing(name))
    }
    fn count_opt(&self, name: &str, min: usize, max: usize) -> Result<Option<usize>> {
        count(self.file, &self.key(name), min, max)
    }
    /// A count that may be given per layer; our architectures want the same in every layer.
    fn per_layer(&self, name: &str, n_layer: usize, max: usize) -> Result<Option<usize>> {
        let key = self.key(name);
        let Some(Value::Array(array)) = self.file.value(&key) else {
            return count(self.file, &key, 1, max);
        };
        let mut values = integers(array)
            .ok_or_else(|| self.file.error(&key, "expected an integer or an array of integers"))?;
        if values.len() != n_layer {
            let what = format!("expected {n_layer} entries, one per layer, found {}", values.len());
            return Err(self.file.error(&key, what));
        }
        // n_layer is at least 1 and the length agrees with it, so there is a first.
        let first = values.next().unwrap_or(0);
        if let Some((i, v)) = values.enumerate().find(|&(_, v)| v != first) {
            let what = format!(
                "expected the same number for every layer, found {first} and, at layer {}, {v}",
                i + 1
            );
            return Err(self.file.error(&key, what));
        }
        in_range(self.file, &key, first, 1, max).map(Some)
    }
    /// Width of a head: `attention.key_length`, which the values must share.
    fn head_width(&self, n_embd: usize, n_head: usize) -> Result<usize> {
        let n_key = self.count_opt("attention.key_length", 2, MAX_DIM)?;
        let n_value = self.count_opt("attention.value_length", 2, MAX_DIM)?;
        let from_embd = |what: &str| -> Result<usize> {
            if !n_embd.is_multiple_of(n_head) || n_embd / n_head < 2 {
                let text = format!(
                    "expected a divisor of embedding_length = {n_embd} (no {what} is given), found {n_head}"
                );
                return Err(self.error("attention.head_count", text));
            }
            Ok(n_embd / n_head)
        };
        let n_key = n_key.map_or_else(|| from_embd("attention.key_length"), Ok)?;
        let n_value = n_value.map_or_else(|| from_embd("attention.value_length"), Ok)?;
        if n_key != n_value {
            let what = format!("expected the width of the keys, {n_key}, found {n_value}");
            return Err(self.error("attention.value_length", what));
        }
        Ok(n_key)
    }
    fn positive(&self, name: &str) -> Result<Option<f64>> {
        positive(self.file, &self.key(name))
    }
    fn non_negative(&self, name: &str) -> Result<Option<f64>> {
        match self.finite(name)? {
            Some(x) if x < 0.0 => Err(self.error(name, format!("expected a number not below 0, found {x}"))),
            x => Ok(x),
        }
    }
    fn finite(&self, name: &str) -> Result<Option<f64>> {
        match self.file.get_opt::<f64>(&self.key(name))? {
            Some(x) if !x.is_finite() => {
                Err(self.error(name, format!("expected a finite number, found {x}")))
            }
            x => Ok(x),
        }
    }
}

fn positive(file: &File, key: &str) -> Result<Option<f64>> {
    match file.get_opt::<f64>(key)? {
        // f32 is what the graph computes in: a number that is 0 or infinite there is no better than one that is so here.
        Some(x) if !(x as f32).is_finite() || (x as f32) <= 0.0 => {
            Err(file.error(key, format!("expected a number above 0, found {x}")))
        }
        x => Ok(x),
    }
}

fn count(file: &File, key: &str, min: usize, max: usize) -> Result<Option<usize>> {
    match file.get_opt::<u64>(key)? {
        Some(n) => in_range(file, key, n, min, max).map(Some),
        None => Ok(None),
    }
}

fn in_range(file: &File, key: &str, n: u64, min: usize, max: usize) -> Result<usize> {
    match usize::try_from(n) {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(file.error(key, format!("expected {min} to {max}, found {n}"))),
    }
}

/// The entries of an integer array that fit u64, without a copy; `None` for other arrays or negative entries.
fn integers(array: &Array) -> Option<Box<dyn ExactSizeIterator<Item = u64> + '_>> {
    fn all<'a, T: Copy>(
        v: &'a [T],
        f: fn(T) -> Value,
    ) -> Option<Box<dyn ExactSizeIterator<Item = u64> + 'a>> {
        if v.iter().any(|&x| u64::from_value(&f(x)).is_none()) {
            return None;
        }
        Some(Box::new(v.iter().map(move |&x| u64::from_value(&f(x)).unwrap_or(0))))
    }
    match array {
        Array::U8(v) => all(v, Value::U8),
        Array::I8(v) => all(v, Value::I8),
        Array::U16(v) => all(v, Value::U16),
        Array::I16(v) => all(v, Value::I16),
        Array::U32(v) => all(v, Value::U32),
        Array::I32(v) => all(v, Value::I32),
        Array::U64(v) => all(v, Value::U64),
        Array::I64(v) => all(v, Value::I64),
        _ => None,
    }
}

/// Tokens, from the embedding table's shape; the tokenizer's list must agree.
fn n_vocab(file: &File, n_embd: usize) -> Result<usize> {
    let name = "token_embd.weight";
    let tensor = file.tensor(name).ok_or_else(|| file.error(name, "expected this tensor, found none"))?;
    let n = match tensor.shape[..] {
        [ne0, n] | [ne0, n, 1] | [ne0, n, 1, 1] if ne0 == n_embd as u64 => {
            in_range(file, name, n, 1, MAX_CTX)?
        }
        _ => {
            let what = format!("expected shape [{n_embd}, number of tokens], found {:?}", tensor.shape);
            return Err(file.error(name, what));
        }
    };
    let key = "tokenizer.ggml.tokens";
    match file.value(key) {
        Some(Value::Array(Array::String(tokens))) if tokens.len() != n => Err(file.error(
            key,
            format!("expected {n} tokens, as token_embd.weight has rows, found {}", tokens.len()),
        )),
        None | Some(Value::Array(Array::String(_))) => Ok(n),
        Some(_) => Err(file.error(key, "expected an array of strings")),
    }
}

/// A tensor of frequency factors, F32.
fn factors(file: &File, name: &str, n_rot: usize) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = file.tensor(name) else { return Ok(None) };
    let n = n_rot / 2;
    if tensor.dtype != DType::F32 || tensor.n_elements() != n || tensor.shape.first() != Some(&(n as u64)) {
        let what = format!("expected f32 [{n}], found {} {:?}", tensor.dtype.name(), tensor.shape);
        return Err(file.error(name, what));
    }
    checked_factors(file, name, file.floats(tensor)?, n_rot).map(Some)
}

/// One factor per rotated pair, each finite and above 0.
fn checked_factors(file: &File, name: &str, values: Vec<f32>, n_rot: usize) -> Result<Vec<f32>> {
    if values.len() != n_rot / 2 {
        return Err(file.error(name, format!("expected {} values, found {}", n_rot / 2, values.len())));
    }
    match values.iter().position(|x| !x.is_finite() || *x <= 0.0) {
        Some(i) => Err(file.error(name, format!("expected numbers above 0, found {} at {i}", values[i]))),
        None => Ok(values),
    }
}

fn read_spec(file: &File) -> Result<Option<String>> {
    let spec: Option<String> = file.get_opt(self::keys::SPEC)?;
    match spec.as_ref().is_some_and(|s| s.is_empty() || s.len() > MAX_SPEC) {
        true => Err(file.error(self::keys::SPEC, format!("expected a spec of 1 to {MAX_SPEC} bytes"))),
        false => Ok(spec),
    }
}

fn clip(text: &str) -> &str {
    text.char_indices().nth(40).map_or(text, |(i, _)| &text[..i])
}
