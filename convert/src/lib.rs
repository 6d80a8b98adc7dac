//! GGUF in, GGUF out: rope methods written into files, element types changed, random models made.
//!
//! Everything here is a function from files to a file and a report; only [`cli`] prints or parses arguments.
#![forbid(unsafe_code)]

pub mod cli;
mod job;
pub mod llama_cpp;
mod merge;
pub mod random;
mod requantize;
pub mod rope;
mod rows;
pub mod types;

pub use job::{convert, Options, Report, RopeReport};
pub use merge::MergeError;
pub use requantize::TensorError;

/// Why a conversion failed. One line: file, key or tensor, expected, found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read or written, or is not as it should be.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// From ggml: values of element types.
    #[cfg(feature = "ggml")]
    #[error(transparent)]
    Ggml(#[from] ggml::Error),
    /// From the rope layer: a spec that cannot be used.
    #[error(transparent)]
    Rope(#[from] ropewalk_core::rope::RopeError),
    /// The caller asked for something that makes no sense, whatever the file (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// The file cannot be converted as asked.
    #[error("{0}")]
    Invalid(String),
    /// Cancelled through [`Watch::cancelled`].
    #[error("interrupted")]
    Interrupted,
}

impl From<files::Error> for Error {
    fn from(e: files::Error) -> Self {
        Error::File(e.into())
    }
}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Progress and cancellation of a conversion.
pub trait Watch: Sync {
    /// Called once, with the bytes of tensor data to come.
    fn start(&self, _bytes: u64) {}
    /// Called as tensor data is written.
    fn wrote(&self, _bytes: u64) {}
    /// When true the job ends with [`Error::Interrupted`] and leaves nothing behind.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Watches nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;
impl Watch for Quiet {}

/// Ends a job from inside a writer's callback, which can only fail with an I/O error.
fn interrupted(watch: &dyn Watch) -> std::io::Result<()> {
    match watch.cancelled() {
        true => Err(std::io::Error::other("interrupted")),
        false => Ok(()),
    }
}
