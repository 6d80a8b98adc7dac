//! Attention of one layer in blocks of queries, forwards and backwards; nothing is tokens x tokens.
//!
//! Blocks go forwards first to last, each adding its keys and values, and backwards last to first: when a
//! block's turn comes, all later queries have added to the gradients of its keys and values.

use std::ops::Range;

use ggml::attention::Scoring;
use ggml::attention_landmark::LandmarkAttention;
use ggml::attention_train::AttentionBack;
use ggml::graph::{Builder, Executor, InputId};
use ggml::tensor::Tensor;
use ggml::{DType, Result};

use super::seen::Seen;
use crate::hparams::LayerAttention;
use crate::rope::Reach;

/// Bytes that the scores of a chunk of queries may take in explicit attention, which holds several such
/// matrices.
const SCORE_BYTES: usize = 128 << 20;

/// `-inf` as F16.
const F16_NEG_INF: u16 = 0xfc00;

/// The input that says which keys each query of a block sees: one range of positions each, or two, of the lower
/// and of the upper half of its heads.
#[derive(Debug, Clone, Copy)]
pub(super) enum SeenInput {
    /// I32 `[2, n]` or `[2, n, 2]`: first key and the one behind the last.
    Runs(InputId),
    /// F16 `[n_keys, n]` or `[n_keys, n, 2]`: 0 or -inf.
    Mask(InputId),
    /// I32 `[2, n]` as for runs, `[n_keys]` and `[n]`: keys lie in the order of positions, in one table.
    Landmark([InputId; 3]),
}

impl SeenInput {
    /// Fills it for a layer of this attention, and the queries at positions `at`; where a method says which keys
    /// queries see, for one of its branches.
    pub(super) fn fill(
        &self,
        exec: &mut Executor,
        at: Range<usize>,
        seen: &Seen,
        layer: &LayerAttention,
        reach: Option<&Reach>,
    ) -> Result<()> {
        let places = (0..seen.n_tables(layer)).flat_map(|table| at.clone().map(move |i| (table, i)));
        let (n, n_keys) = (at.len(), at.end);
        let range = |(table, i)| match reach {
            Some(reach) => seen.within(reach, i),
            None => seen.range(layer, table, i),
        };
        let mut ranges = places.map(range);
        match *self {
            SeenInput::Runs(id) => exec.set(id, &ranges.flatten().collect::<Vec<_>>()),
            SeenInput::Landmark([id, cells, tables]) => {
                exec.set(id, &ranges.flatten().collect::<Vec<_>>())?;
                exec.set(cells, &(0..n_keys as i32).collect::<Vec<_>>())?;
                exec.set(tables, &vec![0i32; n])
            }
            SeenInput::Mask(id) => exec.fill(id, |mask: &mut [u16]| {
                for (row, run) in mask.chunks_exact_mut(n_keys).zip(&mut ranges) {
                    row.fill(F16_NEG_INF);
                    row[run[0] as usize..run[1] as usize].fill(0);
                }
            }),
        }
    }
}

/// Attention of one block of queries, in one of two ways: ops of our own, or ops every backend has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attend<'c> {
    own: bool,
    d: usize,
    n_head: usize,
    n_head_kv: usize,
    scoring: Scoring<'c>,
    n_keys: usize,
    seen: Tensor<'c>,
    /// Whether the halves of the heads see different keys.
    split: bool,
    landmark: Option<Landmark<'c>>,
}

/// Further operands of landmark attention: positions of a block, and where keys are.
#[derive(Debug, Clone, Copy)]
struct Landmark<'c> {
    block: usize,
    cells: Tensor<'c>,
    tables: Tensor<'c>,
}

impl<'c> Attend<'c> {
    /// For `n` queries of a layer, the last of `n_keys` tokens. `own`: in an op of our own; `split`: the halves of
    /// the heads see different keys.
    pub(super) fn new(
        b: &Builder<'c>,
        layer: &LayerAttention,
        sinks: Option<Tensor<'c>>,
        [own, split]: [bool; 2],
        n: usize,
        n_keys: usize,
    ) -> Result<(Self, SeenInput)> {
        let n_tables = 1 + usize::from(split);
        let (seen, id) = if own {
            let (id, t) = b.input("key_ranges", DType::I32, &[2, n, n_tables])?;
            (t, SeenInput::Runs(id))
        } else {
            let (id, t) = b.input("mask", DType::F16, &[n_keys, n, n_tables])?;
            (t, SeenInput::Mask(id))
        };
        let LayerAttention { n_head, n_head_kv, n_embd_head: d, scale, softcap, .. } = *layer;
        let scoring = Scoring { scale, softcap, sinks };
        let attend = Attend { own, d, n_head, n_head_kv, scoring, n_keys, seen, split, landmark: None };
        Ok((attend, id))
    }

    /// [`Attend::new`] with landmarks, for blocks of so many positions.
    pub(super) fn with_landmarks(
        b: &Builder<'c>,
        layer: &LayerAttention,
        block: usize,
        n: usize,
        n_keys: usize,
    ) -> Result<(Self, SeenInput)> {
        let (attend, runs) = Attend::new(b, layer, None, [true, false], n, n_keys)?;
        let SeenInput::Runs(runs) = runs else { return Ok((attend, runs)) };
        let (cells_id, cells) = b.input("positions", DType::I32, &[n_keys, 1])?;
        let (tables_id, tables) = b.input("tables", DType::I32, &[n])?;
        let landmark = Some(Landmark { block, cells, tables });
        Ok((Attend { landmark, ..attend }, SeenInput::Landmark([runs, cells_id, tables_id])))
    }

    /// The first `n_keys` rows of keys or values as heads: `[d, n_head_kv, n_keys]`.
    fn heads(&self, b: &Builder<'c>, all: Tensor<'c>) -> Result<Tensor<'c>> {
        b.view(
            all,
            [self.d, self.n_head_kv, self.n_keys, 1],
            [4 * self.d, all.nb()[1], all.nb()[1] * self.n_keys],
            0,
        )
    }

    /// One head of the same: `[d, n_keys]`.
    fn head(&self, b: &Builder<'c>, all: Tensor<'c>, head: usize) -> Result<Tensor<'c>> {
        let nb = all.nb();
        b.view(
            all,
            [self.d, self.n_keys, 1, 1],
            [nb[1], nb[1] * self.n_keys, nb[1] * self.n_keys],
            4 * self.d * head,
        )
    }

    /// Attention of rotated queries `[d, n_head, n]` over rows of keys and values: F32 `[d + 1, n_head, n]`.
    /// The last value of each head is the log-sum-exp of its scores, or unused where ops are not our own.
    pub(super) fn forward(
        &self,
        b: &Builder<'c>,
        q: Tensor<'c>,
        k: Tensor<'c>,
        v: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        if let Some(Landmark { block, cells, tables }) = self.landmark {
            let (k, v) = (self.heads(b, k)?, self.heads(b, v)?);
            let all = LandmarkAttention { q, k, v, cells, tables, key_ranges: self.seen };
            return b.landmark_attention(all, block, self.scoring.scale);
        }
        if self.own {
            return b.attention_lse(q, self.heads(b, k)?, self.heads(b, v)?, self.seen, self.scoring);
        }
        let mut heads: Option<Tensor<'c>> = None;
        for group in self.groups() {
            let values = transposed(b, self.head(b, v, group.kv)?)?;
            let mut chunks: Option<Tensor<'c>> = None;
            for chunk in self.chunks(q, &group) {
                let (_, p) = self.probabilities(b, chunk.of(b, self, q)?, k, &chunk)?;
                let o = b.reshape(b.mul_mat(values, p)?, &[self.d, chunk.n, group.heads.len()])?;
                let o = b.cont(b.permute(o, [0, 2, 1, 3])?)?;
                // In this order: else all chunks' scores would be there at once.
                b.expand(o);
                chunks = Some(chunks.map_or(Ok(o), |before| b.concat(before, o, 2))?);
            }
            heads = joined(b, heads, chunks, 1)?;
        }
        let out = heads.ok_or_else(nothing)?;
        // Room for the log-sum-exp, which this way does not need.
        let [_, n_head, n, _] = out.ne();
        let pad = b.view(out, [1, n_head, n, 1], [out.nb()[1], out.nb()[2], out.nb()[3]], 0)?;
        b.concat(out, b.cont(pad)?, 0)
    }

    /// The gradient of the queries, `[d, n_head, n]`, from the output of [`Attend::forward`] and the gradient `d_out`
    /// of its heads, of the same shape. Those of keys and values are added to `dk` and `dv`, all rows of them.
    ///
    /// The output may be that of more keys, to which these queries attended beside: see
    /// [`Builder::attention_merge`].
    #[allow(clippy::too_many_arguments)]
    pub(super) fn backward(
        &self,
        b: &Builder<'c>,
        q: Tensor<'c>,
        [k, v]: [Tensor<'c>; 2],
        out: Tensor<'c>,
        d_out: Tensor<'c>,
        [dk, dv]: [Tensor<'c>; 2],
    ) -> Result<Tensor<'c>> {
        if self.own {
            let (k, v, d_k, d_v) =
                (self.heads(b, k)?, self.heads(b, v)?, self.heads(b, dk)?, self.heads(b, dv)?);
            let all = AttentionBack { q, k, v, key_ranges: self.seen, o_lse: out, d_out, d_k, d_v };
            let q = match self.landmark {
                Some(Landmark { block, .. }) => b.landmark_attention_back(all, block, self.scoring.scale)?,
                None => b.attention_back(all, self.scoring)?,
            };
            // What is added to the stored gradients is read by nodes that come after this one.
            b.expand(q);
            return Ok(q);
        }
        let mut heads: Option<Tensor<'c>> = None;
        for group in self.groups() {
            let keys = transposed(b, self.head(b, k, group.kv)?)?;
            let mut chunks: Option<Tensor<'c>> = None;
            for chunk in self.chunks(q, &group) {
                let (q_h, d_h) = (chunk.of(b, self, q)?, chunk.of(b, self, d_out)?);
                let (s, p) = self.probabilities(b, q_h, k, &chunk)?;
                let d_p = b.mul_mat(self.head(b, v, group.kv)?, d_h)?;
                let d_s = b.soft_max_back(d_p, p, self.scoring.scale)?;
                let d_s = match self.scoring.softcap {
                    // The gradient of tanh(x) is 1 - tanh(x)^2.
                    Some(cap) => {
                        let part = b.tanh(b.scale(s, self.scoring.scale / cap)?)?;
                        b.sub(d_s, b.mul(d_s, b.mul(part, part)?)?)?
                    }
                    None => d_s,
                };
                let (p_t, s_t) = (transposed(b, p)?, transposed(b, d_s)?);
                let more_k = b.mul_mat(transposed(b, q_h)?, s_t)?;
                let more_v = b.mul_mat(transposed(b, d_h)?, p_t)?;
                b.expand(b.add_into(self.head(b, dk, group.kv)?, more_k)?);
                b.expand(b.add_into(self.head(b, dv, group.kv)?, more_v)?);
                let d_q = b.reshape(b.mul_mat(keys, d_s)?, &[self.d, chunk.n, group.heads.len()])?;
                let d_q = b.cont(b.permute(d_q, [0, 2, 1, 3])?)?;
                b.expand(d_q);
                chunks = Some(chunks.map_or(Ok(d_q), |before| b.concat(before, d_q, 2))?);
            }
            heads = joined(b, heads, chunks, 1)?;
        }
        heads.ok_or_else(nothing)
    }

    /// The query heads in groups that share a KV head and see the same keys, in their order.
    fn groups(&self) -> Vec<HeadGroup> {
        let n_rep = self.n_head / self.n_head_kv;
        let upper = if self.split { self.n_head / 2 } else { self.n_head };
        let of_kv = |kv: usize| {
            let (first, end) = (kv * n_rep, (kv + 1) * n_rep);
            let border = upper.clamp(first, end);
            [(first..border, 0), (border..end, 1)].map(|(heads, table)| HeadGroup { kv, heads, table })
        };
        (0..self.n_head_kv).flat_map(of_kv).filter(|group| !group.heads.is_empty()).collect()
    }

    /// The queries of a group in chunks whose scores take at most [`SCORE_BYTES`].
    fn chunks(&self, q: Tensor<'c>, group: &HeadGroup) -> Vec<QueryChunk> {
        let n = q.ne()[2];
        let most = (SCORE_BYTES / (4 * self.n_keys * group.heads.len()).max(1)).clamp(1, n);
        let chunk = |first: usize| QueryChunk { group: group.clone(), first, n: most.min(n - first) };
        (0..n).step_by(most).map(chunk).collect()
    }

    /// Products of keys with queries `[d, n * heads]`, and the softmax of the scores they become: `[n_keys, n *
    /// heads]` each.
    fn probabilities(
        &self,
        b: &Builder<'c>,
        q: Tensor<'c>,
        k: Tensor<'c>,
        QueryChunk { group, first, n }: &QueryChunk,
    ) -> Result<(Tensor<'c>, Tensor<'c>)> {
        let products = b.mul_mat(self.head(b, k, group.kv)?, q)?;
        let s = b.reshape(products, &[self.n_keys, *n, group.heads.len()])?;
        let [_, row, table, _] = self.seen.nb();
        let offset = row * first + table * group.table;
        let mask = b.view(self.seen, [self.n_keys, *n, 1, 1], [row, row * n, row * n], offset)?;
        let of_heads = |sinks| b.columns(sinks, group.heads.start, group.heads.len());
        let sinks = self.scoring.sinks.map(of_heads).transpose()?;
        let p = b.soft_max(s, mask, Scoring { sinks, ..self.scoring })?;
        Ok((products, b.reshape(p, &[self.n_keys, n * group.heads.len()])?))
    }
}

/// Query heads that share a KV head and see the same keys.
#[derive(Debug, Clone)]
struct HeadGroup {
    kv: usize,
    heads: Range<usize>,
    /// Their table of [`SeenInput`].
    table: usize,
}

struct QueryChunk {
    group: HeadGroup,
    first: usize,
    n: usize,
}

impl QueryChunk {
    /// The queries (or gradients) `[d, n_head, n]` of the group's heads, as `[d, n * heads]`, tokens fastest.
    fn of<'c>(&self, b: &Builder<'c>, a: &Attend<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let (nb, heads) = (x.nb(), &self.group.heads);
        let offset = heads.start * nb[1] + self.first * nb[2];
        let view = b.view(x, [a.d, heads.len(), self.n, 1], [nb[1], nb[2], nb[2] * self.n], offset)?;
        b.reshape(b.cont(b.permute(view, [0, 2, 1, 3])?)?, &[a.d, self.n * heads.len()])
    }
}

fn transposed<'c>(b: &Builder<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
    b.cont(b.permute(x, [1, 0, 2, 3])?)
}

fn joined<'c>(
    b: &Builder<'c>,
    before: Option<Tensor<'c>>,
    more: Option<Tensor<'c>>,
    dim: usize,
) -> Result<Option<Tensor<'c>>> {
    match (before, more) {
        (Some(a), Some(c)) => Ok(Some(b.concat(a, c, dim)?)),
        (a, c) => Ok(a.or(c)),
    }
}

fn nothing() -> ggml::Error {
    ggml::Error::Op { op: "attention", what: "expected at least one head, found none".into() }
}
