//! PEFT's adapters (`adapter_model.safetensors` and `adapter_config.json`) to llama.cpp's LoRA files and back.

mod config;
mod embedding;
mod errors;
mod export;
pub mod fields;
mod import;
mod patterns;
mod positions;
mod targets;

use gguf::File;
use ropewalk_core::adapter::AdapterReader;
use ropewalk_core::hparams::{keys, Hparams};
use ropewalk_import::{architectures, Modules};
use serde::Serialize;

pub use export::to_peft;
pub use import::from_peft;
pub use ropewalk_import::is_repository;

use crate::Result;
use errors::{refuse, shown};

/// The tensors of a folder.
const MODEL: &str = "adapter_model.safetensors";
/// The settings of the pairs in it.
const CONFIG: &str = "adapter_config.json";
/// File for the settings that config.json needs for the positions of an export.
const ROPE: &str = "rope_scaling.json";
/// The prefix of PEFT before the names of modules.
const PREFIX: &str = "base_model.model.";

/// Where LoRA files keep the model's repository, as llama.cpp's converter does: its owner and its name.
const BASE: [&str; 2] = ["general.base_model.0.organization", "general.base_model.0.name"];

/// Strings about a training that PEFT has no key for, other than its rope, model, and data.
const TEXTS: [&str; 3] = [keys::LORA_ATTENTION, keys::LORA_DATA_ORDER, keys::LORA_LINEAGE];
/// Numbers about it, other than its context and steps.
const NUMBERS: [&str; 2] = [keys::LORA_TOKENS, keys::LORA_DATA_END];

/// An adapter that was converted, in figures.
#[derive(Debug, Clone, Serialize)]
pub struct AdapterReport {
    /// Low-rank pairs.
    pub n_pairs: usize,
    /// Tensors that replace those of the model.
    pub n_modules: usize,
    /// Ranks of the pairs, the least and the greatest.
    pub ranks: Option<(usize, usize)>,
    /// The method it was trained under, where that is known.
    pub rope: Option<String>,
    /// Size of the file of tensors.
    pub bytes: u64,
    /// Facts and warnings, whole sentences.
    pub notes: Vec<String>,
}

impl AdapterReport {
    fn of(reader: &AdapterReader, bytes: u64) -> AdapterReport {
        let ranks = reader.pairs().iter().map(|p| p.rank);
        AdapterReport {
            n_pairs: reader.pairs().len(),
            n_modules: reader.modules_to_save().len(),
            ranks: ranks.clone().min().zip(ranks.max()),
            rope: reader.meta().rope.as_ref().map(ToString::to_string),
            bytes,
            notes: Vec::new(),
        }
    }
}

/// The modules of a model that an adapter names.
fn modules(base: &File) -> Result<Modules> {
    let hp = Hparams::from_gguf(base)?;
    let arch = hp.arch.clone();
    Modules::of(hp).ok_or_else(|| {
        let mut known: Vec<&str> = architectures().collect();
        known.dedup();
        let what = format!("adapters are converted for {}; found {arch}", known.join(" "));
        base.error("general.architecture", what).into()
    })
}
