//! The runtime's error: what a caller can act on is a variant with its numbers, all else one line of text.

use std::borrow::Cow;
use std::fmt::Display;
use std::path::PathBuf;

use ropewalk_core::remedy::Remedy;

use crate::gguf::{self, Defect, GgufError};

/// An error of loading, running or training a model. One line: file, key, expected, found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation of the file system failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error the system gave.
        source: std::io::Error,
    },
    /// A GGUF file is malformed, or lacks what was asked of it: [`GgufError`] has the path and the defect.
    #[error(transparent)]
    File(Box<GgufError>),
    /// From the ggml layer.
    #[error(transparent)]
    Ggml(ggml::Error),
    /// From the rope layer.
    #[error(transparent)]
    Rope(#[from] crate::rope::RopeError),
    /// A session has no room for the tokens that were to be added. It is as it was before.
    #[error("the context is full: {needed} tokens do not fit in the {free} free of ctx {n_ctx}")]
    ContextFull {
        /// Tokens to be added.
        needed: usize,
        /// Tokens for which there is room.
        free: usize,
        /// The context that the session was opened with.
        n_ctx: usize,
    },
    /// More memory is needed than there is.
    #[error("{what}")]
    OutOfMemory {
        /// Bytes needed.
        needed: usize,
        /// Bytes free, where an allocation was not simply refused.
        free: Option<usize>,
        /// One line on the use of the memory, with these numbers, and with settings that fit, if there are any.
        what: String,
        /// The way past it, if settings of the call decide.
        remedy: Option<Remedy>,
    },
    /// An argument or a setting of a call is out of range.
    #[error("{name}: expected {expected}, found {found}")]
    Argument {
        /// Name of the argument or setting.
        name: Cow<'static, str>,
        /// The values that are accepted.
        expected: String,
        /// The value that was given.
        found: String,
    },
    /// This model, device, or method cannot do what was requested, or cannot do it with another setting.
    #[error("{0}")]
    Unsupported(String),
    /// Another problem with the request, a file, or a result.
    #[error("{0}")]
    Invalid(String),
    /// A problem with the request or a file, with a known way past it.
    #[error("{what}")]
    Avoidable {
        /// The problem.
        what: String,
        /// The way past it.
        remedy: Remedy,
    },
    /// Another error, and the place where it happened.
    #[error("{place}: {source}")]
    During {
        /// The step, the window, or the part of the work.
        place: String,
        /// The error.
        source: Box<Error>,
    },
    /// Canceled by the caller.
    #[error("interrupted")]
    Interrupted,
}

/// Results of the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Adds the path to an I/O error.
    pub(crate) fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Error {
        Error::Io { path: path.into(), source }
    }

    /// An argument or a setting that is out of range.
    pub fn argument(
        name: impl Into<Cow<'static, str>>,
        expected: impl Display,
        found: impl Display,
    ) -> Error {
        Error::Argument { name: name.into(), expected: expected.to_string(), found: found.to_string() }
    }

    /// The way past the error, if one is known.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::File(e) if e.defect == Defect::Adapter => Some(Remedy::Adapter),
            Error::Rope(e) => e.remedy,
            Error::ContextFull { .. } => Some(Remedy::Context),
            Error::OutOfMemory { remedy, .. } => *remedy,
            Error::Avoidable { remedy, .. } => Some(*remedy),
            Error::During { source, .. } => source.remedy(),
            _ => None,
        }
    }

    /// Adds the place where an error happened.
    pub(crate) fn during(place: String, source: Error) -> Error {
        Error::During { place, source: Box::new(source) }
    }
}

impl From<ggml::Error> for Error {
    fn from(e: ggml::Error) -> Self {
        match e {
            ggml::Error::File(e) => e.into(),
            ggml::Error::OutOfMemory { bytes, .. } => {
                Error::OutOfMemory { needed: bytes, free: None, what: e.to_string(), remedy: None }
            }
            e => Error::Ggml(e),
        }
    }
}

impl From<gguf::Error> for Error {
    fn from(e: gguf::Error) -> Self {
        match e {
            gguf::Error::Io(e) => e.into(),
            gguf::Error::OutOfMemory { bytes, .. } => {
                Error::OutOfMemory { needed: bytes, free: None, what: e.to_string(), remedy: None }
            }
            gguf::Error::Gguf(e) => match e.defect {
                Defect::Memory { bytes, .. } => Error::OutOfMemory {
                    needed: usize::try_from(bytes).unwrap_or(usize::MAX),
                    free: None,
                    what: e.to_string(),
                    remedy: None,
                },
                _ => Error::File(e),
            },
            e => Error::Ggml(e.into()),
        }
    }
}

impl From<files::Error> for Error {
    fn from(e: files::Error) -> Self {
        Error::io(e.path, e.source)
    }
}

impl From<ropewalk_data::Error> for Error {
    fn from(e: ropewalk_data::Error) -> Self {
        match e {
            ropewalk_data::Error::Invalid(what) => Error::Invalid(what),
            ropewalk_data::Error::Chat(what) => Error::Avoidable { what, remedy: Remedy::Chat },
            ropewalk_data::Error::File(e) => e.into(),
            ropewalk_data::Error::Interrupted => Error::Interrupted,
        }
    }
}
