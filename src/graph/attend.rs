//! Attention through the cache: keys and values are stored, then one softmax is taken over the keys of every
//! branch.

use std::cell::RefCell;
use std::ops::Range;

use ggml::attention::{placed_shape, AttentionBranch, Scoring};
use ggml::attention_landmark::{LandmarkAttention, TopBlocks};
use ggml::graph::{Builder, InputId};
use ggml::tensor::{StoreTensor, Tensor};
use ggml::{DType, Error, Result};

use super::delta_net::{DeltaInputs, Recurrence};
use super::online::{self, Online, Part, Places, Single};
use super::rotate::Rotation;
use super::{n_columns, Capabilities, Graph, Mixing, Pairing, ProbedQueries, Qkv, Shape, Spans, TableShape};
use crate::hparams::{Hparams, LayerAttention};
use crate::kv::{KvCache, Span};
use crate::rope::{Branch, LayerPlan, Plan, PosMap};
use crate::states::States;

/// Inputs of a graph that attends through a cache.
#[derive(Debug, Clone)]
pub struct GraphInputs {
    /// F32 `[n_embd, n_tokens]`.
    pub embd: InputId,
    /// I64 `[n_tokens]`: the cell each token's key goes to.
    pub cells: InputId,
    pub starts: Option<StartInputs>,
    pub kinds: Vec<KindInputs>,
    pub delta: Option<DeltaInputs>,
    /// I32 `[n_out]`: tokens whose logits are wanted, when not all are.
    pub out_ids: Option<InputId>,
}

/// The tokens that are cached once more, as first positions.
#[derive(Debug, Clone, Copy)]
pub struct StartInputs {
    /// I32 `[n_starts]`: their numbers.
    pub tokens: InputId,
    /// I64 `[n_starts]`: the cells their keys go to.
    pub cells: InputId,
}

#[derive(Debug, Clone)]
pub struct KindInputs {
    pub seen: SeenInputs,
    pub rotation: Rotation,
    /// F32 `[n_rot, n_tables, blocks]`, where query heads take some of the blocks before them: what [`super::turns`]
    /// gives.
    pub turns: Option<InputId>,
}

/// The inputs that say which keys tokens see.
#[derive(Debug, Clone, Copy)]
pub enum SeenInputs {
    /// F16 `[n_columns, n_tokens]`: 0 where a token sees a cell through the column's branch, elsewhere -inf, or, for a single
    /// token in several branches on a device, [`super::UNSEEN`]. After it the cells of its columns and its index
    /// ([`placed_shape`]), where attention is our own op.
    Mask(InputId),
    /// Under landmark attention: see [`LandmarkAttention`].
    Tables {
        /// I32 `[n_positions, n_tables]`: the cell of each position of a sequence.
        cells: InputId,
        /// I32 `[n_tokens]`: the table of each token.
        tables: InputId,
        /// I32 `[2, n_tokens]`: the positions it sees.
        key_ranges: InputId,
    },
    /// Where attention goes tile by tile: a table for each sequence, a range for each branch with keys, whose cells are side
    /// by side.
    Places(Places),
}

/// Attention through a cache, its inputs declared.
#[derive(Debug)]
pub struct Cached<'a, 'c> {
    hp: &'a Hparams,
    kv: &'a KvCache,
    n_tokens: usize,
    kinds: Vec<KindAttention<'a, 'c>>,
    recurrence: Option<Recurrence<'a>>,
    inputs: GraphInputs,
    probed: Range<usize>,
    queries: RefCell<Vec<ProbedQueries>>,
}

#[derive(Debug)]
struct KindAttention<'a, 'c> {
    layer: &'a LayerAttention,
    branches: &'a [Branch],
    /// Maps of key positions, and whether keys under them are cached of first positions only.
    key_maps: Vec<(PosMap, bool)>,
    spans: Spans,
    /// The mask in F32, for a single token in several branches on a device.
    mask_f32: Option<Tensor<'c>>,
    /// Positions of a block, under landmark attention.
    block: usize,
    /// Under landmark attention, where query heads do not see all blocks.
    top: Option<TopBlocks<'c>>,
}

impl<'a, 'c> Cached<'a, 'c> {
    /// Declares the inputs of a graph. Returns also the embedded tokens, F32 `[n_embd, n_tokens]`.
    pub fn new(
        g: &Graph<'a, 'c>,
        hp: &'a Hparams,
        (kv, states): (&'a KvCache, Option<&'a States>),
        plan: &'a Plan,
        pairing: Pairing,
        shape: &Shape,
    ) -> Result<(Self, Tensor<'c>)> {
        let (b, n_tokens) = (g.b, shape.n_tokens);
        let (embd, x) = b.input("embd", DType::F32, &[hp.n_embd, n_tokens])?;
        let (cells, _) = b.input("cells", DType::I64, &[n_tokens])?;
        let starts = start_inputs(b, shape.n_starts)?;
        let (mut kinds, mut inputs) = (Vec::new(), Vec::new());
        for ((layer, plan), &spans) in hp.attention.iter().zip(plan.kinds()).zip(&shape.spans) {
            let seen = seen_inputs(g, shape, &spans)?;
            let of_starts = |map| (map, kv.of_starts(plan, map));
            let key_maps: Vec<(PosMap, bool)> = plan.key_maps().into_iter().map(of_starts).collect();
            let rotated = key_maps.iter().filter(|(_, of_starts)| !of_starts || starts.is_some());
            let used = plan.branches.iter().zip(&spans).filter(|(_, span)| span.len > 0);
            let block = shape.tables.map_or(0, |tables| tables.block);
            let (turns, top) = top_blocks(g, plan, pairing, shape)?.unzip();
            let maps = rotated.map(|(map, _)| *map).chain(used.map(|(branch, _)| branch.q_pos));
            let by_table = g.capabilities.custom_ops;
            let rotation = Rotation::new(b, layer, plan, pairing, n_tokens, by_table, maps)?;
            let mask_f32 = match seen {
                SeenInputs::Mask(mask) if is_single(g.capabilities, &spans, n_tokens) => {
                    Some(b.to_f32(b.given(mask)?)?)
                }
                _ => None,
            };
            let branches = &plan.branches;
            kinds.push(KindAttention { layer, branches, key_maps, spans, mask_f32, block, top });
            inputs.push(KindInputs { seen, rotation, turns: turns.flatten() });
        }
        let recurrence = hp
            .delta_net
            .zip(states)
            .map(|(net, states)| Recurrence::new(g, net, states, shape.groups, n_tokens));
        let recurrence = recurrence.transpose()?;
        let wanted = (shape.n_out > 0 && shape.n_out < n_tokens)
            .then(|| b.input("out_ids", DType::I32, &[shape.n_out]))
            .transpose()?;
        let (out_ids, delta) = (wanted.map(|(id, _)| id), recurrence.as_ref().map(|r| r.inputs));
        let inputs = GraphInputs { embd, cells, starts, kinds: inputs, delta, out_ids };
        let (probed, queries) = (shape.probed.clone(), RefCell::default());
        Ok((Cached { hp, kv, n_tokens, kinds, recurrence, inputs, probed, queries }, x))
    }

    /// Upper bound of the tensors that attention in ops of every backend adds to a graph of this shape.
    pub fn n_tensors_of_branches(hp: &Hparams, can: Capabilities, shape: &Shape) -> usize {
        let of_layer = |il: usize| {
            let spans = shape.spans.get(hp.layers.get(il)?.kind?)?;
            if is_single(can, spans, shape.n_tokens) {
                return Some(online::n_tensors_of_single(n_used(spans)));
            }
            let n_rows = hp.attention_of(il)?.n_head * shape.n_tokens;
            let n_keys = spans.iter().map(|span| span.len);
            in_tiles(can, spans, shape.n_tokens).then(|| online::n_tensors(n_rows, n_keys))
        };
        (0..hp.n_layer).filter_map(of_layer).sum()
    }

    /// The inputs, and the outputs that show queries, once the graph is built.
    pub fn into_ids(self) -> (GraphInputs, Vec<ProbedQueries>) {
        (self.inputs, self.queries.into_inner())
    }

    /// Selects the tokens whose logits are wanted, in the last layer; elsewhere returns `x` as it is. To be
    /// called once the layer's keys and values are stored.
    pub fn wanted(&self, g: &Graph<'a, 'c>, x: Tensor<'c>, il: usize) -> Result<Tensor<'c>> {
        match self.inputs.out_ids {
            Some(ids) if il + 1 == self.hp.n_layer => g.b.get_rows(x, g.b.given(ids)?),
            _ => Ok(x),
        }
    }

    /// Mixes the tokens of a layer: attention, or the states of a recurrent layer moved on, F32
    /// `[n_embd_v, T]`.
    pub fn mix(
        &self,
        g: &Graph<'a, 'c>,
        mixing: Mixing<'_, 'c>,
        sinks: Option<&StoreTensor>,
        il: usize,
    ) -> Result<Tensor<'c>> {
        match (mixing, &self.recurrence) {
            (Mixing::Attention(qkv), _) => self.attend(g, qkv, sinks, il),
            (Mixing::DeltaNet(net, x), Some(recurrence)) => recurrence.apply(g, net, x, il),
            (Mixing::DeltaNet(..), None) => {
                let what = format!("layer {il} is one, and there are no states");
                Err(Error::Op { op: "gated delta-net", what })
            }
        }
    }

    /// Stores those of rows F32 `[n_head_kv * d, T]` that are of first positions, where there are some.
    fn store_starts(&self, b: &Builder<'c>, to: Tensor<'c>, rows: Tensor<'c>) -> Result<Tensor<'c>> {
        let Some(StartInputs { tokens, cells }) = self.inputs.starts else { return Ok(to) };
        b.set_rows(to, b.get_rows(rows, b.given(tokens)?)?, b.given(cells)?)
    }

    /// Rotates queries and keys, stores keys and values in the cache, and attends: q `[n_head * d, T]`, k and
    /// v `[n_head_kv * d, T]` (their rows may be strided) to `[n_head * d, T]`. `sinks`: of the layer, F32 `[n_head]`.
    fn attend(
        &self,
        g: &Graph<'a, 'c>,
        Qkv { q, k, v, gate }: Qkv<'c>,
        sinks: Option<&StoreTensor>,
        il: usize,
    ) -> Result<Tensor<'c>> {
        let (b, n) = (g.b, self.n_tokens);
        let no_layer = || Error::Op { op: "attention", what: format!("the model has no layer {il}") };
        let record = self.hp.layers.get(il).ok_or_else(no_layer)?;
        let of_kind = |kind: usize| self.kinds.get(kind).zip(self.inputs.kinds.get(kind));
        let (kind, inputs) = record.kind.and_then(of_kind).ok_or_else(no_layer)?;
        let (rotation, cells) = (&inputs.rotation, b.given(self.inputs.cells)?);
        let LayerAttention { n_head, n_head_kv, n_embd_head: d, scale, softcap, .. } = *kind.layer;
        let sinks = sinks.map(|sinks| b.stored(sinks)).transpose()?;
        let scoring = Scoring { scale, softcap, sinks };
        let heads = |x: Tensor<'c>, n_heads: usize| {
            b.view(x, [d, n_heads, n, 1], [4 * d, x.nb()[1], x.nb()[1] * n], 0)
        };
        let (q, k) = (heads(q, n_head)?, heads(k, n_head_kv)?);
        let mut keys = Vec::with_capacity(kind.key_maps.len());
        for (i, &(map, of_starts)) in kind.key_maps.iter().enumerate() {
            let stored = b.stored(&self.kv.k(il, i))?;
            if of_starts && self.inputs.starts.is_none() {
                // No token here is among the first ones: these keys are only read.
                keys.push(stored);
                continue;
            }
            let k = rotation.keys(b, k, map)?;
            b.name(k, &format!("k_rope-{il}"));
            let rows = b.reshape(k, &[d * n_head_kv, n])?;
            keys.push(match of_starts {
                true => self.store_starts(b, stored, rows)?,
                false => b.set_rows(stored, rows, cells)?,
            });
        }
        let start_values =
            self.kv.start_values(il).map(|t| self.store_starts(b, b.stored(&t)?, v)).transpose()?;
        let v = b.set_rows(b.stored(&self.kv.v(il))?, v, cells)?;
        keys.iter().copied().chain([v]).chain(start_values).for_each(|t| b.expand(t));
        let cached = |t: Tensor<'c>, start: usize, len: usize| {
            let head = t.dtype().row_bytes(d).unwrap_or(0);
            b.view(t, [d, len, n_head_kv, 1], [t.nb()[1], head, t.nb()[2]], start * t.nb()[1])
        };
        let used = || kind.branches.iter().zip(&kind.spans).enumerate().filter(|(_, (_, s))| s.len > 0);
        let part = |(i, (branch, span)): (usize, (&Branch, &Span))| {
            let q = rotation.queries(b, q, branch.q_pos)?;
            b.name(q, &format!("q_rope-{il}"));
            if self.probed.contains(&il) {
                self.queries.borrow_mut().push(ProbedQueries { layer: il, branch: i, output: b.output(q) });
            }
            let at = kind.key_maps.iter().position(|(map, _)| *map == branch.k_pos).unwrap_or(0);
            let k = cached(keys[at], span.start, span.len)?;
            let v = start_values.filter(|_| kind.key_maps[at].1).unwrap_or(v);
            Ok(AttentionBranch { q, k, v: cached(v, span.start, span.len)? })
        };
        let parts = || used().map(part).collect::<Result<Vec<_>>>();
        let out = match inputs.seen {
            SeenInputs::Mask(mask) => {
                let mask = b.given(mask)?;
                match (&parts()?[..], kind.mask_f32) {
                    (parts, Some(mask_f32)) => {
                        Single { b, mask, mask_f32, scoring }.forward(&side_by_side(parts))?
                    }
                    (&[AttentionBranch { q, k, v }], _) if !g.capabilities.branched_attention() => {
                        b.flash_attn(b.permute(q, [0, 2, 1, 3])?, k, v, mask, scoring)?
                    }
                    (parts, _) => {
                        let columns: Vec<usize> = used().map(|(_, (_, span))| span.columns).collect();
                        b.placed_attention(parts, &columns, mask, scoring)?
                    }
                }
            }
            SeenInputs::Places(seen) => {
                let online = Online { b, seen, scoring, tile_bytes: online::TILE_BYTES };
                online.forward(&side_by_side(&parts()?))?.heads(b)?
            }
            SeenInputs::Tables { cells, tables, key_ranges } => {
                let rows = |t: Tensor<'c>| {
                    let (head, n_cells) = (t.dtype().row_bytes(d).unwrap_or(0), t.ne()[1]);
                    b.view(t, [d, n_head_kv, n_cells, 1], [head, t.nb()[1], t.nb()[2]], 0)
                };
                let key = keys.first().copied().ok_or_else(no_layer)?;
                let q = rotation.queries(b, q, PosMap::IDENTITY)?;
                let (cells, tables) = (b.given(cells)?, b.given(tables)?);
                let key_ranges = b.given(key_ranges)?;
                let all = LandmarkAttention { q, k: rows(key)?, v: rows(v)?, cells, tables, key_ranges };
                let out = b.landmark_attention(all, kind.block, scale, kind.top)?;
                b.cont(b.columns(out, 0, d)?)?
            }
        };
        let out = b.reshape(out, &[d * n_head, n])?;
        gate.map_or(Ok(out), |gate| g.gated(out, gate))
    }
}

/// Declares the inputs that say which tokens are cached once more.
fn start_inputs(b: &Builder<'_>, n: usize) -> Result<Option<StartInputs>> {
    if n == 0 {
        return Ok(None);
    }
    let (tokens, _) = b.input("start_tokens", DType::I32, &[n])?;
    let (cells, _) = b.input("start_cells", DType::I64, &[n])?;
    Ok(Some(StartInputs { tokens, cells }))
}

/// Declares the input with which layers of one kind move blocks, if query heads select some of them.
fn top_blocks<'c>(
    g: &Graph<'_, 'c>,
    plan: &LayerPlan,
    pairing: Pairing,
    shape: &Shape,
) -> Result<Option<(Option<InputId>, TopBlocks<'c>)>> {
    let Some(TableShape { block, n_positions, top: Some((top, piece)), .. }) = shape.tables else {
        return Ok(None);
    };
    let ne = [plan.freqs.n_rot(), plan.freqs.n_tables, n_positions.div_ceil(block)];
    let turns = (ne[0] > 0).then(|| g.b.input("turns", DType::F32, &ne)).transpose()?;
    let (id, turns) = turns.unzip();
    Ok(Some((id, TopBlocks { top, piece, turns, neox: pairing == Pairing::Halves })))
}

fn n_used(spans: &Spans) -> usize {
    spans.iter().filter(|span| span.len > 0).count()
}

/// Returns true if a single token sees cells through several branches, on a device with flash attention; see
/// [`Single`].
pub(crate) fn is_single(can: Capabilities, spans: &Spans, n_tokens: usize) -> bool {
    can.flash && can.single && n_tokens == 1 && n_used(spans) > 1
}

/// Returns true if attention to these cells runs tile by tile: ggml's own op has one branch, and ours runs on the CPU.
fn in_tiles(can: Capabilities, spans: &Spans, n_tokens: usize) -> bool {
    let one_op = can.branched_attention() || can.flash && n_used(spans) == 1;
    !(one_op || is_single(can, spans, n_tokens))
}

/// Branches as parts whose keys follow one another.
fn side_by_side<'c>(branches: &[AttentionBranch<'c>]) -> Vec<Part<'c>> {
    let mut first = 0;
    let part = |(range, &branch): (usize, &AttentionBranch<'c>)| {
        let part = Part { branch, first, range };
        first += branch.k.ne()[1];
        part
    };
    branches.iter().enumerate().map(part).collect()
}

/// Declares the inputs that say which keys tokens see in layers of one kind.
fn seen_inputs(g: &Graph<'_, '_>, shape: &Shape, spans: &Spans) -> Result<SeenInputs> {
    let (b, n_tokens) = (g.b, shape.n_tokens);
    let Some(TableShape { n_positions, n_tables, .. }) = shape.tables else {
        let columns = n_columns(spans);
        if in_tiles(g.capabilities, spans, n_tokens) {
            return Places::new(b, [columns, shape.n_seqs], n_tokens, n_used(spans)).map(SeenInputs::Places);
        }
        // Only our own op wants more after the mask.
        let placed = g.capabilities.branched_attention() && columns > 0;
        let ne = if placed { placed_shape(columns, n_tokens)? } else { [columns, n_tokens] };
        return Ok(SeenInputs::Mask(b.input("mask", DType::F16, &ne)?.0));
    };
    let (cells, _) = b.input("positions", DType::I32, &[n_positions, n_tables])?;
    let (tables, _) = b.input("tables", DType::I32, &[n_tokens])?;
    let (key_ranges, _) = b.input("key_ranges", DType::I32, &[2, n_tokens])?;
    Ok(SeenInputs::Tables { cells, tables, key_ranges })
}
