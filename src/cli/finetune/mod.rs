//! `ropewalk finetune`: LoRA on quantized weights, or all parameters, under a rope method, at long context.

mod args;
mod data;
mod help;
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
    about: "Fine-tune a model for a longer context, with LoRA on quantized weights or in full",
    details: "Trains a LoRA adapter; the model's weights stay quantized. Training runs layer by layer, in blocks of tokens, so \
              memory grows slowly with the context. --plan-memory estimates the memory, and --inspect-data shows the texts. \
              Checkpoints, a log, and a loss curve are written next to the adapter. Ctrl-C, SIGTERM, or SIGHUP saves a checkpoint \
              and stops; --resume continues. llama.cpp loads the adapter too. Use it with --lora, or merge it with \
              `ropewalk convert --lora`.",
    example: "finetune -m smollm2 -d novels/ --rope sba:factor=4 --ctx 1024 --steps 200 -o sba.gguf\n\
              finetune -m smollm2 -d chats.jsonl --chat --answers-only --set batch=8 -o chats.gguf",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?.read()?),
};

fn run(args: &Args) -> anyhow::Result<()> {
    let stages = args.training.stages.as_deref().map(|path| stages::of(args, path)).transpose()?;
    // What is only shown is that of the last stage, which has the longest context.
    let shown = stages.iter().flatten().last().unwrap_or(args);
    let choice = args.model()?;
    let settings = shown.settings()?;
    shown.recipe_notes()?.iter().for_each(|note| args.out.note(note));
    if args.training.plan_memory.is_some() {
        return memory::show(args, &models::load(&choice, &args.out)?, &settings);
    }
    shown.check_outputs(&choice.path)?;
    if args.training.inspect_data {
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
