//! `ropewalk finetune`: LoRA on quantized weights, or all parameters, under a rope method, at long context.

mod args;
mod help;
mod inspect;
mod job;
mod memory;
mod planned;
mod words;

use clap::{Args as _, FromArgMatches};
use ropewalk::finetune::{run_stages, Job, JobError, Report};
use ropewalk::model::Model;
use ropewalk::train::Stage;
use serde_json::json;

use super::interrupt::Interrupt;
use super::output::{self, OutputArgs};
use super::{models, usage, Command};

use args::Args;
pub(crate) use planned::recipe;
pub(crate) use words::options;

pub(crate) const COMMAND: Command = Command {
    name: "finetune",
    about: "Fine-tune a model for a longer context, with LoRA on quantized weights or in full",
    details: "Trains a LoRA adapter; the model's weights stay quantized. Training runs layer by layer, in blocks of tokens, so \
              memory grows slowly with the context. --plan-memory estimates the memory, and --inspect-data shows the texts. \
              Checkpoints, a log, and a loss curve are written next to the adapter. Ctrl-C, SIGTERM, or SIGHUP saves a checkpoint \
              and stops; --resume continues. llama.cpp loads the adapter too. Use it with --lora, or merge it with \
              `ropewalk convert --lora`.",
    example: "finetune -m smollm2 -d novels/ --rope sba:factor=4 --ctx 1024 --steps 200 -o sba.gguf\n\
              finetune -m smollm2 -d chats.jsonl --chat --answers-only --set batch=8 -o chats.gguf",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?).map_err(plain),
};

fn run(args: &Args) -> anyhow::Result<()> {
    let job = args.job()?;
    let stages = args.stages.as_ref().map(Stage::read).transpose();
    let stages = stages.map_err(|e| usage(format!("--stages {e}")))?;
    let stages = stages.map(|stages| job.stages(stages)).transpose()?;
    // What is only shown is that of the last stage, which has the longest context.
    let shown = stages.iter().flatten().last().unwrap_or(&job);
    let choice = args.model()?;
    let settings = shown.settings()?;
    shown.recipe_notes().iter().for_each(|note| args.out.note(options(note)));
    if args.plan_memory.is_some() {
        return memory::show(args, shown, &models::load(&choice, &args.out)?, &settings);
    }
    shown.check_outputs(&choice.path, args.inspect_data)?;
    if args.inspect_data {
        let interrupt = Interrupt::install()?;
        return inspect::show(args, shown, &models::load(&choice, &args.out)?, &settings, &interrupt);
    }
    if let Some(stages) = stages {
        let interrupt = Interrupt::install()?;
        let model = models::load(&choice, &args.out)?;
        return run_all(&args.out, stages, &model, &interrupt);
    }
    // Another run would write the same files; it is named before the model is loaded.
    let _lock = files::Lock::file(&job.output)?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let done = job::run(&args.out, &job, &model, &settings, &interrupt.control())?;
    if args.out.json {
        output::print_json(&done.report)?;
    }
    whole(&done.problems)
}

fn run_all(out: &OutputArgs, stages: Vec<Job>, model: &Model, interrupt: &Interrupt) -> anyhow::Result<()> {
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
    whole(&problems)
}

/// An error of the library's job as one of this program: settings that cannot be used are wrong usage.
fn plain(e: anyhow::Error) -> anyhow::Error {
    match e.downcast::<JobError>() {
        Ok(JobError::Settings(text)) => usage(options(&text)),
        Ok(JobError::Run(text)) => anyhow::anyhow!("{}", options(&text)),
        Ok(JobError::Plot(e)) => e.into(),
        Ok(JobError::Failed(e)) => e.into(),
        Ok(e) => e.into(),
        Err(e) => e,
    }
}

/// An error that names the outputs that could not be written, and those that were.
fn whole(problems: &[String]) -> anyhow::Result<()> {
    anyhow::ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}
