//! Errors of a study. A cell that fails is not among them: that is a result.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a study cannot be run or reported. One line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plan is not what a plan is to be. Shown as `FILE: line N: WHAT`.
    #[error("{}: line {line}: {what}", path.display())]
    Plan {
        /// The plan.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The key, what was expected, and what was found.
        what: String,
    },
    /// A folder or a file of it is not what it is to be.
    #[error("{}: {what}", path.display())]
    Folder {
        /// The folder or file.
        path: PathBuf,
        /// The fault: what was expected and what was found.
        what: String,
    },
    /// The disk.
    #[error(transparent)]
    File(#[from] files::Error),
    /// A setting that makes no sense.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn folder(path: &Path, what: impl Into<String>) -> Error {
        Error::Folder { path: path.into(), what: what.into() }
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> Error {
        Error::File(files::Error::new(path, source))
    }
}
