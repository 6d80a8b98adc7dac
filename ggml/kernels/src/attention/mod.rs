//! Attention under one softmax over keys reached through up to three branches, a tile of queries and keys at
//! a time.

mod few;
mod halved;
mod kernel;
mod products;
mod score;
mod seen;
mod tile;
mod units;
mod view;

pub use kernel::exp2;
pub use score::{tanh, Stats};
pub use seen::{index_bytes, index_mask, FEWEST};
pub use tile::{BranchOperands, Inputs, Scratch, Tile, KEYS};
pub use view::{Format, Rows, ToFloat};
