//! AMX: matrix products of bfloat16 in the tile registers of some x86-64 processors, 512 multiply-adds a cycle.
//!
//! bfloat16 has 8 significant bits, so a float is split into two halves: the nearest bfloat16, and the remainder. The
//! three larger of the four products of halves are exact to 16 bits, in a fifth of the time of AVX-512's fused
//! multiply-adds. ggml's AMX code rounds activations to 8 bits.
//!
//! Tiles are used for types that hold less than 16 bits of precision, and in training also for floats of 32 bits. A tile that is
//! not aligned to a cache line loads seven times as slowly (`aligned`).
//!
//! [`Tiles`] exist if the program runs on such a processor and the system permits them. Otherwise callers use another
//! kernel.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod none;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86_64;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
pub(crate) use none::Tiles;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(crate) use x86_64::Tiles;

/// Rows of a tile.
pub(crate) const ROWS: usize = 16;
/// Elements that one instruction sums: two in each of as many words as a tile has rows.
pub(crate) const DEPTH: usize = 2 * ROWS;
/// Rows and columns of the result that [`Tiles::product`] computes.
pub(crate) const SIDE: usize = 2 * ROWS;

/// An operand of a product: both halves of floats, two of those that are summed in a word. Of the left one a tile has
/// a row for each row of the result, of the right one a column for each column.
pub(crate) struct Operand<'a> {
    /// The floats rounded.
    pub(crate) high: &'a [u32],
    /// The remainders of that rounding, rounded too.
    pub(crate) low: &'a [u32],
    /// Words from a row of a tile to the next.
    pub(crate) row: usize,
    /// Words from a tile to the next one in a row of the result.
    pub(crate) tile: usize,
    /// Words from a tile to the one summed next.
    pub(crate) step: usize,
}

impl Operand<'_> {
    /// Returns true if both halves have two tiles next to each other and `n_steps` in a row.
    pub(crate) fn holds(&self, n_steps: usize) -> bool {
        let end = n_steps.saturating_sub(1).saturating_mul(self.step);
        let end = end.saturating_add((ROWS - 1).saturating_mul(self.row)).saturating_add(self.tile + ROWS);
        self.high.len().min(self.low.len()) >= end
    }
}
