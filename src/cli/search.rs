//! LongRoPE's factors for a model, found on it: for `advise --search`.

use std::path::PathBuf;

use ::files::Output;
use anyhow::ensure;
use ropewalk::eval::search::{self, Params, Report};
use ropewalk::eval::{check_apart, SessionSource};
use ropewalk::rope::Spec;
use ropewalk_core::settings::{self, Setting};

use super::engine::with_bar;
use super::interrupt::{self, Interrupt};
use super::models::{self, ModelChoice};
use super::options::read_documents;
use super::output::{OutputArgs, Unit};
use super::usage;

pub(crate) fn set(params: &mut Params, text: &str) -> Result<(), String> {
    let sizes = &mut params.sizes;
    let known: &mut [(&'static str, &mut dyn Setting)] = &mut [
        ("goal", &mut params.goal),
        ("samples", &mut params.samples),
        ("max-evaluations", &mut params.max_evaluations),
        ("attn-factor", &mut params.attn_factor),
        ("population", &mut sizes.population),
        ("iterations", &mut sizes.iterations),
        ("mutations", &mut sizes.mutations),
        ("crossovers", &mut sizes.crossovers),
        ("parents", &mut sizes.parents),
        ("step", &mut sizes.step),
    ];
    settings::read("--search", Some(text).filter(|text| !text.is_empty()), known)
}

/// Searches, and prints what was found. The record is that of an earlier search where this one resumes it.
pub(crate) fn run(
    choice: &ModelChoice,
    files: &[PathBuf],
    record: Output,
    params: Params,
    out: OutputArgs,
) -> anyhow::Result<()> {
    let to = record.path();
    check_apart(files.iter().chain(choice.files()), [to])?;
    // An output that cannot be written is reported before the work.
    search::RECORD.claim(record.clone())?;
    let is_there = to.metadata().is_ok_and(|found| found.len() > 0);
    let what = "already exists: --resume continues from it, --force starts over";
    ensure!(!is_there || params.resume || record.is_forced(), usage(format!("{} {what}", to.display())));
    drop(::files::Scratch::beside(record.clone(), &search::RECORD)?);
    let documents = read_documents(files)?;
    let interrupt = Interrupt::install()?;
    let model = models::load(choice, &out)?;
    let params = params.record(Some(record));
    let name = models::label(choice);
    let identity = SessionSource::new(&model, choice.session(0, Some(&Spec::plain()))).identity()?;
    let source_of = choice.sources(&model);
    let report = with_bar(out.progress(0, "searching", Unit::Steps), &interrupt, |control| {
        search::run(&source_of, &name, &identity, model.hparams(), &documents, &params, control)
    })?;
    out.result(&report, || {
        format!("{}\n{}", report.text(), next(&report, &choice.path.display().to_string()))
    })?;
    interrupt::check(report.interrupted, "interrupted: --resume continues the search")
}

fn next(report: &Report, path: &str) -> String {
    format!(
        "{}\n\nMeasure it on other texts with --rope; to write it into a file for any session, and for stock llama.cpp:\n\n  \
         ropewalk convert --rope '{}' --ctx {} {path} -o long.gguf\n  ropewalk convert --llama-cpp --rope '{}' --ctx {} {path} -o long.gguf\n",
        report.rope, report.rope, report.ctx, report.rope, report.ctx
    )
}
