//! How a product is divided among threads. `tests/ggml/parts.rs` compiles this file for itself.

use std::ops::Range;

/// Rows of a weight that stay together: ggml's kernels take 16 at once, and others where what is left is odd.
pub(super) const ROWS: usize = 32;
/// Tokens that stay together, for the same reason.
pub(super) const TOKENS: usize = 16;
/// Tokens for each thread from which on threads divide tokens: each rounds all activations of its part.
const MANY_TOKENS: usize = 8;

/// Dimension along which a result `[m, n, heads]` is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    Rows,
    Tokens,
    /// In groups of so many that share a matrix.
    Heads(usize),
    Nothing,
}

/// How `n_parts` threads divide a product of `m` rows of each of `of` matrices with `n` tokens of each of `heads`. A part has
/// the bits that it has in the whole.
pub(super) fn cut([m, n, heads]: [usize; 3], of: usize, n_parts: usize) -> Cut {
    match () {
        () if n_parts == 1 => Cut::Nothing,
        () if heads > 1 => Cut::Heads(heads / of),
        () if n > 1 && n.is_multiple_of(2) && n >= (MANY_TOKENS * n_parts).max(TOKENS) => Cut::Tokens,
        () if n == 1 || m.is_multiple_of(ROWS) => Cut::Rows,
        () => Cut::Nothing,
    }
}

/// The numbers below `n` that part `i` of `n_parts` gets, in whole units but for the last.
pub(super) fn range(n: usize, unit: usize, i: usize, n_parts: usize) -> Range<usize> {
    let n_units = (n / unit).max(1);
    let units = kernels::share(n_units, i, n_parts);
    match units.end == n_units {
        _ if units.is_empty() => 0..0,
        true => units.start * unit..n,
        false => units.start * unit..units.end * unit,
    }
}
