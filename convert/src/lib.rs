//! GGUF in, GGUF out: rope methods written into files, element types changed, random models made; and model
//! folders of Hugging Face imported.
//!
//! Everything here is a function from files to a file and a report; only `cli` prints or parses arguments.
#![forbid(unsafe_code)]

#[cfg(feature = "cli")]
pub mod cli;
mod import;
mod job;
pub mod llama_cpp;
mod merge;
pub mod peft;
mod quantizer;
pub mod random;
mod report;
mod requantize;
pub mod rope;
mod rows;
mod staged;
pub mod types;

use std::path::{Path, PathBuf};

use files::same_file;
use gguf::Defect;
use ropewalk_core::remedy::Remedy;

pub use import::serve_tokenizer;
pub use job::{convert, written_rope, Options, Tokenizing};
pub use merge::MergeError;
pub use report::{Report, RopeReport, MAX_LOST};
pub use requantize::TensorError;
pub use staged::Mixture;

/// Why a conversion failed. One line: file, key or tensor, expected, found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written, or is not as it should be.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// From ggml: values of element types.
    #[error(transparent)]
    Ggml(#[from] ggml::Error),
    /// From the rope layer: a spec that cannot be used.
    #[error(transparent)]
    Rope(#[from] ropewalk_core::rope::RopeError),
    /// The caller asked for something that makes no sense, whatever the file (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// A setting has a value that makes no sense (exit code 2); the text starts with its name.
    #[error("{0}")]
    Argument(String),
    /// The file cannot be converted as asked.
    #[error("{0}")]
    Invalid(String),
    /// The request cannot be met as asked, with a known way past it.
    #[error("{what}")]
    Avoidable {
        /// The problem.
        what: String,
        /// The way past it.
        remedy: Remedy,
    },
    /// Stopped through its [`Control`](ropewalk_core::control::Control); nothing is left behind.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// The way past the error, if one is known.
    pub fn remedy(&self) -> Option<Remedy> {
        match self {
            Error::File(gguf::Error::Gguf(e)) if e.defect == Defect::Adapter => Some(Remedy::Adapter),
            e if files::Exists::causes(e) => Some(Remedy::Force),
            Error::Rope(e) => e.remedy,
            Error::Avoidable { remedy, .. } => Some(*remedy),
            _ => None,
        }
    }

    /// The error with the path of a temporary file replaced by that of the file the user named.
    pub fn renamed(self, from: &Path, to: &Path) -> Error {
        let what = import::renamed(&self.to_string(), from, to);
        match (self.remedy(), self) {
            (_, Error::Interrupted) => Error::Interrupted,
            (_, Error::Usage(_)) => Error::Usage(what),
            (_, Error::Argument(_)) => Error::Argument(what),
            (Some(remedy), _) => Error::Avoidable { what, remedy },
            (None, _) => Error::Invalid(what),
        }
    }
}

fn avoidable(what: impl Into<String>, remedy: Remedy) -> Error {
    Error::Avoidable { what: what.into(), remedy }
}

fn check_none_is<'a>(output: &Path, paths: impl IntoIterator<Item = &'a PathBuf>, what: &str) -> Result<()> {
    for path in paths {
        if same_file(path, output)? {
            let what = format!("{}: the output is {what}; name another file", output.display());
            return Err(Error::Usage(what));
        }
    }
    Ok(())
}

impl From<ropewalk_import::Error> for Error {
    fn from(e: ropewalk_import::Error) -> Self {
        match e {
            ropewalk_import::Error::File(e) => Error::File(e),
            ropewalk_import::Error::Argument(what) => Error::Argument(what),
            e @ ropewalk_import::Error::PreTokenizer { .. } => avoidable(e.to_string(), Remedy::PreTokenizer),
            ropewalk_import::Error::Interrupted => Error::Interrupted,
            other => Error::Invalid(other.to_string()),
        }
    }
}

impl From<files::Error> for Error {
    fn from(e: files::Error) -> Self {
        Error::File(e.into())
    }
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
