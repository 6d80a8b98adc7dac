//! config.json: the model's numbers, with what transformers takes where a key is absent.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::json::{Object, SMALL};
use crate::{Error, Result};

/// Layers, far beyond any known model: what is asked for by layer is bounded by it.
const MAX_LAYERS: u32 = 4096;

/// config.json of a folder.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) folder: PathBuf,
    /// The root, with the keys of `text_config` in it and defaults where keys were absent.
    pub(crate) object: Object,
    /// Rotation of all layers, or of those with full attention.
    pub(crate) rope: Object,
    /// Base of layers with a sliding window, where they have their own.
    pub(crate) sliding_theta: Option<f64>,
}

/// Reads config.json, and the class name that `architectures` gives.
pub(crate) fn read(folder: &Path) -> Result<(Object, String)> {
    let path = folder.join("config.json");
    let object = Object::read(&path, SMALL)?.ok_or_else(|| {
        Error::of(folder, "has no config.json, expected the folder of a model of Hugging Face")
    })?;
    let name = object.array("architectures")?.and_then(|a| a.first()).and_then(Value::as_str);
    let name =
        name.ok_or_else(|| object.error("architectures", "found none, expected the name of a class"))?;
    let name = name.to_owned();
    Ok((object, name))
}

impl Config {
    /// Completes a config with a family's defaults. `defaults` is JSON; a `head_dim` of 0 in it stands for
    /// the embedding over the heads. `packed` are the methods of quantisation whose weights can be taken over.
    pub(crate) fn new(folder: &Path, object: Object, defaults: &str, packed: &[&str]) -> Result<Config> {
        let mut object = object;
        // What a folder of a model for images too says of its text model.
        if let Some(text) = object.object("text_config")?.cloned() {
            object.map.extend(text);
        }
        if let Some(method) = object.object("quantization_config")?.map(|q| q.get("quant_method").cloned()) {
            if !packed.iter().any(|known| method.as_ref().is_some_and(|found| found == known)) {
                let method = method.as_ref().map_or("of no method".to_owned(), crate::json::kind);
                let what = format!("found weights quantised by {method}, expected F32, F16 or BF16");
                return Err(object.error("quantization_config", what));
            }
        }
        let defaults: Map<String, Value> =
            serde_json::from_str(defaults).map_err(|e| Error::Invalid(format!("defaults: {e}")))?;
        for (key, value) in defaults {
            if object.get(&key).is_none() {
                object.map.insert(key, value);
            }
        }
        if object.u32("head_dim")? == Some(0) {
            let (n, heads) = (object.needs_u32("hidden_size")?, object.needs_u32("num_attention_heads")?);
            object.map.insert("head_dim".into(), (n / heads.max(1)).into());
        }
        if object.get("num_key_value_heads").is_none() {
            let heads = object.map.get("num_attention_heads").cloned().unwrap_or(Value::Null);
            object.map.insert("num_key_value_heads".into(), heads);
        }
        for key in ["num_attention_heads", "num_key_value_heads", "num_hidden_layers", "hidden_size"] {
            if object.needs_u32(key)? == 0 {
                return Err(object.error(key, "found 0, expected at least 1"));
            }
        }
        if object.needs_u32("num_hidden_layers")? > MAX_LAYERS {
            let found = object.needs_u32("num_hidden_layers")?;
            return Err(
                object.error("num_hidden_layers", format!("found {found}, expected at most {MAX_LAYERS}"))
            );
        }
        let (rope, sliding_theta) = rope(&object)?;
        Ok(Config { folder: folder.to_owned(), object, rope, sliding_theta })
    }
    /// The first of several names under which a number is kept.
    pub(crate) fn first_u32(&self, keys: &[&str]) -> Result<Option<u32>> {
        match keys.iter().find(|k| self.object.get(k).is_some()) {
            Some(key) => self.object.u32(key),
            None => Ok(None),
        }
    }
    /// As [`Config::first_u32`], for a number with a fraction.
    pub(crate) fn first_f64(&self, keys: &[&str]) -> Result<Option<f64>> {
        match keys.iter().find(|k| self.object.get(k).is_some()) {
            Some(key) => self.object.f64(key),
            None => Ok(None),
        }
    }
    pub(crate) fn u32(&self, key: &str) -> Result<u32> {
        self.object.needs_u32(key)
    }
    pub(crate) fn f64(&self, key: &str) -> Result<f64> {
        self.object.needs_f64(key)
    }
    /// Size of an attention head, from the embedding if the config has none.
    pub(crate) fn head_dim(&self) -> Result<u32> {
        match self.object.u32("head_dim")? {
            Some(n) => Ok(n),
            None => Ok(self.u32("hidden_size")? / self.u32("num_attention_heads")?),
        }
    }
    /// The kind of rope scaling, in lower case; `default` for none.
    pub(crate) fn rope_type(&self) -> Result<String> {
        Ok(self.rope.string("rope_type")?.unwrap_or("default").to_lowercase())
    }
}

/// Settings of rotation, in one place for all ways in which config files state them: `rope_parameters` of
/// transformers 5, for all layers or for each kind, else `rope_scaling` with keys beside it
/// (`RotaryEmbeddingConfigMixin` of transformers).
fn rope(config: &Object) -> Result<(Object, Option<f64>)> {
    let given = match config.object("rope_parameters")? {
        Some(given) => Some(given),
        None => config.object("rope_scaling")?,
    };
    let given = config.inside(given.cloned().unwrap_or_default());
    let mut rope = given.clone();
    let mut sliding_theta = config.f64("rope_local_base_freq")?;
    if let Some(full) = given.object("full_attention")? {
        rope = config.inside(full.clone());
    }
    if let Some(sliding) = given.object("sliding_attention")? {
        sliding_theta = config.inside(sliding.clone()).f64("rope_theta")?.or(sliding_theta);
    }
    let beside = ["rope_theta", "partial_rotary_factor"];
    for (key, value) in beside.iter().filter_map(|k| Some((*k, config.get(k)?.clone()))) {
        if rope.get(key).is_none() {
            rope.map.insert(key.into(), value);
        }
    }
    if rope.get("rope_type").is_none() {
        let kind = rope.get("type").cloned().unwrap_or_else(|| "default".into());
        rope.map.insert("rope_type".into(), kind);
    }
    // Beside the rest it has the last word, as in Phi-3's files.
    let original = "original_max_position_embeddings";
    let scaled = matches!(rope.string("rope_type")?, Some("llama3" | "yarn" | "longrope"));
    if let Some(value) = config.get(original) {
        rope.map.insert(original.into(), value.clone());
    } else if let (true, None, Some(n)) = (scaled, rope.get(original), config.get("max_position_embeddings"))
    {
        rope.map.insert(original.into(), n.clone());
    }
    Ok((rope, sliding_theta))
}
