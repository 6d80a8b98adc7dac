//! Errors of this crate, each shown as one line.

use std::fmt::Display;
use std::path::{Path, PathBuf};

pub(crate) use gguf::shown;

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a folder cannot be imported. One line: file, key or tensor, found, expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The folder is not a model that can be imported.
    #[error("{0}")]
    Invalid(String),
    /// A setting has a value that makes no sense for the folder; the text starts with its name.
    #[error("{0}")]
    Argument(String),
    /// llama.cpp does not know the folder's tokenizer: its pre-tokenizer has to be named.
    #[error("{}: {what}", path.display())]
    PreTokenizer {
        /// The tokenizer's file.
        path: PathBuf,
        /// Found and expected.
        what: String,
    },
    /// Stopped through its [`Control`](ropewalk_core::control::Control); nothing is left behind.
    #[error("interrupted")]
    Interrupted,
}

impl From<files::Error> for Error {
    fn from(e: files::Error) -> Self {
        Error::File(e.into())
    }
}

impl Error {
    /// `FILE: KEY: WHAT`.
    pub(crate) fn at(file: &Path, key: &str, what: impl Display) -> Error {
        Error::Invalid(format!("{}: {}: {what}", file.display(), shown(key)))
    }
    /// `FILE: WHAT`.
    pub(crate) fn of(file: &Path, what: impl Display) -> Error {
        Error::Invalid(format!("{}: {what}", file.display()))
    }
}
