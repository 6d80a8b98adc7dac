//! Texts to train on: found, tokenised once into a cache file, held out in part, cut into samples of one context.
//!
//! [`Sources::find`] lists files, [`Corpus::open`] has them as tokens, [`Dataset`] gives sample `i` of epoch `e` as a
//! function of those two numbers and a seed: whoever resumes a training asks for the next one.

mod cache;
mod corpus;
mod dataset;
mod hold_out;
mod pieces;
mod read;
mod sample;
mod separator;
mod shuffle;
mod sources;

pub use corpus::{Built, Corpus, Progress};
pub use dataset::{Dataset, DatasetParams, Packing};
pub use hold_out::HeldOut;
pub use sample::{Sample, Transform};
pub use separator::Separator;
pub use sources::{SourceFile, Sources, TextOptions};

pub use crate::jsonl::MAX_TEXT;

/// The generator a [`Transform`] draws from.
pub use rand_chacha::ChaCha8Rng;

use crate::model::Error;

fn invalid(what: impl Into<String>) -> Error {
    Error::Invalid(what.into())
}

fn io(path: &std::path::Path, source: std::io::Error) -> Error {
    Error::Ggml(ggml::Error::io(path, source))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
