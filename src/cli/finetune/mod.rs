//! `ropewalk finetune`: LoRA on quantised weights, or all parameters, under a rope method, at long context.

mod args;
mod data;
mod inspect;
mod job;
mod memory;
mod planned;
mod recipe;
mod stages;

use clap::{Args as _, FromArgMatches};

use super::interrupt::Interrupt;
use super::{models, output, Command};

use args::Args;
pub(crate) use planned::Training;

pub(crate) const COMMAND: Command = Command {
    name: "finetune",
    about: "Fine-tune a model for a longer context under any rope frequencies: LoRA on quantised weights, or all parameters",
    details: "Weights stay quantised; low-rank pairs beside them are trained, layer by layer and in blocks \
              of tokens, so that memory grows slowly with the context (--plan-memory shows it before \
              anything is allocated). The text is tokenised once; --inspect-data shows what it holds. Checkpoints, a log and a loss curve are \
              written beside the adapter; Ctrl-C, SIGTERM or SIGHUP saves and stops, --resume goes on. The adapter is a GGUF \
              file that llama.cpp loads, too; use it with --lora, or merge it with `ropewalk convert --lora`.",
    example: "finetune -m smollm2 -d novels/ --rope sba:factor=4 --ctx 1024 --steps 200 -o sba.gguf",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

fn run(args: &Args) -> anyhow::Result<()> {
    let stages = args.stages.as_deref().map(|path| stages::of(args, path)).transpose()?;
    // What is only shown is that of the last stage, which has the longest context.
    let shown = stages.iter().flatten().last().unwrap_or(args);
    let choice = args.model()?;
    let settings = shown.settings()?;
    shown.recipe_notes()?.iter().for_each(|note| args.out.note(note));
    if args.plan_memory {
        return memory::show(args, &models::load(&choice, &args.out)?, &settings);
    }
    shown.check_outputs(&choice.path)?;
    if args.inspect_data {
        let interrupt = Interrupt::install()?;
        return inspect::show(shown, &models::load(&choice, &args.out)?, &settings, &interrupt);
    }
    if let Some(stages) = stages {
        let interrupt = Interrupt::install()?;
        let model = models::load(&choice, &args.out)?;
        return stages::run(args, stages, &choice, &model, &interrupt);
    }
    // Another run would write the same files; it is named before the model is loaded.
    let _lock = files::Lock::file(args.output())?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice, &args.out)?;
    let done = job::run(args, &choice, &model, &settings, &interrupt.control())?;
    if args.out.json {
        output::print_json(&done.report)?;
    }
    whole(&done.problems)
}

/// An error that names what could not be written, beside what was.
fn whole(problems: &[String]) -> anyhow::Result<()> {
    match problems {
        [] => Ok(()),
        all => Err(anyhow::anyhow!("{}", all.join("; "))),
    }
}
