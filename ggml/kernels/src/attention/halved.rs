//! Products of attention in tiles of bfloat16 halves of floats.

use super::products::{Block, Buffers, Products};
use super::tile::KEYS;
use crate::aligned::Aligned;
use crate::amx::{Operand, Tiles, DEPTH, ROWS, SIDE};

/// Upper and lower halves, two elements a word.
#[derive(Default)]
struct Words {
    high: Aligned<u32>,
    low: Aligned<u32>,
}

impl Words {
    fn zeros(&mut self, n: usize) {
        self.high.refill(n, 0);
        self.low.refill(n, 0);
    }

    /// From word `at` on, rows of the result in rows of `stride` words.
    fn rows(&self, at: usize, stride: usize) -> Operand<'_> {
        let (high, low) = (&self.high[at..], &self.low[at..]);
        Operand { high, low, row: stride, tile: ROWS * stride, step: ROWS }
    }

    /// From word `at` on, columns of the result in rows of `SIDE` words.
    fn columns(&self, at: usize) -> Operand<'_> {
        let (high, low) = (&self.high[at..], &self.low[at..]);
        Operand { high, low, row: SIDE, tile: ROWS, step: ROWS * SIDE }
    }
}

/// Buffers of [`InHalves`]. Widths are rounded up to whole tiles with zeros.
#[derive(Default)]
pub(super) struct Halved {
    /// Words of a query or key.
    d: usize,
    d_v: usize,
    /// Pairs of elements: `[group][d][SIDE]`.
    q: Words,
    /// Pairs of elements: `[KEYS][d]`.
    k: Words,
    /// Pairs of values: `[KEYS / 2][d_v]`.
    v: Words,
    /// The same, transposed.
    v_t: Words,
    /// Pairs of weights: `[KEYS / 2][SIDE]`.
    p: Words,
    /// Words of a query.
    row: Words,
    /// A value that waits for the next one.
    waiting: Vec<f32>,
    /// `[group][d_v][SIDE]`
    out: Aligned<f32>,
}

impl Halved {
    /// Takes a pair of values, the waiting one and another.
    fn values(&mut self, tiles: &Tiles, pair: usize, second: &[f32]) {
        let row = pair * self.d_v..(pair + 1) * self.d_v;
        tiles.cut_pairs(&self.waiting, second, &mut self.v.high[row.clone()], &mut self.v.low[row]);
    }
}

/// Products in tiles: the results of all products are transposed, with queries side by side.
pub(super) struct InHalves<'a>(pub(super) &'a mut Halved, pub(super) Tiles);

impl Products<SIDE> for InHalves<'_> {
    fn begin(&mut self, n_rows: usize, d_v: usize) {
        let x = &mut *self.0;
        x.d_v = d_v.next_multiple_of(SIDE);
        x.v.zeros(KEYS / 2 * x.d_v);
        x.v_t.zeros(KEYS / 2 * x.d_v);
        x.p.zeros(KEYS / 2 * SIDE);
        x.out.refill(n_rows.div_ceil(SIDE) * x.d_v * SIDE, 0.0);
    }

    fn branch(&mut self, n_rows: usize, d: usize) {
        let x = &mut *self.0;
        x.d = d.next_multiple_of(DEPTH) / 2;
        x.q.zeros(n_rows.div_ceil(SIDE) * x.d * SIDE);
        x.k.zeros(KEYS * x.d);
        x.row.zeros(x.d);
    }

    fn query(&mut self, row: usize, q: &[f32]) {
        let x = &mut *self.0;
        let (group, lane) = (row / SIDE * x.d * SIDE, row % SIDE);
        self.1.cut(q, &mut x.row.high, &mut x.row.low);
        for i in 0..x.d {
            x.q.high[group + i * SIDE + lane] = x.row.high[i];
            x.q.low[group + i * SIDE + lane] = x.row.low[i];
        }
    }

    fn load(&mut self, block: &Block<'_>, buffers: &mut Buffers) {
        let (x, tiles, n) = (&mut *self.0, &self.1, block.used.len());
        block.each(buffers, |i, k, v| {
            tiles.cut(k, &mut x.k.high[i * x.d..][..x.d], &mut x.k.low[i * x.d..][..x.d]);
            if i.is_multiple_of(2) {
                x.waiting.clear();
                x.waiting.extend_from_slice(v);
            } else {
                x.values(tiles, i / 2, v);
            }
        });
        if !n.is_multiple_of(2) {
            x.values(tiles, n / 2, &vec![0.0; x.waiting.len()]);
        }
        for (from, to) in [(&mut x.v.high, &mut x.v_t.high), (&mut x.v.low, &mut x.v_t.low)] {
            from[n.div_ceil(2) * x.d_v..].fill(0);
            for i in (0..KEYS / 2).step_by(ROWS) {
                for j in (0..x.d_v).step_by(ROWS) {
                    tiles.transpose(&from[i * x.d_v + j..], x.d_v, &mut to[j * KEYS / 2 + i..], KEYS / 2);
                }
            }
        }
    }

    fn scores(&mut self, block: &Block<'_>, group: usize, out: &mut [[f32; SIDE]]) {
        let (x, n) = (&*self.0, block.used.len());
        let q = x.q.columns(group * x.d * SIDE);
        for key in (0..n).step_by(SIDE) {
            let out = out[key..key + SIDE].as_flattened_mut().as_mut_ptr();
            // SAFETY: SIDE rows of SIDE floats.
            unsafe { self.1.product(&x.k.rows(key * x.d, x.d), &q, x.d / ROWS, false, out, SIDE) };
        }
    }

    fn add(
        &mut self,
        _: &Block<'_>,
        group: usize,
        _: usize,
        factor: Option<&[f32; SIDE]>,
        weights: &[[f32; SIDE]],
    ) {
        let x = &mut *self.0;
        let out = &mut x.out[group * x.d_v * SIDE..][..x.d_v * SIDE];
        if let Some(factor) = factor {
            let rows = out.as_chunks_mut::<SIDE>().0.iter_mut();
            rows.for_each(|row| row.iter_mut().zip(factor).for_each(|(o, f)| *o *= f));
        }
        let (pairs, last) = weights.as_chunks::<2>();
        let zero = [0.0; SIDE];
        let pairs = pairs.iter().map(|[first, second]| (first, second));
        let pairs = pairs.chain(last.iter().map(|first| (first, &zero)));
        let n = weights.len().div_ceil(DEPTH) * DEPTH / 2;
        let (high, low) = (x.p.high.as_chunks_mut::<SIDE>().0, x.p.low.as_chunks_mut::<SIDE>().0);
        high[weights.len() / 2..n].fill([0; SIDE]);
        low[weights.len() / 2..n].fill([0; SIDE]);
        for ((high, low), (first, second)) in high.iter_mut().zip(low).zip(pairs) {
            self.1.cut_pairs(first, second, high, low);
        }
        for at in (0..x.d_v).step_by(SIDE) {
            let v = x.v_t.rows(at * KEYS / 2, KEYS / 2);
            let out = out[at * SIDE..][..SIDE * SIDE].as_mut_ptr();
            // SAFETY: SIDE rows of SIDE floats.
            unsafe { self.1.product(&v, &x.p.columns(0), n / ROWS, true, out, SIDE) };
        }
    }

    fn sums(&self, row: usize, out: &mut [f32]) {
        let group = &self.0.out.as_chunks::<SIDE>().0[row / SIDE * self.0.d_v..];
        out.iter_mut().zip(group).for_each(|(out, sums)| *out = sums[row % SIDE]);
    }
}
