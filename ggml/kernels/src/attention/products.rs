//! The two products of attention, for a driver that does the rest: queries with keys, weights with values.

use super::kernel::{scores, weigh, PANEL};
use super::tile::KEYS;
use super::view::Rows;
use crate::simd::FloatLanes;

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
    /// Elements of a value in whole blocks: two registers.
    d_v: usize,
    /// `[group][d][W]`
    q: Vec<f32>,
    /// `[KEYS][d]`
    k: Vec<f32>,
    /// `[n_blocks][KEYS][block]`
    v: Vec<f32>,
    /// `[row][d_v]`
    out: Vec<f32>,
}

/// Products by fused multiply-add of floats; a group is two or three registers.
pub(super) struct InFloats<'a, S>(pub(super) &'a mut Floats, pub(super) S);

impl<S: FloatLanes, const W: usize> Products<W> for InFloats<'_, S> {
    fn begin(&mut self, n_rows: usize, d_v: usize) {
        const { assert!((W == 2 * S::N || W == 3 * S::N) && KEYS.is_multiple_of(AT_ONCE)) };
        let x = &mut *self.0;
        x.d_v = d_v.next_multiple_of(2 * S::N);
        // What is after the last element of a value is added to sums that nobody reads.
        x.v.resize(x.d_v * KEYS, 0.0);
        refill(&mut x.out, n_rows * x.d_v, 0.0);
    }

    fn branch(&mut self, n_rows: usize, d: usize) {
        let x = &mut *self.0;
        x.d = d;
        refill(&mut x.q, n_rows.div_ceil(W) * d * W, 0.0);
        x.k.resize(KEYS * d, 0.0);
    }

    fn query(&mut self, row: usize, q: &[f32]) {
        let x = &mut *self.0;
        let columns = &mut x.q.as_chunks_mut::<W>().0[row / W * x.d..][..x.d];
        columns.iter_mut().zip(q).for_each(|(column, q)| column[row % W] = *q);
    }

    fn load(&mut self, block: &Block<'_>, buffers: &mut Buffers) {
        let (x, width) = (&mut *self.0, 2 * S::N);
        block.each(buffers, |i, key, value| {
            x.k[i * x.d..][..x.d].copy_from_slice(key);
            for (block, v) in value.chunks(width).enumerate() {
                x.v[(block * KEYS + i) * width..][..v.len()].copy_from_slice(v);
            }
        });
    }

    fn scores(&mut self, block: &Block<'_>, group: usize, out: &mut [[f32; W]]) {
        let (x, s, d) = (&*self.0, self.1, self.0.d);
        let q = &x.q[group * d * W..][..d * W];
        let blocks = out.as_flattened_mut().chunks_exact_mut(AT_ONCE * W).zip(x.k.chunks_exact(AT_ONCE * d));
        blocks.take(block.used.len().div_ceil(AT_ONCE)).for_each(|(out, k)| match W / S::N {
            2 => scores::<S, 2, AT_ONCE>(s, q, k, out),
            _ => scores::<S, 3, AT_ONCE>(s, q, k, out),
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
        let (s, width, d_v) = (self.1, 2 * S::N, self.0.d_v);
        let x = &mut *self.0;
        let out = &mut x.out[group * W * d_v..][..n_rows * d_v];
        for (out, &f) in out.chunks_exact_mut(d_v).zip(factor.into_iter().flatten()) {
            if f != 1.0 {
                out.iter_mut().for_each(|o| *o *= f);
            }
        }
        for lane in (0..n_rows).step_by(PANEL) {
            for (v, at) in x.v.chunks_exact(KEYS * width).zip((lane * d_v..).step_by(width)) {
                let out = &mut out[at..];
                match n_rows - lane {
                    1 => weigh::<S, W, 1>(s, weights, lane, v, out, d_v),
                    2 => weigh::<S, W, 2>(s, weights, lane, v, out, d_v),
                    3 => weigh::<S, W, 3>(s, weights, lane, v, out, d_v),
                    4 => weigh::<S, W, 4>(s, weights, lane, v, out, d_v),
                    5 => weigh::<S, W, 5>(s, weights, lane, v, out, d_v),
                    _ => weigh::<S, W, PANEL>(s, weights, lane, v, out, d_v),
                }
            }
        }
    }

    fn sums(&self, row: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.0.out[row * self.0.d_v..][..out.len()]);
    }
}

/// `n` times `value`, in the memory that is there.
pub(super) fn refill<T: Clone>(v: &mut Vec<T>, n: usize, value: T) {
    v.clear();
    v.resize(n, value);
}
