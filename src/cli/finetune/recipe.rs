//! `--recipe` and the options beside it: how the optimiser goes, and what is said of a paper's settings.

use ropewalk::data::{Separator, Upsample};
use ropewalk::train::optim::{AdamW, Decay, OptimParams, Schedule, WarmupShape};
use ropewalk::train::recipe::{Data, Recipe, ALL_PARAMETERS, RECIPES, SCHEDULES, WARMUP_SHAPES};

use super::super::usage;
use super::args::Args;
use super::data::{Loss, NO_METHOD};

/// The optimiser, its schedule and the size of its steps, or a paper's settings of them.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(super) struct RecipeArgs {
    /// Settings of a paper, rope, context and form of the data included: sba, lceg (its words), lceg-code (as released),
    /// longlora, landmark, harpe, utk, drope, clex, longce, pose; options given beside it win
    #[arg(long, value_name = "NAME", value_parser = RECIPES.iter().map(|r| r.name).collect::<Vec<_>>())]
    pub(super) recipe: Option<String>,
    /// Steps of the optimiser; default: 100, or the recipe's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps: Option<u64>,
    /// Sequences of a step; default: 1, or the recipe's
    #[arg(short, long, value_name = "N")]
    pub(super) batch: Option<usize>,
    /// Learning rate; default: 2e-4, or the recipe's
    #[arg(long, value_name = "X")]
    pub(super) lr: Option<f64>,
    /// Learning rate at the last step of a schedule that falls; default: 0, or the recipe's
    #[arg(long, value_name = "X")]
    pub(super) lr_min: Option<f64>,
    /// Steps in which the rate rises; default: 0, or the recipe's
    #[arg(long, value_name = "N")]
    pub(super) warmup: Option<u64>,
    /// How it rises: linear, or log (DeepSpeed's WarmupLR); default: linear, or the recipe's
    #[arg(long, value_name = "NAME", value_parser = WARMUP_SHAPES)]
    pub(super) warmup_shape: Option<String>,
    /// The rate after that: constant, linear, cosine, or cosine-part, which is left where it is --lr-min (Hugging Face's
    /// num_cycles below 0.5); default: constant, or the recipe's
    #[arg(long, value_name = "NAME", value_parser = SCHEDULES)]
    pub(super) schedule: Option<String>,
    /// Decay of the mean of gradients; default: 0.9, or the recipe's
    #[arg(long, value_name = "X")]
    pub(super) beta1: Option<f64>,
    /// Decay of the mean of their squares; default: 0.95, or the recipe's
    #[arg(long, value_name = "X")]
    pub(super) beta2: Option<f64>,
    /// Decay of the trained tensors, but for norms and biases; default: 0, or the recipe's
    #[arg(long, value_name = "X")]
    pub(super) weight_decay: Option<f64>,
    /// Scale gradients down to this norm; 0: never; default: 1, or the recipe's
    #[arg(long, value_name = "X")]
    pub(super) clip: Option<f64>,
    /// Decay of the moving average of the trained tensors, which is then written in their place; 0: none;
    /// default: 0, or the recipe's
    #[arg(long, value_name = "X")]
    pub(super) ema: Option<f64>,
}

impl Args {
    /// Refuses options that cannot be together.
    pub(super) fn check_recipe(&self) -> anyhow::Result<()> {
        if self.recipe.batch == Some(0) {
            return Err(usage("--batch: expected at least 1, found 0"));
        }
        if self.recipe.lr_min.is_some() && self.optimiser(1).1.schedule.decay == Decay::Constant {
            return Err(usage("--lr-min: the rate falls to it under --schedule linear or cosine only"));
        }
        Ok(())
    }

    /// The recipe named, if one was.
    pub(super) fn recipe(&self) -> Option<&'static Recipe> {
        self.recipe.recipe.as_deref().and_then(Recipe::find)
    }

    /// The tokens around documents: those given, else the recipe's, else those that the vocabulary suggests.
    pub(super) fn separator(&self) -> Separator {
        let of_recipe = || self.recipe()?.separator?.parse().ok();
        self.text.separator.clone().or_else(of_recipe).unwrap_or_else(|| self.default_separator())
    }

    /// Sequences of a step, and the optimiser's settings, for a context of so many tokens.
    pub(super) fn optimiser(&self, n_ctx: usize) -> (usize, OptimParams) {
        let (given, recipe) = (&self.recipe, self.recipe());
        let batch = given.batch.or(recipe.map(|r| r.batch(n_ctx))).unwrap_or(1);
        let steps = given.steps.or(recipe.map(|r| r.steps(n_ctx, batch))).unwrap_or(100);
        let own = || OptimParams {
            adamw: AdamW::default(),
            schedule: Schedule::constant(2e-4, steps),
            clip: 1.0,
            ema: 0.0,
        };
        let base = recipe.map_or_else(own, |r| r.optimiser(steps));
        let schedule = Schedule {
            lr: given.lr.unwrap_or(base.schedule.lr),
            lr_min: given.lr_min.unwrap_or(base.schedule.lr_min),
            warmup: given.warmup.unwrap_or(base.schedule.warmup),
            warmup_shape: match given.warmup_shape.as_deref() {
                Some("log") => WarmupShape::Log,
                Some(_) => WarmupShape::Linear,
                None => base.schedule.warmup_shape,
            },
            steps,
            decay: given
                .schedule
                .as_deref()
                .and_then(|name| name.parse().ok())
                .unwrap_or(base.schedule.decay),
        };
        let adamw = AdamW {
            beta1: given.beta1.unwrap_or(base.adamw.beta1),
            beta2: given.beta2.unwrap_or(base.adamw.beta2),
            weight_decay: given.weight_decay.unwrap_or(base.adamw.weight_decay),
            ..base.adamw
        };
        let (clip, ema) = (given.clip.unwrap_or(base.clip), given.ema.unwrap_or(base.ema));
        (batch, OptimParams { adamw, schedule, clip, ema })
    }

    /// The settings a recipe brings, where they are from, that its paper trained otherwise, and each option
    /// given that replaces one of them.
    pub(super) fn recipe_notes(&self) -> anyhow::Result<Vec<String>> {
        let Some(recipe) = self.recipe() else { return Ok(Vec::new()) };
        let n_ctx = self.ctx.unwrap_or(recipe.n_ctx);
        let (batch, _) = self.optimiser(n_ctx);
        let (sequences, steps) = (recipe.batch(n_ctx), recipe.steps(n_ctx, batch));
        let OptimParams { adamw, schedule, clip, ema } = recipe.optimiser(steps);
        let separator = recipe.separator.unwrap_or("auto");
        let data = of_data(&recipe.data);
        let mut notes = vec![
            format!(
                "recipe {} ({}): rope {}, context {}, attention {}, separator {separator}, {data}, {steps} steps of \
                 {sequences} sequences at context {n_ctx}, lr {:e} to {:e} {}, {} steps of {:?} warm-up, betas {} and \
                 {}, weight decay {}, clip {clip}, ema {ema}",
                recipe.name,
                recipe.about,
                recipe.rope,
                recipe.n_ctx,
                recipe.attention,
                schedule.lr,
                schedule.lr_min,
                schedule.decay,
                schedule.warmup,
                schedule.warmup_shape,
                adamw.beta1,
                adamw.beta2,
                adamw.weight_decay
            ),
            format!("recipe {}, source: {}.", recipe.name, recipe.source),
        ];
        if recipe.train.contains(&"all") && !self.trains_all() {
            notes.push(format!("recipe {}: {ALL_PARAMETERS}.", recipe.name));
        }
        notes.extend(self.replaced(recipe, n_ctx)?);
        Ok(notes)
    }

    /// A sentence for each option given that replaces another value of the recipe.
    fn replaced(&self, recipe: &Recipe, n_ctx: usize) -> anyhow::Result<Vec<String>> {
        let batch = recipe.batch(n_ctx);
        let steps = recipe.steps(n_ctx, self.optimiser(n_ctx).0);
        let OptimParams { adamw, schedule, clip, ema } = recipe.optimiser(steps);
        let given = &self.recipe;
        let text = |v: &dyn ToString| v.to_string();
        let named = |v: &dyn std::fmt::Debug| format!("{v:?}").to_lowercase();
        let overridden = [
            ("rope", self.rope.spec()?.map(|v| text(&v)), text(&recipe.rope)),
            ("ctx", self.ctx.map(|v| text(&v)), text(&recipe.n_ctx)),
            (
                "separator",
                self.text.separator.as_ref().map(|v| named(v)),
                recipe.separator.unwrap_or("auto").to_owned(),
            ),
            ("packing", self.text.packing.map(|v| text(&v)), text(&recipe.data.packing)),
            (
                "data-method",
                self.method.data_method.clone(),
                recipe.data.method.unwrap_or(NO_METHOD).to_owned(),
            ),
            ("upsample", self.method.upsample.map(|v| text(&v)), text(&recipe.data.upsample)),
            ("doc-mask", self.text.doc_mask.map(|v| text(&v)), text(&recipe.data.doc_mask)),
            ("eod-mask-loss", self.text.eod_mask_loss.map(|v| text(&v)), text(&recipe.data.mask_ends)),
            ("loss", self.method.loss.map(|v| text(&v)), text(&Loss(recipe.data.longce))),
            ("attention", self.attention.map(|v| text(&v)), text(&recipe.attention)),
            ("steps", given.steps.map(|v| text(&v)), text(&steps)),
            ("batch", given.batch.map(|v| text(&v)), text(&batch)),
            ("lr", given.lr.map(|v| text(&v)), text(&schedule.lr)),
            ("lr-min", given.lr_min.map(|v| text(&v)), text(&schedule.lr_min)),
            ("warmup", given.warmup.map(|v| text(&v)), text(&schedule.warmup)),
            ("warmup-shape", given.warmup_shape.clone(), named(&schedule.warmup_shape)),
            ("schedule", given.schedule.clone(), text(&schedule.decay)),
            ("beta1", given.beta1.map(|v| text(&v)), text(&adamw.beta1)),
            ("beta2", given.beta2.map(|v| text(&v)), text(&adamw.beta2)),
            ("weight-decay", given.weight_decay.map(|v| text(&v)), text(&adamw.weight_decay)),
            ("clip", given.clip.map(|v| text(&v)), text(&clip)),
            ("ema", given.ema.map(|v| text(&v)), text(&ema)),
        ];
        let replaced = overridden.into_iter().filter_map(|(name, given, own)| Some((name, given?, own)));
        let replaced = replaced.filter(|(_, given, own)| given != own);
        let note =
            |(name, given, own)| format!("recipe {}: --{name} {given} replaces its {own}.", recipe.name);
        Ok(replaced.map(note).collect())
    }
}

/// The data of a recipe in a line: its packing, and what is not as it is without a recipe.
fn of_data(data: &Data) -> String {
    let mut out = format!("packing {}", data.packing);
    let method = data.method.map(|method| format!("data method {method}"));
    let upsample = (data.upsample != Upsample::None).then(|| format!("upsampling {}", data.upsample));
    let loss = data.longce.map(|longce| format!("loss {longce}"));
    let masks =
        [(data.doc_mask, "attention within documents"), (data.mask_ends, "no loss where a document ends")];
    let masks = masks.into_iter().filter(|(set, _)| *set).map(|(_, name)| name.to_owned());
    for part in [method, upsample, loss].into_iter().flatten().chain(masks) {
        out += &format!(", {part}");
    }
    out
}
