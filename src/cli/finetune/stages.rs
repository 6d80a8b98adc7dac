//! `--stages`: several runs, one after another, each from what the one before it wrote.

use ropewalk::finetune::{run_stages, Job, Report};
use ropewalk::model::Model;
use serde_json::json;

use super::super::interrupt::Interrupt;
use super::super::output::{self, OutputArgs};
use super::job;

/// Runs all stages, and prints their reports.
pub(super) fn run(
    out: &OutputArgs,
    stages: Vec<Job>,
    model: &Model,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let (n, mut i, mut problems) = (stages.len(), 0, Vec::new());
    let reports = run_stages(stages, model, |stage, model| -> anyhow::Result<Report> {
        i += 1;
        let settings = stage.settings()?;
        let steps = stage.optimiser(settings.n_ctx).1.schedule.steps;
        out.note(format_args!("stage {i} of {n}: context {}, {steps} steps", settings.n_ctx));
        let _lock = files::Lock::file(&stage.output)?;
        let done = job::run(out, stage, model, &settings, &interrupt.control())?;
        problems.extend(done.problems);
        Ok(done.report)
    })?;
    if out.json {
        output::print_json(&json!({ "stages": reports }))?;
    }
    super::whole(&problems)
}
