//! The library's parameters that the settings of a job lead to.

use super::{refused, Job, Result};
use crate::model::Error;
use crate::rope::Spec;
use crate::train::optim::OptimParams;
use crate::train::{LoraParams, SampleOrder, SavedType, Settings, TrainParams, Trainable};

impl Job {
    /// Returns the trainer's settings. The context is 0 if it is not given.
    ///
    /// # Errors
    /// [`JobError::Settings`](super::JobError::Settings) for settings that cannot be combined.
    pub fn settings(&self) -> Result<TrainParams> {
        let set = &self.given;
        let trainable = self.trainable()?;
        let is_full = trainable == Trainable::Full;
        let has_pairs = trainable.lora().is_some_and(|lora| !lora.targets.is_empty());
        for (setting, given) in [
            ("rank", self.rank.is_some()),
            ("alpha", self.alpha.is_some()),
            ("init", self.init.is_some()),
            ("rslora", set.rslora.is_some()),
            ("dropout", set.dropout.is_some()),
        ] {
            if is_full && given {
                return Err(refused(format!(
                    "`{setting}`: `targets` full trains the model itself, without LoRA pairs"
                )));
            }
            // A run of norms alone can also continue from an adapter.
            if given && !has_pairs && setting != "init" {
                let targets = self.targets.as_deref().unwrap_or_default().join(",");
                return Err(refused(format!("`{setting}`: `targets` {targets} has no LoRA pairs")));
            }
        }
        if !is_full && set.output_type.is_some() {
            return Err(refused("`output-type`: an adapter is always f32; expected `targets` full as well"));
        }
        Ok(TrainParams {
            rope: match (&self.rope, self.recipe) {
                (None, Some(recipe)) => Some(recipe.rope.parse::<Spec>().map_err(Error::Rope)?),
                (given, _) => given.clone(),
            },
            attention: self.attention.or(self.recipe.map(|r| r.attention)).unwrap_or_default(),
            trainable,
            n_block: self.n_block,
            n_threads: if self.n_threads == 0 { ggml::backend::default_threads() } else { self.n_threads },
            checkpointing: set.checkpointing,
            saved_type: set.saved_type.unwrap_or(SavedType::F32),
            math: self.math,
            portable: self.portable,
            average: self.at(0).ema.is_some_and(|ema| ema > 0.0),
            ..TrainParams::new(self.n_ctx.or(self.recipe.map(|r| r.n_ctx)).unwrap_or(0))
        })
    }

    /// Returns what is trained: the modules named, or else pairs on the usual maps and the modules that the recipe trains
    /// in full.
    fn trainable(&self) -> Result<Trainable> {
        let (set, rank) = (&self.given, self.rank.unwrap_or(8));
        let mut lora = LoraParams {
            rank,
            alpha: self.alpha.unwrap_or(2.0 * rank as f64),
            rslora: set.rslora.unwrap_or_default(),
            dropout: set.dropout.unwrap_or_default(),
            seed: self.seed,
            ..LoraParams::default()
        };
        if lora.dropout > 0.0 && self.targets.iter().flatten().any(|name| name == "output") {
            return Err(refused("`dropout`: it does not reach `output`; omit one of the two"));
        }
        let Some(names) = &self.targets else {
            let whole = |name| self.recipe.is_some_and(|r| r.train.contains(&name));
            (lora.norms, lora.embeddings) = (whole("norms"), whole("embeddings"));
            return Ok(Trainable::Lora(lora));
        };
        if names.iter().any(|name| name == "full") {
            return match names.len() {
                1 => Ok(Trainable::Full),
                _ => Err(refused("`targets`: full is every parameter; expected it alone")),
            };
        }
        lora.targets.clear();
        for name in names {
            match name.as_str() {
                "" | "none" => {}
                "norms" => lora.norms = true,
                "embeddings" => lora.embeddings = true,
                _ if lora.targets.contains(name) => {}
                _ => lora.targets.push(name.clone()),
            }
        }
        Ok(Trainable::Lora(lora))
    }

    /// Returns the settings at a context of `n_ctx` tokens: the given ones, else the recipe's, else the defaults.
    pub fn at(&self, n_ctx: usize) -> Settings {
        let given = self.given.clone();
        let of_recipe = self.recipe.map(|r| r.settings(n_ctx, &given)).unwrap_or_default();
        given.or(of_recipe).or(Settings::defaults())
    }

    /// Returns the sequences per step and the optimizer's settings at a context of `n_ctx` tokens.
    pub fn optimiser(&self, n_ctx: usize) -> (usize, OptimParams) {
        self.at(n_ctx).optimiser()
    }

    /// Returns true if every parameter is trained, and a model is written.
    pub fn trains_all(&self) -> bool {
        self.trainable().is_ok_and(|trainable| trainable == Trainable::Full)
    }

    pub(super) fn order(&self) -> SampleOrder {
        self.given.order.unwrap_or_default()
    }
}
