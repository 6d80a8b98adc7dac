//! Products of rows of floats with a matrix that is converted to floats as it is needed (a quantized weight), or with
//! its transpose, in tiles of bfloat16 halves (`amx`): nearly as precise as in floats, and several times as
//! fast.
//!
//! Floats are packed first, split into halves, tile after tile, so that many products can share them. Weights are
//! converted a panel of rows at a time, for all floats.

mod matrices;

use std::ops::Range;

pub use matrices::Matrices;

use crate::aligned::Aligned;
use crate::amx::{Operand, Tiles, DEPTH, ROWS, SIDE};
use crate::output::Output;

/// Words of a tile, its high halves and its low ones.
const TILE: usize = 2 * ROWS * ROWS;
/// Elements of a row that are summed before the next ones are looked at: as many as let the halves of 512 rows stay in
/// a cache of 2 MB. Whole blocks of every quantized type.
const CHUNK: usize = 512;

/// Columns of a weight that [`Scratch::multiply_transposed`] takes at most.
pub const COLUMNS: usize = 256;
/// Words of a panel: two tiles side by side, as many in a row as a chunk has.
const PANEL: usize = 2 * CHUNK / DEPTH * TILE;

/// Returns true if this machine has tiles.
pub fn available() -> bool {
    Tiles::new().is_some()
}

/// The shape of packed floats: `n` rows of `k`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    pub k: usize,
    pub n: usize,
}

impl Shape {
    fn n_steps(self) -> usize {
        self.k.div_ceil(DEPTH)
    }

    /// Pairs of tiles that hold the rows.
    pub fn n_pairs(self) -> usize {
        self.n.div_ceil(SIDE)
    }

    /// Words of a pair of tiles along whole rows.
    pub fn pair_words(self) -> usize {
        2 * self.n_steps() * TILE
    }

    /// Words of all; `None` where they are too many to count.
    pub fn n_words(self) -> Option<usize> {
        let rows = self.n.checked_next_multiple_of(SIDE)?;
        rows.checked_mul(self.k.checked_next_multiple_of(DEPTH)?)
    }

    /// Packs rows `pair * 32..` into their words: `row` gives each.
    ///
    /// # Panics
    /// Where there are no tiles, or `words` are not as many as a pair of tiles has.
    pub fn pack<'a>(self, pair: usize, row: impl Fn(usize) -> &'a [f32], words: &mut [u32]) {
        let tiles = Tiles::new().expect("the caller has asked whether there are tiles");
        assert_eq!(words.len(), self.pair_words());
        for (i, words) in words.chunks_exact_mut(self.pair_words() / 2).enumerate() {
            for r in 0..ROWS {
                let at = pair * SIDE + i * ROWS + r;
                let row = if at < self.n { row(at) } else { &[] };
                for (step, tile) in words.chunks_exact_mut(TILE).enumerate() {
                    let (high, low) = tile.split_at_mut(TILE / 2);
                    let (high, low) = (&mut high[r * ROWS..][..ROWS], &mut low[r * ROWS..][..ROWS]);
                    let part = &row[row.len().min(step * DEPTH)..row.len().min((step + 1) * DEPTH)];
                    if part.len() < DEPTH {
                        high.fill(0);
                        low.fill(0);
                    }
                    tiles.cut(part, high, low);
                }
            }
        }
    }

    /// The rows that some pairs of tiles hold.
    pub fn rows_of(self, pairs: Range<usize>) -> Range<usize> {
        self.n.min(pairs.start * SIDE)..self.n.min(pairs.end * SIDE)
    }

    /// The pairs of tiles that hold rows.
    ///
    /// # Panics
    /// Where the rows are not all that some pairs hold.
    fn pairs_of(self, rows: Range<usize>) -> Range<usize> {
        let pairs = rows.start.div_ceil(SIDE)..rows.end.div_ceil(SIDE);
        assert_eq!(self.rows_of(pairs.clone()), rows, "whole pairs of tiles, of {} rows", self.n);
        pairs
    }

    /// Words of the pair of tiles `pair`, among those of all.
    fn words_of(self, pair: usize) -> Range<usize> {
        pair * self.pair_words()..(pair + 1) * self.pair_words()
    }
}

/// Buffers a thread keeps between calls.
#[derive(Default)]
pub struct Scratch {
    /// `[SIDE][CHUNK]`, or two rows of `COLUMNS`.
    rows: Vec<f32>,
    /// `[n][PANEL]`
    panels: Aligned<u32>,
    /// Halves of a tile before it is transposed.
    tile: Aligned<u32>,
    edge: Edge,
}

impl Scratch {
    /// Products of rows of a weight, each `[k]`, with packed floats: element `i` of row `j` of the output is that of row `i` of
    /// the weight with row `j` of the floats. `read` converts elements of a row of the weight from one on, whole blocks.
    ///
    /// # Panics
    /// Where there are no tiles, `packed` is not as long as the shape says, or rows of the output are not all that some
    /// pairs of tiles hold.
    pub fn multiply(
        &mut self,
        packed: &[u32],
        shape: Shape,
        read: impl Fn(usize, usize, &mut [f32]),
        out: Output<'_>,
    ) {
        let tiles = Tiles::new().expect("the caller has asked whether there are tiles");
        assert_eq!(Some(packed.len()), shape.n_words());
        let (pairs, rows) = (shape.pairs_of(out.rows()), out.columns());
        self.make_room(1);
        for from in (0..shape.k).step_by(CHUNK) {
            let chunk = from..shape.k.min(from + CHUNK);
            for first in rows.clone().step_by(SIDE) {
                let panel = first..rows.end.min(first + SIDE);
                self.load(&tiles, &panel, &chunk, &read);
                for pair in pairs.clone() {
                    let words = &packed[shape.words_of(pair)];
                    self.pair(&tiles, words, shape, pair, 0, &panel, &chunk, &out);
                }
            }
        }
    }

    /// Sums of rows of a weight `[m][shape.k]`, each times an element of the packed floats `[m]`: the output's columns of it, at
    /// most [`COLUMNS`], into the same elements of each row of the output. `read` converts elements of a row from one
    /// on, whole blocks.
    ///
    /// # Panics
    /// Panics like [`Scratch::multiply`], and if there are more columns.
    pub fn multiply_transposed(
        &mut self,
        packed: &[u32],
        shape: Shape,
        read: impl Fn(usize, usize, &mut [f32]),
        out: Output<'_>,
    ) {
        let tiles = Tiles::new().expect("the caller has asked whether there are tiles");
        let (pairs, columns) = (shape.pairs_of(out.rows()), out.columns());
        assert!(Some(packed.len()) == shape.n_words() && columns.len() <= COLUMNS);
        self.make_room(columns.len().div_ceil(SIDE));
        for from in (0..shape.k).step_by(CHUNK) {
            let chunk = from..shape.k.min(from + CHUNK);
            self.load_transposed(&tiles, &chunk, &columns, &read);
            for (i, first) in columns.clone().step_by(SIDE).enumerate() {
                let panel = first..columns.end.min(first + SIDE);
                for pair in pairs.clone() {
                    let words = &packed[shape.words_of(pair)];
                    self.pair(&tiles, words, shape, pair, i, &panel, &chunk, &out);
                }
            }
        }
    }

    fn make_room(&mut self, n_panels: usize) {
        self.rows.resize(SIDE * CHUNK, 0.0);
        self.panels.refill(n_panels * PANEL, 0);
        self.tile.refill(TILE, 0);
    }

    /// Converts `columns` of rows `chunk` of a weight and cuts them into panels.
    fn load_transposed(
        &mut self,
        tiles: &Tiles,
        chunk: &Range<usize>,
        columns: &Range<usize>,
        read: &impl Fn(usize, usize, &mut [f32]),
    ) {
        let n = columns.len();
        let (first, second) = self.rows[..2 * COLUMNS].split_at_mut(COLUMNS);
        first[n..].fill(0.0);
        second[n..].fill(0.0);
        for i in 0..chunk.len().next_multiple_of(DEPTH) / 2 {
            for (row, at) in [(&mut *first, chunk.start + 2 * i), (&mut *second, chunk.start + 2 * i + 1)] {
                if at < chunk.end {
                    read(at, columns.start, &mut row[..n]);
                } else {
                    row[..n].fill(0.0);
                }
            }
            for at in (0..n.next_multiple_of(SIDE)).step_by(ROWS) {
                let tile = at / SIDE * PANEL + (at / ROWS % 2 * CHUNK / DEPTH + i / ROWS) * TILE;
                let (high, low) = self.panels[tile..][..TILE].split_at_mut(TILE / 2);
                let words = i % ROWS * ROWS..(i % ROWS + 1) * ROWS;
                tiles.cut_pairs(
                    &first[at..][..ROWS],
                    &second[at..][..ROWS],
                    &mut high[words.clone()],
                    &mut low[words],
                );
            }
        }
    }

    /// Converts elements `chunk` of weights `rows` and cuts them into the panel.
    fn load(
        &mut self,
        tiles: &Tiles,
        rows: &Range<usize>,
        chunk: &Range<usize>,
        read: &impl Fn(usize, usize, &mut [f32]),
    ) {
        let (n, n_steps) = (chunk.len(), chunk.len().div_ceil(DEPTH));
        for (i, row) in self.rows.chunks_exact_mut(CHUNK).enumerate() {
            if i < rows.len() {
                read(rows.start + i, chunk.start, &mut row[..n]);
                row[n..n_steps * DEPTH].fill(0.0);
            } else {
                row[..n_steps * DEPTH].fill(0.0);
            }
        }
        for (half, rows) in self.rows.chunks_exact(ROWS * CHUNK).enumerate() {
            for step in 0..n_steps {
                let tile = self.tile.as_chunks_mut().0.first_mut().expect("a tile");
                // SAFETY: 16 rows of a chunk each.
                unsafe { tiles.cut_rows(rows[step * DEPTH..].as_ptr(), CHUNK, tile) };
                let (high, low) = tile.split_at(TILE / 2);
                let to = &mut self.panels[(half * CHUNK / DEPTH + step) * TILE..][..TILE];
                tiles.transpose(high, ROWS, to, ROWS);
                tiles.transpose(low, ROWS, &mut to[TILE / 2..], ROWS);
            }
        }
    }

    /// A panel's products with one pair of tiles.
    #[allow(clippy::too_many_arguments)]
    fn pair(
        &mut self,
        tiles: &Tiles,
        words: &[u32],
        shape: Shape,
        pair: usize,
        panel: usize,
        rows: &Range<usize>,
        chunk: &Range<usize>,
        out: &Output<'_>,
    ) {
        let (n_steps, first) = (chunk.len().div_ceil(DEPTH), chunk.start / DEPTH * TILE);
        let left = operand(&words[first..], shape.n_steps() * TILE);
        let right = operand(&self.panels[panel * PANEL..], CHUNK / DEPTH * TILE);
        let to = (out.at(pair * SIDE, rows.start), out.step());
        let wanted = [SIDE.min(shape.n - pair * SIDE), rows.len()];
        // SAFETY: the output has the rows of the pair, and these columns.
        unsafe { self.edge.product(tiles, [left, right], n_steps, chunk.start > 0, to, wanted) }
    }
}

/// A pair of tiles of packed words, `tile` words apart.
fn operand(words: &[u32], tile: usize) -> Operand<'_> {
    Operand { high: words, low: &words[TILE / 2..], row: ROWS, tile, step: TILE }
}

/// A buffer for a product of which only a part is wanted.
#[derive(Debug, Default)]
struct Edge(Aligned<f32>);

impl Edge {
    /// Writes `n` rows of `len` elements of a product of two pairs of tiles to rows `step` elements apart.
    ///
    /// # Safety
    /// These elements are valid for reads and writes, and no other thread uses them meanwhile.
    unsafe fn product(
        &mut self,
        tiles: &Tiles,
        [left, right]: [Operand<'_>; 2],
        n_steps: usize,
        add: bool,
        (to, step): (*mut f32, usize),
        [n, len]: [usize; 2],
    ) {
        if [n, len] == [SIDE; 2] {
            // SAFETY: the caller's promise.
            return unsafe { tiles.product(&left, &right, n_steps, add, to, step) };
        }
        self.0.resize(SIDE * SIDE);
        let edge = self.0.as_mut_ptr();
        // SAFETY: the buffer holds the whole product, and the wanted part of it goes from and to the caller's elements.
        unsafe {
            let wanted = (0..n).map(|i| (to.add(i * step), edge.add(i * SIDE)));
            if add {
                wanted.clone().for_each(|(to, edge)| edge.copy_from_nonoverlapping(to, len));
            }
            tiles.product(&left, &right, n_steps, add, edge, SIDE);
            wanted.for_each(|(to, edge)| to.copy_from_nonoverlapping(edge, len));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever an output covers, nothing is written past its last float, or outside pairs of tiles.
    #[test]
    fn rows_beyond_the_floats_are_refused() {
        if !available() {
            return; // The tests of crate `ggml` say so.
        }
        let (shape, m) = (Shape { k: 32, n: 40 }, 2);
        let packed = vec![0; shape.n_words().unwrap()];
        for rows in [0..41, 0..31, 1..32, 32..39, 64..65] {
            let mut out = vec![f32::NAN; 65 * m];
            let multiply = |transposed| {
                let mut all = Output::new(&mut out, m);
                let (to, scratch) = (all.part(0..m, rows.clone()), &mut Scratch::default());
                let read = |_: usize, _: usize, out: &mut [f32]| out.fill(1.0);
                match transposed {
                    false => scratch.multiply(&packed, shape, read, to),
                    true => scratch.multiply_transposed(&packed, shape, read, to),
                }
            };
            let mut multiply = std::panic::AssertUnwindSafe(multiply);
            for transposed in [false, true] {
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| multiply(transposed)))
                    .expect_err("accepted");
            }
            assert!(out.iter().all(|x| x.is_nan()), "{rows:?}");
        }
    }
}
