//! Attention of one layer in blocks of queries, forward and backward; no tensor is tokens x tokens.
//!
//! The forward pass runs blocks first to last, and each adds its keys and values. The backward pass runs last to first,
//! so all later queries have already added to the gradients of a block's keys and values.

use std::ops::Range;

use ggml::attention::{AttentionBranch, Scoring};
use ggml::attention_landmark::LandmarkAttention;
use ggml::attention_train::{AttentionBack, TrainScoring};
use ggml::graph::{Builder, Executor, InputId};
use ggml::matmul::Kernel;
use ggml::tensor::Tensor;
use ggml::{DType, Error, Result};

use super::seen::Seen;
use crate::graph::{middle_and_half, reduce, Online, Part, Places, MAX_PLACE, TILE_BYTES};
use crate::hparams::LayerAttention;
use crate::rope::Reach;

/// The input that says which keys each query of a block sees: one range of positions each, or two, of the lower
/// and of the upper half of its heads. It is also the way that attention takes.
#[derive(Debug, Clone, Copy)]
pub(super) enum SeenInput {
    /// I32 `[2, n]` or `[2, n, 2]`: the first key, and the one after the last.
    Runs(InputId),
    /// The same ranges for ops that are not our own; keys are in the order of positions.
    Places(Places),
    /// I32 `[2, n]` as for runs, `[n_keys]` and `[n]`: keys are in the order of positions, in one table. Then the
    /// number of positions in a block.
    Landmark([InputId; 3], usize),
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
        let range =
            |(table, i)| reach.map_or_else(|| seen.range(layer, table, i), |reach| seen.within(reach, i));
        let ranges = places.map(range);
        match *self {
            SeenInput::Runs(id) => exec.set(id, &ranges.flatten().collect::<Vec<_>>()),
            SeenInput::Landmark([id, cells, tables], _) => {
                exec.set(id, &ranges.flatten().collect::<Vec<_>>())?;
                exec.set(cells, &(0..n_keys as i32).collect::<Vec<_>>())?;
                exec.set(tables, &vec![0i32; n])
            }
            SeenInput::Places(_) if n_keys > MAX_PLACE => {
                let what = format!("{n_keys} tokens, but portable attention supports at most {MAX_PLACE}");
                Err(Error::Op { op: "attention", what })
            }
            SeenInput::Places(Places { keys, tables, ranges: id }) => {
                exec.fill(keys, |keys: &mut [f32]| {
                    keys.iter_mut().enumerate().for_each(|(i, key)| *key = i as f32);
                })?;
                exec.set(tables, &vec![0i32; n])?;
                let numbers: Vec<[f32; 2]> = ranges.map(|[a, b]| middle_and_half(a..b)).collect();
                let of_table = |of: &[[f32; 2]]| {
                    let column = |i: usize| of.iter().map(move |pair| pair[i]).collect::<Vec<_>>();
                    [column(0), column(1)].concat()
                };
                exec.set(id, &numbers.chunks(n).flat_map(of_table).collect::<Vec<_>>())
            }
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// In ops of our own.
    pub(super) own: bool,
    /// The kernel of their products.
    pub(super) kernel: Kernel,
    /// The halves of the heads see different keys.
    pub(super) split: bool,
    /// Under landmark attention, positions of a block.
    pub(super) block: Option<usize>,
}

/// Attention of one block of queries, in one of two ways: ops of our own, or ops every backend has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attend<'c> {
    d: usize,
    n_head: usize,
    n_head_kv: usize,
    scoring: Scoring<'c>,
    how: How,
    n_keys: usize,
    pub(super) seen: SeenInput,
}

impl<'c> Attend<'c> {
    /// For `n` queries of a layer, the last of `n_keys` tokens.
    pub(super) fn new(
        b: &Builder<'c>,
        layer: &LayerAttention,
        sinks: Option<Tensor<'c>>,
        how: How,
        n: usize,
        n_keys: usize,
    ) -> Result<Self> {
        let n_tables = 1 + usize::from(how.split);
        let seen = if how.own {
            let (runs, _) = b.input("key_ranges", DType::I32, &[2, n, n_tables])?;
            match how.block {
                None => SeenInput::Runs(runs),
                Some(block) => {
                    let (cells, _) = b.input("positions", DType::I32, &[n_keys, 1])?;
                    let (tables, _) = b.input("tables", DType::I32, &[n])?;
                    SeenInput::Landmark([runs, cells, tables], block)
                }
            }
        } else {
            SeenInput::Places(Places::new(b, [n_keys, 1], n, n_tables)?)
        };
        let LayerAttention { n_head, n_head_kv, n_embd_head: d, scale, softcap, .. } = *layer;
        let scoring = Scoring { scale, softcap, sinks };
        Ok(Attend { d, n_head, n_head_kv, scoring, how, n_keys, seen })
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

    fn scoring(&self) -> TrainScoring<'c> {
        TrainScoring { scoring: self.scoring, kernel: self.how.kernel }
    }

    /// Attention of rotated queries `[d, n_head, n]` over rows of keys and values: F32 `[d + 1, n_head, n]`.
    /// The last value of each head is the log-sum-exp of its scores.
    pub(super) fn forward(
        &self,
        b: &Builder<'c>,
        q: Tensor<'c>,
        k: Tensor<'c>,
        v: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let seen = match self.seen {
            SeenInput::Places(seen) => seen,
            SeenInput::Runs(id) => {
                let (k, v) = (self.heads(b, k)?, self.heads(b, v)?);
                return b.attention_lse(q, k, v, b.given(id)?, self.scoring());
            }
            SeenInput::Landmark([key_ranges, cells, tables], block) => {
                let (k, v) = (self.heads(b, k)?, self.heads(b, v)?);
                let (key_ranges, cells, tables) = (b.given(key_ranges)?, b.given(cells)?, b.given(tables)?);
                let all = LandmarkAttention { q, k, v, cells, tables, key_ranges };
                return b.landmark_attention(all, block, self.scoring.scale, None);
            }
        };
        let of_group = |group: HeadGroup| {
            let part = self.part(b, &group, [q, k, v])?;
            self.online(b, seen, &group)?.forward(&[part])?.heads_lse(b)
        };
        reduce(self.groups().into_iter().map(of_group), |all, more| b.concat(all, more, 1))
    }

    /// The gradient of the queries, `[d, n_head, n]`, from the output of [`Attend::forward`] and the gradient `d_out`
    /// of its heads, of the same shape. Those of keys and values are added to `dk` and `dv`, all rows of them.
    ///
    /// The output can include other keys that these queries attended to: see [`Builder::attention_merge`].
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
        let seen = match self.seen {
            SeenInput::Places(seen) => seen,
            SeenInput::Runs(key_ranges) | SeenInput::Landmark([key_ranges, ..], _) => {
                let key_ranges = b.given(key_ranges)?;
                let (k, v, d_k, d_v) =
                    (self.heads(b, k)?, self.heads(b, v)?, self.heads(b, dk)?, self.heads(b, dv)?);
                let all = AttentionBack { q, k, v, key_ranges, o_lse: out, d_out, d_k, d_v };
                let q = match self.how.block {
                    Some(block) => b.landmark_attention_back(all, block, self.scoring.scale)?,
                    None => b.attention_back(all, self.scoring())?,
                };
                // What is added to the stored gradients is read by nodes that come after this one.
                b.expand(q);
                return Ok(q);
            }
        };
        let of_group = |group: HeadGroup| {
            let part = self.part(b, &group, [q, k, v])?;
            let [out, d_out] = [out, d_out].map(|x| heads_of(b, x, &group.heads));
            let below = [self.keys(b, dk, &group)?, self.keys(b, dv, &group)?];
            self.online(b, seen, &group)?.backward(&part, out?, d_out?, below)
        };
        reduce(self.groups().into_iter().map(of_group), |all, more| b.concat(all, more, 1))
    }

    /// The query heads in groups that see the same keys and share as many of them, in their order.
    fn groups(&self) -> Vec<HeadGroup> {
        let half = if self.how.split { self.n_head / 2 } else { self.n_head };
        let of_half = |(heads, table)| of_whole_kv_heads(heads, self.n_head / self.n_head_kv.max(1), table);
        [(0..half, 0), (half..self.n_head, 1)].into_iter().flat_map(of_half).collect()
    }

    fn part(&self, b: &Builder<'c>, group: &HeadGroup, [q, k, v]: [Tensor<'c>; 3]) -> Result<Part<'c>> {
        let q = heads_of(b, q, &group.heads)?;
        let branch = AttentionBranch { q, k: self.keys(b, k, group)?, v: self.keys(b, v, group)? };
        Ok(Part { branch, first: 0, range: group.table })
    }

    fn online<'a>(&self, b: &'a Builder<'c>, seen: Places, group: &HeadGroup) -> Result<Online<'a, 'c>> {
        let of_heads = |sinks| b.columns(sinks, group.heads.start, group.heads.len());
        let sinks = self.scoring.sinks.map(of_heads).transpose()?;
        Ok(Online { b, seen, scoring: Scoring { sinks, ..self.scoring }, tile_bytes: TILE_BYTES })
    }

    /// The first `n_keys` rows of keys, of values or of their gradients as heads of a group: `[d, n_keys, n_heads]`.
    fn keys(&self, b: &Builder<'c>, all: Tensor<'c>, group: &HeadGroup) -> Result<Tensor<'c>> {
        let (row, head) = (all.nb()[1], 4 * self.d);
        let ne = [self.d, self.n_keys, group.kv.len(), 1];
        b.view(all, ne, [row, head, head * group.kv.len()], head * group.kv.start)
    }
}

/// Query heads that see the same keys, as many for each of their KV heads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeadGroup {
    pub(super) heads: Range<usize>,
    pub(super) kv: Range<usize>,
    /// Their range in [`SeenInput`].
    pub(super) table: usize,
}

/// Query heads, of which `n_rep` each share a KV head: those of whole KV heads, and what is left at both ends.
pub(super) fn of_whole_kv_heads(heads: Range<usize>, n_rep: usize, table: usize) -> Vec<HeadGroup> {
    let whole = (heads.start.next_multiple_of(n_rep)).min(heads.end);
    let end = (heads.end / n_rep * n_rep).max(whole);
    let group =
        |heads: Range<usize>| HeadGroup { kv: heads.start / n_rep..heads.end.div_ceil(n_rep), heads, table };
    let parts = [heads.start..whole, whole..end, end..heads.end];
    parts.into_iter().filter(|heads| !heads.is_empty()).map(group).collect()
}

/// Some heads of `[d, n_head, n]`.
fn heads_of<'c>(b: &Builder<'c>, x: Tensor<'c>, heads: &Range<usize>) -> Result<Tensor<'c>> {
    let (ne, nb) = (x.ne(), x.nb());
    b.view(x, [ne[0], heads.len(), ne[2], 1], [nb[1], nb[2], nb[2] * ne[2]], nb[1] * heads.start)
}
