//! Long context for quantised GGUF language models: run, train LoRA adapters, measure.
//!
//! Modules are listed in layer order: each uses only those above it.
#![forbid(unsafe_code)]

pub mod math;
pub mod weights;
pub mod adapter;
pub mod layers;
pub mod kv;
pub mod states;
pub mod graph;
pub mod arch;
pub mod model;
pub mod session;
pub mod chat;
pub mod eval;
pub mod fetch;
pub mod train;
pub mod plot;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use ggml::DType;
pub use gguf;
pub use llama::{sampler, vocab, Token};
pub use ropewalk_core::{control, hparams, ids, landmark, rope};
pub use ropewalk_data::{self as data, jsonl};
pub use ropewalk_tasks as tasks;
