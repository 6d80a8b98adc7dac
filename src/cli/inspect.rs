//! `ropewalk inspect`: shows the metadata and tensors of a GGUF file of any architecture.

use clap::{Arg, Args as _, FromArgMatches};
use ropewalk::contents::Contents;
use ropewalk::gguf::File;

use super::map::{self, MapArgs};
use super::output::{self, OutputArgs};
use super::{kernels, models, Command};

pub(crate) const COMMAND: Command = Command {
    name: "inspect",
    about: "Show metadata, tensors, sizes, and declared RoPE of a GGUF file, or the attention of a head",
    details: "Reads any valid GGUF file, whatever its architecture, and checks its complete structure. Long arrays \
              and texts are truncated unless --all is given. The last lines show which kernels multiply the \
              weights on this machine, and --kernels shows them for every --math. --map runs the model on a text and \
              draws the attention of one head, under one setting or two.",
    example: "inspect smollm2\n\
              inspect smollm2 --map layer=18,head=8 -f essays.txt --ctx 4096 --plot map.svg",
    args: |command| {
        let of_map = |arg: Arg| match arg.get_id().as_str() {
            "input" | "all" | "kernels" | "map" | "json" | "quiet" => arg,
            _ => arg.requires("map"),
        };
        Args::augment_args(command).mut_args(of_map)
    },
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// GGUF file, or the name of a downloaded model
    ///
    /// For a split model, name the first part; it shows all of the model
    #[arg(value_name = "FILE")]
    input: String,
    /// Show arrays and texts in full
    #[arg(long, conflicts_with = "map")]
    all: bool,
    /// Show which kernels multiply the weights on this machine, instead of metadata and tensors
    #[arg(long, conflicts_with = "map")]
    kernels: bool,
    #[command(flatten)]
    map: MapArgs,
    #[command(flatten)]
    out: OutputArgs,
}

fn run(args: &Args) -> anyhow::Result<()> {
    if args.map.asked() {
        return map::run(&args.input, &args.map, &args.out);
    }
    let file = File::open(&models::find(&args.input)?)?;
    if args.kernels {
        return match args.out.json {
            true => output::print_json(&kernels::json(file.tensors())),
            false => output::print(&kernels::text(file.tensors())),
        };
    }
    let contents = Contents::new(&file, args.all);
    match args.out.json {
        true => output::print_json(&contents.json()),
        false => output::print(&(contents.text() + &kernels::short(file.tensors()))),
    }
}
