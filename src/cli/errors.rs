//! Errors of the program: what was typed wrong, and how any error becomes one line. `tests/cli/units.rs` compiles this file
//! for itself.

use std::io::ErrorKind;

use ropewalk::Error;
use ropewalk_core::terminal;

/// A mistake in what was typed: exit code 2 instead of 1.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// An error that ends the program with exit code 2.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Usage(text.into()).into()
}

/// True if the command line is wrong, or holds a setting that the library refuses. The same error during the work
/// ([`Error::During`]) or in a file does not count.
pub(crate) fn is_usage(e: &anyhow::Error) -> bool {
    e.is::<Usage>() || matches!(e.downcast_ref::<Error>(), Some(Error::Argument { .. }))
}

/// The error and its causes in one line, without those that the next one, or the one before, repeats (a path,
/// as a rule).
pub(crate) fn chain(e: &anyhow::Error) -> String {
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
pub(crate) fn one_line(text: &str) -> String {
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

pub(crate) fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.chain().any(|c| c.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == ErrorKind::BrokenPipe))
}
