//! `--recipe`: what is said of a paper's settings, and of those given that replace them.

use ropewalk::train::optim::Decay;
use ropewalk::train::recipe::{Recipe, ALL_PARAMETERS};
use ropewalk::train::{Settings, KEYS};

use super::super::usage;
use super::args::Args;
use super::data::NO_METHOD;

impl Args {
    /// Refuses settings that cannot be together.
    pub(super) fn check_recipe(&self) -> anyhow::Result<()> {
        if self.given.lr_min.is_some() && self.optimiser(1).1.schedule.decay == Decay::Constant {
            return Err(usage("--set lr-min: the rate falls to it only under schedule=linear or cosine"));
        }
        Ok(())
    }

    /// The settings a recipe brings, where they are from, that its paper trained otherwise, and each option
    /// given that replaces one of them.
    pub(super) fn recipe_notes(&self) -> anyhow::Result<Vec<String>> {
        let Some(recipe) = self.recipe() else { return Ok(Vec::new()) };
        let n_ctx = self.ctx.unwrap_or(recipe.n_ctx);
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
                recipe.data.method.unwrap_or(NO_METHOD),
                set.join(",")
            ),
            format!("recipe {}, source: {}.", recipe.name, recipe.source),
        ];
        if recipe.train.contains(&"full") && !self.trains_all() {
            notes.push(format!("recipe {}: {ALL_PARAMETERS} (--targets).", recipe.name));
        }
        notes.extend(self.replaced(recipe, &own)?);
        Ok(notes)
    }

    /// A sentence for each option given that replaces another value of the recipe.
    fn replaced(&self, recipe: &Recipe, own: &Settings) -> anyhow::Result<Vec<String>> {
        let text = |v: &dyn ToString| v.to_string();
        let mut replaced = vec![
            ("rope".to_owned(), ' ', self.rope.spec()?.map(|v| text(&v)), text(&recipe.rope)),
            ("ctx".to_owned(), ' ', self.ctx.map(|v| text(&v)), text(&recipe.n_ctx)),
            ("attention".to_owned(), ' ', self.attention.map(|v| text(&v)), text(&recipe.attention)),
            (
                "transform".to_owned(),
                ' ',
                self.training.transform.clone(),
                recipe.data.method.unwrap_or(NO_METHOD).to_owned(),
            ),
        ];
        for key in KEYS {
            let Some(theirs) = own.text(key.name) else { continue };
            let (option, before) = match key.name {
                "steps" | "lr" => (key.name.to_owned(), ' '),
                name => (format!("set {name}"), '='),
            };
            replaced.push((option, before, self.given.text(key.name), theirs));
        }
        let note = |(option, before, given, theirs): (String, char, Option<String>, String)| {
            let given = given.filter(|given| *given != theirs)?;
            Some(format!("recipe {}: --{option}{before}{given} replaces its {theirs}.", recipe.name))
        };
        Ok(replaced.into_iter().filter_map(note).collect())
    }
}
