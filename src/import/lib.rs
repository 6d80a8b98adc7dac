//! Model folders of Hugging Face, written as GGUF files: tensors, metadata and tokenizer as llama.cpp's own
//! converter writes them.
//!
//! [`Checkpoint::open`] reads and checks a folder; [`Checkpoint::write`] streams it into a file. Nothing in the
//! folder is trusted: every length, number and name is checked before it is used, and tokenizer.json is run by a process
//! under limits, unless the caller trusts it ([`Tokenizing`]).
#![forbid(unsafe_code)]

mod error;
mod json;
mod safetensors;
mod meaning;
mod config;
mod needed;
mod tensor;
mod keys;
mod vocab;
mod general;
mod arch;
mod modules;
mod checkpoint;

pub use arch::{architectures, classes, meaning};
pub use checkpoint::{Checkpoint, Encode};
pub use error::{Error, Result};
pub use general::is_repository;
pub use meaning::{check_keys, meaning_in, Meaning};
pub use modules::Modules;
pub use needed::{is_read, template, weights, TEMPLATES};
pub use safetensors::{Safetensors, Stored};
pub use tensor::{floats, Change, Rows, Tensor};
pub use vocab::{serve as serve_tokenizer, Tokenizing, LIMITS as TOKENIZER_LIMITS};
