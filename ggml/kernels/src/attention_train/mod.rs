//! Attention for training: a forward pass that also gives the log-sum-exp of each row, and a backward pass
//! that starts from it.
//!
//! Both process tiles of queries by keys, and multiply them with the kernels of crate `gemm`, or rounded to bfloat16
//! with `half_floats`, so nothing as large as all scores is ever in memory.

pub mod backward;
pub mod forward;
mod merge;
mod products;
mod row;
mod view;

pub(crate) use forward::{largest, pack, soften, LANES};
pub use merge::merge;
pub use products::Factors;
pub use row::{Plain, Row};
pub use view::{Heads, HeadsMut, KeyRanges};

/// Keys of a tile.
pub(crate) const KEYS: usize = 256;
