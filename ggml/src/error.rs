//! The error type of this crate: each variant names what was checked, what was expected and what was found.

use std::path::PathBuf;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the ggml layer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read or written, or is not as it should be.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// An op was given tensors it cannot take.
    #[error("{op}: {what}")]
    Op {
        op: &'static str,
        /// Shapes and types expected and found.
        what: String,
    },
    /// An allocation on a device failed.
    #[error("{device}: cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        device: String,
        bytes: usize,
        /// The purpose of the memory.
        what: String,
    },
    /// A device or a backend reported an error.
    #[error("{0}")]
    Backend(String),
    /// The vocabulary of a file cannot be used.
    #[error("{0}")]
    Vocab(String),
    /// A value that no block of the type can hold: not finite, or too large.
    #[error("value {index} is {value}: {dtype} holds finite values up to {limit}")]
    NotQuantizable {
        /// The type that was to be written.
        dtype: &'static str,
        /// Position in the values passed.
        index: usize,
        value: f32,
        /// Largest magnitude the type takes.
        limit: f32,
    },
    /// A value a caller passed is out of range.
    #[error("{0}")]
    Argument(String),
}

impl Error {
    /// Wraps an I/O error with the path it happened at.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::File(gguf::Error::io(path, source))
    }
}

impl From<files::Error> for Error {
    fn from(e: files::Error) -> Self {
        Error::File(e.into())
    }
}
