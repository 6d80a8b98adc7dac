//! Training data: files of text, tokenised once into a cache file, split into training and held-out
//! documents, and packed into samples of one context length.
//!
//! [`Sources::find`] lists and hashes the files. [`Corpus::open`] tokenises them or opens the cache. A
//! [`Dataset`] gives sample `i` of epoch `e` as a function of those two numbers and a seed, so that a resumed
//! run asks for the next one. An [`Inspection`] counts what is there.

mod cache;
mod chunks;
mod corpus;
mod dataset;
mod histogram;
mod hold_out;
mod read;
mod sample;
mod separator;
mod shuffle;
mod sources;

pub use corpus::{Built, Corpus};
pub use dataset::{Dataset, DatasetParams, Packing};
pub use histogram::{DistanceBin, Inspection, LengthBin};
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
