//! The columns of attention: cells in the order of positions, wherever they are in the cache.
//!
//! Attention sums its keys block by block. If blocks were cells side by side, a text's sums would depend on which cells it got:
//! on where its run of cells begins in a block, and on whose cells are between. So a block has the cells of certain positions
//! of one sequence. Sequences that share cells share blocks; where they part within a block, each has a block of its own, with
//! the shared cells in both.

use std::collections::HashMap;

use ggml::attention::KEYS;

use super::cells::{keys_of, Cells, Span, CELL_BLOCK};
use super::layout::whole_blocks;
use crate::rope::Reach;

/// A column without a cell.
const NONE: u32 = u32::MAX;

/// The cells of [`KEYS`] positions of a sequence, or of several that share them all.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Block {
    /// The first position is this times [`KEYS`].
    place: i32,
    cells: [u32; KEYS],
    /// Bit `s` set: a block of sequence `s`.
    seqs: u64,
}

/// Cells as columns of attention, in whole blocks: by position, and where sequences have different cells of the same
/// positions, those of one sequence after those of another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    blocks: Vec<Block>,
    /// The first of these cells, and the end of them.
    first: usize,
    end: usize,
}

impl Cells {
    /// The cells of every key that one of these queries, `(sequence, position)`, sees, as columns.
    pub fn columns(&self, queries: &[(u32, i32)], reach: &Reach) -> Columns {
        let mut columns = Columns { blocks: Vec::new(), first: usize::MAX, end: 0 };
        let mut own: Vec<(i32, u32)> = Vec::new();
        let mut n_seqs = 0;
        for (seq, keys) in keys_of(queries, reach) {
            own.clear();
            let cells = (0..).zip(&self.all()[..self.n_end()]);
            let seen = cells.filter(|(_, c)| c.seqs & (1 << seq) != 0 && keys.contains(&c.pos));
            own.extend(seen.map(|(at, c)| (c.pos, at)));
            let (Some((_, first)), Some((_, last))) = (own.first(), own.last()) else { continue };
            columns.first = columns.first.min(*first as usize);
            columns.end = columns.end.max(*last as usize + 1);
            if !own.is_sorted() {
                own.sort_unstable();
            }
            n_seqs += 1;
            for of_block in own.chunk_by(|a, b| a.0 / KEYS as i32 == b.0 / KEYS as i32) {
                let mut block =
                    Block { place: of_block[0].0 / KEYS as i32, cells: [NONE; KEYS], seqs: 1 << seq };
                of_block.iter().for_each(|&(pos, at)| block.cells[pos as usize % KEYS] = at);
                columns.blocks.push(block);
            }
        }
        if n_seqs > 1 {
            columns.merge();
        }
        columns
    }
}

impl Columns {
    /// Brings the blocks of several sequences into the order of places, those that they share once.
    fn merge(&mut self) {
        let mut known: HashMap<(i32, [u32; KEYS]), usize> = HashMap::new();
        let mut blocks: Vec<Block> = Vec::new();
        for block in self.blocks.drain(..) {
            let at = *known.entry((block.place, block.cells)).or_insert(blocks.len());
            match blocks.get_mut(at) {
                Some(same) => same.seqs |= block.seqs,
                None => blocks.push(block),
            }
        }
        blocks.sort_by_key(|block| block.place);
        self.blocks = blocks;
    }

    /// The range of cells that holds them, in whole blocks of cells, and their number.
    pub fn span(&self) -> Span {
        if self.blocks.is_empty() {
            return Span::default();
        }
        let start = self.first / CELL_BLOCK * CELL_BLOCK;
        let columns = whole_blocks(self.blocks.len() * KEYS);
        Span { start, len: self.end.next_multiple_of(CELL_BLOCK) - start, columns }
    }

    /// For each block its cells, counted from `start`, and its place, as [`place_mask`](ggml::attention::place_mask) takes
    /// them.
    pub fn rows(&self, start: usize) -> impl Iterator<Item = ([u32; KEYS], u16)> + '_ {
        let row = move |cell: u32| if cell == NONE { 0 } else { cell - start as u32 };
        self.blocks.iter().map(move |block| (block.cells.map(row), block.place as u16))
    }

    /// Appends, for each column, the position that a sequence sees there, or `unseen`.
    pub fn positions(&self, seq: u32, unseen: i32, to: &mut Vec<i32>) {
        for block in &self.blocks {
            let (is_own, first) = (block.seqs & (1 << seq) != 0, block.place * KEYS as i32);
            let position = |i: usize| {
                let is_seen = is_own && block.cells[i] != NONE;
                if is_seen {
                    first + i as i32
                } else {
                    unseen
                }
            };
            to.extend(std::array::from_fn::<i32, KEYS, _>(position));
        }
    }
}
