//! The one crate with `unsafe` in it: a small safe wrapper over ggml and libllama.
//!
//! Safety model: `sys` holds the C declarations and is private. Everything that crosses into C is checked
//! here first, because ggml aborts the process on a wrong shape. Tensors borrow the arena that holds them.

pub mod attention;
pub mod attention_train;
pub mod backend;
mod builder;
mod crew;
mod custom;
pub mod dtype;
mod error;
mod gemm;
pub mod gguf;
pub mod graph;
pub mod logging;
mod loss;
pub mod map;
pub mod ops;
mod ops_back;
pub mod oracle;
pub mod sampler;
pub mod tensor;
pub mod vocab;
mod widen;

pub(crate) use llama_cpp_sys_2 as sys;

pub use dtype::DType;
pub use error::{Error, Result};

/// A token id of a model's vocabulary.
pub type Token = i32;
