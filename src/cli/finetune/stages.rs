//! `--stages`: several runs, one after another, each from what the one before it wrote.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ropewalk::data::HeldOut;
use ropewalk::model::Model;
use ropewalk::train::recipe::Amount;
use ropewalk::train::set::OutputType;
use ropewalk::train::{checkpoint, MemoryPlan, SampleOrder, Stage, TrainParams};
use serde_json::json;

use super::super::interrupt::Interrupt;
use super::super::models::{self, ModelChoice};
use super::super::output;
use super::super::usage;
use super::args::Args;
use super::job::{self, Done};

/// The options of each stage, in their order. Held-out documents are the same ones in all of them, those of the
/// largest context; samples are in the order of the texts, so that no token is in two stages.
pub(super) fn of(args: &Args, path: &Path) -> anyhow::Result<Vec<Args>> {
    let stages = Stage::read(path).map_err(|e| usage(format!("--stages {e}")))?;
    if args.given.order == Some(SampleOrder::Shuffled) {
        return Err(usage("--set order: stages take samples in the order of the texts; expected text"));
    }
    for key in ["steps", "checkpoints", "log"] {
        if args.given.text(key).is_some() {
            return Err(usage(format!("--set {key}: each stage has its own")));
        }
    }
    let largest = stages.iter().map(|s| s.ctx).max().unwrap_or(0);
    let held_out = match args.given.held_out.unwrap_or(HeldOut::Samples(4)) {
        HeldOut::Samples(n) => HeldOut::Tokens((n as u64).saturating_mul(largest as u64).saturating_add(1)),
        other => other,
    };
    let n = stages.len();
    let mut all = Vec::with_capacity(n);
    for (i, stage) in stages.into_iter().enumerate() {
        let mut one = args.for_output(if i + 1 == n { args.output().to_owned() } else { named(args, i + 1) });
        one.given.order = Some(SampleOrder::Text);
        one.given.held_out = Some(held_out);
        set(&mut one, stage);
        if i + 1 < n && one.trains_all() {
            // The next stage goes on from these numbers, not from rounded ones.
            one.given.output_type = Some(OutputType::F32);
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

/// Puts the settings of a stage in the place of the command's.
fn set(args: &mut Args, stage: Stage) {
    args.ctx = Some(stage.ctx);
    if let Some(text) = &stage.rope {
        args.rope.set(text);
    }
    args.attention = stage.attention.or(args.attention);
    args.given = stage.settings.or(args.given.clone());
    let (batch, _) = args.optimiser(stage.ctx);
    args.given.steps = Some(match stage.length {
        Amount::Steps(n) => n,
        Amount::Tokens(n) => n.div_ceil((stage.ctx as u64).saturating_mul(batch.max(1) as u64)),
    });
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
    if args.training.resume && !earlier.contains(&true) {
        let first = stages[0].checkpoints();
        return Err(anyhow!("--resume: {}: no checkpoint found", first.display()));
    }
    let n = stages.len();
    let (mut reports, mut problems) = (Vec::new(), Vec::new());
    let (mut from, mut offset) = (None::<PathBuf>, args.given.data_offset);
    for (i, mut stage) in stages.into_iter().enumerate() {
        stage.training.resume = args.training.resume && earlier[i];
        stage.given.data_offset = offset;
        let settings = stage.settings()?;
        let steps = stage.optimiser(settings.n_ctx).1.schedule.steps;
        args.out.note(format_args!("stage {} of {n}: context {}, {steps} steps", i + 1, settings.n_ctx));
        let done = match from {
            // All parameters: the model that the stage before has written.
            Some(path) if stage.trains_all() => {
                let stage = stage.clone().on_model(path.display().to_string(), &choice.path);
                let made = stage.model()?;
                one(&stage, &made, &models::load(&made, &args.out)?, &settings, interrupt)?
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
    job::run(args, choice, model, settings, &interrupt.control())
}
