//! config.json: the model's numbers, with what transformers takes where a key is absent.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::json::{Object, SMALL};
use crate::meaning::{self, Meaning, Meanings};
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
    /// Keys that transformers does not know.
    pub(crate) unknown: Vec<String>,
    /// Tie of the output to the embedding; `None` if the file leaves doubt.
    pub(crate) tied: Option<bool>,
}

/// Reads config.json, and the class name that `architectures` gives.
pub(crate) fn read(folder: &Path) -> Result<(Object, String)> {
    let path = folder.join("config.json");
    let object = Object::read(&path, SMALL)?
        .ok_or_else(|| Error::of(folder, "no config.json; expected a Hugging Face model directory"))?;
    let name = object.array("architectures")?.and_then(|a| a.first()).and_then(Value::as_str);
    let name =
        name.ok_or_else(|| object.error("architectures", "found none, expected the name of a class"))?;
    let name = name.to_owned();
    Ok((object, name))
}

/// Requirements of a family's transformers class on its config.json.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    /// The keys that the import reads, with the values of transformers where config.json lacks one; JSON. A key of every
    /// class is here only if it has such a value.
    pub(crate) defaults: &'static str,
    /// The same for a text model of this `model_type`, where a class may have several.
    pub(crate) defaults_of: &'static [(&'static str, &'static str)],
    /// Other keys that the class knows, and those whose meaning is not that for every class.
    pub(crate) config: &'static [Meanings],
    /// Kinds of rope scaling that can be said for this architecture.
    pub(crate) rope: &'static [&'static str],
    /// True if layers with a window have RoPE settings apart from the others'.
    pub(crate) rope_apart: bool,
    /// True if YaRN's ramp can begin and end between pairs (`truncate: false`).
    pub(crate) uncut_ramp: bool,
    /// Methods of `quantization_config` whose packed weights can be taken over.
    pub(crate) packed: &'static [&'static str],
}

impl Class {
    /// A class without peculiarities, for the others to say how they differ.
    pub(crate) const PLAIN: Class = Class {
        defaults: "{}",
        defaults_of: &[],
        config: &[],
        rope: &["default", "linear", "yarn"],
        rope_apart: false,
        uncut_ramp: false,
        packed: &[],
    };

    /// The defaults for a `model_type`.
    fn defaults(&self, kind: &str) -> Result<Map<String, Value>> {
        let json = self.defaults_of.iter().find(|(of, _)| *of == kind).map_or(self.defaults, |(_, d)| d);
        serde_json::from_str(json).map_err(|e| Error::Invalid(format!("defaults: {e}")))
    }

    /// The meaning of a key; `None` where the class does not know it.
    pub(crate) fn meaning(&self, key: &str) -> Option<Meaning> {
        meaning::of(self.config, &self.defaults("").ok()?, key)
    }
}

impl Config {
    /// Checks the meaning of every key to a family, and completes the config with the family's defaults: a key that is not
    /// there has its class's default, `null` is none. A `head_dim` of 0 in the defaults stands for the embedding over the
    /// heads.
    pub(crate) fn new(folder: &Path, object: Object, class: &Class) -> Result<Config> {
        let mut object = object;
        let mut tied = object.bool("tie_word_embeddings")?;
        // What a folder of a model for images too says of its text model.
        let text = object.object("text_config")?.cloned();
        let for_images = text.is_some();
        if let Some(text) = text {
            let inside = object.inside(text);
            // transformers goes by the outer one, llama.cpp's converter by the inner one.
            let inner = inside.bool("tie_word_embeddings")?;
            tied = if tied.is_some() && inner.is_some() && tied != inner { None } else { tied.or(inner) };
            object.map.extend(inside.map);
        }
        if let Some(method) = object.object("quantization_config")?.map(|q| q.get("quant_method").cloned()) {
            if !class.packed.iter().any(|known| method.as_ref().is_some_and(|found| found == known)) {
                let method = method.as_ref().map_or("of no method".to_owned(), crate::json::kind);
                let what = format!("found weights quantized by {method}, expected F32, F16 or BF16");
                return Err(object.error("quantization_config", what));
            }
        }
        let defaults = class.defaults(object.string("model_type")?.unwrap_or_default())?;
        let unknown = meaning::check(&object, class.config, &defaults)?;
        if object.u32("head_dim")? == Some(0) {
            return Err(object.error("head_dim", "found 0, expected at least 1"));
        }
        let heads_of_width = defaults.get("head_dim").is_some_and(|v| v == 0);
        for (key, value) in defaults {
            // A class with a fixed scaling takes either name in place of it.
            let given = match key.as_str() {
                "rope_parameters" => object.get(&key).or(object.get("rope_scaling")).is_some(),
                "num_experts" | "num_local_experts" => {
                    object.get("num_experts").or(object.get("num_local_experts")).is_some()
                }
                "rope_theta" | "rope_local_base_freq" => object.get(&key).is_some(),
                _ => object.map.contains_key(&key),
            };
            if !given {
                object.map.insert(key, value);
            }
        }
        if !for_images {
            tied = object.bool("tie_word_embeddings")?;
        }
        one_number(&object, "num_experts", "num_local_experts")?;
        if heads_of_width && matches!(object.u32("head_dim")?, None | Some(0)) {
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
        let layers = object.needs_u32("num_hidden_layers")?;
        if layers > MAX_LAYERS {
            let what = format!("found {layers}, expected at most {MAX_LAYERS}");
            return Err(object.error("num_hidden_layers", what));
        }
        let (rope, sliding_theta) = rope(&object, class.rope_apart)?;
        let config = Config { folder: folder.to_owned(), object, rope, sliding_theta, unknown, tied };
        config.check_rope(class)?;
        Ok(config)
    }
    /// Checks that the rope scaling is one that the family's files can say.
    fn check_rope(&self, class: &Class) -> Result<()> {
        let kind = self.rope_type()?;
        if !class.rope.contains(&kind.as_str()) {
            let expected = class.rope.join(", ");
            let what = format!("found rope scaling {:?}, expected {expected}", crate::error::shown(&kind));
            return Err(self.object.error("rope_scaling", what));
        }
        let partial = self.rope.f64("partial_rotary_factor")?.unwrap_or(1.0);
        let used = matches!(class.meaning("partial_rotary_factor"), Some(Meaning::Used));
        if !used && partial != 1.0 {
            let what =
                format!("found {partial}, expected 1: every dimension of a head is rotated in this class");
            return Err(self.object.error("partial_rotary_factor", what));
        }
        // gpt-oss has no other ramp than the uncut one, and a note says what that means.
        let cut = self.rope.bool("truncate")?.unwrap_or(true);
        if kind == "yarn" && !cut && !class.uncut_ramp {
            let what = "found false, expected true: YaRN's ramp begins and ends at whole pairs here, as in llama.cpp";
            return Err(self.object.error("truncate", what));
        }
        Ok(())
    }
    /// The number of experts, which has either name.
    pub(crate) fn n_experts(&self) -> Result<Option<u32>> {
        Ok(self.object.u32("num_local_experts")?.or(self.object.u32("num_experts")?))
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
    /// Returns true if the text model is Ministral 3's, which has keys that others of its architecture lack.
    pub(crate) fn is_ministral3(&self) -> Result<bool> {
        Ok(self.object.string("model_type")? == Some("ministral3"))
    }
    /// The kind of rope scaling, in lower case; `default` for none.
    pub(crate) fn rope_type(&self) -> Result<String> {
        Ok(self.rope.string("rope_type")?.unwrap_or("default").to_lowercase())
    }
}

/// Checks that a number which may have either name is not two numbers.
fn one_number(object: &Object, a: &str, b: &str) -> Result<()> {
    match (object.u32(a)?, object.u32(b)?) {
        (Some(x), Some(y)) if x != y => {
            Err(object.error(a, format!("found {x}, but {y} in {b}, expected one number")))
        }
        _ => Ok(()),
    }
}

/// Settings of rotation, in one place for all ways in which config files state them: `rope_parameters` of
/// transformers 5, for all layers or (`apart`) for each kind, or `rope_scaling` with keys next to it, which goes first
/// (`RotaryEmbeddingConfigMixin` of transformers).
fn rope(config: &Object, apart: bool) -> Result<(Object, Option<f64>)> {
    let (full_name, sliding_name) = ("full_attention", "sliding_attention");
    let scaling = config.object("rope_scaling")?.filter(|map| !map.is_empty()).cloned();
    let parameters = config.object("rope_parameters")?.filter(|map| !map.is_empty()).cloned();
    let nested = |map: &Map<String, Value>| map.contains_key(full_name) || map.contains_key(sliding_name);
    let mut sliding_theta = config.f64("rope_local_base_freq")?;
    let given = match (scaling, parameters) {
        (Some(map), _) | (None, Some(map)) if !apart && nested(&map) => {
            let what = "found settings for kinds of layers, expected one setting for all of them";
            return Err(config.error("rope_parameters", what));
        }
        (scaling, Some(parameters)) if apart => {
            if !nested(&parameters) {
                let what = format!("expected settings for {full_name} and {sliding_name}");
                return Err(config.error("rope_parameters", what));
            }
            let parameters = config.inside(parameters);
            if let Some(sliding) = parameters.object(sliding_name)? {
                let sliding = config.inside(sliding.clone());
                for (key, wanted) in [("rope_type", "default"), ("type", "default")] {
                    if let Some(found) = sliding.string(key)?.filter(|found| *found != wanted) {
                        let found = crate::error::shown(found);
                        let what = format!("{sliding_name}: {key}: found {found:?}, expected {wanted}");
                        return Err(config.error("rope_parameters", what));
                    }
                }
                if let Some(part) = sliding.f64("partial_rotary_factor")?.filter(|part| *part != 1.0) {
                    let what = format!("{sliding_name}: partial_rotary_factor: found {part}, expected 1");
                    return Err(config.error("rope_parameters", what));
                }
                sliding_theta = sliding.f64("rope_theta")?.or(sliding_theta);
            }
            let mut full = parameters.object(full_name)?.cloned().unwrap_or_default();
            full.extend(scaling.unwrap_or_default());
            full
        }
        (scaling, parameters) => scaling.or(parameters).unwrap_or_default(),
    };
    let mut rope = config.inside(given);
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
    // Empty and neutral values are no scaling.
    let kind = rope.string("rope_type")?.unwrap_or_default().to_lowercase();
    let scales = !matches!(rope.f64("factor")?, Some(0.0 | 1.0));
    let idle = match kind.as_str() {
        "" | "none" => true,
        "linear" | "dynamic" => !scales,
        "yarn" => {
            !scales && ["attention_factor", "llama_4_scaling_beta"].iter().all(|k| rope.get(k).is_none())
        }
        _ => false,
    };
    if idle {
        rope.map.insert("rope_type".into(), "default".into());
    }
    // If the others are there too, it takes precedence, as in Phi-3's files.
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
