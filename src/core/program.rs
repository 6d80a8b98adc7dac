//! Output of the programs: results on stdout, messages for people on stderr. A closed stderr is no reason to fail.

use std::fmt::Display;
use std::io::{self, Write};

use serde::Serialize;

use crate::terminal::{inline, plain_json, shown};

/// Writes text to stdout as it is, and flushes.
///
/// # Errors
/// The system's, of their kind: a broken pipe can be told from others.
pub fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints one JSON object on one line. What a terminal may obey is escaped as JSON has it: no text is changed.
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    write(&format!("{}\n", plain_json(serde_json::to_string(value)?)))
}

/// Prints a line on stderr, [`shown`].
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{}", shown(&line.to_string()));
}

/// Prints an error on stderr, in one line.
pub fn complain(error: impl Display) {
    let _ = writeln!(io::stderr(), "error: {}", inline(&error.to_string()));
}
