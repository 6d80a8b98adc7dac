//! `ropewalk finetune`: LoRA on quantised weights under a rope method, at long context.

mod args;
mod inspect;
mod job;
mod memory;
mod recipe;

use clap::{Args as _, FromArgMatches};

use super::interrupt::Interrupt;
use super::{models, Command};

use args::Args;

pub(crate) const COMMAND: Command = Command {
    name: "finetune",
    about: "Fine-tune a quantised model for a longer context: LoRA under any rope frequencies",
    details: "Weights stay quantised; low-rank pairs beside them are trained, layer by layer and in blocks \
              of tokens, so that memory grows slowly with the context (--plan-memory shows it before \
              anything is allocated). The text is tokenised once; --inspect-data shows what it holds. Checkpoints, a log and a loss curve are \
              written beside the adapter; Ctrl-C, SIGTERM or SIGHUP saves and stops, --resume goes on. The adapter is a GGUF \
              file that llama.cpp loads, too; use it with --lora, or merge it with `convert --lora`.",
    example: "finetune -m smollm2 -d novels/ --rope sba:factor=4 --ctx 1024 --steps 200 -o sba.gguf",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

fn run(args: &Args) -> anyhow::Result<()> {
    let choice = args.model()?;
    let settings = args.settings()?;
    args.recipe_notes()?.iter().for_each(|note| args.out.note(note));
    if args.plan_memory {
        return memory::show(args, &models::load(&choice)?, &settings);
    }
    args.check_outputs(&choice.path)?;
    if args.inspect_data {
        let interrupt = Interrupt::install()?;
        return inspect::show(args, &models::load(&choice)?, &settings, &interrupt);
    }
    // Another run would write the same files; it is named before the model is loaded.
    let _lock = files::Lock::file(args.output())?;
    let interrupt = Interrupt::install()?;
    let model = models::load(&choice)?;
    job::run(args, &choice, &model, &settings, &interrupt)
}
