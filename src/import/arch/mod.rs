//! Families of models: what transformers calls them and their tensors, and what llama.cpp does.
//!
//! [`FAMILIES`] lists them. The definition is llama.cpp's own converter (`conversion/*.py` and
//! `gguf-py/gguf/tensor_mapping.py` in the sources of llama-cpp-python 0.3.36); defaults are those of the
//! configuration classes of transformers 5.

mod families;
mod keys;
mod places;
mod standard;
mod windows;

use std::collections::BTreeMap;

use ropewalk_core::hparams::Hparams;

use crate::config::{Class, Config};
use crate::error::shown;
use crate::keys::Keys;
use crate::meaning::Meaning;
use crate::safetensors::{Stored, Tensors};
use crate::tensor::{Change, Rows, Tensor, Values};
use crate::vocab::Kinds;
use crate::{Error, Result};

pub(crate) use families::FAMILIES;

/// Names of tensors in transformers, without `.weight` or `.bias`, and in GGUF; `{}` is the layer.
type Names = &'static [(&'static str, &'static str)];

/// A family of models.
pub(crate) struct Family {
    /// Class names in `architectures` of config.json.
    pub(crate) classes: &'static [&'static str],
    /// `general.architecture`.
    pub(crate) arch: &'static str,
    /// How its config.json is read.
    pub(crate) class: Class,
    /// Flags for biases, each with the ending of a tensor that is there if it is true.
    pub(crate) biases: &'static [(&'static str, &'static str)],
    /// Names that are not those of [`NAMES`].
    names: &'static [Names],
    /// Writes the keys.
    pub(crate) keys: fn(&Config, &mut Keys) -> Result<()>,
    /// Where a tensor goes that does not simply keep its rows.
    pub(crate) place: fn(&Config, &Place<'_>) -> Result<Vec<Target>>,
    /// The same with the name, for adapters: of the layer's tensor with this name, from a file's hyperparameters.
    pub(crate) change: fn(&Hparams, usize, &str) -> Change,
    /// Tensors that are computed from config.json, and keys that belong to them.
    pub(crate) extra: fn(&Config, &mut Keys) -> Result<Vec<Tensor>>,
    /// Kind of its tokenizer.
    pub(crate) vocab: Kinds,
}

/// A tensor on its way.
pub(crate) struct Place<'a> {
    pub(crate) stored: &'a Stored,
    /// Name in the checkpoint, without what models for images put before it.
    pub(crate) name: &'a str,
    /// The name in GGUF by the tables, with `.weight` or `.bias`.
    pub(crate) mapped: Option<String>,
    pub(crate) file: &'a Tensors,
}

/// A tensor of the new file, or one slice of it.
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) rows: Rows,
    pub(crate) values: Values,
    /// Which of several experts' tensors, stacked into one.
    pub(crate) expert: Option<u32>,
}

/// Names as most families have them.
const NAMES: Names = &[
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers.{}.input_layernorm", "blk.{}.attn_norm"),
    ("model.layers.{}.self_attn.q_proj", "blk.{}.attn_q"),
    ("model.layers.{}.self_attn.k_proj", "blk.{}.attn_k"),
    ("model.layers.{}.self_attn.v_proj", "blk.{}.attn_v"),
    ("model.layers.{}.self_attn.o_proj", "blk.{}.attn_output"),
    ("model.layers.{}.self_attn.q_norm", "blk.{}.attn_q_norm"),
    ("model.layers.{}.self_attn.k_norm", "blk.{}.attn_k_norm"),
    ("model.layers.{}.post_attention_layernorm", "blk.{}.ffn_norm"),
    ("model.layers.{}.mlp.gate_proj", "blk.{}.ffn_gate"),
    ("model.layers.{}.mlp.up_proj", "blk.{}.ffn_up"),
    ("model.layers.{}.mlp.down_proj", "blk.{}.ffn_down"),
];

/// The architectures that folders become, by their names in GGUF files.
pub fn architectures() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|f| f.arch)
}

/// The classes of transformers that are imported.
pub fn classes() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().flat_map(|f| f.classes.iter().copied())
}

/// The meaning of a key of config.json to a class; `None` where it does not know the key.
pub fn meaning(class: &str, key: &str) -> Option<Meaning> {
    of(class)?.class.meaning(key)
}

/// The family of a class.
pub(crate) fn of(class: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|f| f.classes.contains(&class))
}

impl Place<'_> {
    /// All rows, under the name of the tables.
    pub(crate) fn mapped(&self) -> Result<Target> {
        self.rows(Rows::All)
    }
    /// Other rows, under the name of the tables.
    pub(crate) fn rows(&self, rows: Rows) -> Result<Target> {
        let unknown = || self.error("is not a known tensor of this architecture");
        let name = self.mapped.clone().ok_or_else(unknown)?;
        Ok(Target { name, rows, values: Values::Same, expert: None })
    }
    pub(crate) fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::at(self.file.path(self.stored), &self.stored.name, what)
    }
    /// True for these endings of the name, without `.weight` or `.bias`.
    pub(crate) fn is(&self, ends: &[&str]) -> bool {
        let base = base(self.name).0;
        ends.iter().any(|end| base.ends_with(end))
    }
}

/// A name without `.weight` or `.bias`, and which of them it had.
pub(crate) fn base(name: &str) -> (&str, &str) {
    [".weight", ".bias"].iter().find_map(|s| Some((name.strip_suffix(s)?, *s))).unwrap_or((name, ""))
}

/// A name with its layer as `{}`, and the layer.
pub(crate) fn layer(name: &str) -> (String, Option<u32>) {
    let found = name.split('.').find_map(|part| {
        let n = part.parse::<u32>().ok().filter(|n| n.to_string() == part)?;
        Some((n, name.find(&format!(".{part}."))?, part.len()))
    });
    match found {
        Some((n, at, len)) => (format!("{}.{{}}{}", &name[..at], &name[at + 1 + len..]), Some(n)),
        None => (name.to_owned(), None),
    }
}

impl Family {
    /// The names of its tensors.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        self.names.iter().copied().flatten().chain(NAMES)
    }

    pub(crate) fn mapped(&self, name: &str) -> Option<String> {
        let (base, suffix) = base(name);
        let (pattern, n) = layer(base);
        let (_, to) = self.names().find(|(from, _)| *from == pattern)?;
        let to = n.map_or((*to).to_owned(), |n| to.replace("{}", &n.to_string()));
        Some(to + suffix)
    }

    /// The tensors of the new file, in the order of the checkpoint, computed ones first.
    pub(crate) fn tensors(&self, config: &Config, file: &Tensors, keys: &mut Keys) -> Result<Vec<Tensor>> {
        let mut out = (self.extra)(config, keys)?;
        let mut stacks: BTreeMap<String, BTreeMap<u32, (&Stored, Target)>> = BTreeMap::new();
        let n_layers = config.u32("num_hidden_layers")?;
        let mut layers = vec![false; n_layers as usize];
        for stored in &file.all {
            let name = stored.name.replace("language_model.", "");
            let place = Place { stored, name: &name, mapped: self.mapped(&name), file };
            let targets = (self.place)(config, &place)?;
            // The parts that are skipped have separate layers.
            if let (false, (_, Some(n))) = (targets.is_empty(), layer(base(&name).0)) {
                let seen = layers.get_mut(n as usize);
                *seen.ok_or_else(|| place.error(format!("found layer {n}, expected {n_layers} layers")))? =
                    true;
            }
            for target in targets {
                let Some(expert) = target.expert else {
                    let parts = vec![stored.clone()];
                    out.push(Tensor::of(target.name, parts, false, target.rows, target.values, file)?);
                    continue;
                };
                stacks.entry(target.name.clone()).or_default().insert(expert, (stored, target));
            }
        }
        let n_experts = config.n_experts()?.unwrap_or(0);
        for (name, experts) in stacks {
            // Keys of the map are distinct, so so many below that are all.
            let all = experts.len() == n_experts as usize && experts.keys().all(|&e| e < n_experts);
            if !all {
                let what =
                    format!("found {} experts for {}, expected {n_experts}", experts.len(), shown(&name));
                return Err(Error::of(&config.folder, what));
            }
            let parts = experts.into_values().map(|(stored, _)| stored.clone()).collect();
            out.push(Tensor::of(name, parts, true, Rows::All, Values::Same, file)?);
        }
        if let Some(n) = layers.iter().position(|seen| !seen) {
            let what = format!("found no tensor of layer {n}, expected {n_layers} layers");
            return Err(Error::of(&config.folder, what));
        }
        Ok(out)
    }
}
