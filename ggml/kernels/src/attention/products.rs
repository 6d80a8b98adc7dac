//! The two products of attention, for a driver that does the rest: queries with keys, weights with values.

use super::kernel::{scores, weigh, BLOCK, PANEL};
use super::tile::KEYS;
use super::vector::N;
use super::view::Rows;

/// Rows of keys and values asked for before they are needed.
const AHEAD: usize = 16;
/// Keys whose scores are computed at a time.
const AT_ONCE: usize = 4;

/// Up to [`KEYS`] keys and values of a head.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    pub(super) k: &'a Rows<'a>,
    pub(super) v: &'a Rows<'a>,
    pub(super) head: usize,
    /// The row of each key.
    pub(super) rows: &'a [usize],
    /// For each key nonzero if any token sees it. An unused cell may hold NaN, and 0 times NaN is not 0.
    pub(super) used: &'a [u16],
}

impl Block<'_> {
    /// Asks for a key and a value; those after the block most often follow its last one.
    fn prefetch(&self, i: usize) {
        let after = |last: &usize| last + (i + 1).saturating_sub(self.rows.len());
        let row = self.rows.get(i).copied().or(self.rows.last().map(after)).unwrap_or(0);
        self.k.prefetch(row, self.head);
        self.v.prefetch(row, self.head);
    }

    /// Calls `f` with each key and value as floats, those that no token sees as zeros.
    pub(super) fn each(
        &self,
        Buffers { key, value }: &mut Buffers,
        mut f: impl FnMut(usize, &[f32], &[f32]),
    ) {
        key.resize(self.k.d, 0.0);
        value.resize(self.v.d, 0.0);
        for (i, (used, &row)) in self.used.iter().zip(self.rows).enumerate() {
            self.prefetch(i + AHEAD);
            if *used == 0 {
                key.fill(0.0);
                value.fill(0.0);
            } else {
                self.k.read(row, self.head, key);
                self.v.read(row, self.head, value);
            }
            f(i, key, value);
        }
    }
}

/// A key (or query) and a value as floats.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) key: Vec<f32>,
    pub(super) value: Vec<f32>,
}

/// Products of the rows of a tile, in groups of W, with up to [`KEYS`] keys at a time.
pub(super) trait Products<const W: usize> {
    /// Starts a tile: all sums of values are zero.
    fn begin(&mut self, n_rows: usize, d_v: usize);
    /// Starts a branch: queries and keys have `d` elements.
    fn branch(&mut self, n_rows: usize, d: usize);
    /// Takes the query of a row.
    fn query(&mut self, row: usize, q: &[f32]);
    /// Takes keys and values, to which the products after it belong.
    fn load(&mut self, block: &Block<'_>, buffers: &mut Buffers);
    /// Products of the keys with the queries of a group. What is after them in `out`, of [`KEYS`] rows, is undefined.
    fn scores(&mut self, block: &Block<'_>, group: usize, out: &mut [[f32; W]]);
    /// Multiplies the first `n_rows` sums of a group by factors, and adds to each the values with its weights.
    fn add(
        &mut self,
        block: &Block<'_>,
        group: usize,
        n_rows: usize,
        factor: Option<&[f32; W]>,
        weights: &[[f32; W]],
    );
    fn sums(&self, row: usize, out: &mut [f32]);
}

#[derive(Default)]
pub(super) struct Floats {
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

/// Products by fused multiply-add of floats; a group is two or three vectors.
impl<const W: usize> Products<W> for Floats {
    fn begin(&mut self, n_rows: usize, d_v: usize) {
        const { assert!((W == 2 * N || W == 3 * N) && KEYS.is_multiple_of(AT_ONCE)) };
        self.n_blocks = d_v.div_ceil(BLOCK);
        // What is after the last element of a value is added to sums that nobody reads.
        self.v.resize(self.n_blocks * KEYS, [0.0; BLOCK]);
        refill(&mut self.out, n_rows * self.n_blocks, [0.0; BLOCK]);
    }

    fn branch(&mut self, n_rows: usize, d: usize) {
        self.d = d;
        refill(&mut self.q, n_rows.div_ceil(W) * d * W, 0.0);
        self.k.resize(KEYS * d, 0.0);
    }

    fn query(&mut self, row: usize, q: &[f32]) {
        let columns = &mut self.q.as_chunks_mut::<W>().0[row / W * self.d..][..self.d];
        columns.iter_mut().zip(q).for_each(|(column, q)| column[row % W] = *q);
    }

    fn load(&mut self, block: &Block<'_>, buffers: &mut Buffers) {
        let (d, k, values) = (self.d, &mut self.k, &mut self.v);
        block.each(buffers, |i, key, value| {
            k[i * d..][..d].copy_from_slice(key);
            for (block, v) in value.chunks(BLOCK).enumerate() {
                values[block * KEYS + i][..v.len()].copy_from_slice(v);
            }
        });
    }

    fn scores(&mut self, block: &Block<'_>, group: usize, out: &mut [[f32; W]]) {
        let d = self.d;
        let q = &self.q[group * d * W..][..d * W];
        let blocks =
            out.as_flattened_mut().chunks_exact_mut(AT_ONCE * W).zip(self.k.chunks_exact(AT_ONCE * d));
        blocks.take(block.used.len().div_ceil(AT_ONCE)).for_each(|(s, k)| match W / N {
            2 => scores::<2, AT_ONCE>(q, k, s),
            _ => scores::<3, AT_ONCE>(q, k, s),
        });
    }

    fn add(
        &mut self,
        _: &Block<'_>,
        group: usize,
        n_rows: usize,
        factor: Option<&[f32; W]>,
        weights: &[[f32; W]],
    ) {
        let n_blocks = self.n_blocks;
        let out = &mut self.out[group * W * n_blocks..][..n_rows * n_blocks];
        for (out, &f) in out.chunks_exact_mut(n_blocks).zip(factor.into_iter().flatten()) {
            if f != 1.0 {
                out.as_flattened_mut().iter_mut().for_each(|o| *o *= f);
            }
        }
        for lane in (0..n_rows).step_by(PANEL) {
            for block in 0..n_blocks {
                let (v, out) = (&self.v[block * KEYS..][..KEYS], &mut out[lane * n_blocks + block..]);
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
        let blocks = &self.out[row * self.n_blocks..][..self.n_blocks];
        out.copy_from_slice(&blocks.as_flattened()[..out.len()]);
    }
}

/// `n` times `value`, in the memory that is there.
pub(super) fn refill<T: Clone>(v: &mut Vec<T>, n: usize, value: T) {
    v.clear();
    v.resize(n, value);
}
