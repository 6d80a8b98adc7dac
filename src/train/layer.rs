//! The graphs of one layer over one block of tokens: forwards, its keys and values alone, and backwards.

use std::ops::Range;

use ggml::graph::{Builder, InputId, OutputId};
use ggml::tensor::{StoreTensor, Tensor};
use ggml::{DType, Error, Result};

use super::attention::{Attend, How, SeenInput};
use super::cache::{Cache, LayerCache, Stored};
use super::delta_net::StateCache;
use super::params::{store, ParamSet};
use super::saved::{self, Activation, Checkpointing};
use super::settings::TrainParams;
use super::{clex, memory, seen};
use crate::arch::Transformer;
use crate::graph::{
    n_tensors_of_tiles, reduce, Capabilities, Gradient, Graph, Mixing, Qkv, Recording, Rotation,
    SavedActivation,
};
use crate::hparams::{Hparams, LayerAttention};
use crate::ids::{LinearId, ParamId};
use crate::landmark::Landmarks;
use crate::model::Model;
use crate::rope::{Branch, LayerPlan, Plan, PosMap};

#[derive(Debug)]
pub(super) struct Setup {
    pub(super) model: Model,
    /// With `n_block` at most the context.
    pub(super) settings: TrainParams,
    pub(super) plan: Plan,
    pub(super) params: ParamSet,
    /// The model's layers with the trained tensors in them.
    pub(super) transformer: Transformer,
    pub(super) cache: Cache,
    pub(super) states: Option<StateCache>,
    pub(super) capabilities: Capabilities,
}

impl Setup {
    /// If `planned`, tensors have no memory, for graphs that are measured.
    pub(super) fn new(
        model: &Model,
        settings: &TrainParams,
        planned: bool,
    ) -> Result<Setup, crate::model::Error> {
        let (hp, n) = (model.hparams(), settings.attention.n_positions(settings.n_ctx));
        let settings = TrainParams { n_block: settings.n_block.min(n), ..settings.clone() };
        let plan = memory::plan(model, &settings)?;
        let clex = clex::shape(&plan, hp)?;
        let params = ParamSet::with_added(model, &settings.trainable, settings.attention, clex, planned)?;
        let transformer = model.with_adapter(params.adapter())?;
        let store = |what| move |defs| store(model.backend_device(), defs, what, planned);
        let cache = Cache::new(hp, &plan, n, store("keys and values in training"))?;
        let states = StateCache::new(hp, [n, settings.n_block], store("states in training"))?;
        let capabilities = memory::capabilities(model, &settings);
        Ok(Setup { model: model.clone(), settings, plan, params, transformer, cache, states, capabilities })
    }
}

/// State that all graphs of a training step share.
#[derive(Clone, Copy)]
pub(super) struct Ctx<'a> {
    pub(super) setup: &'a Setup,
    /// The plan of the sequence at hand.
    pub(super) plan: &'a Plan,
    pub(super) checkpointing: Checkpointing,
    /// True in training steps, which have dropout.
    pub(super) training: bool,
    /// True if sequences are cut into groups: shifted sparse attention.
    pub(super) grouped: bool,
    /// True if the frequencies of the layers that the plan's method acts on are trained.
    pub(super) trains_angles: bool,
}

/// A layer and some of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) il: usize,
    /// Position of the first token.
    pub(super) start: usize,
    pub(super) n: usize,
}

impl Block {
    pub(super) fn end(&self) -> usize {
        self.start + self.n
    }
}

#[derive(Debug, Default)]
pub(super) struct LayerIds {
    /// F32 `[n_embd, n]`: the layer's input.
    pub(super) x: Option<InputId>,
    /// F32 `[n_embd, n]`: the gradient of the layer's output, in a backward run.
    pub(super) d_y: Option<InputId>,
    /// I64 `[n]`: rows of the cache.
    pub(super) cells: Option<InputId>,
    pub(super) rotation: Option<Rotation>,
    pub(super) seen: Vec<SeenInput>,
    /// I32 `[n]`: in a recurrent layer, for each token how many of its document come before it.
    pub(super) past: Option<InputId>,
    /// I64 `[1]` each: rows of tensors of states, and which.
    pub(super) state_rows: Vec<(InputId, usize)>,
    pub(super) saved: Vec<(Activation, SavedActivation)>,
    pub(super) dropout_masks: Vec<(LinearId, InputId)>,
    pub(super) row_ids: Vec<(Range<usize>, InputId)>,
    /// F32 `[n_rot/2, heads, n]`: the gradients of the angles of queries and of keys, where frequencies are trained.
    pub(super) angles: Vec<OutputId>,
    /// The layer's output, or the gradient of its input.
    pub(super) out: Option<OutputId>,
}

/// The attention of a layer and its plan.
pub(super) fn attention<'a>(
    hp: &'a Hparams,
    plan: &'a Plan,
    il: usize,
) -> Result<(&'a LayerAttention, &'a LayerPlan)> {
    hp.attention_of(il).zip(plan.of_layer(il)).ok_or_else(no_attention)
}

fn qkv<'c>(mixing: Mixing<'_, 'c>) -> Result<Qkv<'c>> {
    match mixing {
        Mixing::Attention(qkv) => Ok(qkv),
        Mixing::DeltaNet(..) => Err(no_attention()),
    }
}

fn no_attention() -> Error {
    Error::Argument("training: expected a layer with attention, found a gated delta-net".into())
}

impl Ctx<'_> {
    pub(super) fn hp(&self) -> &Hparams {
        self.setup.model.hparams()
    }

    /// Upper bound of a graph's tensors, where queries see `n_keys` keys: in ops of every device attention goes tile by tile,
    /// forwards and backwards, for at most four groups of heads.
    pub(super) fn max_tensors(&self, n_keys: usize) -> usize {
        let most = 1 << 12;
        if self.setup.capabilities.custom_ops {
            return most;
        }
        let n_rows = self.hp().attention.iter().map(|layer| layer.n_head).max().unwrap_or(1)
            * self.setup.settings.n_block;
        most + 2 * 4 * n_tensors_of_tiles(n_rows, [n_keys])
    }

    fn recorded<'g, 'c, R>(
        &'g self,
        b: &'g Builder<'c>,
        load: bool,
        f: impl FnOnce(&Graph<'_, 'c>) -> Result<R>,
    ) -> Result<R> {
        let saves = |map: LinearId| self.checkpointing >= Checkpointing::Products && saved::saves(map);
        let trains = |id: ParamId| self.setup.params.trains(id);
        let how = Recording {
            saves: &saves,
            load,
            trains: &trains,
            dropout: if self.training { self.setup.settings.trainable.dropout() } else { 0.0 },
            dequantize_bytes: self.setup.settings.dequantize_bytes,
        };
        f(&Graph::recorded(b, self.setup.capabilities, how))
    }

    /// A graph from the last layer's output, without saved activations.
    pub(super) fn head<'c, R>(
        &self,
        b: &Builder<'c>,
        f: impl FnOnce(&Graph<'_, 'c>) -> Result<R>,
    ) -> Result<R> {
        let none = Ctx { checkpointing: Checkpointing::Inputs, ..*self };
        none.recorded(b, false, f)
    }

    /// Computes the layer's output and stores its keys and values in the cache.
    pub(super) fn forward(&self, b: &Builder<'_>, block: Block) -> Result<LayerIds> {
        self.recorded(b, false, |g| {
            if self.is_recurrent(block.il) {
                return self.recurrent_forward(g, block);
            }
            let net = &self.setup.transformer.layers[block.il];
            let mut layer = LayerGraph::new(g, self, block)?;
            let Qkv { q, k, v, gate } = qkv(net.before_attention(g, layer.x)?)?;
            let stored = layer.store(k, v)?;
            let parts = layer.attend(q)?;
            let attn_out = attended(b, &parts, &stored)?;
            if self.checkpointing >= Checkpointing::Attention {
                layer.ids.saved.push((Activation::AttnOut, SavedActivation::Save(b.output(attn_out))));
            }
            let attn = layer.values(attn_out)?;
            let attn = gate.map_or(Ok(attn), |gate| g.gated(attn, gate))?;
            let y = net.after_attention(g, layer.x, attn)?;
            layer.ids.out = Some(b.output(y));
            Ok(layer.ids.finished(g))
        })
    }

    /// Stores the keys and values of a block, or the states after it, in the cache again before the backward pass of
    /// the layer.
    pub(super) fn keys(&self, b: &Builder<'_>, block: Block) -> Result<LayerIds> {
        self.recorded(b, true, |g| {
            if self.is_recurrent(block.il) {
                return self.recurrent_states(g, block);
            }
            let net = &self.setup.transformer.layers[block.il];
            let mut layer = LayerGraph::new(g, self, block)?;
            let Qkv { k, v, .. } = qkv(net.before_attention(g, layer.x)?)?;
            layer.store(k, v)?;
            Ok(layer.ids.finished(g))
        })
    }

    /// Computes the gradients of the layer's input and of its trained tensors. Blocks must come last to
    /// first. `alone`: the block is the only one, and its keys and values are stored in this same graph.
    pub(super) fn backward<'c>(&self, b: &Builder<'c>, block: Block, alone: bool) -> Result<LayerIds> {
        self.recorded(b, true, |g| {
            if self.is_recurrent(block.il) {
                return self.recurrent_backward(g, block);
            }
            let net = &self.setup.transformer.layers[block.il];
            let mut layer = LayerGraph::new(g, self, block)?;
            let (n_embd, d, n_head) = (self.hp().n_embd, layer.layer.n_embd_head, layer.layer.n_head);
            let (d_y_id, d_y) = b.input("d_y", DType::F32, &[n_embd, block.n])?;
            layer.ids.d_y = Some(d_y_id);
            let Qkv { q, k, v, gate } = qkv(net.before_attention(g, layer.x)?)?;
            let stored = if alone { layer.store(k, v)? } else { layer.cache.values.in_graph(b)? };
            let parts = layer.attend(q)?;
            let attn_out = if self.checkpointing >= Checkpointing::Attention {
                let shape = [d + 1, n_head, block.n];
                let (id, attn_out) = b.input("attn_out", DType::F32, &shape)?;
                layer.ids.saved.push((Activation::AttnOut, SavedActivation::Load(id)));
                attn_out
            } else {
                attended(b, &parts, &stored)?
            };
            let attn = layer.values(attn_out)?;
            // A copy: its gradient goes on to the map it came out of together with that of the queries.
            let opened = gate.map(|gate| b.cont(gate)).transpose()?;
            let gated = opened.map_or(Ok(attn), |opened| g.gated(attn, opened))?;
            let y = net.after_attention(g, layer.x, gated)?;
            let wanted: Vec<Tensor<'_>> = [layer.x, attn].into_iter().chain(opened).collect();
            let (above, trained) = g.backward(&[(y, d_y)], &wanted)?;
            self.sum(b, &trained)?;
            let d_attn = above[1].ok_or_else(|| unreached("attention"))?;
            let d_attn = b.reshape(d_attn, &[d, n_head, block.n])?;
            let sums = layer.cache.grads.in_graph(b)?;
            let (mut d_queries, mut d_keys) = (Vec::new(), Vec::new());
            for part in &parts {
                // Gradients of keys and values are added to the sums.
                let of = |stored: &Stored<Tensor<'c>>| [stored.keys[part.key].1, stored.v];
                let grad = part.attend.backward(b, part.q, of(&stored), attn_out, d_attn, of(&sums))?;
                layer.angles_back(part.q, grad)?;
                d_queries.push(layer.rotation.queries_back(b, grad, part.q_pos)?);
            }
            // All branches have added to the gradients of keys.
            for (&(map, keys), &(_, sums)) in stored.keys.iter().zip(&sums.keys) {
                let grad = layer.heads(sums, block.start)?;
                layer.angles_back(layer.heads(keys, block.start)?, grad)?;
                d_keys.push(layer.rotation.keys_back(b, grad, map)?);
            }
            let sum =
                |terms: Vec<Tensor<'c>>| reduce(terms.into_iter().map(Ok), |sum, term| b.add(sum, term));
            let (d_q, d_k) = (sum(d_queries)?, sum(d_keys)?);
            let d_v = b.cont(layer.heads(sums.v, block.start)?)?;
            let flat = |t: Tensor<'_>| t.ne()[0] * t.ne()[1];
            let mut seeds = vec![
                (q, b.reshape(d_q, &[flat(d_q), block.n])?),
                (k, b.reshape(d_k, &[flat(d_k), block.n])?),
                (v, b.reshape(d_v, &[flat(d_v), block.n])?),
            ];
            seeds.extend(gate.zip(above.get(2).copied().flatten()));
            let d_x = self.below(g, layer.x, above[0], &seeds)?;
            layer.ids.out = Some(b.output(d_x));
            Ok(layer.ids.finished(g))
        })
    }

    /// The gradient of a layer's input, from what is known of it and from those of what mixing its tokens reads.
    pub(super) fn below<'c>(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        above: Option<Tensor<'c>>,
        seeds: &[(Tensor<'c>, Tensor<'c>)],
    ) -> Result<Tensor<'c>> {
        let (through, trained) = g.backward(seeds, &[x])?;
        self.sum(g.b, &trained)?;
        match (above, through[0]) {
            (Some(a), Some(c)) => g.b.add(a, c),
            (a, c) => a.or(c).ok_or_else(|| unreached("the layer's input")),
        }
    }

    /// Adds gradients to the sums of the step.
    pub(super) fn sum<'c>(&self, b: &Builder<'c>, trained: &[Gradient<'c>]) -> Result<()> {
        for Gradient { id, value } in trained {
            let sum = self.setup.params.grad(*id).ok_or_else(|| unreached(&id.to_string()))?;
            b.expand(b.add_into(b.stored(&sum)?, *value)?);
        }
        Ok(())
    }
}

pub(super) fn unreached(what: &str) -> ggml::Error {
    ggml::Error::Op { op: "backward", what: format!("no gradient for {what}") }
}

/// Attention in one branch of a rope method, under one softmax with the others: each has its positions of queries and
/// keys, and no pair is in two. Without such a method there is one branch.
struct AttendPart<'c> {
    /// Rotated queries, `[d, n_head, n]`.
    q: Tensor<'c>,
    q_pos: PosMap,
    /// Index of its keys among those of [`Stored`].
    key: usize,
    attend: Attend<'c>,
}

/// Attention of all branches over keys and values of the cache: F32 `[d + 1, n_head, n]`, see [`Attend::forward`].
fn attended<'c>(
    b: &Builder<'c>,
    parts: &[AttendPart<'c>],
    stored: &Stored<Tensor<'c>>,
) -> Result<Tensor<'c>> {
    let of = |part: &AttendPart<'c>| part.attend.forward(b, part.q, stored.keys[part.key].1, stored.v);
    let outs = parts.iter().map(of).collect::<Result<Vec<_>>>()?;
    match outs[..] {
        [out] => Ok(out),
        _ => b.attention_merge(&outs),
    }
}

struct LayerGraph<'g, 'a, 'c> {
    g: &'g Graph<'a, 'c>,
    ctx: &'g Ctx<'g>,
    block: Block,
    layer: &'g LayerAttention,
    branches: &'g [Branch],
    cache: LayerCache,
    x: Tensor<'c>,
    trains_angles: bool,
    rotation: Rotation,
    ids: LayerIds,
}

impl<'g, 'a, 'c> LayerGraph<'g, 'a, 'c> {
    fn new(g: &'g Graph<'a, 'c>, ctx: &'g Ctx<'g>, block: Block) -> Result<Self> {
        let (b, hp, pairing) = (g.b, ctx.hp(), ctx.setup.model.arch().pairing);
        let (layer, plan) = attention(hp, ctx.plan, block.il)?;
        let (x_id, x) = b.input("x", DType::F32, &[hp.n_embd, block.n])?;
        let (branches, key_maps) = (&plan.branches[..], plan.key_maps());
        let maps = key_maps.iter().copied().chain(branches.iter().map(|branch| branch.q_pos));
        let by_table = ctx.setup.capabilities.custom_ops;
        let trains_angles = ctx.trains_angles && plan.applies;
        let rotation = if trains_angles && !by_table {
            Rotation::of_products(b, plan, pairing, block.n)?
        } else {
            Rotation::new(b, layer, plan, pairing, block.n, by_table, maps)?
        };
        let ids = LayerIds { x: Some(x_id), rotation: Some(rotation.clone()), ..LayerIds::default() };
        let cache = ctx.setup.cache.of(layer, &key_maps);
        Ok(LayerGraph { g, ctx, block, layer, branches, cache, x, trains_angles, rotation, ids })
    }

    /// The rows of the block's tokens, of which `first` is the first one, as heads: `[heads * d, ..]` to `[d, heads, n]`.
    fn heads(&self, rows: Tensor<'c>, first: usize) -> Result<Tensor<'c>> {
        let (d, n, row) = (self.layer.n_embd_head, self.block.n, rows.nb()[1]);
        self.g.b.view(rows, [d, rows.ne()[0] / d, n, 1], [4 * d, row, row * n], first * row)
    }

    /// Rotates keys and stores keys and values in the block's rows of the cache. Returns the updated keys and
    /// values of the whole cache.
    fn store(&mut self, k: Tensor<'c>, v: Tensor<'c>) -> Result<Stored<Tensor<'c>>> {
        let b = self.g.b;
        let (id, cells) = b.input("cells", DType::I64, &[self.block.n])?;
        self.ids.cells = Some(id);
        let heads = self.heads(k, 0)?;
        let to = &self.cache.values;
        let rotated = |(map, to): &(PosMap, StoreTensor)| {
            let k = self.rotation.keys(b, heads, *map)?;
            let k = b.reshape(k, &[k.ne()[0] * k.ne()[1], self.block.n])?;
            Ok((*map, b.set_rows(b.stored(to)?, k, cells)?))
        };
        let keys = to.keys.iter().map(rotated).collect::<Result<Vec<_>>>()?;
        let v = b.set_rows(b.stored(&to.v)?, v, cells)?;
        keys.iter().for_each(|&(_, k)| b.expand(k));
        b.expand(v);
        Ok(Stored { keys, v })
    }

    /// Attention of queries `[n_head * d, n]` in every branch.
    fn attend(&mut self, q: Tensor<'c>) -> Result<Vec<AttendPart<'c>>> {
        let (b, capabilities) = (self.g.b, self.ctx.setup.capabilities);
        let (n, end) = (self.block.n, self.block.end());
        let split = seen::is_split(self.ctx.grouped, self.layer);
        let block = self.ctx.setup.settings.attention.landmarks().map(Landmarks::block);
        let kernel = capabilities.matmul.training_attention();
        let how = How { own: capabilities.custom_ops, kernel, split, block };
        let sinks = self.ctx.setup.transformer.layers[self.block.il].sinks();
        let mut sinks = sinks.map(|sinks| b.stored(sinks)).transpose()?;
        let heads = self.heads(q, 0)?;
        let mut parts = Vec::with_capacity(self.branches.len());
        for branch in self.branches {
            // Sinks count once.
            let attend = Attend::new(b, self.layer, sinks.take(), how, n, end)?;
            self.ids.seen.push(attend.seen);
            let q = self.rotation.queries(b, heads, branch.q_pos)?;
            let key = self.cache.values.keys.iter().position(|(map, _)| *map == branch.k_pos).unwrap_or(0);
            parts.push(AttendPart { q, q_pos: branch.q_pos, key, attend });
        }
        Ok(parts)
    }

    /// If frequencies are trained, computes the gradient of the angles of `x` from the gradient of `x`.
    fn angles_back(&mut self, x: Tensor<'c>, grad: Tensor<'c>) -> Result<()> {
        if self.trains_angles {
            let angles = self.rotation.angles_back(self.g.b, x, grad)?;
            self.ids.angles.push(self.g.b.output(angles));
        }
        Ok(())
    }

    /// The heads of attention's output side by side, `[n_head * d, n]`, without the log-sum-exp that follows
    /// each.
    fn values(&self, attn_out: Tensor<'c>) -> Result<Tensor<'c>> {
        let (b, d) = (self.g.b, self.layer.n_embd_head);
        let heads = b.cont(b.columns(attn_out, 0, d)?)?;
        b.reshape(heads, &[d * self.layer.n_head, self.block.n])
    }
}

impl LayerIds {
    /// Together with the other inputs of a layer's graph.
    pub(super) fn finished(mut self, g: &Graph<'_, '_>) -> LayerIds {
        let of_maps = g.saved().into_iter();
        self.saved.extend(of_maps.map(|(id, saved)| (Activation::Linear(id), saved)));
        self.dropout_masks = g.dropout_masks();
        self.row_ids = g.row_ids();
        self
    }
}
