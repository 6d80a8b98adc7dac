//! Training data: files of text, tokenized once into a cache file, split into training and held-out
//! documents, packed into samples of one context length, and changed on the way to the trainer.
//!
//! [`Sources::find`] lists and hashes the files. [`Corpus::open`] tokenizes them or opens the cache. A
//! [`Dataset`] gives sample `i` of epoch `e` as a function of those two numbers and a seed, so that a resumed
//! run asks for the next one; its documents may be drawn by [`Mixture`], its samples changed by a
//! [`Transform`] of [`METHODS`], and some of them made by the families of [`synthetic`]. An [`Inspection`]
//! counts what is there.
//!
//! A model is known here by its tokenizer alone ([`Tokenizer`]).
#![forbid(unsafe_code)]

mod error;
mod random;
pub mod jsonl;
mod text;
#[cfg(test)]
mod testing;
mod corpus;
mod sample;
mod transform;
pub mod synthetic;
mod dataset;
mod histogram;

pub use corpus::{Built, Corpus, Separator, TOKENS};
pub use dataset::{Dataset, DatasetParams, HeldOut, Mixture, Packing, Upsample};
pub use error::{Error, Result};
pub use histogram::{DistanceBin, Inspection, LengthBin};
pub use sample::{Sample, Span, SpanKind};
pub use text::{ChatTemplate, Group, Kind, Records, Source, SourceFile, Sources, TextOptions};
pub use transform::{parse as parse_method, Method, Transform, METHODS};

pub use jsonl::MAX_TEXT;

/// The generator a [`Transform`] draws from.
pub use rand_chacha::ChaCha8Rng;

pub use ropewalk_core::tokenizer::{Token, Tokenizer};
