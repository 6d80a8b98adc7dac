//! Cells: the position and the sequences that each one holds.

use std::ops::Range;

use crate::rope::Reach;

/// Sequences a cache can tell apart.
pub const MAX_SEQS: u32 = 64;

/// Attention reads keys in whole blocks of this many cells, so that graphs can be reused while a context
/// grows.
pub const CELL_BLOCK: usize = 256;

/// One cell: a position, and the sequences that see it (none: free).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Position in each of its sequences.
    pub pos: i32,
    /// Bit `s` set: sequence `s` sees it.
    pub seqs: u64,
}

/// A range of cells, in whole blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Span {
    pub start: usize,
    /// Number of cells; 0 is no cell at all.
    pub len: usize,
    /// Columns of attention to them, in whole blocks: as many, or those of [`Columns`](super::Columns).
    pub columns: usize,
}

/// A number of cells, some of which are in use.
#[derive(Debug)]
pub struct Cells {
    cells: Vec<Cell>,
    /// No free cell lies below.
    first_free: usize,
    /// No used cell lies at or above.
    end: usize,
    used: usize,
}

impl Cells {
    pub fn new(n: usize) -> Cells {
        Cells { cells: vec![Cell::default(); n], first_free: 0, end: 0, used: 0 }
    }

    pub fn all(&self) -> &[Cell] {
        &self.cells
    }

    pub fn n_free(&self) -> usize {
        self.cells.len() - self.used
    }

    /// Cells up to the last used one.
    pub fn n_end(&self) -> usize {
        self.end
    }

    /// The range of cells, in whole blocks, that holds every key which one of these queries, `(sequence,
    /// position)`, sees.
    pub fn span(&self, queries: &[(u32, i32)], reach: &Reach) -> Span {
        let (mut first, mut last) = (usize::MAX, 0);
        for (seq, keys) in keys_of(queries, reach) {
            let seen = |c: &Cell| c.seqs & (1 << seq) != 0 && keys.contains(&c.pos);
            let cells = &self.cells[..self.end];
            if let (Some(a), Some(b)) = (cells.iter().position(seen), cells.iter().rposition(seen)) {
                (first, last) = (first.min(a), last.max(b));
            }
        }
        if first > last {
            return Span::default();
        }
        let start = first / CELL_BLOCK * CELL_BLOCK;
        let len = (last + 1).next_multiple_of(CELL_BLOCK) - start;
        Span { start, len, columns: len }
    }

    /// Takes a free cell for each `(sequence, position)`. If there are too few, returns `None` and changes
    /// nothing.
    pub fn allocate(&mut self, wanted: &[(u32, i32)]) -> Option<Vec<usize>> {
        if wanted.len() > self.n_free() {
            return None;
        }
        let mut taken = Vec::with_capacity(wanted.len());
        let mut at = self.first_free;
        for &(seq, pos) in wanted {
            while self.cells[at].seqs != 0 {
                at += 1;
            }
            self.cells[at] = Cell { pos, seqs: 1 << seq };
            taken.push(at);
            at += 1;
        }
        self.first_free = at;
        self.used += taken.len();
        self.end = self.end.max(at);
        Some(taken)
    }

    /// Removes a sequence from every cell whose position is `from` or more.
    pub fn remove(&mut self, seq: u32, from: i32) {
        for cell in &mut self.cells[..self.end] {
            if cell.seqs & (1 << seq) != 0 && cell.pos >= from {
                cell.seqs &= !(1 << seq);
            }
        }
        self.recount();
    }

    /// Removes a sequence from every cell below position `before` that is not `needed`.
    pub(super) fn evict(&mut self, seq: u32, before: i32, needed: impl Fn(i32) -> bool) {
        for cell in &mut self.cells[..self.end] {
            if cell.seqs & (1 << seq) != 0 && cell.pos < before && !needed(cell.pos) {
                cell.seqs &= !(1 << seq);
            }
        }
        self.recount();
    }

    /// Adds sequence `dst` to every cell of sequence `src`.
    pub fn copy(&mut self, src: u32, dst: u32) {
        for cell in &mut self.cells[..self.end] {
            if cell.seqs & (1 << src) != 0 {
                cell.seqs |= 1 << dst;
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.cells.fill(Cell::default());
        self.recount();
    }

    /// Takes over the first cells from elsewhere; the others become free.
    pub(super) fn replace(&mut self, first: &[Cell]) {
        self.cells.fill(Cell::default());
        self.cells[..first.len()].copy_from_slice(first);
        self.recount();
    }

    fn recount(&mut self) {
        self.used = self.cells.iter().filter(|c| c.seqs != 0).count();
        self.end = self.cells.iter().rposition(|c| c.seqs != 0).map_or(0, |i| i + 1);
        self.first_free = self.cells.iter().position(|c| c.seqs == 0).unwrap_or(self.cells.len());
    }
}

/// For each sequence of these queries, `(sequence, position)`, the positions of the keys that they see.
pub(super) fn keys_of<'a>(
    queries: &'a [(u32, i32)],
    reach: &'a Reach,
) -> impl Iterator<Item = (u32, Range<i32>)> + 'a {
    let seqs = queries.iter().fold(0u64, |all, q| all | 1 << q.0);
    (0..MAX_SEQS).filter(move |&seq| seqs & (1 << seq) != 0).filter_map(move |seq| {
        let own = queries.iter().filter(|q| q.0 == seq);
        let keys = own.map(|&(_, pos)| reach.keys(pos)).filter(|k| !k.is_empty());
        keys.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).map(|keys| (seq, keys))
    })
}
