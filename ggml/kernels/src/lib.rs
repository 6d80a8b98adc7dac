//! CPU kernels of ropewalk in pure Rust: attention, gated delta-nets, matrix products, cross entropy,
//! dequantization and rotation, over slices and over views of memory whose validity the caller promises.
//!
//! Nothing here uses ggml's tensors; crate `ggml` makes ops of these functions.
// Only crates of this workspace call it: items whose names and types say all have no doc comments.
#![allow(missing_docs)]

mod aligned;
mod amx;
pub mod attention;
pub mod attention_landmark;
pub mod attention_train;
pub mod quants;
pub mod cross_entropy;
pub mod delta_net;
pub mod dequantize;
pub mod experts;
pub mod int8;
pub mod gemm;
pub mod int16;
pub mod output;
pub mod pool;
pub mod rotate;
#[cfg(test)]
#[path = "../../../tests/common/rounding.rs"]
mod rounding;
pub mod half_floats;
pub mod sigmoid;
mod simd;
pub mod bf16x3;

pub use simd::level;

use std::ops::Range;

/// The range of `n` items that thread `ith` of `nth` computes. All ranges have one length but the last, which
/// may be shorter or empty.
pub fn share(n: usize, ith: usize, nth: usize) -> Range<usize> {
    let chunk = n.div_ceil(nth.max(1));
    (ith * chunk).min(n)..((ith + 1) * chunk).min(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for (n, nth) in [(0, 3), (1, 4), (7, 2), (8, 8), (100, 7)] {
            let all: Vec<usize> = (0..nth).flat_map(|i| share(n, i, nth)).collect();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
        }
    }
}
