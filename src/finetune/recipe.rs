//! Notes on a recipe: its settings, and the given settings that replace some of them.

use crate::train::optim::Decay;
use crate::train::recipe::{Recipe, ALL_PARAMETERS};
use crate::train::set::Key;
use crate::train::{Settings, KEYS};

use super::data::NO_METHOD;
use super::{refused, Job, Result};

impl Job {
    /// Checks settings of the optimizer that need each other.
    ///
    /// # Errors
    /// [`JobError::Settings`](super::JobError::Settings) for a final learning rate under a constant schedule.
    pub fn check_recipe(&self) -> Result<()> {
        if self.given.lr_min.is_some() && self.optimiser(1).1.schedule.decay == Decay::Constant {
            return Err(refused("`lr-min`: the rate falls to it only under schedule=linear or cosine"));
        }
        Ok(())
    }

    /// Describes the recipe in sentences: its settings, their source, how its paper trained otherwise, and the given
    /// settings that replace some of these. Empty without a recipe.
    pub fn recipe_notes(&self) -> Vec<String> {
        let Some(recipe) = self.recipe else { return Vec::new() };
        let n_ctx = self.n_ctx.unwrap_or(recipe.n_ctx);
        // As of its paper: whatever number of steps was given.
        let given = Settings { steps: None, ..self.given.clone() };
        let (own, usual) = (recipe.settings(n_ctx, &given), Settings::defaults());
        let other = |key: &str| own.text(key).filter(|text| usual.text(key).as_ref() != Some(text));
        let set: Vec<String> =
            KEYS.iter().filter_map(|key| Some(format!("{}={}", key.name, other(key.name)?))).collect();
        let mut notes = vec![
            format!(
                "recipe {} ({}): rope {}, context {}, attention {}, transform {}; at context {n_ctx} {}",
                recipe.name,
                recipe.about,
                recipe.rope,
                recipe.n_ctx,
                recipe.attention,
                recipe.method.unwrap_or(NO_METHOD),
                set.join(",")
            ),
            format!("recipe {}, source: {}.", recipe.name, recipe.source),
        ];
        if recipe.train.contains(&"full") && !self.trains_all() {
            notes.push(format!("recipe {}: {ALL_PARAMETERS} (`targets`).", recipe.name));
        }
        notes.extend(self.replaced(recipe, &own));
        if let (Some(steps), Some(warmup), None) = (self.given.steps, own.warmup, self.given.warmup) {
            if steps <= warmup {
                notes.push(format!(
                    "recipe {}: its warmup of {warmup} steps is cut to {steps}, and the rate does not reach `lr`; see \
                     `warmup`.",
                    recipe.name
                ));
            }
        }
        notes
    }

    /// A sentence for each setting given that replaces another value of the recipe.
    fn replaced(&self, recipe: &Recipe, own: &Settings) -> Vec<String> {
        let text = |v: &dyn ToString| v.to_string();
        let method = recipe.method.unwrap_or(NO_METHOD);
        let options = [
            ("rope", self.rope.as_ref().map(ToString::to_string), text(&recipe.rope)),
            ("ctx", self.n_ctx.map(|v| text(&v)), text(&recipe.n_ctx)),
            ("attention", self.attention.map(|v| text(&v)), text(&recipe.attention)),
            ("transform", self.transform.clone(), text(&method)),
        ];
        let of_key = |key: &Key| Some((key.name, self.given.text(key.name), own.text(key.name)?));
        let note = |(setting, given, theirs): (&str, Option<String>, String)| {
            let given = given.filter(|given| *given != theirs)?;
            let is_option = matches!(setting, "rope" | "ctx" | "attention" | "transform" | "steps" | "lr");
            let before = if is_option { ' ' } else { '=' };
            Some(format!("recipe {}: `{setting}`{before}{given} replaces its {theirs}.", recipe.name))
        };
        options.into_iter().chain(KEYS.iter().filter_map(of_key)).filter_map(note).collect()
    }
}
