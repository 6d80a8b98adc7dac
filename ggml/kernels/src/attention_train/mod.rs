//! Attention for training: a forward run that gives the log-sum-exp of each row, and a backward run from it.
//!
//! Both go over tiles of queries by keys and multiply them with the kernels of crate `gemm`, so nothing as large as the scores
//! is ever held.

pub mod backward;
pub mod forward;
mod view;

pub use view::{Heads, HeadsMut, Runs};

/// Keys of a tile.
pub const KEYS: usize = 256;
