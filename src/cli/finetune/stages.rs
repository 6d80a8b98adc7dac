//! `--stages`: several runs, one after another, each from what the one before it wrote.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ropewalk::data::HeldOut;
use ropewalk::model::Model;
use ropewalk::train::{checkpoint, MemoryPlan, TrainParams};
use serde::Deserialize;
use serde_json::json;

use super::super::interrupt::Interrupt;
use super::super::models::{self, ModelChoice};
use super::super::options::parse_spec;
use super::super::output;
use super::super::usage;
use super::args::Args;
use super::job::{self, Done};
use super::recipe::{RecipeArgs, SCHEDULES, WARMUP_SHAPES};

/// Bytes of a file of stages, at most.
const MAX_BYTES: u64 = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StagesFile {
    stage: Vec<StageFile>,
}

/// A stage. What it leaves out is as the options of the command have it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct StageFile {
    ctx: usize,
    rope: Option<String>,
    attention: Option<String>,
    /// Steps of the optimiser, or tokens trained on: one of the two.
    steps: Option<u64>,
    tokens: Option<u64>,
    batch: Option<usize>,
    lr: Option<f64>,
    lr_min: Option<f64>,
    warmup: Option<u64>,
    warmup_shape: Option<String>,
    schedule: Option<String>,
    beta1: Option<f64>,
    beta2: Option<f64>,
    weight_decay: Option<f64>,
    clip: Option<f64>,
    ema: Option<f64>,
}

/// The options of each stage, in their order. Held-out documents are the same ones in all of them, those of the
/// largest context; samples are in the order of the texts, so that no token is in two stages.
pub(super) fn of(args: &Args, path: &Path) -> anyhow::Result<Vec<Args>> {
    let bad = |what: String| usage(format!("--stages {}: {what}", path.display()));
    let size = std::fs::metadata(path).map_err(|e| bad(e.to_string()))?.len();
    if size > MAX_BYTES {
        return Err(bad(format!("expected at most {MAX_BYTES} bytes, found {size}")));
    }
    let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
    let file: StagesFile = toml::from_str(&text).map_err(|e| {
        let line = e.span().map_or(0, |at| text[..at.start.min(text.len())].matches('\n').count() + 1);
        bad(format!("line {line}: {}", e.message().replace('\n', " ")))
    })?;
    if file.stage.is_empty() {
        return Err(bad("expected at least one [[stage]], found none".into()));
    }
    if args.text.order.as_deref() == Some("shuffled") {
        return Err(usage("--order: stages take samples in the order of the texts; expected text"));
    }
    let largest = file.stage.iter().map(|s| s.ctx).max().unwrap_or(0);
    let held_out = match args.text.held_out {
        HeldOut::Samples(n) => HeldOut::Tokens((n as u64).saturating_mul(largest as u64).saturating_add(1)),
        other => other,
    };
    let n = file.stage.len();
    let mut before = 0;
    let mut all = Vec::with_capacity(n);
    for (i, stage) in file.stage.iter().enumerate() {
        let at = |what: String| bad(format!("stage {}: {what}", i + 1));
        if stage.ctx < before.max(1) {
            let why = if stage.ctx == 0 { "" } else { ", the context before it: stages do not shrink" };
            return Err(at(format!("ctx: expected at least {}{why}, found {}", before.max(1), stage.ctx)));
        }
        before = stage.ctx;
        let mut one = args.for_output(if i + 1 == n { args.output().to_owned() } else { named(args, i + 1) });
        one.text.order = Some("text".into());
        one.text.held_out = held_out;
        stage.set(&mut one).map_err(|e| at(e.to_string()))?;
        if i + 1 < n && one.trains_all() {
            // The next stage goes on from these numbers, not from rounded ones.
            one.adapter.output_type = Some("f32".into());
        }
        if i > 0 {
            one.init = None;
        }
        all.push(one);
    }
    Ok(all)
}

/// `abf.gguf` as `abf.stage-1.gguf`.
fn named(args: &Args, stage: usize) -> PathBuf {
    let name = args.output().file_name().unwrap_or_default().to_string_lossy().into_owned();
    let stem = name.strip_suffix(".gguf").unwrap_or(&name);
    args.output().with_file_name(format!("{stem}.stage-{stage}.gguf"))
}

fn one_of(key: &str, given: &Option<String>, names: &[&str]) -> anyhow::Result<()> {
    match given {
        Some(name) if !names.contains(&name.as_str()) => {
            Err(anyhow!("{key}: expected one of {}, found {name:?}", names.join(", ")))
        }
        _ => Ok(()),
    }
}

impl StageFile {
    fn set(&self, args: &mut Args) -> anyhow::Result<()> {
        args.ctx = Some(self.ctx);
        if let Some(text) = &self.rope {
            parse_spec(text)?;
            args.rope.set(text);
        }
        if let Some(text) = &self.attention {
            args.attention = Some(text.parse()?);
        }
        one_of("warmup-shape", &self.warmup_shape, &WARMUP_SHAPES)?;
        one_of("schedule", &self.schedule, &SCHEDULES)?;
        let given = &args.recipe;
        let text = |own: &Option<String>, given: &Option<String>| own.clone().or_else(|| given.clone());
        args.recipe = RecipeArgs {
            recipe: given.recipe.clone(),
            steps: self.steps,
            batch: self.batch.or(given.batch),
            lr: self.lr.or(given.lr),
            lr_min: self.lr_min.or(given.lr_min),
            warmup: self.warmup.or(given.warmup),
            warmup_shape: text(&self.warmup_shape, &given.warmup_shape),
            schedule: text(&self.schedule, &given.schedule),
            beta1: self.beta1.or(given.beta1),
            beta2: self.beta2.or(given.beta2),
            weight_decay: self.weight_decay.or(given.weight_decay),
            clip: self.clip.or(given.clip),
            ema: self.ema.or(given.ema),
        };
        let (batch, _) = args.optimiser(self.ctx);
        args.recipe.steps = match (self.steps, self.tokens) {
            (Some(0), _) | (_, Some(0)) => return Err(anyhow!("expected at least one step, found none")),
            (Some(n), None) => Some(n),
            (None, Some(n)) => Some(n.div_ceil((self.ctx as u64).saturating_mul(batch.max(1) as u64))),
            _ => return Err(anyhow!("expected steps or tokens, one of the two")),
        };
        Ok(())
    }
}

/// Runs all stages, and prints their reports.
pub(super) fn run(
    args: &Args,
    stages: Vec<Args>,
    choice: &ModelChoice,
    model: &Model,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let mut earlier = Vec::new();
    for stage in &stages {
        stage.check_outputs(&choice.path)?;
        // What cannot be is said before hours of work, not between them.
        MemoryPlan::new(model, &stage.settings()?)?.check(model)?;
        earlier.push(!checkpoint::list(&stage.checkpoints()).is_empty());
    }
    if args.files.resume && !earlier.contains(&true) {
        let first = stages[0].checkpoints();
        return Err(anyhow!("--resume: {}: no checkpoint there", first.display()));
    }
    let n = stages.len();
    let (mut reports, mut problems) = (Vec::new(), Vec::new());
    let (mut from, mut offset) = (None::<PathBuf>, args.text.data_offset);
    for (i, mut stage) in stages.into_iter().enumerate() {
        stage.files.resume = args.files.resume && earlier[i];
        stage.text.data_offset = offset;
        let settings = stage.settings()?;
        let steps = stage.optimiser(settings.n_ctx).1.schedule.steps;
        args.out.note(format_args!("stage {} of {n}: context {}, {steps} steps", i + 1, settings.n_ctx));
        let done = match from {
            // All parameters: the model that the stage before has written.
            Some(path) if stage.trains_all() => {
                let stage = stage.clone().on_model(path.display().to_string(), &choice.path);
                let made = stage.model()?;
                one(&stage, &made, &models::load(&made)?, &settings, interrupt)?
            }
            from => {
                stage.init = from.or(stage.init);
                one(&stage, choice, model, &settings, interrupt)?
            }
        };
        from = Some(stage.output().to_owned());
        offset = Some(done.data_end);
        problems.extend(done.problems);
        reports.push(done.report);
    }
    if args.out.json {
        output::print_json(&json!({ "stages": reports }))?;
    }
    super::whole(&problems)
}

fn one(
    args: &Args,
    choice: &ModelChoice,
    model: &Model,
    settings: &TrainParams,
    interrupt: &Interrupt,
) -> anyhow::Result<Done> {
    let _lock = files::Lock::file(args.output())?;
    job::run(args, choice, model, settings, interrupt)
}
