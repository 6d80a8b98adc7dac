//! The two products of attention, for a driver that does the rest: queries with keys, weights with values.

use super::kernel::{dots, scores, weigh, BLOCK, PANEL};
use super::tile::KEYS;
use super::vector::N;

/// Products of the rows of a tile, in groups of W, with up to [`KEYS`] keys at a time.
pub(super) trait Products<const W: usize> {
    /// Starts a tile: all sums of values are zero.
    fn begin(&mut self, n_rows: usize, d_v: usize);
    /// Starts a branch: queries and keys have `d` elements.
    fn branch(&mut self, n_rows: usize, d: usize);
    /// Takes the query of a row.
    fn query(&mut self, row: usize, q: &[f32]);
    /// Takes key and value `i` of a block.
    fn key(&mut self, i: usize, k: &[f32], v: &[f32]);
    /// All `n` keys and values of the block are there.
    fn keys_end(&mut self, n: usize);
    /// Products of `n` keys with the queries of a group. What is after them in `out`, of [`KEYS`] rows, is undefined.
    fn scores(&mut self, group: usize, n: usize, out: &mut [[f32; W]]);
    /// Multiplies the first `n_rows` sums of a group by factors, and adds to each the values with its weights.
    fn add(&mut self, group: usize, n_rows: usize, factor: Option<&[f32; W]>, weights: &[[f32; W]]);
    /// The sums of a row.
    fn sums(&self, row: usize, out: &mut [f32]);
}

/// Buffers of [`InFloats`].
#[derive(Default)]
pub(super) struct Floats {
    n_rows: usize,
    d: usize,
    /// Blocks of a value.
    n_blocks: usize,
    /// `[group][d][W]`
    q: Vec<f32>,
    /// `[KEYS][d]`
    k: Vec<f32>,
    /// `[n_blocks][KEYS]`
    v: Vec<[f32; BLOCK]>,
    /// `[row][n_blocks]`
    out: Vec<[f32; BLOCK]>,
}

/// Products by fused multiply-add of floats; a group is L vectors, scores are for K keys at a time.
pub(super) struct InFloats<'a, const L: usize, const K: usize>(pub(super) &'a mut Floats);

impl<const W: usize, const L: usize, const K: usize> Products<W> for InFloats<'_, L, K> {
    fn begin(&mut self, n_rows: usize, d_v: usize) {
        const { assert!(W == L * N && KEYS.is_multiple_of(K)) };
        let x = &mut *self.0;
        x.n_rows = n_rows;
        x.n_blocks = d_v.div_ceil(BLOCK);
        // The end of the last block of a value stays zero.
        refill(&mut x.v, x.n_blocks * KEYS, [0.0; BLOCK]);
        refill(&mut x.out, n_rows * x.n_blocks, [0.0; BLOCK]);
    }

    fn branch(&mut self, n_rows: usize, d: usize) {
        self.0.d = d;
        refill(&mut self.0.q, n_rows.div_ceil(W) * d * W, 0.0);
        self.0.k.resize(KEYS * d, 0.0);
    }

    fn query(&mut self, row: usize, q: &[f32]) {
        let columns = &mut self.0.q.as_chunks_mut::<W>().0[row / W * self.0.d..][..self.0.d];
        columns.iter_mut().zip(q).for_each(|(column, q)| column[row % W] = *q);
    }

    fn key(&mut self, i: usize, k: &[f32], v: &[f32]) {
        self.0.k[i * self.0.d..][..self.0.d].copy_from_slice(k);
        for (block, v) in v.chunks(BLOCK).enumerate() {
            self.0.v[block * KEYS + i][..v.len()].copy_from_slice(v);
        }
    }

    fn keys_end(&mut self, _: usize) {}

    fn scores(&mut self, group: usize, n: usize, out: &mut [[f32; W]]) {
        let d = self.0.d;
        let q = &self.0.q[group * d * W..][..d * W];
        let blocks = out.as_flattened_mut().chunks_exact_mut(K * W).zip(self.0.k.chunks_exact(K * d));
        blocks.take(n.div_ceil(K)).for_each(|(s, k)| scores::<L, K>(q, k, s));
    }

    fn add(&mut self, group: usize, n_rows: usize, factor: Option<&[f32; W]>, weights: &[[f32; W]]) {
        let n_blocks = self.0.n_blocks;
        let out = &mut self.0.out[group * W * n_blocks..][..n_rows * n_blocks];
        if let Some(factor) = factor {
            for (out, &f) in out.chunks_exact_mut(n_blocks).zip(factor) {
                if f != 1.0 {
                    out.as_flattened_mut().iter_mut().for_each(|o| *o *= f);
                }
            }
        }
        for lane in (0..n_rows).step_by(PANEL) {
            for (block, v) in self.0.v.chunks_exact(KEYS).enumerate() {
                let (v, out) = (&v[..weights.len()], &mut out[lane * n_blocks + block..]);
                match n_rows - lane {
                    1 => weigh::<W, 1>(weights, lane, v, out, n_blocks),
                    2 => weigh::<W, 2>(weights, lane, v, out, n_blocks),
                    3 => weigh::<W, 3>(weights, lane, v, out, n_blocks),
                    4 => weigh::<W, 4>(weights, lane, v, out, n_blocks),
                    5 => weigh::<W, 5>(weights, lane, v, out, n_blocks),
                    _ => weigh::<W, PANEL>(weights, lane, v, out, n_blocks),
                }
            }
        }
    }

    fn sums(&self, row: usize, out: &mut [f32]) {
        let blocks = &self.0.out[row * self.0.n_blocks..][..self.0.n_blocks];
        out.copy_from_slice(&blocks.as_flattened()[..out.len()]);
    }
}

/// Products of few rows, in floats too: each query with each key alone. Keys are a multiple of [`N`] long.
pub(super) struct InDots<'a>(pub(super) InFloats<'a, 1, N>);

impl Products<N> for InDots<'_> {
    fn begin(&mut self, n_rows: usize, d_v: usize) {
        Products::<N>::begin(&mut self.0, n_rows, d_v);
    }

    fn branch(&mut self, n_rows: usize, d: usize) {
        Products::<N>::branch(&mut self.0, n_rows, d);
    }

    fn query(&mut self, row: usize, q: &[f32]) {
        // Row after row, in the memory that is there for rows side by side.
        self.0 .0.q[row * q.len()..][..q.len()].copy_from_slice(q);
    }

    fn key(&mut self, i: usize, k: &[f32], v: &[f32]) {
        Products::<N>::key(&mut self.0, i, k, v);
    }

    fn keys_end(&mut self, _: usize) {}

    fn scores(&mut self, _: usize, n: usize, out: &mut [[f32; N]]) {
        let x = &*self.0 .0;
        for (row, q) in x.q.chunks_exact(x.d).enumerate().take(self.0 .0.n_rows) {
            for (k, out) in x.k.chunks_exact(N * x.d).zip(out.chunks_exact_mut(N)).take(n.div_ceil(N)) {
                let mut scores = [0.0; N];
                dots(q, k, &mut scores);
                out.iter_mut().zip(scores).for_each(|(out, score)| out[row] = score);
            }
        }
    }

    fn add(&mut self, group: usize, n_rows: usize, factor: Option<&[f32; N]>, weights: &[[f32; N]]) {
        Products::<N>::add(&mut self.0, group, n_rows, factor, weights);
    }

    fn sums(&self, row: usize, out: &mut [f32]) {
        Products::<N>::sums(&self.0, row, out);
    }
}

/// `n` times `value`, in the memory that is there.
pub(super) fn refill<T: Clone>(v: &mut Vec<T>, n: usize, value: T) {
    v.clear();
    v.resize(n, value);
}
