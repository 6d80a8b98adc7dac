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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a sequence sees: the positions, block by block, and whether its cells are the right ones.
    fn seen(cells: &Cells, columns: &Columns, seq: u32) -> Vec<Vec<i32>> {
        let span = columns.span();
        let rows: Vec<u32> = columns.rows(span.start).flat_map(|(rows, _)| rows).collect();
        let mut positions = Vec::new();
        columns.positions(seq, -1, &mut positions);
        assert!(rows.len() == positions.len() && rows.len() <= span.columns);
        assert!(rows.iter().all(|&row| (row as usize) < span.len));
        for (&row, &pos) in rows.iter().zip(&positions).filter(|(_, &pos)| pos >= 0) {
            let cell = cells.all()[span.start + row as usize];
            assert!(cell.pos == pos && cell.seqs & (1 << seq) != 0, "{pos}: {cell:?}");
        }
        let blocks = positions.chunks(KEYS).map(<[i32]>::to_vec);
        blocks.filter(|block| block.iter().any(|&pos| pos >= 0)).collect()
    }

    fn text(seq: u32, positions: std::ops::Range<i32>) -> Vec<(u32, i32)> {
        positions.map(|pos| (seq, pos)).collect()
    }

    /// A text has the same blocks alone, after others, between others, in cells out of order, and where it shares some.
    #[test]
    fn blocks_are_those_of_positions_wherever_the_cells_are() {
        let reaches =
            [Reach::CAUSAL, Reach { dist_end: 90, ..Reach::CAUSAL }, Reach { key_end: 70, ..Reach::CAUSAL }];
        let mut alone = Cells::new(1000);
        alone.allocate(&text(0, 0..200)).unwrap();
        // Sequences 1, 0, 2 and 3 in turns, in what others left.
        let mut among = Cells::new(1000);
        among.allocate(&text(9, 0..70)).unwrap();
        among.allocate(&text(1, 0..130)).unwrap();
        among.allocate(&text(0, 0..150)).unwrap();
        among.copy(0, 2);
        among.remove(9, 0);
        for pos in 150..200 {
            among.allocate(&[(0, pos), (2, pos + 20), (3, pos)]).unwrap();
        }
        let with: [&[(u32, i32)]; 3] = [&[], &[(1, 129)], &[(2, 219), (3, 199)]];
        for (at, reach) in [199, 170].into_iter().flat_map(|at| reaches.map(|reach| (at, reach))) {
            let expected = seen(&alone, &alone.columns(&[(0, at)], &reach), 0);
            assert!(!expected.is_empty());
            for others in with {
                let columns = among.columns(&[&[(0, at)][..], others].concat(), &reach);
                assert_eq!(seen(&among, &columns, 0), expected, "{at}, {reach:?}, {others:?}");
            }
        }
        // In order of positions: those that are shared once, others next to each other.
        let columns = among.columns(&[(0, 199), (2, 219)], &Reach::CAUSAL);
        let places: Vec<(i32, u64)> = columns.blocks.iter().map(|block| (block.place, block.seqs)).collect();
        assert_eq!(places, [(0, 5), (1, 5), (2, 1), (2, 4), (3, 1), (3, 4)]);
        assert!(columns.rows(0).map(|(_, place)| place).eq([0, 1, 2, 2, 3, 3]));
    }

    #[test]
    fn a_text_alone_has_its_cells_in_order() {
        let mut cells = Cells::new(1000);
        assert_eq!(cells.columns(&[(0, 5)], &Reach::CAUSAL).span(), Span::default());
        cells.allocate(&text(0, 0..300)).unwrap();
        let columns = cells.columns(&[(0, 299)], &Reach::CAUSAL);
        let span = columns.span();
        assert_eq!(span, Span { start: 0, len: 512, columns: 512 });
        assert!(columns.rows(0).flat_map(|(rows, _)| rows).take(300).eq(0..300));
        let positions = |seq: u32| {
            let mut positions = Vec::new();
            columns.positions(seq, -1, &mut positions);
            positions
        };
        assert_eq!(positions(0), (0..320).map(|pos| if pos < 300 { pos } else { -1 }).collect::<Vec<i32>>());
        assert_eq!(positions(1), [-1; 320]);
    }
}
