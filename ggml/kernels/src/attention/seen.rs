//! Which keys tokens see, by blocks of columns. Most blocks of a mask are seen completely or not at all, and the mask
//! is the same for all heads and layers, so it is scanned once.
//!
//! The result is an index with one byte for each token and block of 64 columns (`KEYS`): whether the token sees any of
//! them, and whether it sees all of them. Layers and heads use it to skip columns that no token sees, so other
//! sequences in the cache cost next to nothing.

use std::ops::Range;

use super::tile::{Inputs, Tile, KEYS};

/// Half-precision -infinity.
const NEVER: u16 = 0xfc00;

const ANY: u8 = 1;
const ALL: u8 = 2;

/// Which of a range of columns a token sees.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    /// At least one of them, perhaps: false only if none.
    pub(super) any: bool,
    /// All of them, and none with a bias: true only if so.
    pub(super) all: bool,
}

/// Bytes of the index of a mask `[n_tokens][n_columns]`; `None` if they cannot be counted.
pub fn index_bytes(n_columns: usize, n_tokens: usize) -> Option<usize> {
    n_columns.div_ceil(KEYS).checked_mul(n_tokens)
}

/// Writes a byte for each token and block of [`KEYS`] columns of a mask `[T][n_columns]`, half-precision bits: whether
/// the token sees any of the block, and whether it sees all of it without a bias.
pub fn index_mask(mask: &[u16], n_columns: usize, index: &mut [u8]) {
    let blocks = mask.chunks(n_columns.max(1)).flat_map(|row| row.chunks(KEYS));
    for (block, index) in blocks.zip(index) {
        let (mut sees, mut biased) = (0, 0);
        for m in block {
            sees |= m ^ NEVER;
            biased |= m << 1; // Either zero is none.
        }
        *index = if sees != 0 { ANY } else { 0 } | if biased == 0 { ALL } else { 0 };
    }
}

impl Inputs<'_> {
    /// Looks up what token `t` sees of up to [`KEYS`] columns, which may lie in two blocks of the index.
    #[inline]
    pub(super) fn seen(&self, t: usize, columns: &Range<usize>) -> Seen {
        let row = &self.index[t * self.n_columns.div_ceil(KEYS)..];
        let (a, b) = (row[columns.start / KEYS], row[(columns.end - 1) / KEYS]);
        Seen { any: (a | b) & ANY != 0, all: a & b & ALL != 0 }
    }

    /// Makes the elements of `used` nonzero whose column any token of a tile sees; `all` if one of them sees all.
    pub(super) fn used(&self, tile: &Tile, columns: &Range<usize>, all: bool, used: &mut [u16]) {
        used.fill(u16::from(all));
        for t in tile.tokens.clone().filter(|_| !all) {
            let mask = &self.mask[t * self.n_columns..][columns.clone()];
            used.iter_mut().zip(mask).for_each(|(used, m)| *used |= m ^ NEVER);
        }
    }
}
