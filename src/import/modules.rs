//! Maps modules of transformers to the GGUF tensors of their weights, including differences other than names. Adapters
//! need this: they name modules, and come without the config.json that an import reads.

use ropewalk_core::hparams::Hparams;

use crate::arch::{layer, Family, FAMILIES};
use crate::tensor::Change;

/// The modules of one model.
pub struct Modules {
    family: &'static Family,
    hp: Hparams,
}

impl Modules {
    /// Modules of a model in a GGUF file; `None` for an architecture that is not imported.
    pub fn of(hp: Hparams) -> Option<Modules> {
        let family = FAMILIES.iter().find(|f| f.arch == hp.arch)?;
        Some(Modules { family, hp })
    }

    /// The numbers of the model.
    pub fn hparams(&self) -> &Hparams {
        &self.hp
    }

    /// The tensor that is a module's weight: `blk.3.attn_q.weight` of `model.layers.3.self_attn.q_proj`.
    pub fn tensor(&self, module: &str) -> Option<String> {
        // Models that see name the part that reads.
        self.family.mapped(&format!("{}.weight", module.replace("language_model.", "")))
    }

    /// The module whose weight a tensor is.
    pub fn module(&self, tensor: &str) -> Option<String> {
        let (pattern, n) = layer(tensor.strip_suffix(".weight")?);
        let (from, _) = self.family.names().find(|(_, to)| *to == pattern)?;
        Some(n.map_or((*from).to_owned(), |n| from.replace("{}", &n.to_string())))
    }

    /// Returns the change to the weight of this tensor.
    pub fn change(&self, tensor: &str) -> Change {
        let (pattern, n) = layer(tensor.strip_suffix(".weight").unwrap_or(tensor));
        (self.family.change)(&self.hp, n.map_or(0, |n| n as usize), pattern.trim_start_matches("blk.{}."))
    }
}
