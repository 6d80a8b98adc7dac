//! Attention of few queries, as in decoding: each key and value is read once, in place, and the work between the
//! products is small compared with them.
//!
//! A block of columns is processed for all KV heads of the tile, whose rows are adjacent in a cache. Scores are
//! rows of keys, so the lanes of a vector are full for any number of queries.
//!
//! Decoding with a long context is limited by memory. A key of one head is two cache lines of a cell, and no hardware
//! prefetcher follows that pattern. So the code prefetches the next block of 64 cells, across the ranges that a thread
//! processes in turn.

use std::f32::consts::LOG2_E;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::kernel::soften_row;
use super::products::refill;
use super::score::{soft_cap, Stats};
use super::seen::Taken;
use super::tile::{BranchOperands, Inputs, Tile, KEYS};
use super::units::{self, scores, weigh, Floats, Halves, Unit, Q4, Q8, UNIT};
use super::view::Rows;
use crate::simd::{FloatLanes, MOST};

/// Most queries that share a KV head. Up to this number, converting a key once for all queries is faster than queries as lanes of
/// a vector.
pub(super) const FEW_ROWS: usize = 16;

/// Up to [`KEYS`] keys and values.
struct Block<'a> {
    k: &'a Rows<'a>,
    v: &'a Rows<'a>,
    /// The row of each key.
    rows: &'a [usize],
    /// [`Rows::offsets`] of the keys and of the values, for all heads.
    offsets: &'a [[usize; KEYS]; 2],
    /// The block's first column of the mask.
    column: usize,
    /// For each key nonzero if any token sees it. An unused cell may hold NaN, and 0 times NaN is not 0.
    used: &'a [u16],
    /// All tokens see all of it, without a bias.
    all: bool,
    /// How many keys further, in wrapping arithmetic, those begin that are needed next, most often in the same distances.
    /// Prefetching 16 keys ahead instead of a block takes half as long again.
    ahead: usize,
}

/// Buffers, and the state of the softmax. Elements are padded with zeros to whole units, and there are as many rows for
/// each head of the tile.
#[derive(Default)]
pub(super) struct Few {
    /// Rows of a head: tokens times query heads.
    n_rows: usize,
    /// Units of a key and of a value.
    units: [usize; 2],
    /// `[head][row][unit]`
    q: Vec<Floats>,
    /// `[head][row][unit]`
    out: Vec<Floats>,
    max: Vec<f32>,
    /// Sums of weights, in parts.
    sum: Vec<[f32; MOST]>,
    /// Scores, then weights, of the rows of a head.
    weights: Vec<[f32; KEYS]>,
    /// Keys and values that had to be converted: `[key][unit]`.
    copies: [Vec<Floats>; 2],
    row: Vec<f32>,
}

impl Few {
    /// [`Scratch::attend`](super::Scratch::attend) where a head has at most [`FEW_ROWS`] rows.
    pub(super) fn attend<S: FloatLanes>(
        &mut self,
        s: S,
        x: &Inputs<'_>,
        tile: &Tile,
        taken: &Taken<'_>,
        mut f: impl FnMut(usize, usize, Stats, &[f32]),
    ) {
        self.n_rows = tile.tokens.len() * x.n_rep;
        let n_rows = tile.heads.len() * self.n_rows;
        self.units[1] = x.d_v.div_ceil(UNIT);
        refill(&mut self.out, n_rows * self.units[1], [0.0; UNIT]);
        refill(&mut self.max, n_rows, f32::NEG_INFINITY);
        refill(&mut self.sum, n_rows, [0.0; MOST]);
        self.weights.resize(self.n_rows, [0.0; KEYS]);
        for branch in x.branches.iter().flatten() {
            self.branch(s, x, tile, taken, branch);
        }
        let rows = self.out.chunks_exact(self.units[1]).zip(self.max.iter().zip(&self.sum));
        for ((t, h), (out, (&max, sum))) in queries(x, tile).zip(rows) {
            f(t, h, Stats { max, sum: sum.iter().sum() }, &out.as_flattened()[..x.d_v]);
        }
    }

    fn branch<S: FloatLanes>(
        &mut self,
        s: S,
        x: &Inputs<'_>,
        tile: &Tile,
        taken: &Taken<'_>,
        branch: &BranchOperands<'_>,
    ) {
        let mut queries_ready = false;
        let (mut used, mut rows, mut offsets) = ([0u16; KEYS], [0usize; KEYS], [[0usize; KEYS]; 2]);
        for (i, columns) in taken.blocks.iter().enumerate().filter(|(_, columns)| branch.has(columns)) {
            let seen = || tile.tokens.clone().map(|t| x.seen(t, columns));
            if !queries_ready {
                self.load_queries(x, tile, branch);
                queries_ready = true;
            }
            let (used, rows) = (&mut used[..columns.len()], &mut rows[..columns.len()]);
            x.used(tile, columns, seen().any(|s| s.all), used);
            x.rows(branch, columns, rows);
            branch.k.offsets(rows, &mut offsets[0]);
            branch.v.offsets(rows, &mut offsets[1]);
            let then = taken.blocks.get(i + 1).map(|next| next.start).or(taken.then);
            let ahead = then.map_or(0, |then| x.row(branch, then).wrapping_sub(rows[0]));
            let (k, v, column) = (&branch.k, &branch.v, columns.start);
            let block =
                Block { k, v, rows, offsets: &offsets, column, used, all: seen().all(|s| s.all), ahead };
            for head in 0..tile.heads.len() {
                self.block(s, x, tile, &block, head);
            }
        }
    }

    /// Reads the tile's queries, multiplied by the scale and by log2(e), so that scores are exponents of two.
    fn load_queries(&mut self, x: &Inputs<'_>, tile: &Tile, branch: &BranchOperands<'_>) {
        let (d, scale) = (branch.q.d, x.scale * LOG2_E);
        self.units[0] = d.div_ceil(UNIT);
        refill(&mut self.q, tile.heads.len() * self.n_rows * self.units[0], [0.0; UNIT]);
        for ((t, h), row) in queries(x, tile).zip(self.q.chunks_exact_mut(self.units[0])) {
            let row = &mut row.as_flattened_mut()[..d];
            branch.q.read(h, t, row);
            row.iter_mut().for_each(|q| *q *= scale);
        }
    }

    /// Takes the keys and values that belong to a head of the tile.
    fn block<S: FloatLanes>(&mut self, s: S, x: &Inputs<'_>, tile: &Tile, block: &Block<'_>, head: usize) {
        let of = tile.heads.start + head;
        match block.k {
            k if k.are::<Halves>() => self.scores_in_place::<S, Halves>(s, block, head, of),
            k if k.are::<Q8>() => self.scores_in_place::<S, Q8>(s, block, head, of),
            k if k.are::<Q4>() => self.scores_in_place::<S, Q4>(s, block, head, of),
            k if k.are::<Floats>() => self.scores_in_place::<S, Floats>(s, block, head, of),
            k => {
                copy(k, block, of, &mut self.copies[0], &mut self.row);
                let keys = std::mem::take(&mut self.copies[0]);
                let n_units = self.units[0];
                self.scores_of(s, block, head, |i| &keys[i * n_units..][..n_units], 0);
                self.copies[0] = keys;
            }
        }
        self.soften(s, x, tile, block, head);
        match block.v {
            v if v.are::<Halves>() => self.add_in_place::<S, Halves>(s, block, head, of),
            v if v.are::<Q8>() => self.add_in_place::<S, Q8>(s, block, head, of),
            v if v.are::<Q4>() => self.add_in_place::<S, Q4>(s, block, head, of),
            v if v.are::<Floats>() => self.add_in_place::<S, Floats>(s, block, head, of),
            v => {
                copy(v, block, of, &mut self.copies[1], &mut self.row);
                let values = std::mem::take(&mut self.copies[1]);
                let n_units = self.units[1];
                self.add_of(s, block, head, |i| &values[i * n_units..][..n_units], 0);
                self.copies[1] = values;
            }
        }
    }

    fn scores_in_place<S: FloatLanes, U: Unit>(&mut self, s: S, block: &Block<'_>, head: usize, of: usize) {
        let keys = block.k.plane::<U>(of);
        // SAFETY: offsets of the keys.
        let key = |i: usize| unsafe { keys.at(block.offsets[0][i]) };
        self.scores_of(s, block, head, key, block.ahead.wrapping_mul(keys.stride));
    }

    fn scores_of<'x, S: FloatLanes, U: Unit + 'x>(
        &mut self,
        s: S,
        block: &Block<'_>,
        head: usize,
        key: impl Fn(usize) -> &'x [U],
        ahead: usize,
    ) {
        let (n, n_units) = (block.used.len(), self.units[0]);
        let q = &self.q[head * self.n_rows * n_units..][..self.n_rows * n_units];
        let size = group::<S>(self.n_rows);
        for (q, out) in q.chunks(size * n_units).zip(self.weights.chunks_mut(size)) {
            match out.len() {
                1 => scores::<S, U, 1>(s, rows(q), n, &key, ahead, array(out)),
                2 => scores::<S, U, 2>(s, rows(q), n, &key, ahead, array(out)),
                3 => scores::<S, U, 3>(s, rows(q), n, &key, ahead, array(out)),
                _ => scores::<S, U, 4>(s, rows(q), n, &key, ahead, array(out)),
            }
        }
    }

    /// Makes scores weights, and the sums so far relative to the maxima that they are.
    fn soften<S: FloatLanes>(&mut self, s: S, x: &Inputs<'_>, tile: &Tile, block: &Block<'_>, head: usize) {
        let (n, n_units) = (block.used.len(), self.units[1]);
        for (row, weights) in self.weights.iter_mut().enumerate() {
            if let Some(cap) = x.softcap {
                s.run(|| soft_cap(std::slice::from_mut(weights), cap * LOG2_E));
            }
            if !block.all {
                let mask = (tile.tokens.start + row / x.n_rep) * x.n_columns + block.column;
                bias(&x.mask[mask..][..n], weights);
            }
            weights[n..].fill(f32::NEG_INFINITY);
            let row = head * self.n_rows + row;
            if let Some(factor) = soften_row(s, weights, &mut self.max[row], &mut self.sum[row]) {
                let out = self.out[row * n_units..][..n_units].as_flattened_mut();
                out.iter_mut().for_each(|o| *o *= factor);
            }
        }
    }

    fn add_in_place<S: FloatLanes, U: Unit>(&mut self, s: S, block: &Block<'_>, head: usize, of: usize) {
        let values = block.v.plane::<U>(of);
        // SAFETY: offsets of the values.
        let value = |i: usize| unsafe { values.at(block.offsets[1][i]) };
        self.add_of(s, block, head, value, block.ahead.wrapping_mul(values.stride));
    }

    fn add_of<'x, S: FloatLanes, U: Unit + 'x>(
        &mut self,
        s: S,
        block: &Block<'_>,
        head: usize,
        value: impl Fn(usize) -> &'x [U],
        ahead: usize,
    ) {
        let n_units = self.units[1];
        let out = &mut self.out[head * self.n_rows * n_units..][..self.n_rows * n_units];
        let size = group::<S>(self.n_rows);
        let value = |i: usize| (block.used[i] != 0).then(|| value(i));
        for (out, weights) in out.chunks_mut(size * n_units).zip(self.weights.chunks(size)) {
            match weights.len() {
                1 => add::<S, U, 1>(s, weights, block.used.len(), value, ahead, out),
                2 => add::<S, U, 2>(s, weights, block.used.len(), value, ahead, out),
                3 => add::<S, U, 3>(s, weights, block.used.len(), value, ahead, out),
                _ => add::<S, U, 4>(s, weights, block.used.len(), value, ahead, out),
            }
        }
    }
}

/// Token and head of each row of a tile, those of a KV head one after the other.
fn queries<'a>(x: &Inputs<'_>, tile: &'a Tile) -> impl Iterator<Item = (usize, usize)> + 'a {
    let n_rep = x.n_rep;
    let of_head = move |h| tile.tokens.clone().flat_map(move |t| (0..n_rep).map(move |i| (t, h * n_rep + i)));
    tile.heads.clone().flat_map(of_head)
}

/// Rows of a group, of which all are about as large.
fn group<S: FloatLanes>(n_rows: usize) -> usize {
    n_rows.div_ceil(n_rows.div_ceil(units::queries::<S>()))
}

fn rows<T, const R: usize>(x: &[T]) -> [&[T]; R] {
    let n = x.len() / R;
    std::array::from_fn(|r| &x[r * n..][..n])
}

fn array<T, const R: usize>(x: &mut [T]) -> &mut [T; R] {
    &mut x.as_chunks_mut().0[0]
}

/// Adds to the rows of a group the weighted values, two units at a time.
fn add<'x, S: FloatLanes, U: Unit + 'x, const R: usize>(
    s: S,
    weights: &[[f32; KEYS]],
    n: usize,
    value: impl Fn(usize) -> Option<&'x [U]>,
    ahead: usize,
    out: &mut [Floats],
) {
    let n_units = out.len() / R;
    let (weights, mut rows) = (&weights.as_chunks::<R>().0[0], out.chunks_exact_mut(n_units));
    let mut rows: [&mut [Floats]; R] = std::array::from_fn(|_| rows.next().unwrap_or_default());
    for at in (0..n_units).step_by(2) {
        if at + 1 < n_units {
            let out = rows.each_mut().map(|row| array(&mut row[at..]));
            weigh::<S, U, R, 2>(s, weights, n, |i| Some(&value(i)?[at..].as_chunks().0[0]), ahead, out);
        } else {
            let out = rows.each_mut().map(|row| array(&mut row[at..]));
            weigh::<S, U, R, 1>(s, weights, n, |i| Some(&value(i)?[at..].as_chunks().0[0]), ahead, out);
        }
    }
}

/// Converts the rows of a block, those that no token sees to zeros.
fn copy(from: &Rows<'_>, block: &Block<'_>, head: usize, to: &mut Vec<Floats>, row: &mut Vec<f32>) {
    let n_units = from.d.div_ceil(UNIT);
    refill(to, KEYS * n_units, [0.0; UNIT]);
    row.resize(from.d, 0.0);
    for (i, to) in to.chunks_exact_mut(n_units).take(block.used.len()).enumerate() {
        if block.used[i] != 0 {
            from.read(block.rows[i], head, row);
            to.as_flattened_mut()[..row.len()].copy_from_slice(row);
        }
    }
}

/// Adds the mask to the scores of a row. A score whose mask is -inf becomes -inf, even if it was NaN.
fn bias(mask: &[u16], scores: &mut [f32; KEYS]) {
    let mut values = [0.0f32; KEYS];
    let values = &mut values[..mask.len()];
    mask.reinterpret_cast::<half::f16>().convert_to_f32_slice(values);
    for (s, value) in scores.iter_mut().zip(values) {
        let sum = *s + *value * LOG2_E;
        *s = if *value == f32::NEG_INFINITY { *value } else { sum };
    }
}
