//! Errors that occur while data is read and samples are made.

use std::path::Path;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no data to train on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A text, a file's content or a setting that cannot be used: expected and found.
    #[error("{0}")]
    Invalid(String),
    /// A line that is a chat, where a text is expected.
    #[error("{0}")]
    Chat(String),
    /// A file that cannot be read or written.
    #[error(transparent)]
    File(#[from] files::Error),
    /// Canceled by the caller.
    #[error("interrupted")]
    Interrupted,
}

pub(crate) fn invalid(what: impl Into<String>) -> Error {
    Error::Invalid(what.into())
}

pub(crate) fn io(path: &Path, source: std::io::Error) -> Error {
    Error::File(files::Error::new(path, source))
}
