//! Attention with landmarks (Mohtashami and Jaggi 2023, arXiv 2305.16300): the last position of every block is a
//! landmark, whose score says how much a query attends to the block it closes.
//!
//! The keys that a query sees fall into its own block, which is not complete yet, and earlier blocks. One softmax is
//! over the keys of its block and the landmarks of the earlier ones; the weight of a landmark is divided among the
//! other keys of its block by a second softmax. No value of a landmark is used, and a landmark does not see its
//! own key.
//!
//! With `lse` the logarithm of the sum of exponentials of a block's scores, a key's weight is the exponential of
//! `score - lse + score of the landmark`. So if tiles of keys are complete blocks, scores are replaced one tile at
//! a time ([`Blocks`]), and the rest is the running softmax of plain attention.

mod blocks;
pub mod forward;
pub mod top;

pub use blocks::{Blocks, MAX_BLOCK};
