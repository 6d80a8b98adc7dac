//! Products of rows of floats with a matrix that is converted to floats as it is needed (a quantised weight), or with
//! its transpose, in tiles of bfloat16 halves (`amx`): nearly as precise as in floats, and several times as
//! fast.
//!
//! Floats are packed first, so that many products can share them: cut into halves, tile after tile. Weights are
//! converted a panel of rows at a time, for all floats.

use std::ops::Range;

use crate::aligned::Aligned;
use crate::amx::{Operand, Tiles, DEPTH, ROWS, SIDE};
use crate::output::Output;

/// Words of a tile, its high halves and its low ones.
const TILE: usize = 2 * ROWS * ROWS;
/// Elements of a row that are summed before the next ones are looked at: as many as let the halves of 512 rows stay in
/// a cache of 2 MB. Whole blocks of every quantised type.
const CHUNK: usize = 512;

/// Columns of a weight that [`Scratch::multiply_transposed`] takes at most.
pub const COLUMNS: usize = 256;
/// Words of a panel: two tiles side by side, as many in a row as a chunk has.
const PANEL: usize = 2 * CHUNK / DEPTH * TILE;

/// Whether this machine has tiles.
pub fn available() -> bool {
    Tiles::new().is_some()
}

/// The shape of packed floats: `n` rows of `k`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shape {
    /// Elements of a row.
    pub k: usize,
    /// Rows.
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
    fn pair_words(self) -> usize {
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

    /// Words of the pair of tiles `pair`, among those of all.
    pub fn words_of(self, pair: usize) -> Range<usize> {
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
    /// A result of which only a part is wanted.
    edge: Aligned<f32>,
}

impl Scratch {
    /// Products of weights `rows`, each `[k]`, with the packed floats of the pairs of tiles `pairs`: element `rows[i]`
    /// of each of their rows of the output. `read` converts elements of a weight from one on, whole blocks.
    ///
    /// # Panics
    /// Where there are no tiles, or `packed` is not as long as the shape says, or something is outside it.
    pub fn multiply(
        &mut self,
        packed: &[u32],
        shape: Shape,
        pairs: Range<usize>,
        rows: Range<usize>,
        read: impl Fn(usize, usize, &mut [f32]),
        out: Output,
    ) {
        let tiles = Tiles::new().expect("the caller has asked whether there are tiles");
        assert!(Some(packed.len()) == shape.n_words() && pairs.end <= shape.n_pairs() && rows.end <= out.m);
        self.make_room(1);
        for from in (0..shape.k).step_by(CHUNK) {
            let chunk = from..shape.k.min(from + CHUNK);
            for first in rows.clone().step_by(SIDE) {
                let panel = first..rows.end.min(first + SIDE);
                self.load(&tiles, &panel, &chunk, &read);
                for pair in pairs.clone() {
                    let words = &packed[shape.words_of(pair)];
                    self.pair(&tiles, words, shape, pair, 0, &panel, &chunk, out);
                }
            }
        }
    }

    /// Sums of rows of a weight `[m][shape.k]`, each times an element of the packed floats `[m]`: `columns` of it, at
    /// most [`COLUMNS`], into the same elements of each row of the output. `read` converts elements of a row from one
    /// on, whole blocks.
    ///
    /// # Panics
    /// As [`Scratch::multiply`].
    pub fn multiply_transposed(
        &mut self,
        packed: &[u32],
        shape: Shape,
        pairs: Range<usize>,
        columns: Range<usize>,
        read: impl Fn(usize, usize, &mut [f32]),
        out: Output,
    ) {
        let tiles = Tiles::new().expect("the caller has asked whether there are tiles");
        assert!(Some(packed.len()) == shape.n_words() && pairs.end <= shape.n_pairs());
        assert!(columns.len() <= COLUMNS && columns.end <= out.m);
        self.make_room(columns.len().div_ceil(SIDE));
        for from in (0..shape.k).step_by(CHUNK) {
            let chunk = from..shape.k.min(from + CHUNK);
            self.load_transposed(&tiles, &chunk, &columns, &read);
            for (i, first) in columns.clone().step_by(SIDE).enumerate() {
                let panel = first..columns.end.min(first + SIDE);
                for pair in pairs.clone() {
                    let words = &packed[shape.words_of(pair)];
                    self.pair(&tiles, words, shape, pair, i, &panel, &chunk, out);
                }
            }
        }
    }

    fn make_room(&mut self, n_panels: usize) {
        self.rows.resize(SIDE * CHUNK, 0.0);
        self.panels.refill(n_panels * PANEL, 0);
        self.tile.refill(TILE, 0);
        self.edge.refill(SIDE * SIDE, 0.0);
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
                let (high, low) = self.tile.split_at_mut(TILE / 2);
                for (i, row) in rows.chunks_exact(CHUNK).enumerate() {
                    let words = i * ROWS..(i + 1) * ROWS;
                    tiles.cut(&row[step * DEPTH..][..DEPTH], &mut high[words.clone()], &mut low[words]);
                }
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
        out: Output,
    ) {
        let (n_steps, first) = (chunk.len().div_ceil(DEPTH), chunk.start / DEPTH * TILE);
        let operand =
            |words, tile| Operand { high: words, low: &words[TILE / 2..], row: ROWS, tile, step: TILE };
        let left = operand(&words[first..], shape.n_steps() * TILE);
        let right = operand(&self.panels[panel * PANEL..], CHUNK / DEPTH * TILE);
        let (add, n) = (chunk.start > 0, SIDE.min(shape.n - pair * SIDE));
        // SAFETY: the first element wanted, inside the rows that may be written (`Output::new`).
        let to = unsafe { out.out.add(pair * SIDE * out.m + rows.start) };
        if n == SIDE && rows.len() == SIDE {
            // SAFETY: so are all the others.
            return unsafe { tiles.product(&left, &right, n_steps, add, to, out.m) };
        }
        let edge = self.edge.as_mut_ptr();
        // SAFETY: the rows and columns that are wanted of a whole result go from and to the output.
        unsafe {
            let wanted = (0..n).map(|i| (to.add(i * out.m), edge.add(i * SIDE)));
            if add {
                wanted.clone().for_each(|(to, edge)| edge.copy_from_nonoverlapping(to, rows.len()));
            }
            tiles.product(&left, &right, n_steps, add, edge, SIDE);
            wanted.for_each(|(to, edge)| to.copy_from_nonoverlapping(edge, rows.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against sums in f64, of shapes around whole tiles, panels and chunks.
    #[test]
    fn products() {
        if !available() {
            return; // The tests of crate `ggml` say so.
        }
        let number = |i: usize| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0;
        for (k, n, m) in [(1, 1, 1), (32, 32, 32), (33, 40, 50), (576, 31, 33), (512, 64, 65), (1100, 70, 40)]
        {
            let x: Vec<f32> = (0..n * k).map(number).collect();
            let w: Vec<f32> = (0..m * k).map(|i| number(i + 5)).collect();
            let shape = Shape { k, n };
            let mut packed = vec![u32::MAX; shape.n_words().unwrap()];
            for pair in 0..shape.n_pairs() {
                shape.pack(pair, |i| &x[i * k..(i + 1) * k], &mut packed[shape.words_of(pair)]);
            }
            let mut out = vec![f32::NAN; n * m];
            let mut scratch = Scratch::default();
            let read = |row: usize, from: usize, out: &mut [f32]| {
                out.copy_from_slice(&w[row * k + from..][..out.len()]);
            };
            let middle = shape.n_pairs() / 2;
            for (pairs, rows) in
                [(0..middle, 0..m), (middle..shape.n_pairs(), 0..m / 2), (middle..shape.n_pairs(), m / 2..m)]
            {
                // SAFETY: n rows of m.
                let to = unsafe { Output::new(out.as_mut_ptr(), m) };
                scratch.multiply(&packed, shape, pairs, rows, read, to);
            }
            let sums = |out: &[f32], m: usize, w_at: &dyn Fn(usize, usize) -> f32| {
                for (i, out) in out.iter().enumerate() {
                    let terms = || (0..k).map(|j| f64::from(x[i / m * k + j]) * f64::from(w_at(i % m, j)));
                    let (sum, bound) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                    let bound = 2f64.powi(-15) * bound + 1e-9;
                    assert!((f64::from(*out) - sum).abs() <= bound, "{k} {n} {m} {i}: {out}, expected {sum}");
                }
            };
            sums(&out, m, &|row, j| w[row * k + j]);

            // The same floats as a weight of k rows of m.
            out.fill(f32::NAN);
            let read = |row: usize, from: usize, out: &mut [f32]| {
                out.copy_from_slice(&w[row * m + from..][..out.len()]);
            };
            for (pairs, columns) in [(0..middle, 0..m), (middle..shape.n_pairs(), 0..m)] {
                for first in columns.clone().step_by(48) {
                    // SAFETY: n rows of m.
                    let to = unsafe { Output::new(out.as_mut_ptr(), m) };
                    let columns = first..columns.end.min(first + 48);
                    scratch.multiply_transposed(&packed, shape, pairs.clone(), columns, read, to);
                }
            }
            sums(&out, m, &|column, j| w[j * m + column]);
        }
    }
}
