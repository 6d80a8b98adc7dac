//! Reading numbers out of GGUF metadata, each with its range and an error that names the key.

use gguf::{Array, DType, File, Result, Value};

use super::names::{self, Seen};
use super::{Gelu, MAX_CTX, MAX_DIM};
use crate::settings::quoted;

/// Longer specs are not written by anything.
const MAX_SPEC: usize = 1 << 16;

/// Reads metadata keys under one prefix: the architecture's name, or that of the keys which `convert` kept.
///
/// Every error names the file, the key, what was expected and what was found.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeyReader<'a> {
    pub(super) file: &'a File,
    pub(super) prefix: &'a str,
    pub(super) seen: &'a Seen,
}

impl KeyReader<'_> {
    /// The whole key: prefix and name, or the name that another writer has for it where the file has that alone.
    pub(super) fn key(&self, name: &str) -> String {
        self.seen.add(name);
        let key = names::found(self.file, self.prefix, name);
        if let Some(other) = key.strip_prefix(self.prefix).and_then(|k| k.strip_prefix('.')) {
            self.seen.add(other);
        }
        key
    }

    /// The key under which the file has a number, if it has it.
    pub(super) fn source(&self, name: &str) -> Option<String> {
        Some(self.key(name)).filter(|key| self.file.value(key).is_some())
    }

    pub(super) fn error(&self, name: &str, what: impl Into<String>) -> gguf::Error {
        self.file.error(&self.key(name), what)
    }

    /// The keys as they were before `convert` wrote a method into the file.
    pub(super) fn as_trained(&self) -> Self {
        let converted = self.file.value(super::keys::ORIG_CONTEXT_LENGTH).is_some();
        KeyReader { prefix: if converted { super::keys::ORIG } else { self.prefix }, ..*self }
    }

    pub(super) fn missing(&self, name: &str) -> gguf::Error {
        self.error(name, "expected a number, found no such key")
    }

    /// A whole number from `min` to `max`, which must be there.
    pub(super) fn count(&self, name: &str, min: usize, max: usize) -> Result<usize> {
        self.count_opt(name, min, max)?.ok_or_else(|| self.missing(name))
    }

    /// A whole number from `min` to `max`, if there is one.
    pub(super) fn count_opt(&self, name: &str, min: usize, max: usize) -> Result<Option<usize>> {
        count(self.file, &self.key(name), min, max)
    }

    /// `nextn_predict_layers`: how many of the file's layers, the last ones, draft further tokens.
    pub(super) fn n_draft(&self) -> Result<usize> {
        Ok(self.count_opt("nextn_predict_layers", 0, super::MAX_LAYERS - 1)?.unwrap_or(0))
    }

    /// A count of at least 1 for each layer: one number for all of them, or an array with an entry for each, after
    /// which those of layers that draft may follow.
    pub(super) fn per_layer(&self, name: &str, n_layer: usize) -> Result<Option<Vec<usize>>> {
        self.per_layer_from(name, n_layer, 1)
    }

    fn per_layer_from(&self, name: &str, n_layer: usize, min: usize) -> Result<Option<Vec<usize>>> {
        let key = self.key(name);
        let Some(Value::Array(array)) = self.file.value(&key) else {
            return Ok(count(self.file, &key, 1, MAX_DIM)?.map(|n| vec![n; n_layer]));
        };
        let values = integers(array)
            .ok_or_else(|| self.file.error(&key, "expected an integer or an array of integers"))?;
        let n_all = n_layer + self.n_draft()?;
        if values.len() != n_layer && values.len() != n_all {
            let what = format!("expected {n_all} entries, one per layer, found {}", values.len());
            return Err(self.file.error(&key, what));
        }
        let value = |n| in_range(self.file, &key, n, min, MAX_DIM);
        values.take(n_layer).map(value).collect::<Result<_>>().map(Some)
    }

    /// Key-value heads of each layer. Where layers may be without attention, some writers give those none: they are
    /// counted as the others here, and never asked for.
    pub(super) fn heads_kv(&self, n_layer: usize) -> Result<Option<Vec<usize>>> {
        let name = "attention.head_count_kv";
        if !super::rules::has_delta_nets(self.prefix) {
            return self.per_layer(name, n_layer);
        }
        let heads = self.per_layer_from(name, n_layer, 0)?;
        Ok(heads.map(|heads| {
            let most = heads.iter().copied().max().unwrap_or(0);
            heads.into_iter().map(|n| if n == 0 { most } else { n }).collect()
        }))
    }

    /// Width of a head: `attention.key_length`, which the values must share; else `n_embd / n_head`.
    pub(super) fn head_width(&self, n_embd: usize, n_head: usize) -> Result<usize> {
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

    /// A number above 0, also once it is rounded to f32, in which graphs compute.
    pub(super) fn positive(&self, name: &str) -> Result<Option<f64>> {
        self.number(name, "a number above 0", |x| (x as f32).is_finite() && x as f32 > 0.0)
    }

    /// Replaces `number` by a number above 0, if there is one under this name.
    pub(super) fn set_positive(&self, name: &str, number: &mut f32) -> Result<()> {
        if let Some(x) = self.positive(name)? {
            *number = x as f32;
        }
        Ok(())
    }

    /// True or false, if either is there.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.file.get_opt(&self.key(name))
    }

    /// `attention.sliding_window`: how many tokens a query sees in the layers that have a window, itself among
    /// them; tokens. `None` where the file says 0 or nothing.
    pub(super) fn window(&self) -> Result<Option<usize>> {
        Ok(self.count_opt("attention.sliding_window", 0, MAX_CTX)?.filter(|&n| n > 0))
    }

    /// The file's key of ropewalk's own for windows, in place of the architecture's rule: an entry for each layer.
    pub(super) fn own_windows(&self, n_layer: usize) -> Result<Option<Vec<Option<usize>>>> {
        let key = super::keys::WINDOWS;
        let Some(windows) = entries(self.file, key)? else { return Ok(None) };
        if windows.len() != n_layer {
            let what = format!("expected {n_layer} entries, one per layer, found {}", windows.len());
            return Err(self.file.error(key, what));
        }
        let window = |n| in_range(self.file, key, n, 0, MAX_CTX).map(|n| Some(n).filter(|&n| n > 0));
        windows.map(window).collect::<Result<_>>().map(Some)
    }

    /// Returns true if layer `il` has the window, by `attention.sliding_window_pattern`: an entry for each layer, or a
    /// number n (`usual` if the file has none) of which every n-th layer has no window; 0 means that all have it.
    pub(super) fn slides(&self, il: usize, usual: usize) -> Result<bool> {
        let name = "attention.sliding_window_pattern";
        if let Some(slides) = self.listed(name, il)? {
            return Ok(slides);
        }
        let n = self.count_opt(name, 0, MAX_DIM)?.unwrap_or(usual);
        Ok(n == 0 || !(il + 1).is_multiple_of(n))
    }

    /// The entry of layer `il` in an array of flags; `None` where the key is no array.
    pub(super) fn listed(&self, name: &str, il: usize) -> Result<Option<bool>> {
        let Some(Value::Array(array)) = self.file.value(&self.key(name)) else { return Ok(None) };
        let entry = match array {
            Array::Bool(v) => v.get(il).copied(),
            _ => integers(array).and_then(|mut v| v.nth(il)).map(|n| n != 0),
        };
        let none = || self.error(name, format!("expected an entry for each layer, found none for {il}"));
        entry.map(Some).ok_or_else(none)
    }

    /// An array of whole numbers of 0 or more; `None` where there is no such key.
    pub(super) fn counts(&self, name: &str) -> Result<Option<Vec<u64>>> {
        Ok(entries(self.file, &self.key(name))?.map(Iterator::collect))
    }

    pub(super) fn non_negative(&self, name: &str) -> Result<Option<f64>> {
        self.finite(name)?;
        self.number(name, "a number not below 0", |x| x >= 0.0)
    }

    pub(super) fn finite(&self, name: &str) -> Result<Option<f64>> {
        self.number(name, "a finite number", f64::is_finite)
    }

    fn number(&self, name: &str, expected: &str, fits: impl Fn(f64) -> bool) -> Result<Option<f64>> {
        match self.file.get_opt::<f64>(&self.key(name))? {
            Some(x) if !fits(x) => Err(self.error(name, format!("expected {expected}, found {x}"))),
            x => Ok(x),
        }
    }
}

fn count(file: &File, key: &str, min: usize, max: usize) -> Result<Option<usize>> {
    file.get_opt::<u64>(key)?.map(|n| in_range(file, key, n, min, max)).transpose()
}

fn in_range(file: &File, key: &str, n: u64, min: usize, max: usize) -> Result<usize> {
    match usize::try_from(n) {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(file.error(key, format!("expected {min} to {max}, found {n}"))),
    }
}

/// The entries of an array of whole numbers of 0 or more; `None` where there is no such key.
fn entries<'f>(file: &'f File, key: &str) -> Result<Option<impl ExactSizeIterator<Item = u64> + 'f>> {
    let Some(value) = file.value(key) else { return Ok(None) };
    let entries = if let Value::Array(array) = value { integers(array) } else { None };
    entries.map(Some).ok_or_else(|| file.error(key, "expected an array of integers of 0 or more"))
}

/// The entries of an integer array, without a copy; `None` for other arrays and negative entries.
fn integers(array: &Array) -> Option<impl ExactSizeIterator<Item = u64> + '_> {
    let number = |n: i128| u64::try_from(n).ok();
    let whole = array.integers()?.all(|n| number(n).is_some());
    Some(array.integers()?.map(move |n| number(n).unwrap_or(0))).filter(|_| whole)
}

/// Number of tokens: the rows of the embedding table. The tokenizer's list must have as many.
pub(super) fn n_vocab(file: &File, n_embd: usize) -> Result<usize> {
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

/// The frequency factors in a tensor, which must be F32 `[n_rot/2]`; `None` when the file has no such tensor.
pub(super) fn factors(file: &File, name: &str, n_rot: usize) -> Result<Option<Vec<f32>>> {
    let Some(tensor) = file.tensor(name) else { return Ok(None) };
    let n = n_rot / 2;
    if tensor.dtype != DType::F32 || tensor.n_elements() != n || tensor.shape.first() != Some(&(n as u64)) {
        let what = format!("expected f32 [{n}], found {} {:?}", tensor.dtype.name(), tensor.shape);
        return Err(file.error(name, what));
    }
    checked_factors(file, name, file.floats(tensor)?, n_rot).map(Some)
}

pub(super) fn checked_factors(file: &File, name: &str, values: Vec<f32>, n_rot: usize) -> Result<Vec<f32>> {
    check_factors(&values, n_rot).map_err(|what| file.error(name, what))?;
    Ok(values)
}

/// An error, the end of a sentence, unless there is one factor per rotated pair, each finite and above 0.
pub(crate) fn check_factors(factors: &[f32], n_rot: usize) -> Result<(), String> {
    if factors.len() != n_rot / 2 {
        return Err(format!("expected {} values, found {}", n_rot / 2, factors.len()));
    }
    match factors.iter().position(|x| !x.is_finite() || *x <= 0.0) {
        Some(i) => Err(format!("expected numbers above 0, found {} at {i}", factors[i])),
        None => Ok(()),
    }
}

pub(super) fn read_spec(file: &File) -> Result<Option<String>> {
    let spec: Option<String> = file.get_opt(super::keys::SPEC)?;
    if spec.as_ref().is_some_and(|s| s.is_empty() || s.len() > MAX_SPEC) {
        return Err(file.error(super::keys::SPEC, format!("expected a spec of 1 to {MAX_SPEC} bytes")));
    }
    Ok(spec)
}

/// The form of GELU that the file names; that of llama.cpp where it names none.
pub(super) fn gelu(file: &File) -> Result<Gelu> {
    let key = super::keys::GELU;
    match file.get_opt::<String>(key)?.as_deref() {
        None | Some("tanh") => Ok(Gelu::Tanh),
        Some("erf") => Ok(Gelu::Erf),
        Some(other) => Err(file.error(key, format!("expected tanh or erf, found {}", quoted(other)))),
    }
}
