//! Gated delta-nets for training: the convolution before them, and the gated delta rule, forward and backward.
//!
//! The state S of a head maps keys to values. A token with query q and key k of length 1, value v, decay `exp(g)`
//! and rate `beta` makes it `S' = exp(g) S`, then `S' + beta (v - S' k) k^T`, and reads `S q / sqrt(d)` from it: the
//! order of ggml's op, which inference runs. Query head `h % n_head_k` belongs to value head `h`.
//!
//! Rows of S, one for each value, do not see each other. So a few rows at a time go through all tokens and stay in
//! the nearest cache, and the backward pass keeps their states within a chunk of tokens only, which it computes
//! again from those at the chunks' borders. A head of keys is one unit of work, with all value heads that it belongs
//! to, so no bit depends on the number of threads.

pub mod backward;
pub mod conv;
pub mod forward;
#[cfg(test)]
mod tests;

use crate::attention_train::Heads;
use crate::simd::{fma, FloatLanes, MOST};

/// Tokens whose states the backward pass keeps at once.
pub const CHUNK: usize = 32;

/// Rows of a state that go through the tokens together.
const ROWS: usize = 8;

/// Operands of the rule, for the tokens of one sequence.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// Heads of queries and of keys, which are made as long as 1, then of values: `[d, 2 n_head_k + n_head_v, n]`.
    pub qkv: Heads<'a>,
    /// Logarithm of what is left of the state, `[n][n_head_v]`.
    pub g: &'a [f32],
    /// How much of the difference is learned, `[n][n_head_v]`.
    pub beta: &'a [f32],
    /// For each token, how many of its document come before it: where there are none, the state begins at 0. Empty where
    /// all are of one document, and so are those before the first.
    pub past: &'a [i32],
    /// The states before the first token, `[n_head_v][d][d]`, a row for each value.
    pub state: &'a [f32],
    /// Heads of queries, and of keys.
    pub n_head_k: usize,
    /// Heads of values, a multiple of those.
    pub n_head_v: usize,
    /// Added to the square of the length of queries and keys.
    pub eps: f32,
}

impl<'a> Inputs<'a> {
    fn check(&self) {
        let ([d, n_heads, n], n_head) = (self.qkv.shape(), self.n_head_v);
        let rates = [self.g, self.beta].iter().all(|x| x.len() == n * n_head);
        let fits = n_heads == 2 * self.n_head_k + n_head && [0, n].contains(&self.past.len());
        assert!(fits && rates && self.state.len() == d * d * n_head, "the caller's shapes agree");
    }

    /// The part of a head's state that is left.
    fn left(&self, h: usize, t: usize) -> f32 {
        if self.past.get(t).is_none_or(|&past| past > 0) {
            self.g[t * self.n_head_v + h].exp()
        } else {
            0.0
        }
    }

    fn beta(&self, h: usize, t: usize) -> f32 {
        self.beta[t * self.n_head_v + h]
    }

    fn value(&self, h: usize, t: usize) -> &'a [f32] {
        self.qkv.row(2 * self.n_head_k + h, t)
    }

    fn state_of(&self, h: usize) -> &'a [f32] {
        let len = self.qkv.d * self.qkv.d;
        &self.state[h * len..(h + 1) * len]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.qkv.d as f32).sqrt()
    }
}

/// Queries and keys of one head at length 1.
#[derive(Debug, Default)]
struct Unit {
    d: usize,
    /// `[n][d]`
    q: Vec<f32>,
    /// `[n][d]`
    k: Vec<f32>,
    /// For each token, the factors that made them so.
    factors: Vec<[f32; 2]>,
}

impl Unit {
    fn load<S: FloatLanes>(&mut self, s: S, x: &Inputs<'_>, head: usize) {
        let [d, _, n] = x.qkv.shape();
        self.d = d;
        self.q.clear();
        self.k.clear();
        self.factors.clear();
        for t in 0..n {
            let push = |row: &[f32], to: &mut Vec<f32>| {
                let factor = 1.0 / (dot(s, row, row) + x.eps).sqrt();
                to.extend(row.iter().map(|v| v * factor));
                factor
            };
            let q = push(x.qkv.row(head, t), &mut self.q);
            let k = push(x.qkv.row(x.n_head_k + head, t), &mut self.k);
            self.factors.push([q, k]);
        }
    }

    fn at(&self, t: usize) -> (&[f32], &[f32]) {
        let row = t * self.d..(t + 1) * self.d;
        (&self.q[row.clone()], &self.k[row])
    }
}

/// The sum of a register, by halves, and `rest`.
#[inline(always)]
fn total<S: FloatLanes>(s: S, sums: S::Floats, rest: f32) -> f32 {
    let mut all = [0.0; MOST];
    s.write(sums, &mut all);
    let mut n = S::N / 2;
    while n > 0 {
        for i in 0..n {
            all[i] += all[i + n];
        }
        n /= 2;
    }
    all[0] + rest
}

#[inline]
fn dot<S: FloatLanes>(s: S, a: &[f32], b: &[f32]) -> f32 {
    s.run(|| {
        let (a, b) = (a.chunks_exact(S::N), b.chunks_exact(S::N));
        let rest = a.remainder().iter().zip(b.remainder()).fold(0.0, |sum, (a, b)| fma(*a, *b, sum));
        let sums = a.zip(b).fold(s.none(), |sum, (a, b)| s.mul_add(s.read(a), s.read(b), sum));
        total(s, sums, rest)
    })
}

/// A row of the state times `left`, and its product with `k`.
#[inline]
fn decay<S: FloatLanes>(s: S, row: &mut [f32], left: f32, k: &[f32]) -> f32 {
    s.run(|| {
        // Values that are not finite are also forgotten.
        if left == 0.0 {
            row.fill(0.0);
            return 0.0;
        }
        let (mut rows, k) = (row.chunks_exact_mut(S::N), k.chunks_exact(S::N));
        let (mut last, mut sums) = (0.0, s.none());
        for (x, k) in rows.by_ref().zip(k.clone()) {
            let now = s.times(s.read(x), s.splat(left));
            s.write(now, x);
            sums = s.mul_add(now, s.read(k), sums);
        }
        for (x, k) in rows.into_remainder().iter_mut().zip(k.remainder()) {
            *x *= left;
            last = fma(*x, *k, last);
        }
        total(s, sums, last)
    })
}

/// `row += factor * x`.
#[inline]
fn add<S: FloatLanes>(s: S, row: &mut [f32], factor: f32, x: &[f32]) {
    s.run(|| {
        let (mut rows, x) = (row.chunks_exact_mut(S::N), x.chunks_exact(S::N));
        for (row, x) in rows.by_ref().zip(x.clone()) {
            s.write(s.mul_add(s.splat(factor), s.read(x), s.read(row)), row);
        }
        let rest = rows.into_remainder().iter_mut().zip(x.remainder());
        rest.for_each(|(row, x)| *row = fma(factor, *x, *row));
    })
}

/// `row += factor * x`, and the product of the row with `y`.
#[inline]
fn add_dot<S: FloatLanes>(s: S, row: &mut [f32], factor: f32, x: &[f32], y: &[f32]) -> f32 {
    s.run(|| {
        let (mut rows, x, y) = (row.chunks_exact_mut(S::N), x.chunks_exact(S::N), y.chunks_exact(S::N));
        let (mut last, mut sums) = (0.0, s.none());
        for ((row, x), y) in rows.by_ref().zip(x.clone()).zip(y.clone()) {
            let now = s.mul_add(s.splat(factor), s.read(x), s.read(row));
            s.write(now, row);
            sums = s.mul_add(now, s.read(y), sums);
        }
        for ((row, x), y) in rows.into_remainder().iter_mut().zip(x.remainder()).zip(y.remainder()) {
            *row = fma(factor, *x, *row);
            last = fma(*row, *y, last);
        }
        total(s, sums, last)
    })
}
