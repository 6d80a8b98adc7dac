//! The command line: a registry of subcommands, one file each, and the code they share.
//!
//! There are two stages, as in ripgrep: clap derives hold the arguments as they were typed (`Args` of each
//! file), and `options` turns them into the library's parameters. Nothing below `cli` prints, reads the
//! environment, parses arguments, or names an option: `hints` adds those to its messages.

mod advise;
mod against;
mod bench;
mod chat;
mod completions;
mod convert;
mod engine;
mod errors;
mod eval;
mod finetune;
mod habits;
mod hints;
mod inspect;
mod interrupt;
mod kernels;
mod manifest;
mod map;
mod methods;
mod models;
mod options;
mod output;
mod packages;
mod perplexity;
mod pull;
mod rope;
mod run;
mod search;
#[cfg(feature = "serve")]
mod serve;
mod study;
mod template;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgAction, ArgMatches};
use ropewalk::internals::graph::Isa;
use ropewalk_core::{program, terminal};

pub(crate) use errors::usage;
use errors::{chain, is_broken_pipe, is_usage, one_line};

pub(crate) struct Command {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// A paragraph for `--help-all` of the command itself.
    pub(crate) details: &'static str,
    /// Command lines to copy, one a line, without the `ropewalk` at their front.
    pub(crate) example: &'static str,
    pub(crate) args: fn(clap::Command) -> clap::Command,
    pub(crate) run: fn(&ArgMatches) -> anyhow::Result<()>,
}

/// Every subcommand, in the order help lists them.
pub(crate) static COMMANDS: &[Command] = &[
    run::COMMAND,
    chat::COMMAND,
    #[cfg(feature = "serve")]
    serve::COMMAND,
    perplexity::COMMAND,
    eval::COMMAND,
    advise::COMMAND,
    study::COMMAND,
    bench::COMMAND,
    finetune::COMMAND,
    rope::COMMAND,
    inspect::COMMAND,
    convert::COMMAND,
    pull::COMMAND,
    completions::COMMAND,
];

/// The whole command line as clap sees it.
pub(crate) fn app() -> clap::Command {
    let mut app = clap::Command::new("ropewalk")
        .version(concat!(env!("CARGO_PKG_VERSION"), " (", env!("ROPEWALK_BUILD"), ")"))
        .about("Long context for quantized GGUF language models: extend, measure, ship")
        .after_help(
            "Start with:  ropewalk pull smollm2\n             \
             ropewalk run -m smollm2 -p \"Once upon a time\"\n\n\
             Exit codes: 0 done, 1 failed, 2 wrong usage; stopped by Ctrl-C 130, SIGTERM 143, SIGHUP 129.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true);
    for c in COMMANDS {
        let sub = (c.args)(clap::Command::new(c.name))
            .disable_help_flag(true)
            .args(help_options())
            .about(c.about)
            .long_about(format!("{}\n\n{}", c.about, c.details))
            .hide(c.name == completions::COMMAND.name)
            .after_help(format!("Example:\n  ropewalk {}", c.example.replace('\n', "\n  ropewalk ")));
        app = app.subcommand(sub);
    }
    app
}

/// `--help` prints a screen or two, and `--help-all` also the details and the options that few need.
fn help_options() -> [Arg; 2] {
    let option = |name: &'static str, action: ArgAction, about: &'static str| {
        Arg::new(name).long(name).action(action).help(about).help_heading(None::<&'static str>)
    };
    [
        option("help", ArgAction::HelpShort, "Print help (see more with '--help-all')").short('h'),
        option("help-all", ArgAction::HelpLong, "Print help with all options and details"),
    ]
}

/// Parses the arguments, runs the command, prints its error if there is one; gives the exit code.
/// (Inlined, its instructions could run before `processor::require`.)
#[inline(never)]
pub(crate) fn main() -> ExitCode {
    if let Some(code) = template::serve().or_else(|| ::convert::serve_tokenizer(std::env::args_os().skip(1)))
    {
        return code;
    }
    files::explain_vanished_files();
    ropewalk_core::signals::fail_large_writes();
    let words = match habits::translate(&app(), std::env::args_os().collect()) {
        Ok(words) => words,
        Err(e) => {
            program::complain(in_a_line(&e));
            return ExitCode::from(2);
        }
    };
    if let Err(e) = Isa::check_limit() {
        program::complain(e);
        return ExitCode::from(2);
    }
    let matches = match app().try_get_matches_from(words) {
        Ok(m) => m,
        Err(mut e) => {
            // Only that an unknown option could be a value after `--`, which nobody means.
            let _ = e.remove(clap::error::ContextKind::Suggested);
            print_usage(&e);
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let Some((name, sub)) = matches.subcommand() else { return ExitCode::from(2) };
    let Some(command) = COMMANDS.iter().find(|c| c.name == name) else { return ExitCode::from(2) };
    match divide_work(sub).and_then(|()| (command.run)(sub)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            program::complain(in_a_line(&e));
            ExitCode::from(interrupt::exit_code(&e).unwrap_or(if is_usage(&e) { 2 } else { 1 }))
        }
    }
}

/// Makes what runs outside of graphs (optimizer steps, logits, HARPE searches) follow `--threads` as graphs
/// do. Left alone, rayon would take every core.
fn divide_work(sub: &ArgMatches) -> anyhow::Result<()> {
    let Ok(Some(&threads)) = sub.try_get_one::<usize>("threads") else { return Ok(()) };
    let n = if threads == 0 { ggml::backend::default_threads() } else { threads };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(n).thread_name(|i| format!("rayon {i}"));
    pool.build_global().with_context(|| format!("--threads {n}: the threads cannot be started"))
}

/// Prints help, or clap's error about the arguments. A closed stdout or stderr is no reason to fail.
fn print_usage(e: &clap::Error) {
    let text = e.render().to_string();
    let _ = match terminal::shown(&text) {
        std::borrow::Cow::Borrowed(_) => e.print(),
        // Names of files may come from anywhere.
        std::borrow::Cow::Owned(shown) => std::io::Write::write_all(&mut std::io::stderr(), shown.as_bytes()),
    };
}

/// An error with its causes, for people.
fn in_a_line(e: &anyhow::Error) -> String {
    one_line(&(chain(e) + &hints::of(e)))
}
