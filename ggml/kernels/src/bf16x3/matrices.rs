//! Products of two matrices of floats, both cut into halves on the way.

use super::{operand, Edge, CHUNK, TILE};
use crate::aligned::Aligned;
use crate::amx::{Tiles, DEPTH, ROWS, SIDE};
use crate::gemm::Matrix;

/// Columns of the result whose halves are kept: with [`CHUNK`] terms they stay in a cache of 2 MB.
const COLUMNS: usize = 512;
/// Words of half a tile.
const HALF: usize = TILE / 2;

/// Buffers a thread keeps between calls.
#[derive(Debug, Default)]
pub struct Matrices {
    /// Tiles of columns of the result, then of its rows: each with both halves.
    columns: Aligned<u32>,
    rows: Aligned<u32>,
    packer: Packer,
    edge: Edge,
}

impl Matrices {
    /// [`crate::gemm::multiply`], off by at most 3/65536 of each product, and mostly by a third of that.
    ///
    /// # Safety
    /// The promise of [`crate::gemm::multiply`].
    ///
    /// # Panics
    /// Where there are no tiles, or shapes do not agree.
    pub unsafe fn product(
        &mut self,
        out: *mut f32,
        cs: usize,
        add: bool,
        a: Matrix<'_>,
        b: Matrix<'_>,
        factor: f32,
    ) {
        let tiles = Tiles::new().expect("the caller has asked whether there are tiles");
        assert_eq!(a.n_cols(), b.n_rows(), "the caller's shapes agree");
        let most = a.n_cols().min(CHUNK).div_ceil(DEPTH) * TILE;
        self.columns.resize(b.n_cols().min(COLUMNS).div_ceil(SIDE) * 2 * most);
        self.rows.resize(2 * most);
        for from in (0..a.n_cols()).step_by(CHUNK) {
            let terms = from..a.n_cols().min(from + CHUNK);
            let n_steps = terms.len().div_ceil(DEPTH);
            let words = n_steps * TILE;
            for first in (0..b.n_cols()).step_by(COLUMNS) {
                let columns = first..b.n_cols().min(first + COLUMNS);
                let lines = b.part(terms.clone(), columns.clone()).transposed();
                let n_pairs = columns.len().div_ceil(SIDE);
                for (i, words) in self.columns[..n_pairs * 2 * words].chunks_exact_mut(words).enumerate() {
                    self.packer.pack(&tiles, lines, i * ROWS, factor, true, words);
                }
                for row in (0..a.n_rows()).step_by(SIDE) {
                    let rows = row..a.n_rows().min(row + SIDE);
                    let lines = a.part(rows.clone(), terms.clone());
                    for (i, words) in self.rows[..2 * words].chunks_exact_mut(words).enumerate() {
                        self.packer.pack(&tiles, lines, i * ROWS, 1.0, false, words);
                    }
                    for pair in 0..n_pairs {
                        let column = first + pair * SIDE;
                        let wanted = [SIDE.min(columns.end - column), rows.len()];
                        let left = operand(&self.columns[2 * pair * words..][..2 * words], words);
                        let right = operand(&self.rows[..2 * words], words);
                        // SAFETY: elements of the result (the caller's promise).
                        unsafe {
                            let to = (out.add(rows.start + column * cs), cs);
                            self.edge.product(&tiles, [left, right], n_steps, add || from > 0, to, wanted);
                        }
                    }
                }
            }
        }
    }
}

/// Cuts lines into tiles.
#[derive(Debug, Default)]
struct Packer {
    /// Lines of a tile that are not read where they lie.
    copy: Vec<f32>,
    /// Halves before they are transposed.
    halves: Halves,
}

/// A tile on cache lines.
#[derive(Debug)]
#[repr(align(64))]
struct Halves([u32; TILE]);

impl Default for Halves {
    fn default() -> Halves {
        Halves([0; TILE])
    }
}

impl Packer {
    /// Cuts [`ROWS`] lines from one on, each of the terms of a sum, into tiles: with a row for each line, or with a column. What is
    /// beyond the lines and terms is zero.
    fn pack(
        &mut self,
        tiles: &Tiles,
        x: Matrix<'_>,
        first: usize,
        factor: f32,
        by_line: bool,
        words: &mut [u32],
    ) {
        let lines = first.min(x.n_rows())..x.n_rows().min(first + ROWS);
        for (step, tile) in words.as_chunks_mut::<TILE>().0.iter_mut().enumerate() {
            let part = x.part(lines.clone(), step * DEPTH..x.n_cols().min((step + 1) * DEPTH));
            let along = part.steps()[1] == 1;
            let to = if along == by_line { &mut *tile } else { &mut self.halves.0 };
            // SAFETY: `rows` gives as many rows of as many elements.
            unsafe {
                if along {
                    let (from, step) = rows(part, [ROWS, DEPTH], factor, &mut self.copy);
                    tiles.cut_rows(from, step, to);
                } else {
                    let (from, step) = rows(part.transposed(), [DEPTH, ROWS], factor, &mut self.copy);
                    tiles.cut_columns(from, step, to);
                }
            }
            if along != by_line {
                for (from, to) in self.halves.0.chunks_exact(HALF).zip(tile.chunks_exact_mut(HALF)) {
                    tiles.transpose(from, ROWS, to, ROWS);
                }
            }
        }
    }
}

/// So many rows of so many elements side by side, times a factor, and how far apart they are: those of the matrix, or a copy with
/// zeros after them.
fn rows(x: Matrix<'_>, [n, len]: [usize; 2], factor: f32, copy: &mut Vec<f32>) -> (*const f32, usize) {
    let [step, along] = x.steps();
    if [x.n_rows(), x.n_cols(), along] == [n, len, 1] && factor == 1.0 {
        return (x.first(), step);
    }
    copy.clear();
    copy.resize(n * len, 0.0);
    for (i, to) in copy.chunks_exact_mut(len).take(x.n_rows()).enumerate() {
        match x.row(i) {
            Some(row) => to.iter_mut().zip(row).for_each(|(to, x)| *to = x * factor),
            None => to[..x.n_cols()].iter_mut().enumerate().for_each(|(j, to)| *to = x.get(i, j) * factor),
        }
    }
    (copy.as_ptr(), len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bf16x3::available;

    const GUARD: f32 = 1e30;

    /// Elements `(i, j)` at `i * rs + j * cs`, and memory between them that is no number.
    fn matrix(rows: usize, cols: usize, [rs, cs]: [usize; 2]) -> Vec<f32> {
        let mut data = vec![f32::NAN; (rows - 1) * rs + (cols - 1) * cs + 1];
        for (i, j) in (0..rows).flat_map(|i| (0..cols).map(move |j| (i, j))) {
            data[i * rs + j * cs] = ((i * 7919 + j * 104_729) % 1013) as f32 / 506.0 - 1.0;
        }
        data
    }

    /// Whatever way matrices lie in memory, results are as right as the halves of their factors, and nothing else is written.
    #[test]
    fn products_are_right_to_their_halves() {
        if !available() {
            return; // The tests of crate `ggml` say so.
        }
        let mut tiles = Matrices::default();
        for [m, n, k] in [[1, 1, 1], [32, 32, 32], [33, 40, 7], [16, 70, 530], [129, 530, 65], [64, 3, 1100]]
        {
            let layouts = |rows, cols| [[cols + 3, 1], [1, rows + 2], [1, rows], [2 * cols, 2]];
            for (left, right) in layouts(m, k).into_iter().flat_map(|l| layouts(k, n).map(|r| (l, r))) {
                let (a, b) = (matrix(m, k, left), matrix(k, n, right));
                // SAFETY: the vectors hold these elements.
                let (a, b) = unsafe {
                    let at = |x: &[f32], rows, cols, [rs, cs]: [usize; 2]| {
                        Matrix::at(x.as_ptr(), rows, cols, rs, cs)
                    };
                    (at(&a, m, k, left), at(&b, k, n, right))
                };
                for (add, factor) in [(false, 1.0f32), (true, 0.75)] {
                    let (cs, before) = (m + 2, if add { 0.5 } else { GUARD });
                    let mut out = vec![GUARD; n * cs];
                    out.chunks_mut(cs).for_each(|column| column[..m].fill(before));
                    // SAFETY: the vector holds the result.
                    unsafe { tiles.product(out.as_mut_ptr(), cs, add, a, b, factor) };
                    for (j, column) in out.chunks(cs).enumerate() {
                        for (i, &got) in column[..m].iter().enumerate() {
                            let terms = (0..k).map(|t| f64::from(a.get(i, t)) * f64::from(b.get(t, j)));
                            let size: f64 = terms.clone().map(f64::abs).sum();
                            let want = terms.sum::<f64>() * f64::from(factor) + if add { 0.5 } else { 0.0 };
                            let error = (f64::from(got) - want).abs();
                            assert!(
                                error <= 3.0 * (size + 0.5) / 65536.0,
                                "{m} {n} {k}, {left:?} {right:?}: {got} for {want}"
                            );
                        }
                        assert_eq!(column[m..], [GUARD; 2]);
                    }
                }
            }
        }
    }
}
