//! Errors that occur while samples are made.

use std::path::PathBuf;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a task has no samples.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read, or is not what the task needs.
    #[error("{}: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The fault: expected and found.
        what: String,
    },
    /// A published file is not in the folder of data.
    #[error("{}: is missing: {published}", path.display())]
    Missing {
        /// Where it was looked for.
        path: PathBuf,
        /// Its name in the folder of data.
        name: &'static str,
        /// Where it is published, for people.
        published: &'static str,
    },
    /// A setting that makes no sense for the task.
    #[error("{0}")]
    Invalid(String),
    /// The work was asked to stop.
    #[error("interrupted")]
    Interrupted,
    /// The tokenizer or the chat template failed.
    #[error(transparent)]
    Encoder(Box<dyn std::error::Error + Send + Sync>),
}

impl From<files::Error> for Error {
    fn from(e: files::Error) -> Self {
        Error::file(e.path, e.source)
    }
}

impl Error {
    /// A setting that makes no sense.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::Invalid(message.into())
    }

    /// A file that is not what a task needs.
    pub fn file(path: impl Into<PathBuf>, what: impl ToString) -> Error {
        Error::File { path: path.into(), what: what.to_string() }
    }
}
