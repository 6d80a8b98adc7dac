//! Runs a job, shows it while it goes, and says how it ended.

use std::fmt::Arguments;
use std::path::Path;

use anyhow::anyhow;
use ropewalk::control::{Control, Progress};
use ropewalk::data::Dataset;
use ropewalk::finetune::{Job, JobError, Prepared, Report};
use ropewalk::model::{Error, Model};
use ropewalk::train::{Run, TrainParams};
use ropewalk_core::text::bytes;

use super::super::engine::draw;
use super::super::interrupt::stopped;
use super::super::models;
use super::super::output::{count, OutputArgs, Unit};
use super::options;

pub(super) struct Done {
    pub(super) report: Report,
    /// Outputs other than the adapter that could not be written.
    pub(super) problems: Vec<String>,
}

pub(super) fn run(
    out: &OutputArgs,
    job: &Job,
    model: &Model,
    settings: &TrainParams,
    control: &Control<'_>,
) -> anyhow::Result<Done> {
    let notes = |text: Arguments<'_>| out.note(text);
    let noted = control.with_notes(&notes);
    // Impossible settings are refused before texts are tokenized.
    let prepared = job.prepare(model, settings).map_err(with_hint)?;
    let data = dataset(out, job, model, &prepared.settings, None, control)?;
    let params = job.params(model, &prepared, &data, &noted)?;
    announce(out, model, &prepared, &data);
    let steps = prepared.optimizer.params.schedule.steps;
    let mut run = job.start(prepared, data, params, &noted)?;
    train(out, &mut run, steps, &noted)?;
    finish(out, job, model, &run)
}

/// The data set, with a progress bar while texts are tokenized. Their tokens are kept in `folder` where there is one.
pub(super) fn dataset(
    out: &OutputArgs,
    job: &Job,
    model: &Model,
    settings: &TrainParams,
    folder: Option<&Path>,
    control: &Control<'_>,
) -> anyhow::Result<Dataset> {
    let notes = |text: Arguments<'_>| out.note(text);
    let draw = draw(out.progress(0, "tokenizing", Unit::Bytes));
    let texts = job.texts(model, settings, folder, &control.with_progress(&draw).with_notes(&notes))?;
    drop(draw);
    Ok(job.dataset(model, settings, texts, &control.with_notes(&notes))?)
}

/// The library's error, with the option that shows more.
fn with_hint(e: JobError) -> anyhow::Error {
    match e {
        JobError::Failed(Error::OutOfMemory { what, .. }) => {
            anyhow!("{what}; --plan-memory shows the breakdown")
        }
        e => e.into(),
    }
}

fn announce(out: &OutputArgs, model: &Model, prepared: &Prepared, data: &Dataset) {
    let (t, batch) = (&prepared.trainer, prepared.batch);
    let plan = t.plan();
    let n: usize = t.params().list().iter().map(|p| p.value.len()).sum();
    out.note(format_args!(
        "{}: {}, rope {}, {}; {} trainable parameters in {} tensors; checkpointing={}",
        models::name(model.file().path()),
        model.device(),
        plan.spec,
        plan.context_text(t.settings().n_ctx, model.hparams()),
        count(n as u64),
        t.params().list().len(),
        t.checkpointing(),
    ));
    plan.notes.iter().for_each(|n| out.note(format_args!("note: {n}")));
    let corpus = data.corpus();
    out.note(format_args!(
        "{} tokens in {} documents: {} sequences to train on, {} held out, {batch} a step",
        count(corpus.n_tokens()),
        count(corpus.n_documents() as u64),
        count(data.n_train() as u64),
        count(data.n_held_out() as u64),
    ));
}

fn train(out: &OutputArgs, run: &mut Run, steps: u64, control: &Control<'_>) -> anyhow::Result<()> {
    let draw = draw(out.progress(steps, "training", Unit::Steps));
    let progress = |p: &Progress<'_>| {
        let memory = ggml::machine::peak_memory().map_or(String::new(), |n| format!(", {}", bytes(n)));
        let what = format_args!("{}{memory}", p.what);
        draw(&Progress { what, ..*p });
    };
    match run.train(&control.with_progress(&progress)) {
        Ok(()) => Ok(()),
        Err(Error::Interrupted) => {
            Err(stopped(format!("interrupted at step {}: saved; --resume continues from there", run.step())))
        }
        Err(e) => Err(anyhow!(e).context("earlier checkpoints are unchanged")),
    }
}

/// Writes the adapter, or the model, and the loss curve.
fn finish(out: &OutputArgs, job: &Job, model: &Model, run: &Run) -> anyhow::Result<Done> {
    let mut report = job.finish(model, run)?;
    report.recipe.iter_mut().for_each(|note| *note = options(note));
    let (path, option) = (job.output.display(), if job.trains_all() { "-m" } else { "--lora" });
    out.note(report.chart.text(80, 10)?);
    out.note(format_args!(
        "{path} ({}), curve in {}, log in {}; use it with {option} {path}",
        bytes(report.n_bytes),
        job.plot().display(),
        job.log().display(),
    ));
    let problems = match report.run.problems.as_slice() {
        [] => Vec::new(),
        all => vec![format!("{path} is whole, but {}", all.join("; "))],
    };
    Ok(Done { report, problems })
}
