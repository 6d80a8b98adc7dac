//! The errors of downloads, and of files with a record of their origin.

use std::fmt::Display;
use std::path::Path;

use ropewalk_core::terminal::inline;

/// An error of a download or of a file with a record of its origin, in one line. What a caller acts on is a variant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system refused.
    #[error(transparent)]
    Io(#[from] files::Error),
    /// The caller asked to stop.
    #[error("{from}: stopped{}", note_of(*kept))]
    Stopped {
        /// The source asked for.
        from: String,
        /// Bytes of it that are here.
        kept: u64,
    },
    /// Anything else: a hub that refuses, a file or a record that is not as expected, one that is in the way.
    #[error("{of}: {what}")]
    Other {
        /// The file, the source, or the text.
        of: String,
        /// The fault: expected and found.
        what: String,
    },
}
/// Results of this module.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) fn other(of: impl Display, what: impl Display) -> Error {
    Error::Other { of: of.to_string(), what: what.to_string() }
}

/// Names the path that an operation of the file system failed on.
pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
    move |e| files::Error::new(path, e).into()
}

/// Note of a pull that ends early on the bytes it has.
pub(crate) fn note_of(len: u64) -> String {
    match len {
        0 => String::new(),
        n => format!("; {n} bytes are kept, and the same pull resumes from there"),
    }
}

/// Characters of a text of others that a message shows.
const SHOWN: usize = 200;

/// The beginning of a text of a server, or of a file that others can write, in one line: the only form in which a message
/// has such a text.
pub fn said(text: &str) -> String {
    let head: String = text.chars().take(SHOWN + 1).collect();
    let line = inline(&head);
    if line.chars().count() <= SHOWN {
        return line.into_owned();
    }
    line.chars().take(SHOWN - 3).chain("...".chars()).collect()
}
