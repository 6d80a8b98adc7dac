//! `ropewalk completions`: completion scripts for shells, made from the same definitions as the help.

use clap::{Args as _, FromArgMatches};

use super::{app, output, Command};

pub(crate) const COMMAND: Command = Command {
    name: "completions",
    about: "Print a shell completion script",
    details: "The script goes to stdout; put it where your shell looks for completions, or load it from \
              your shell's start file.",
    example: "completions bash",
    args: Args::augment_args,
    run: |m| run(&Args::from_arg_matches(m)?),
};

#[derive(Debug, clap::Args)]
struct Args {
    /// The shell to write for
    shell: clap_complete::Shell,
}

fn run(args: &Args) -> anyhow::Result<()> {
    // clap_complete panics on a failed write, so it writes to memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut app(), "ropewalk", &mut script);
    output::print(&String::from_utf8(script)?)
}
