//! Output of commands: text and JSON on stdout, notes and progress bars on stderr, numbers for people.
//!
//! Text from a model or a file may hold characters that a terminal obeys: they set its title, fill its
//! clipboard, or make a line look like another. All that is printed goes through [`shown`] or
//! [`inline`](ropewalk_core::terminal::inline), so that none of them arrives, at a terminal or in a pipe that
//! may lead to one. Only [`ModelText`] can let them pass, where the user asks for it.

mod lines;

use std::io::IsTerminal;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use ropewalk_core::program;
use ropewalk_core::terminal::{inline, shown, Pieces};
use serde::Serialize;

/// Prints a line for people on stderr, under `-q` too: which of several things was taken for what was asked for.
pub(crate) use ropewalk_core::program::say as warn;
pub(crate) use ropewalk_core::text::{count, per_second as rate};

use lines::progress_line;
pub(crate) use lines::Colour;

/// Work that takes less time shows no progress bar.
const QUIET_FOR: Duration = Duration::from_secs(2);

/// A log gets a line after this many [`LOOKS`], and its first one when it is seen that the work takes over a minute.
const LINE_EVERY: u32 = 12;
const LOOKS: Duration = Duration::from_secs(5);

/// The output options of every command.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print one JSON object on stdout
    #[arg(long)]
    pub(crate) json: bool,
    /// Print only results and errors
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl OutputArgs {
    /// Prints a line for people on stderr, unless `-q` is given. A closed stderr is not an error.
    pub(crate) fn note(&self, text: impl std::fmt::Display) {
        if !self.quiet {
            warn(text);
        }
    }

    /// Prints a result: the object of `--json`, or the text for people.
    pub(crate) fn result(&self, json: &impl Serialize, text: impl FnOnce() -> String) -> anyhow::Result<()> {
        if self.json {
            print_json(json)
        } else {
            print(&text())
        }
    }

    /// A progress bar over `len` steps. It is shown on a terminal, without `-q`, once the work has taken two
    /// seconds. A log gets a line a minute instead, however rarely the work reports.
    pub(crate) fn progress(&self, len: u64, what: &str, unit: Unit) -> Progress {
        let watched = !self.quiet && std::io::stderr().is_terminal();
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::hidden());
        let template = match unit {
            Unit::Bytes => "{msg} [{wide_bar:.cyan/blue}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left",
            Unit::Tokens => "{msg} [{wide_bar:.cyan/blue}] {pos}/{len} tokens, {per_sec}, {eta} left",
            Unit::Steps => "{msg} [{wide_bar:.cyan/blue}] {pos}/{len}, {eta} left",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(inline(what).into_owned());
        let in_lines = !self.quiet && !std::io::stderr().is_terminal();
        Progress { _lines: in_lines.then(|| write_lines(bar.clone())), bar, waiting: watched }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Unit {
    /// Bytes, shown as KiB, MiB and so on.
    Bytes,
    Tokens,
    Steps,
}

/// A progress bar that is hidden for the first two seconds, and removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    waiting: bool,
    /// Dropped, it ends the lines of a log.
    _lines: Option<Sender<()>>,
}
impl Progress {
    pub(crate) fn set(&mut self, position: u64) {
        if self.waiting && self.bar.elapsed() >= QUIET_FOR {
            self.waiting = false;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        // Another part of the work, with another rate. Threads may report out of order, but not by so much.
        if position < self.bar.position() / 2 {
            self.bar.reset();
        }
        self.bar.set_position(position);
    }
    pub(crate) fn show(&mut self, p: &ropewalk::control::Progress<'_>) {
        self.bar.set_length(p.total);
        self.bar.set_message(inline(&p.what.to_string()).into_owned());
        self.set(p.done);
    }
}
impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Writes a line a minute to stderr until the sender is dropped. Work that reports each part when it is done would
/// otherwise have its first line at its end.
fn write_lines(bar: ProgressBar) -> Sender<()> {
    let (end, ended) = channel();
    // Without a thread there are no lines.
    let _ = std::thread::Builder::new().spawn(move || {
        let mut estimated = false;
        for look in 1.. {
            if ended.recv_timeout(LOOKS) != Err(RecvTimeoutError::Timeout) {
                break;
            }
            let (done, total, elapsed) = (bar.position(), bar.length().unwrap_or(0), bar.elapsed());
            let is_long = done > 0 && elapsed.as_secs_f64() * total as f64 > 60.0 * done as f64;
            if look % LINE_EVERY == 0 || is_long && !estimated {
                program::say(progress_line(&bar.message(), done, total, elapsed));
                estimated |= is_long;
            }
        }
    });
    end
}

/// Prints the text of a model as it comes, in pieces.
#[derive(Debug)]
pub(crate) struct ModelText {
    raw: bool,
    pieces: Pieces,
}

impl ModelText {
    /// Under `raw` text passes unchanged.
    ///
    /// # Errors
    /// `raw` where stdout is a terminal.
    pub(crate) fn new(raw: bool) -> anyhow::Result<ModelText> {
        if raw && std::io::stdout().is_terminal() {
            return Err(super::usage(
                "--raw: stdout is a terminal, which would obey control characters in the text: redirect it",
            ));
        }
        Ok(ModelText { raw, pieces: Pieces::default() })
    }

    pub(crate) fn print(&mut self, piece: &str) -> anyhow::Result<()> {
        match self.raw {
            true => Ok(program::write(piece)?),
            false => Ok(program::write(&self.pieces.push(piece))?),
        }
    }

    /// Prints what is held back at the end of a text.
    pub(crate) fn end(&mut self) -> anyhow::Result<()> {
        Ok(program::write(&self.pieces.end())?)
    }
}

/// Writes to stdout, [`shown`], and flushes. The error keeps its kind, so that a broken pipe can be told from
/// other errors.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    Ok(program::write(&shown(text))?)
}

/// Writes to stdout in one line, [`inline`], in a color where stdout is a terminal and `NO_COLOR` is not set.
pub(crate) fn print_in(colour: Colour, text: &str) -> anyhow::Result<()> {
    let text = inline(text);
    let plain =
        !std::io::stdout().is_terminal() || std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    Ok(program::write(&if plain { text } else { colour.around(&text).into() })?)
}

pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    Ok(program::print_json(value)?)
}
