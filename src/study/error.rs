//! Errors of a study. A cell that fails is not among them: that is a result.

use std::io::ErrorKind;
use std::path::Path;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a study cannot be run or reported. One line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A plan, a folder, a file in it, or a setting is not what it is to be. Names the file and, in a plan, the line.
    #[error("{0}")]
    Invalid(String),
    /// The disk.
    #[error(transparent)]
    File(#[from] files::Error),
    /// The caller asked to stop before a listing was complete.
    #[error("interrupted")]
    Stopped,
}

impl Error {
    pub(crate) fn folder(path: &Path, what: impl std::fmt::Display) -> Error {
        Error::Invalid(format!("{}: {what}", path.display()))
    }

    /// A folder of a study cannot be locked.
    pub(crate) fn lock(path: &Path, e: files::Error) -> Error {
        match e.source.kind() {
            ErrorKind::WouldBlock => {
                Error::folder(path, format_args!("another study runs here: {}", e.source))
            }
            _ => Error::File(e),
        }
    }

    pub(crate) fn io(path: &Path, source: std::io::Error) -> Error {
        Error::File(files::Error::new(path, source))
    }
}
