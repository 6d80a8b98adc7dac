//! Attention in ops that every backend has, by the online softmax: a tile of keys at a time, so that nothing is queries x keys.
//! Forwards with the log-sum-exp of each query's scores, and backwards from it. A single token does without tiles where the
//! device has flash attention ([`Single`]).
//!
//! Queries are rows here, those of all heads that share a key head in one matrix: `[d, n_rep * n, n_head_kv]`, where the
//! heads of a query lie side by side. Masks are made for a tile, of where its keys stand.
//!
//! Branches cannot be merged from flash attention alone, because it returns no log-sum-exp. On the CPU our own op
//! computes all branches under one softmax (`ggml::attention`). On other devices, tiles are merged here, in inference
//! and training. No backend has an op for the largest element of a row; pooling computes it (`Builder::row_max`). The
//! position of a key is one number, from which the mask of each tile is made.

mod single;

use std::ops::Range;

use ggml::attention::{AttentionBranch, Scoring};
use ggml::graph::{Builder, InputId};
use ggml::tensor::Tensor;
use ggml::{DType, Error, Result};

pub use single::{n_tensors as n_tensors_of_single, Single, UNSEEN};

/// Bytes of a tile's scores, where that is 256 keys or more and makes 64 tiles or fewer. Going backwards takes
/// some four times as much. Smaller tiles are faster on the CPU (from 1 to 128 MiB, times differ by up to 31%), but need more
/// launches on a GPU, where nothing was measured.
pub const TILE_BYTES: usize = 64 << 20;

/// Fewest keys of a tile that is not the last; tiles are multiples of it.
const TILE_KEYS: usize = 256;

/// Each tile is some forty nodes of the graph of each layer.
pub const MOST_TILES: usize = 64;

/// Subtracted from a score for each position that a key is outside of its query's range. No score is as large, and no
/// possible multiple overflows.
const PENALTY: f32 = 1e20;

/// The position of a key that no query sees.
pub const NOWHERE: f32 = -1e9;

/// Floats cannot distinguish positions from here on, because the middle of a range can be half a position.
pub const MAX_PLACE: usize = 1 << 23;

/// The keys that queries see: those in a range of positions. Inputs of a graph.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// F32 `[n_keys, n_tables]`: the positions of keys for a query with that table.
    pub keys: InputId,
    /// I32 `[n]`: the table of each query.
    pub tables: InputId,
    /// F32 `[n, 2, n_ranges]`: each query's ranges as [`middle_and_half`] has them.
    pub ranges: InputId,
}

/// A range of positions as its middle and half its width: positions in it are at most that far from the middle.
pub fn middle_and_half(keys: Range<i32>) -> [f32; 2] {
    if keys.is_empty() {
        return [0.0, -1.0];
    }
    let twice = |n: i64| n as f32 / 2.0;
    let (first, last) = (i64::from(keys.start), i64::from(keys.end) - 1);
    [twice(first + last), twice(last - first)]
}

impl Places {
    pub fn new(b: &Builder<'_>, [n_keys, n_tables]: [usize; 2], n: usize, n_ranges: usize) -> Result<Places> {
        let (keys, _) = b.input("places", DType::F32, &[n_keys, n_tables])?;
        let (tables, _) = b.input("tables", DType::I32, &[n])?;
        let (ranges, _) = b.input("ranges", DType::F32, &[n, 2, n_ranges])?;
        Ok(Places { keys, tables, ranges })
    }

    /// Penalty on the scores of some keys, F32 `[keys, 1, n]`: 0 for keys in the query's range.
    fn penalty<'c>(&self, b: &Builder<'c>, keys: Range<usize>, range: usize) -> Result<Tensor<'c>> {
        let ranges = b.given(self.ranges)?;
        let [n, ..] = ranges.ne();
        let number = |i: usize| b.view(ranges, [1, n, 1, 1], [4, 4 * n, 4 * n], 4 * n * (2 * range + i));
        let keys_at = b.columns(b.given(self.keys)?, keys.start, keys.len())?;
        let at = b.get_rows(keys_at, b.given(self.tables)?)?;
        let away = b.abs(b.sub(at, number(0)?)?)?;
        let outside = b.relu(b.sub(away, number(1)?)?)?;
        b.reshape(b.scale(outside, PENALTY)?, &[keys.len(), 1, n])
    }
}

/// Queries `[d, n_head, n]` with keys and values `[d, n_keys, n_head_kv]`, and which of them they see.
#[derive(Debug, Clone, Copy)]
pub struct Part<'c> {
    pub branch: AttentionBranch<'c>,
    /// The first of the keys in [`Places::keys`].
    pub first: usize,
    /// Index of the range that counts.
    pub range: usize,
}

/// The attention of rows to some keys, each alone under a softmax.
#[derive(Debug, Clone, Copy)]
pub struct Attended<'c> {
    /// `[d, n_rep * n, n_head_kv]`.
    values: Tensor<'c>,
    /// `[1, n_rep * n, n_head_kv]`: the logarithm of the sum of the exponentials of scores.
    lse: Tensor<'c>,
    /// Queries.
    n: usize,
}

/// Attention of some heads of a layer, under one softmax over the keys of all parts.
#[derive(Debug, Clone, Copy)]
pub struct Online<'a, 'c> {
    pub b: &'a Builder<'c>,
    pub seen: Places,
    pub scoring: Scoring<'c>,
    /// [`TILE_BYTES`], or other in tests.
    pub tile_bytes: usize,
}

/// Upper bound of the tensors of [`Online::forward`] or [`Online::backward`] for `n_rows` rows (queries of all heads)
/// and `n_keys` keys in each part.
pub fn n_tensors(n_rows: usize, n_keys: impl IntoIterator<Item = usize>) -> usize {
    let of_part = |n: usize| 32 + 48 * tiles(n, n_rows, TILE_BYTES).count();
    n_keys.into_iter().map(of_part).sum()
}

/// The keys of a part, tile by tile.
pub fn tiles(n_keys: usize, n_rows: usize, bytes: usize) -> impl Iterator<Item = Range<usize>> {
    let fitting = bytes / (4 * n_rows).max(1) / TILE_KEYS * TILE_KEYS;
    let step = n_keys.div_ceil(MOST_TILES).next_multiple_of(TILE_KEYS).max(fitting).max(TILE_KEYS);
    (0..n_keys).step_by(step).map(move |first| first..(first + step).min(n_keys))
}

/// Some keys of `[d, n_keys, n_head_kv]`.
pub fn cut<'c>(b: &Builder<'c>, x: Tensor<'c>, keys: &Range<usize>) -> Result<Tensor<'c>> {
    let (ne, nb) = (x.ne(), x.nb());
    b.view(x, [ne[0], keys.len(), ne[2], 1], [nb[1], nb[2], nb[2] * ne[2]], keys.start * nb[1])
}

/// The first two dimensions exchanged, in F32.
fn transposed<'c>(b: &Builder<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
    // Elements of a block cannot be moved apart.
    let x = if x.dtype().is_quantized() { b.to_f32(x)? } else { x };
    let turned = b.permute(x, [1, 0, 2, 3])?;
    if x.dtype() == DType::F32 {
        return b.cont(turned);
    }
    b.to_f32(turned)
}

/// Heads `[d, n_head, n]` as rows.
fn rows<'c>(b: &Builder<'c>, x: Tensor<'c>, n_head_kv: usize) -> Result<Tensor<'c>> {
    let ([d, n_head, n, _], nb) = (x.ne(), x.nb());
    let n_rep = n_head / n_head_kv.max(1);
    let split = b.view(x, [d, n_rep, n_head_kv, n], [nb[1], nb[1] * n_rep, nb[2]], 0)?;
    b.reshape(b.cont(b.permute(split, [0, 1, 3, 2])?)?, &[d, n_rep * n, n_head_kv])
}

/// Rows of `n` queries as heads `[d, n_head, n]`.
fn heads<'c>(b: &Builder<'c>, x: Tensor<'c>, n: usize) -> Result<Tensor<'c>> {
    let [d, n_rows, n_head_kv, _] = x.ne();
    let n_rep = n_rows / n.max(1);
    let split = b.reshape(x, &[d, n_rep, n, n_head_kv])?;
    b.reshape(b.cont(b.permute(split, [0, 1, 3, 2])?)?, &[d, n_rep * n_head_kv, n])
}

/// The softmax of rows of scores, and their log-sum-exp. Of scores that nothing else reads the memory is used again.
fn soft_max<'c>(b: &Builder<'c>, scores: Tensor<'c>) -> Result<[Tensor<'c>; 2]> {
    let largest = b.row_max(scores)?;
    b.expand(largest);
    let p = b.soft_max(scores)?;
    // The largest probability is that of the largest score.
    let lse = b.sub(largest, b.log(b.row_max(p)?)?)?;
    b.expand(lse);
    Ok([p, lse])
}

impl<'c> Attended<'c> {
    /// The attention to the keys of both.
    fn and(self, b: &Builder<'c>, other: Attended<'c>) -> Result<Attended<'c>> {
        let [shares, lse] = soft_max(b, b.concat(self.lse, other.lse, 0)?)?;
        let of = |values: Tensor<'c>, i: usize| b.mul(values, b.columns(shares, i, 1)?);
        let values = b.add(of(self.values, 0)?, of(other.values, 1)?)?;
        Ok(Attended { values, lse, ..self })
    }

    /// With a score for each head, `[n_head]`, that no value belongs to.
    fn and_sinks(self, b: &Builder<'c>, sinks: Tensor<'c>) -> Result<Attended<'c>> {
        let [_, n_rows, n_head_kv, _] = self.lse.ne();
        let n_rep = n_rows / self.n.max(1);
        let lse = b.reshape(self.lse, &[1, n_rep, self.n, n_head_kv])?;
        let sinks = b.add(b.sub(lse, lse)?, b.reshape(sinks, &[1, n_rep, 1, n_head_kv])?)?;
        let both = b.concat(self.lse, b.reshape(sinks, &[1, n_rows, n_head_kv])?, 0)?;
        let [shares, lse] = soft_max(b, both)?;
        let values = b.mul(self.values, b.columns(shares, 0, 1)?)?;
        Ok(Attended { values, lse, ..self })
    }

    /// The values, `[d, n_head, n]`.
    pub fn heads(&self, b: &Builder<'c>) -> Result<Tensor<'c>> {
        heads(b, self.values, self.n)
    }

    /// The values of each head, followed by its log-sum-exp, `[d + 1, n_head, n]`.
    pub fn heads_lse(&self, b: &Builder<'c>) -> Result<Tensor<'c>> {
        heads(b, b.concat(self.values, self.lse, 0)?, self.n)
    }
}

impl<'c> Online<'_, 'c> {
    /// By which queries are multiplied before keys are.
    fn factor(&self) -> f32 {
        self.scoring.scale / self.scoring.softcap.unwrap_or(1.0)
    }

    fn queries(&self, part: &Part<'c>) -> Result<Tensor<'c>> {
        self.b.scale(rows(self.b, part.branch.q, part.branch.k.ne()[2])?, self.factor())
    }

    fn tiles(&self, part: &Part<'c>) -> impl Iterator<Item = Range<usize>> {
        let [_, n_head, n, _] = part.branch.q.ne();
        tiles(part.branch.k.ne()[1], n_head * n, self.tile_bytes)
    }

    /// The scores of rows `q` for some keys of a part, `[keys, n_rep * n, n_head_kv]`. Where they are capped also the
    /// hyperbolic tangent that is multiplied by the cap.
    fn scores(
        &self,
        q: Tensor<'c>,
        part: &Part<'c>,
        keys: &Range<usize>,
    ) -> Result<(Tensor<'c>, Option<Tensor<'c>>)> {
        let b = self.b;
        let k = cut(b, part.branch.k, keys)?;
        // Devices multiply quantized rows only where these lie one after the other, and those of a head do not.
        let k = if k.dtype().is_quantized() { b.to_f32(k)? } else { k };
        let products = b.mul_mat(k, q)?;
        let [_, n_rows, n_head_kv, _] = products.ne();
        let capped = self.scoring.softcap.map(|cap| Ok::<_, Error>((b.tanh(products)?, cap))).transpose()?;
        let scores = capped.map_or(Ok(products), |(part, cap)| b.scale(part, cap))?;
        let outside = self.seen.penalty(b, part.first + keys.start..part.first + keys.end, part.range)?;
        let n = outside.ne()[2];
        let scores = b.reshape(scores, &[keys.len(), n_rows / n.max(1), n, n_head_kv])?;
        let scores = b.reshape(b.sub(scores, outside)?, &[keys.len(), n_rows, n_head_kv])?;
        Ok((scores, capped.map(|(part, _)| part)))
    }

    /// Attention to the keys of all parts, whose queries are the same ones, rotated differently.
    pub fn forward(&self, parts: &[Part<'c>]) -> Result<Attended<'c>> {
        let b = self.b;
        let mut all: Option<Attended<'c>> = None;
        for part in parts {
            let q = self.queries(part)?;
            for keys in self.tiles(part) {
                let (scores, _) = self.scores(q, part, &keys)?;
                let [p, lse] = soft_max(b, scores)?;
                let values = b.mul_mat(transposed(b, cut(b, part.branch.v, &keys)?)?, p)?;
                let tile = Attended { values, lse, n: part.branch.q.ne()[2] };
                let sum = all.map_or(Ok(tile), |before| before.and(b, tile))?;
                // In this order: else the scores of all tiles would be there at once.
                b.expand(sum.values);
                b.expand(sum.lse);
                all = Some(sum);
            }
        }
        let all = all.ok_or_else(|| Error::Op { op: "attention", what: "no part has a key".into() })?;
        self.scoring.sinks.map_or(Ok(all), |sinks| all.and_sinks(b, sinks))
    }

    /// The gradient of the queries `[d, n_head, n]`, where `out` is what `Attended::heads_lse` gave and `d_out` the
    /// gradient of the values in it. The gradients of keys and values are added to `below`, stored tensors of their
    /// shapes.
    pub fn backward(
        &self,
        part: &Part<'c>,
        out: Tensor<'c>,
        d_out: Tensor<'c>,
        below: [Tensor<'c>; 2],
    ) -> Result<Tensor<'c>> {
        let (b, AttentionBranch { q, k, v }) = (self.b, part.branch);
        let ([d, _, n, _], n_head_kv) = (q.ne(), k.ne()[2]);
        let out = rows(b, out, n_head_kv)?;
        let (values, lse) = (b.columns(out, 0, d)?, b.columns(out, d, 1)?);
        let (q, d_out) = (self.queries(part)?, rows(b, d_out, n_head_kv)?);
        let mean = b.sum_rows(b.mul(d_out, values)?)?;
        let (q_t, d_out_t) = (transposed(b, q)?, transposed(b, d_out)?);
        let mut d_q: Option<Tensor<'c>> = None;
        for keys in self.tiles(part) {
            let (scores, capped) = self.scores(q, part, &keys)?;
            let p = b.exp(b.sub(scores, lse)?)?;
            let add = |to: Tensor<'c>, from: Tensor<'c>, x: Tensor<'c>| -> Result<()> {
                let more = b.mul_mat(from, transposed(b, x)?)?;
                b.expand(b.add_into(cut(b, to, &keys)?, more)?);
                Ok(())
            };
            add(below[1], d_out_t, p)?;
            let d_p = b.mul_mat(cut(b, v, &keys)?, d_out)?;
            let d_s = b.mul(b.sub(d_p, mean)?, p)?;
            let d_s = match capped.zip(self.scoring.softcap) {
                // The gradient of tanh(x) is 1 - tanh(x)^2.
                Some((part, cap)) => b.scale(b.sub(d_s, b.mul(b.mul(part, part)?, d_s)?)?, cap)?,
                None => d_s,
            };
            add(below[0], q_t, d_s)?;
            let more = b.mul_mat(transposed(b, cut(b, k, &keys)?)?, d_s)?;
            let sum = d_q.map_or(Ok(more), |before| b.add(before, more))?;
            b.expand(sum);
            d_q = Some(sum);
        }
        let d_q = d_q.ok_or_else(|| Error::Op { op: "attention_back", what: "no key".into() })?;
        heads(b, b.scale(d_q, self.factor())?, n)
    }
}
