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
mod study;
mod template;

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches};
use ropewalk::Error;
use ropewalk_core::{program, terminal};

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

/// A mistake in what was typed: exit code 2 instead of 1.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// The whole command line as clap sees it.
pub(crate) fn app() -> clap::Command {
    let mut app = clap::Command::new("ropewalk")
        .version(version())
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

fn version() -> &'static str {
    concat!(env!("CARGO_PKG_VERSION"), " (", env!("ROPEWALK_BUILD"), ")")
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
    let matches = match app().try_get_matches_from(words) {
        Ok(m) => m,
        Err(mut e) => {
            // Only that an unknown option could be a value behind `--`, which nobody means.
            let _ = e.remove(clap::error::ContextKind::Suggested);
            print_usage(&e);
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let Some((name, sub)) = matches.subcommand() else { return ExitCode::from(2) };
    let Some(command) = COMMANDS.iter().find(|c| c.name == name) else { return ExitCode::from(2) };
    match (command.run)(sub) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            program::complain(in_a_line(&e));
            ExitCode::from(interrupt::exit_code(&e).unwrap_or(if is_usage(&e) { 2 } else { 1 }))
        }
    }
}

/// What was typed is wrong: here, or as a setting that the library refuses. At a place within the work
/// ([`Error::During`]) or in a file it is another error.
fn is_usage(e: &anyhow::Error) -> bool {
    e.is::<Usage>() || matches!(e.downcast_ref::<Error>(), Some(Error::Argument { .. }))
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
    let text = chain(e);
    one_line(&format!("{text}{}", hints::of(e)))
}

/// The error and its causes in one line, without those that the next one, or the one before, repeats (a path,
/// as a rule).
fn chain(e: &anyhow::Error) -> String {
    let mut said: Vec<String> = Vec::new();
    for cause in e.chain().map(ToString::to_string) {
        match said.last_mut() {
            Some(last) if last.ends_with(&cause) => {}
            Some(last) if cause.starts_with(&*last) => *last = cause,
            _ => said.push(cause),
        }
    }
    said.join(": ")
}

/// Joins the lines of a text, with a semicolon where nothing else divides them: an error is one line.
fn one_line(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        let open = out.ends_with([':', ';', ',']) || line.starts_with('[');
        if !out.is_empty() {
            out += if open { " " } else { "; " };
        }
        // Text out of a file may hold escape sequences, which must not reach the terminal.
        out += &terminal::inline(line);
    }
    out
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|c| c.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == ErrorKind::BrokenPipe))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_sound() {
        app().debug_assert();
    }

    #[test]
    fn every_command_is_documented_and_its_example_parses() {
        for c in COMMANDS {
            assert!(c.details.len() > 40, "{}: details", c.name);
            // One for a command that takes one word.
            assert!(c.example.lines().count() == 2 || c.name == "completions", "{}: examples", c.name);
            for line in c.example.lines() {
                assert!(line.starts_with(c.name), "{}: example", c.name);
                // Behind the program's name, in the hundred columns that help takes: a line that is broken cannot be copied.
                assert!(line.len() <= 89, "{line}: {} characters", line.len());
                let parsed = app().try_get_matches_from([vec!["ropewalk"], shell_words(line)].concat());
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
            }
        }
    }

    /// Options that mean the same in every command that has them: the model, the machine, the output.
    const SHARED: &str =
        "model rope ctx lora kv device threads batch ubatch attention math output plot force json quiet seed help \
         help-all";

    #[test]
    fn the_command_line_stays_small() {
        let app = app();
        let commands: Vec<_> = app.get_subcommands().filter(|c| !c.is_hide_set()).collect();
        assert!(commands.len() <= 12, "{} commands", commands.len());
        let mut all = std::collections::BTreeSet::new();
        for command in commands {
            let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
            let names: Vec<&str> = visible.filter_map(|arg| arg.get_long()).collect();
            let own: Vec<_> = names.iter().filter(|name| !SHARED.split(' ').any(|s| s == **name)).collect();
            assert!(own.len() <= 15, "{}: {} options: {own:?}", command.get_name(), own.len());
            all.extend(names);
        }
        assert!(all.len() <= 90, "{} names of options: {all:?}", all.len());
    }

    /// Splits a command line with simple double quotes.
    fn shell_words(line: &'static str) -> Vec<&'static str> {
        let mut words = Vec::new();
        for (i, part) in line.split('"').enumerate() {
            if i % 2 == 1 {
                words.push(part);
            } else {
                words.extend(part.split_whitespace());
            }
        }
        words
    }

    #[test]
    fn causes_that_repeat_are_said_once() {
        let path = anyhow::anyhow!("x.gguf: is short").context("x.gguf");
        assert_eq!(chain(&path), "x.gguf: is short");
        let io = std::io::Error::other("is not a regular file");
        let ggml = ggml::Error::io("x.gguf", io);
        assert_eq!(chain(&anyhow::Error::from(ggml).context("x.gguf")), "x.gguf: is not a regular file");
        assert_eq!(chain(&anyhow::anyhow!("no space").context("out")), "out: no space");
    }

    #[test]
    fn a_setting_that_is_refused_is_usage_and_a_place_in_the_work_is_not() {
        let refused = || Error::argument("rank", "at least 1", 0);
        assert!(is_usage(&usage("--rank")) && is_usage(&anyhow::Error::from(refused()).context("a.gguf")));
        let during = Error::During { place: "step 3".into(), source: Box::new(refused()) };
        assert!(!is_usage(&during.into()) && !is_usage(&Error::Invalid("rank".into()).into()));
    }

    #[test]
    fn errors_are_one_line() {
        assert_eq!(one_line("a\n  b:\n\nc\n"), "a; b: c");
        assert_eq!(one_line("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
    }
}
