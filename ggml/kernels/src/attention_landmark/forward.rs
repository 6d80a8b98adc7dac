//! A tile of queries over all the keys they see, by a running softmax.

use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

use super::Blocks;
use crate::attention::{Rows, Stats};
use crate::attention_train::{pack, soften, Heads, KeyRanges, Row, KEYS};
use crate::gemm::{multiply_into, Matrix};

#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// Queries, `[d, n_head, T]`.
    pub q: Heads<'a>,
    /// Keys, `[d, n_head_kv, N]`: a plane for each row of a cache.
    pub k: Rows<'a>,
    /// Values, `[d_v, n_head_kv, N]`.
    pub v: Rows<'a>,
    /// `[n_tables][n_positions]`: the row of the cache that holds each position of a sequence.
    pub cells: &'a [i32],
    /// Positions of a table.
    pub n_positions: usize,
    /// The table of each query token.
    pub tables: &'a [i32],
    /// The range of positions that each query token sees; the last is its own.
    pub key_ranges: KeyRanges<'a>,
    pub blocks: Blocks,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// Query heads of a KV head.
    pub n_rep: usize,
}

impl Inputs<'_> {
    /// Reads keys or values of some positions of a table as floats, `[n][d]`.
    ///
    /// # Panics
    /// For a table or a row that there is not.
    fn gather(&self, from: &Rows<'_>, table: i32, head_kv: usize, keys: &Range<usize>, to: &mut Vec<f32>) {
        let cells = &self.cells[table as usize * self.n_positions..][keys.clone()];
        to.resize(cells.len() * from.d, 0.0);
        for (row, &cell) in to.chunks_exact_mut(from.d).zip(cells) {
            from.read(head_kv, cell as usize, row);
        }
    }
}

/// Buffers of a thread for one tile; rows are tokens by query heads of one KV head.
#[derive(Debug, Default)]
pub struct Scratch {
    /// `[rows][d]`, in units that make scores exponents of two.
    q: Vec<f32>,
    /// `[positions][d]`.
    k: Vec<f32>,
    /// `[positions][d_v]`.
    v: Vec<f32>,
    /// `[rows][KEYS]`: scores, then weights relative to the maximum.
    scores: Vec<f32>,
    /// `[rows][d_v]`: weighted values.
    sums: Vec<f32>,
    /// Statistics of each row.
    stats: Vec<Stats>,
}

impl Scratch {
    /// Computes the tile's rows; `write` takes head, token, the row's output `[d_v]`, and the logarithm of the sum of
    /// exponentials of its joined scores (-inf where nothing is seen).
    ///
    /// # Panics
    /// For tables and cells that there are not, and views that do not agree.
    pub fn attend(
        &mut self,
        inputs: &Inputs<'_>,
        head_kv: usize,
        tokens: Range<usize>,
        mut write: impl FnMut(usize, usize, &[f32], f32),
    ) {
        let mut rest = tokens;
        while !rest.is_empty() {
            let table = inputs.tables[rest.start];
            let n = inputs.tables[rest.clone()].iter().take_while(|&&t| t == table).count();
            self.of_table(inputs, table, head_kv, rest.start..rest.start + n, &mut write);
            rest.start += n;
        }
    }

    /// [`Scratch::attend`] for tokens of one table.
    fn of_table(
        &mut self,
        inputs: &Inputs<'_>,
        table: i32,
        head_kv: usize,
        tokens: Range<usize>,
        write: &mut impl FnMut(usize, usize, &[f32], f32),
    ) {
        let Inputs { q, k, v, n_positions, key_ranges, blocks, scale, n_rep, .. } = *inputs;
        let heads = head_kv * n_rep..(head_kv + 1) * n_rep;
        let (n_rows, d, d_v) = (tokens.len() * n_rep, k.d, v.d);
        pack(&q, heads.clone(), tokens.clone(), scale * LOG2_E, &mut self.q);
        self.scores.resize(n_rows * KEYS, 0.0);
        self.sums.clear();
        self.sums.resize(n_rows * d_v, 0.0);
        self.stats.clear();
        self.stats.resize(n_rows, Stats { max: f32::NEG_INFINITY, sum: 0.0 });
        let all = key_ranges.window(&heads, tokens.clone(), &(0..n_positions)).map_or(0..0, |(_, seen)| seen);
        let tile = blocks.tile();
        for start in (all.start / tile * tile..all.end).step_by(tile) {
            let keys = start..(start + tile).min(all.end);
            let Some((some, keys)) = key_ranges.window(&heads, tokens.clone(), &keys) else { continue };
            inputs.gather(&k, table, head_kv, &keys, &mut self.k);
            inputs.gather(&v, table, head_kv, &keys, &mut self.v);
            let (first, n) = ((some.start - tokens.start) * n_rep, some.len() * n_rep);
            let queries = Matrix::rows(&self.q[first * d..], n, d, d).transposed();
            let of_keys = Matrix::rows(&self.k, keys.len(), d, d);
            multiply_into(&mut self.scores, KEYS, false, of_keys, queries, 1.0);
            for (i, row) in self.scores.chunks_exact_mut(KEYS).take(n).enumerate() {
                let (h, token) = (heads.start + i % n_rep, some.start + i / n_rep);
                let (seen, end) =
                    (key_ranges.seen(h, token, &keys), key_ranges.seen(h, token, &(0..n_positions)).end);
                let (row, sums) = (&mut row[..keys.len()], &mut self.sums[(first + i) * d_v..][..d_v]);
                let columns = seen.start - keys.start..seen.end - keys.start;
                blocks.join(row, keys.start, seen, end);
                soften(row, columns, &mut self.stats[first + i], sums);
            }
            let weights = Matrix::rows(&self.scores, n, keys.len(), KEYS).transposed();
            let values = Matrix::rows(&self.v, keys.len(), d_v, d_v).transposed();
            multiply_into(&mut self.sums[first * d_v..], d_v, true, values, weights, 1.0);
        }
        let rows = self.sums.chunks_exact_mut(d_v).zip(&self.stats);
        let ids = tokens.flat_map(|t| heads.clone().map(move |h| (h, t)));
        for ((h, t), (sums, &Stats { max, sum })) in ids.zip(rows) {
            // A sum of 0 is a row that sees nothing; NaN is not 0 and gets through.
            if sum == 0.0 {
                write(h, t, sums, f32::NEG_INFINITY);
                continue;
            }
            sums.iter_mut().for_each(|s| *s /= sum);
            write(h, t, sums, max * LN_2 + sum.ln());
        }
    }
}
