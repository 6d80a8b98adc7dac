//! Recurrent layers, gated delta-nets, in blocks of tokens, forward and backward.
//!
//! A block begins with the states after the previous block and the rows that the convolution read last; the forward
//! pass hands both to the next block. Before a layer's backward pass, they are computed again for all of its blocks and
//! kept. Then blocks run last to first, and each passes the gradients of its initial values to the block before.
//!
//! A document begins with a state of 0, wherever it is in the sequence.

use std::ops::Range;
use std::sync::Arc;

use ggml::delta_net::{ConvSilu, DeltaGrads, DeltaRule};
use ggml::graph::Executor;
use ggml::tensor::{Store, StoreTensor, Tensor, TensorDef};
use ggml::{DType, Error, Result};

use super::layer::{unreached, Block, Ctx, LayerIds};
use super::seen::Seen;
use crate::graph::{Graph, Mixing};
use crate::hparams::{DeltaNetHparams, Hparams};
use crate::layers::DeltaNet;

/// The states that blocks of one recurrent layer begin with, and their gradients. Layers take turns.
#[derive(Debug)]
pub(super) struct StateCache {
    store: Arc<Store>,
    n_blocks: usize,
}

const STATES: usize = 0;
const CONV: usize = 1;
const D_STATE: usize = 2;
const D_CONV: usize = 3;

impl StateCache {
    /// For sequences of `n_ctx` tokens in blocks of `n_block`; `None` for models without recurrent layers. `store` makes
    /// tensors of their definitions.
    pub(super) fn new(
        hp: &Hparams,
        [n_ctx, n_block]: [usize; 2],
        store: impl FnOnce(Vec<TensorDef>) -> Result<Arc<Store>>,
    ) -> Result<Option<StateCache>> {
        let Some(net) = hp.delta_net else { return Ok(None) };
        let n_blocks = n_ctx.div_ceil(n_block);
        let (state, conv) = (n_state(net), net.n_conv_state());
        let tensors = [
            ("states", state, n_blocks),
            ("conv", conv, n_blocks),
            ("d_state", state, 1),
            ("d_conv", conv, 1),
        ];
        let defs = tensors.map(|(name, n, blocks)| TensorDef::new(name, DType::F32, &[n, blocks]));
        let store = store(defs.into_iter().collect::<Result<_>>()?)?;
        Ok(Some(StateCache { store, n_blocks }))
    }

    fn tensor(&self, index: usize) -> StoreTensor {
        StoreTensor { store: Arc::clone(&self.store), index }
    }

    /// Zeros the gradients: nothing follows the last block.
    pub(super) fn zero_grads(&self) -> Result<()> {
        [D_STATE, D_CONV].into_iter().try_for_each(|index| self.store.zero(index))
    }

    pub(super) fn n_bytes(&self) -> usize {
        self.store.n_bytes()
    }
}

/// Numbers of the states of all heads.
fn n_state(net: DeltaNetHparams) -> usize {
    net.n_embd_head * net.n_embd_v()
}

impl Ctx<'_> {
    pub(super) fn is_recurrent(&self, il: usize) -> bool {
        self.hp().attention_of(il).is_none()
    }

    pub(super) fn recurrent_forward(&self, g: &Graph<'_, '_>, block: Block) -> Result<LayerIds> {
        let mut net = Recurrent::new(g, self, block)?;
        net.leave()?;
        let y = net.output()?;
        net.ids.out = Some(g.b.output(y));
        Ok(net.ids.finished(g))
    }

    /// [`Ctx::keys`] of a recurrent layer: computes only the states after a block.
    pub(super) fn recurrent_states(&self, g: &Graph<'_, '_>, block: Block) -> Result<LayerIds> {
        let mut net = Recurrent::new(g, self, block)?;
        g.b.expand(net.state);
        net.leave()?;
        Ok(net.ids.finished(g))
    }

    pub(super) fn recurrent_backward(&self, g: &Graph<'_, '_>, block: Block) -> Result<LayerIds> {
        let mut net = Recurrent::new(g, self, block)?;
        let (d_y_id, d_y) = g.b.input("d_y", DType::F32, &[self.hp().n_embd, block.n])?;
        net.ids.d_y = Some(d_y_id);
        let y = net.output()?;
        let (above, trained) = g.backward(&[(y, d_y)], &[net.x, net.out])?;
        self.sum(g.b, &trained)?;
        let seeds = net.back(above[1].ok_or_else(|| unreached("the delta-net"))?)?;
        let d_x = self.below(g, net.x, above[0], &seeds)?;
        net.ids.out = Some(g.b.output(d_x));
        Ok(net.ids.finished(g))
    }
}

/// A recurrent layer's graph under construction.
struct Recurrent<'g, 'a, 'c> {
    g: &'g Graph<'a, 'c>,
    ctx: &'g Ctx<'g>,
    cache: &'g StateCache,
    block: Block,
    net: &'g DeltaNet,
    hp: DeltaNetHparams,
    x: Tensor<'c>,
    /// Outputs of the linear maps: queries, keys and values in one, z, alpha, and beta.
    maps: [Tensor<'c>; 4],
    conv: ConvSilu<'c>,
    /// Alpha, shifted.
    shifted: Tensor<'c>,
    rule: DeltaRule<'c>,
    /// `[d, n_head_v, n]`
    out: Tensor<'c>,
    /// The states after the block, `[d * d * n_head_v]`.
    state: Tensor<'c>,
    ids: LayerIds,
}

impl<'g, 'a, 'c> Recurrent<'g, 'a, 'c> {
    fn new(g: &'g Graph<'a, 'c>, ctx: &'g Ctx<'g>, block: Block) -> Result<Self> {
        let (b, il) = (g.b, block.il);
        let none = || Error::Argument(format!("training: layer {il} has neither attention nor a delta-net"));
        let (hp, cache) = ctx.hp().delta_net.zip(ctx.setup.states.as_ref()).ok_or_else(none)?;
        let (x_id, x) = b.input("x", DType::F32, &[ctx.hp().n_embd, block.n])?;
        let Mixing::DeltaNet(net, read) = ctx.setup.transformer.layers[il].before_attention(g, x)? else {
            return Err(none());
        };
        let maps = g.linears(read, [&net.qkv, &net.gate, &net.alpha, &net.beta])?;
        let [qkv, _, alpha, beta] = maps;
        let (past_id, past) = b.input("past", DType::I32, &[block.n])?;
        let row = |index: usize, ne: [usize; 3]| -> Result<Tensor<'c>> {
            let all = b.stored(&cache.tensor(index))?;
            let [n0, n1, n2] = ne;
            let step = [4 * n0, 4 * n0 * n1, 4 * n0 * n1 * n2];
            b.view(all, [n0, n1, n2, 1], step, index_of(ctx, block) * all.nb()[1])
        };
        let weights = g.stored_f32(&net.conv)?;
        let before = row(CONV, [hp.n_embd_conv(), hp.n_conv - 1, 1])?;
        let conv = ConvSilu { before, x: qkv, weights, past: Some(past) };
        let shifted = b.add(alpha, b.stored(&net.dt)?)?;
        let rule = DeltaRule {
            qkv: b.conv_silu(conv)?,
            g: b.mul(b.softplus(shifted)?, b.stored(&net.a)?)?,
            beta: b.sigmoid(beta)?,
            past: Some(past),
            state: row(STATES, [hp.n_embd_head, hp.n_embd_head, hp.n_head_v])?,
            n_head_k: hp.n_head_k,
            eps: net.norm.eps,
        };
        let [out, state] = b.delta_rule(rule)?;
        let ids = LayerIds { x: Some(x_id), past: Some(past_id), ..LayerIds::default() };
        Ok(Recurrent { g, ctx, cache, block, net, hp, x, maps, conv, shifted, rule, out, state, ids })
    }

    fn output(&self) -> Result<Tensor<'c>> {
        let mixed = self.g.gated_norm(self.out, &self.net.norm, self.maps[1])?;
        self.ctx.setup.transformer.layers[self.block.il].after_attention(self.g, self.x, mixed)
    }

    /// Leaves to the next block what it begins with.
    fn leave(&mut self) -> Result<()> {
        let next = index_of(self.ctx, self.block) + 1;
        if next >= self.cache.n_blocks {
            return Ok(());
        }
        let (b, n_before) = (self.g.b, self.hp.n_conv - 1);
        let ConvSilu { before, x, .. } = self.conv;
        let rows = if x.ne()[1] < n_before { b.concat(before, x, 1)? } else { x };
        let (row, n) = (rows.nb()[1], rows.ne()[1]);
        let last = b.view(
            rows,
            [rows.ne()[0], n_before, 1, 1],
            [row, row * n_before, row * n_before],
            row * (n - n_before),
        )?;
        self.write([STATES, CONV], next, [self.state, b.cont(last)?])
    }

    fn write(&mut self, tensors: [usize; 2], row: usize, values: [Tensor<'c>; 2]) -> Result<()> {
        let b = self.g.b;
        let (id, at) = b.input("state_row", DType::I64, &[1])?;
        self.ids.state_rows.push((id, row));
        for (index, value) in tensors.into_iter().zip(values) {
            let n = value.ne().iter().product();
            let to = b.stored(&self.cache.tensor(index))?;
            b.expand(b.set_rows(to, b.reshape(value, &[n, 1])?, at)?);
        }
        Ok(())
    }

    /// The outputs of the linear maps that mixing reads, each with its gradient, from that of the output, `[d,
    /// n_head_v, n]`. Leaves the gradients of what the block began with to the block before.
    fn back(&mut self, d_out: Tensor<'c>) -> Result<Vec<(Tensor<'c>, Tensor<'c>)>> {
        let (b, net) = (self.g.b, self.net);
        let stored = |index: usize| b.stored(&self.cache.tensor(index));
        let d_after = b.reshape(stored(D_CONV)?, &[self.hp.n_embd_conv(), self.hp.n_conv - 1])?;
        let DeltaGrads { qkv, g, beta, state } = b.delta_rule_back(self.rule, d_out, stored(D_STATE)?)?;
        let [d_before, d_qkv] = b.conv_silu_back(self.conv, qkv, d_after)?;
        if self.block.start > 0 {
            self.write([D_STATE, D_CONV], 0, [state, d_before])?;
        }
        // The derivative of softplus is the sigmoid, and that of s = sigmoid(x) is s (1 - s).
        let d_alpha = b.mul(b.mul(g, b.stored(&net.a)?)?, b.sigmoid(self.shifted)?)?;
        let learn = self.rule.beta;
        let d_beta = b.mul(beta, b.sub(learn, b.mul(learn, learn)?)?)?;
        let [qkv, _, alpha, beta] = self.maps;
        Ok(vec![(qkv, d_qkv), (alpha, d_alpha), (beta, d_beta)])
    }
}

/// Sets the inputs that recurrent layers alone have, for the tokens `at`.
pub(super) fn fill(ids: &LayerIds, exec: &mut Executor, at: Range<usize>, seen: &Seen) -> Result<()> {
    if let Some(past) = ids.past {
        exec.set(past, &at.map(|i| seen.past(i)).collect::<Vec<_>>())?;
    }
    ids.state_rows.iter().try_for_each(|&(id, row)| exec.set(id, &[row as i64]))
}

fn index_of(ctx: &Ctx<'_>, block: Block) -> usize {
    block.start / ctx.setup.settings.n_block
}
