//! A safe wrapper of libllama: the tokenizer of a GGUF file, chains of samplers, libllama's own
//! quantizer, and its inference, which ropewalk is compared with.
//!
//! Everything that crosses into C is checked here first, because libllama aborts the process on some
//! malformed files.

pub mod oracle;
pub mod quantize;
pub mod sampler;
pub mod vocab;

pub(crate) use llama_cpp_sys_2 as sys;

pub use ggml::{Error, Result};

/// A token id of a model's vocabulary.
pub type Token = i32;
