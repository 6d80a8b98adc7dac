//! A safe wrapper of ggml: tensors, ops, graphs, and the devices they run on.
//!
//! Safety model: `sys` holds the C declarations and is private. Everything that crosses into C is checked
//! here first, because ggml aborts the process on a wrong shape. Tensors borrow the arena that holds them.
// Only crates of this workspace call it: items whose names and types say all have no doc comments.
#![allow(missing_docs)]

mod activation;
pub mod attention;
pub mod attention_landmark;
pub mod attention_parts;
pub mod attention_train;
pub mod backend;
mod builder;
mod custom;
pub mod delta_net;
pub mod dtype;
mod error;
pub mod experts;
pub mod graph;
mod limits;
pub mod logging;
pub mod loss;
pub mod machine;
pub mod matmul;
mod node;
pub mod ops;
mod ops_back;
mod ops_softmax;
mod ops_tiles;
mod parts;
pub mod recurrent;
mod rows;
mod store;
pub mod tensor;
mod units;

pub(crate) use llama_cpp_sys_2 as sys;

pub use dtype::DType;
pub use error::{Error, Result};
