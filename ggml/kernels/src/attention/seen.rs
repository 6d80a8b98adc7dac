//! Which keys tokens see, by blocks of columns. Most blocks of a mask are seen completely or not at all, and the mask
//! is the same for all heads and layers, so it is scanned once.
//!
//! The result is an index with one byte for each token and block of 64 columns (`KEYS`): whether the token sees any of
//! them, and whether it sees all of them. Layers and heads use it to skip columns that no token sees, so other
//! sequences in the cache cost next to nothing.
//!
//! Sums go block by block, in ranges of blocks for threads to take. A token's sums depend on the blocks that it sees and on
//! where ranges end, so ranges end at certain places: the number of a block in its branch, or in its sequence where the caller
//! says so ([`Inputs::cells`]). Then a token's sums do not depend on what others see between its blocks.

use std::ops::Range;

use super::tile::{BranchOperands, Inputs, Tile, KEYS};

/// Half-precision -infinity.
const NEVER: u16 = 0xfc00;

const ANY: u8 = 1;
const ALL: u8 = 2;

/// Fewest places worth a range.
pub const FEWEST: usize = 4;

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

/// The blocks of columns that the tokens of a tile see, in order.
#[derive(Default)]
pub(super) struct Sight {
    pub(super) tokens: Range<usize>,
    pub(super) blocks: Vec<Range<usize>>,
    /// Branch and place of each.
    places: Vec<(usize, usize)>,
    /// The first block of each range.
    starts: Vec<usize>,
}

/// Blocks of columns that a tile takes.
pub(super) struct Taken<'a> {
    pub(super) blocks: &'a [Range<usize>],
    /// The first column of those that the thread takes next; its keys are asked for early.
    pub(super) then: Option<usize>,
}

impl Sight {
    /// Finds what tokens see, and cuts it into about `aim` ranges, at most `most`.
    pub(super) fn fill(&mut self, x: &Inputs<'_>, tokens: Range<usize>, aim: usize, most: usize) {
        self.blocks.clear();
        self.places.clear();
        self.starts.clear();
        for (i, branch) in x.branches.iter().flatten().enumerate() {
            let end = branch.first + branch.columns;
            for first in (branch.first..end).step_by(KEYS) {
                let columns = first..end.min(first + KEYS);
                if tokens.clone().any(|t| x.seen(t, &columns).any) {
                    self.blocks.push(columns);
                    self.places.push((i, x.place(branch, first)));
                }
            }
        }
        self.tokens = tokens;
        let n_places = self.places.chunk_by(|a, b| a == b).count();
        let each = if most > 1 { n_places.div_ceil(aim.max(1)).max(FEWEST) } else { usize::MAX };
        self.cut(|(branch, place), _| (if most > 1 { branch } else { 0 }, place / each));
        if self.starts.len() > most {
            // Places far from each other, of tokens that see a part of their sequences.
            self.cut(|_, i| (0, i / each));
        }
        debug_assert!(self.starts.len() <= most.max(1));
    }

    /// Begins a range at each block whose key differs from the one before; keys are made of a block's branch and place, and of
    /// the number of places before it.
    fn cut(&mut self, key: impl Fn((usize, usize), usize) -> (usize, usize)) {
        self.starts.clear();
        let (mut nth, mut last) = (0, None);
        for (i, &place) in self.places.iter().enumerate() {
            nth += usize::from(i > 0 && self.places[i - 1] != place);
            let key = key(place, nth);
            if last != Some(key) {
                self.starts.push(i);
                last = Some(key);
            }
        }
    }

    /// The blocks of a range, by number.
    pub(super) fn range(&self, range: usize) -> Range<usize> {
        let start = |range: usize| self.starts.get(range).copied().unwrap_or(self.blocks.len());
        start(range)..start(range + 1)
    }
}

impl Inputs<'_> {
    /// The place of the block that begins with a column.
    fn place(&self, branch: &BranchOperands<'_>, column: usize) -> usize {
        match self.cells {
            None => (column - branch.first) / KEYS,
            Some([_, _, places]) => usize::from(places[column]),
        }
    }

    /// The row of a column in the keys of a branch, if it is one of the branch.
    #[inline]
    pub(super) fn row(&self, branch: &BranchOperands<'_>, column: usize) -> usize {
        match self.cells {
            None => column.wrapping_sub(branch.first),
            Some([low, high, _]) => (usize::from(high[column]) << 16) | usize::from(low[column]),
        }
    }

    /// The rows of columns of a branch in its keys.
    pub(super) fn rows(&self, branch: &BranchOperands<'_>, columns: &Range<usize>, rows: &mut [usize]) {
        match self.cells {
            None => rows.iter_mut().zip(columns.start - branch.first..).for_each(|(row, at)| *row = at),
            Some([low, high, _]) => {
                let halves = low[columns.clone()].iter().zip(&high[columns.clone()]);
                let whole = halves.map(|(&low, &high)| (usize::from(high) << 16) | usize::from(low));
                rows.iter_mut().zip(whole).for_each(|(row, at)| *row = at);
            }
        }
    }

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
