//! A tile of queries over all the keys it sees, by a running softmax.

use std::f32::consts::{LN_2, LOG2_E};
use std::ops::Range;

use super::products::{Factors, Products};
use super::view::{Heads, KeyRanges};
use super::KEYS;
use crate::attention::{exp2, tanh, Stats};
use crate::gemm::Matrix;

pub struct Inputs<'a> {
    /// Queries, `[d, n_head, T]`.
    pub q: Heads<'a>,
    /// Keys, `[d, n_head_kv, N]`.
    pub k: Heads<'a>,
    /// Values, `[d_v, n_head_kv, N]`.
    pub v: Heads<'a>,
    /// The range of keys that each query token sees.
    pub key_ranges: KeyRanges<'a>,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// Scores `s` become `softcap * tanh(s / softcap)`.
    pub softcap: Option<f32>,
    /// For each query head a score that takes part in the softmax, and that no value belongs to.
    pub sinks: Option<&'a [f32]>,
    /// Query heads of a KV head.
    pub n_rep: usize,
    /// Rounding of the factors of products.
    pub factors: Factors,
}

/// Buffers of a thread for one tile; rows are tokens by query heads of one KV head.
#[derive(Debug, Default)]
pub struct Scratch {
    products: Products,
    /// `[rows][d]`, in units that make scores exponents of two.
    q: Vec<f32>,
    /// `[rows][KEYS]`: scores, then weights relative to the maximum.
    scores: Vec<f32>,
    /// `[rows][d_v]`: weighted values.
    sums: Vec<f32>,
    /// Statistics of each row.
    stats: Vec<Stats>,
}

/// One token's queries of a KV head, one after the other, times `factor`.
#[inline]
pub(crate) fn pack(x: &Heads<'_>, heads: Range<usize>, tokens: Range<usize>, factor: f32, to: &mut Vec<f32>) {
    to.clear();
    for t in tokens {
        for h in heads.clone() {
            to.extend(x.row(h, t).iter().map(|x| x * factor));
        }
    }
}

impl Scratch {
    /// Computes the tile's rows; `write` takes head, token and what fills that row of the result.
    pub fn attend(
        &mut self,
        inputs: &Inputs<'_>,
        head_kv: usize,
        tokens: Range<usize>,
        mut write: impl FnMut(usize, usize, &dyn Fn(&mut [f32])),
    ) {
        let Inputs { q, k, v, key_ranges, scale, softcap, sinks, n_rep, factors } = *inputs;
        self.products.factors = factors;
        let heads = head_kv * n_rep..(head_kv + 1) * n_rep;
        let (n_rows, d, d_v) = (tokens.len() * n_rep, q.d, v.d);
        pack(&q, heads.clone(), tokens.clone(), scale * LOG2_E, &mut self.q);
        self.scores.resize(n_rows * KEYS, 0.0);
        self.sums.clear();
        self.sums.resize(n_rows * d_v, 0.0);
        self.stats.clear();
        self.stats.resize(n_rows, Stats { max: f32::NEG_INFINITY, sum: 0.0 });
        let all = key_ranges.window(&heads, tokens.clone(), &(0..k.n)).map_or(0..0, |(_, seen)| seen);
        for start in all.clone().step_by(KEYS) {
            let keys = start..(start + KEYS).min(all.end);
            let Some((some, keys)) = key_ranges.window(&heads, tokens.clone(), &keys) else { continue };
            let (first, n) = ((some.start - tokens.start) * n_rep, some.len() * n_rep);
            let queries = Matrix::rows(&self.q[first * d..], n, d, d).transposed();
            self.products.multiply_into(
                &mut self.scores,
                KEYS,
                false,
                k.head(head_kv, keys.clone()),
                queries,
                1.0,
            );
            for (i, row) in self.scores.chunks_exact_mut(KEYS).take(n).enumerate() {
                let seen = key_ranges.seen(heads.start + i % n_rep, some.start + i / n_rep, &keys);
                let (row, sums) = (&mut row[..keys.len()], &mut self.sums[(first + i) * d_v..][..d_v]);
                if let Some(cap) = softcap {
                    let cap = cap * LOG2_E;
                    row.iter_mut().for_each(|s| *s = cap * tanh(*s / cap));
                }
                soften(row, seen.start - keys.start..seen.end - keys.start, &mut self.stats[first + i], sums);
            }
            let weights = Matrix::rows(&self.scores, n, keys.len(), KEYS).transposed();
            let values = v.head(head_kv, keys).transposed();
            self.products.multiply_into(&mut self.sums[first * d_v..], d_v, true, values, weights, 1.0);
        }
        let rows = self.sums.chunks_exact(d_v).zip(&self.stats);
        let ids = tokens.flat_map(|t| heads.clone().map(move |h| (h, t)));
        for ((h, t), (sums, &stats)) in ids.zip(rows) {
            let (Stats { max, sum }, before) = sinks.map_or((stats, 1.0), |sinks| stats.with_sink(sinks[h]));
            write(h, t, &|out| {
                // A sum of 0 is a row that sees nothing; NaN is not 0 and gets through.
                let factor = if sum == 0.0 { 1.0 } else { before / sum };
                out.iter_mut().zip(sums).for_each(|(o, s)| *o = s * factor);
                out[d_v] = if sum == 0.0 { f32::NEG_INFINITY } else { max * LN_2 + sum.ln() };
            });
        }
    }
}

/// Lanes of a loop over a row that sums or compares: the compiler does not reorder floats by itself.
pub(crate) const LANES: usize = 16;

#[inline]
pub(crate) fn largest(x: &[f32]) -> f32 {
    let mut max = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        max.iter_mut().zip(x).for_each(|(m, &x)| *m = if x > *m { x } else { *m });
    }
    max.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, |m, x| if x > m { x } else { m })
}

#[inline]
fn total(x: &[f32]) -> f32 {
    let mut sum = [0.0; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        sum.iter_mut().zip(x).for_each(|(s, x)| *s += x);
    }
    sum.into_iter().chain(rest.iter().copied()).sum()
}

/// One step of the running softmax of a row: scores inside `seen` become weights relative to the new maximum,
/// others 0; earlier sums are also made relative to it.
#[inline]
pub(crate) fn soften(row: &mut [f32], seen: Range<usize>, stats: &mut Stats, sums: &mut [f32]) {
    row[..seen.start].fill(0.0);
    row[seen.end..].fill(0.0);
    let row = &mut row[seen];
    let (old, max) = (stats.max, largest(row).max(stats.max));
    // Nothing but -inf: -inf - -inf would not be a number.
    let base = if max == f32::NEG_INFINITY { 0.0 } else { max };
    row.iter_mut().for_each(|s| *s = exp2(*s - base));
    if max > old {
        let factor = exp2(old - base);
        stats.sum *= factor;
        sums.iter_mut().for_each(|s| *s *= factor);
    }
    *stats = Stats { max, sum: stats.sum + total(row) };
}
