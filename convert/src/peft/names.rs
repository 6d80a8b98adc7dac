//! The modules of a model that an adapter names, and the order of their rows and columns.

use gguf::File;
use ropewalk_core::hparams::Hparams;
use ropewalk_import::{architectures, Change, Modules};

use crate::Result;

pub(super) struct Names {
    hp: Hparams,
}

impl Names {
    /// # Errors
    /// An architecture whose names are not known.
    pub(super) fn of(base: &File) -> Result<Names> {
        let hp = Hparams::from_gguf(base)?;
        if Modules::of(&hp).is_none() {
            let mut known: Vec<&str> = architectures().collect();
            known.dedup();
            let what = format!("adapters are converted for {}; found {}", known.join(" "), hp.arch);
            return Err(base.error("general.architecture", what).into());
        }
        Ok(Names { hp })
    }

    pub(super) fn arch(&self) -> &str {
        &self.hp.arch
    }

    pub(super) fn n_layer(&self) -> usize {
        self.hp.n_layer
    }

    fn modules(&self) -> Modules<'_> {
        Modules::of(&self.hp).expect("`of` has found it")
    }

    /// The tensor in GGUF files of a module's weight: `model.layers.3.self_attn.q_proj` is
    /// `blk.3.attn_q.weight`.
    pub(super) fn gguf(&self, module: &str) -> Option<String> {
        self.modules().tensor(module)
    }

    /// The module of a tensor in GGUF files.
    pub(super) fn module(&self, tensor: &str) -> Option<String> {
        self.modules().module(tensor)
    }

    /// Returns the change to a weight from transformers to GGUF files.
    pub(super) fn change(&self, tensor: &str) -> Change {
        self.modules().change(tensor)
    }
}
