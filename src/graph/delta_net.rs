//! Gated delta-nets through the states of their sequences: a convolution over the last tokens, then the gated delta
//! rule, token by token.
//!
//! The ops take the same number of tokens of every sequence. Shorter sequences of a micro-batch are padded in front
//! with tokens that neither decay nor update the state.
//!
//! Source: `llama_model_qwen35::graph::build_layer_attn_linear` in llama.cpp's `src/models/qwen35.cpp`.

use ggml::delta_net::{self, ConvSilu};
use ggml::graph::InputId;
use ggml::recurrent::DeltaRule;
use ggml::tensor::Tensor;
use ggml::{DType, Error, Result};

use super::Graph;
use crate::hparams::DeltaNetHparams;
use crate::layers::DeltaNet;
use crate::states::States;

/// The tokens of a micro-batch by sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqGroups {
    pub n_seqs: usize,
    /// Tokens of the sequence that has most.
    pub n_each: usize,
    /// True if every sequence has that number of tokens, and they lie in the micro-batch one after the other.
    pub in_order: bool,
}

impl SeqGroups {
    pub fn one(n: usize) -> SeqGroups {
        SeqGroups { n_seqs: 1, n_each: n, in_order: true }
    }
}

/// Inputs of a graph with recurrent layers. A *place* is a token of a sequence in the layout `[n_each, n_seqs]`.
#[derive(Debug, Clone, Copy)]
pub struct DeltaInputs {
    /// I32 `[n_seqs]`: slot of the state that each sequence begins with.
    pub read: InputId,
    /// I64 `[n_seqs]`: slot its new state goes to.
    pub write: InputId,
    pub regroup: Option<Regroup>,
}

/// How tokens come to their places and back.
#[derive(Debug, Clone, Copy)]
pub struct Regroup {
    /// I32 `[(n_conv - 1 + n_each) * n_seqs]`: for each place, and those before the first, its row among the earlier
    /// inputs of the convolution (`(n_conv - 1) * n_seqs` of them) and the tokens after them.
    pub rows: InputId,
    /// I32 `[n_each * n_seqs]`: the token at each place; any token if the place has none.
    pub tokens: InputId,
    /// F32 `[1, n_each * n_seqs]`: 1 where there is a token, else 0.
    pub filled: InputId,
    /// I32 `[n_tokens]`: the place of each token.
    pub places: InputId,
}

/// The recurrent layers of a graph, their inputs declared.
#[derive(Debug)]
pub(super) struct Recurrence<'a> {
    net: DeltaNetHparams,
    states: &'a States,
    groups: SeqGroups,
    n_tokens: usize,
    pub(super) inputs: DeltaInputs,
}

impl<'a> Recurrence<'a> {
    pub(super) fn new(
        g: &Graph<'_, '_>,
        net: DeltaNetHparams,
        states: &'a States,
        groups: SeqGroups,
        n_tokens: usize,
    ) -> Result<Self> {
        let (b, SeqGroups { n_seqs, n_each, in_order }) = (g.b, groups);
        let (read, _) = b.input("states_read", DType::I32, &[n_seqs])?;
        let (write, _) = b.input("states_write", DType::I64, &[n_seqs])?;
        let mut regroup = None;
        if !in_order {
            let n_places = n_each.saturating_mul(n_seqs);
            let n_rows = (net.n_conv - 1).saturating_mul(n_seqs).saturating_add(n_places);
            let (rows, _) = b.input("conv_rows", DType::I32, &[n_rows])?;
            let (tokens, _) = b.input("place_tokens", DType::I32, &[n_places])?;
            let (filled, _) = b.input("places_filled", DType::F32, &[1, n_places])?;
            let (places, _) = b.input("token_places", DType::I32, &[n_tokens])?;
            regroup = Some(Regroup { rows, tokens, filled, places });
        }
        Ok(Recurrence { net, states, groups, n_tokens, inputs: DeltaInputs { read, write, regroup } })
    }

    /// The layer's output before its projection, F32 `[n_embd_v, n_tokens]`, from its normed input x `[n_embd,
    /// n_tokens]`; the states move on.
    pub(super) fn apply<'c>(
        &self,
        g: &Graph<'_, 'c>,
        layer: &DeltaNet,
        x: Tensor<'c>,
        il: usize,
    ) -> Result<Tensor<'c>> {
        let b = g.b;
        let (DeltaNetHparams { n_head_v, n_embd_head: d, .. }, SeqGroups { n_seqs, n_each, .. }) =
            (self.net, self.groups);
        let n_places = n_each * n_seqs;
        let [qkv, z, alpha, beta] = g.linears(x, [&layer.qkv, &layer.gate, &layer.alpha, &layer.beta])?;
        let none = || Error::Op { op: "gated delta-net", what: format!("layer {il} has no states") };
        let [conv_states, states] = self.states.of_layer(il).ok_or_else(none)?;

        let conv_states = b.stored(&conv_states)?;
        let (read, write) = (b.given(self.inputs.read)?, b.given(self.inputs.write)?);
        let before = b.get_rows(conv_states, read)?;
        // What is written below need not depend on it.
        b.expand(before);
        let [mixed, newest] = match g.capabilities.custom_ops {
            true => self.convolved(g, layer, qkv, before)?,
            false => self.convolved_portably(g, layer, qkv, before)?,
        };
        b.expand(b.set_rows(conv_states, newest, write)?);

        let [forget, learn] = self.rates(g, layer, alpha, beta)?;
        let states = b.stored(&states)?;
        let state = b.reshape(b.get_rows(states, read)?, &[d, d, n_head_v, n_seqs])?;
        let [out, state] = if g.capabilities.custom_ops {
            let rates = |t| b.reshape(t, &[n_head_v, n_each, n_seqs]);
            let (n_head_k, eps) = (self.net.n_head_k, layer.norm.eps);
            let (g, beta) = (rates(forget)?, rates(learn)?);
            b.delta_rule(delta_net::DeltaRule { qkv: mixed, g, beta, past: None, state, n_head_k, eps })?
        } else {
            let [q, k, v] = self.heads(g, mixed, layer.norm.eps)?;
            let rates = |t| b.reshape(t, &[1, n_head_v, n_each, n_seqs]);
            b.gated_delta_net(DeltaRule { q, k, v, g: rates(forget)?, beta: rates(learn)?, state })?
        };
        b.expand(b.set_rows(states, state, write)?);

        let out = b.reshape(out, &[d * n_head_v, n_places])?;
        let out = match &self.inputs.regroup {
            Some(regroup) => b.get_rows(out, b.given(regroup.places)?)?,
            None => out,
        };
        let out = g.gated_norm(g.heads(out, d)?, &layer.norm, z)?;
        b.name(out, &format!("delta_net-{il}"));
        Ok(out)
    }

    /// The rows of the tokens of sequences in order, `[n_embd_conv, n_each, n_seqs]`.
    fn tokens<'c>(&self, g: &Graph<'_, 'c>, qkv: Tensor<'c>) -> Result<Tensor<'c>> {
        let (row, SeqGroups { n_seqs, n_each, .. }) = (qkv.nb()[1], self.groups);
        let ne = [self.net.n_embd_conv(), n_each, n_seqs, 1];
        g.b.view(qkv, ne, [row, row * n_each, row * self.n_tokens], 0)
    }

    /// The convolution's input, time last: `[n_embd_conv, n_conv - 1 + n_each, n_seqs]`.
    fn conv_input<'c>(&self, g: &Graph<'_, 'c>, qkv: Tensor<'c>, before: Tensor<'c>) -> Result<Tensor<'c>> {
        let (b, SeqGroups { n_seqs, n_each, .. }) = (g.b, self.groups);
        let (width, n_before) = (self.net.n_embd_conv(), self.net.n_conv - 1);
        let Some(regroup) = &self.inputs.regroup else {
            return b.concat(b.reshape(before, &[width, n_before, n_seqs])?, self.tokens(g, qkv)?, 1);
        };
        let all = b.concat(b.reshape(before, &[width, n_before * n_seqs])?, qkv, 1)?;
        b.reshape(b.get_rows(all, b.given(regroup.rows)?)?, &[width, n_before + n_each, n_seqs])
    }

    /// Queries, keys, and values after the convolution, `[n_embd_conv, n_each, n_seqs]`, and the next token's inputs.
    fn convolved<'c>(
        &self,
        g: &Graph<'_, 'c>,
        layer: &DeltaNet,
        qkv: Tensor<'c>,
        before: Tensor<'c>,
    ) -> Result<[Tensor<'c>; 2]> {
        let (b, SeqGroups { n_seqs, n_each, .. }) = (g.b, self.groups);
        let (width, n_before) = (self.net.n_embd_conv(), self.net.n_conv - 1);
        let weights = g.stored_f32(&layer.conv)?;
        let (before, x, newest) = if self.inputs.regroup.is_none() && n_each >= n_before {
            let x = self.tokens(g, qkv)?;
            (b.reshape(before, &[width, n_before, n_seqs])?, x, self.newest(g, x, n_each - n_before)?)
        } else {
            let seen = self.conv_input(g, qkv, before)?;
            let nb = seen.nb();
            let rows = |first, n| b.view(seen, [width, n, n_seqs, 1], [nb[1], nb[2], nb[3]], nb[1] * first);
            (rows(0, n_before)?, rows(n_before, n_each)?, self.newest(g, seen, n_each)?)
        };
        Ok([b.conv_silu(ConvSilu { before, x, weights, past: None })?, newest])
    }

    /// The same in ops of every backend.
    fn convolved_portably<'c>(
        &self,
        g: &Graph<'_, 'c>,
        layer: &DeltaNet,
        qkv: Tensor<'c>,
        before: Tensor<'c>,
    ) -> Result<[Tensor<'c>; 2]> {
        let (b, seen) = (g.b, self.conv_input(g, qkv, before)?);
        let mixed = b.ssm_conv(b.cont(b.permute(seen, [1, 0, 2, 3])?)?, g.stored_f32(&layer.conv)?)?;
        Ok([b.silu(mixed)?, self.newest(g, seen, self.groups.n_each)?])
    }

    /// The rows from `first` on that the next token's convolution reads, `[n_conv_state, n_seqs]`.
    fn newest<'c>(&self, g: &Graph<'_, 'c>, rows: Tensor<'c>, first: usize) -> Result<Tensor<'c>> {
        let (nb, n_before) = (rows.nb(), self.net.n_conv - 1);
        let shape = [self.net.n_embd_conv(), n_before, self.groups.n_seqs, 1];
        let last = g.b.view(rows, shape, [nb[1], nb[2], nb[3]], nb[1] * first)?;
        g.b.reshape(g.b.cont(last)?, &[self.net.n_conv_state(), self.groups.n_seqs])
    }

    /// The logarithm of a state's decay, and the update rate, both `[n_head_v, n_each * n_seqs]`; 0 at places without a
    /// token.
    fn rates<'c>(
        &self,
        g: &Graph<'_, 'c>,
        layer: &DeltaNet,
        alpha: Tensor<'c>,
        beta: Tensor<'c>,
    ) -> Result<[Tensor<'c>; 2]> {
        let b = g.b;
        let forget = b.softplus(b.add(alpha, b.stored(&layer.dt)?)?)?;
        let rates = [b.mul(forget, b.stored(&layer.a)?)?, b.sigmoid(beta)?];
        let Some(Regroup { tokens, filled, .. }) = self.inputs.regroup else { return Ok(rates) };
        let (tokens, filled) = (b.given(tokens)?, b.given(filled)?);
        let [forget, learn] = rates.map(|rate| b.mul(b.get_rows(rate, tokens)?, filled));
        Ok([forget?, learn?])
    }

    /// Queries, keys and values as heads, the first two of length 1: `[d, n_heads, n_each, n_seqs]`.
    fn heads<'c>(&self, g: &Graph<'_, 'c>, mixed: Tensor<'c>, eps: f32) -> Result<[Tensor<'c>; 3]> {
        let (b, d, nb) = (g.b, self.net.n_embd_head, mixed.nb());
        let SeqGroups { n_seqs, n_each, .. } = self.groups;
        let (n_k, n_v) = (self.net.n_head_k, self.net.n_head_v);
        let part = |first: usize, n: usize| {
            b.view(mixed, [d, n, n_each, n_seqs], [4 * d, nb[1], nb[2]], 4 * d * first)
        };
        let length_1 = |x| b.scale(b.rms_norm(x, eps / d as f32)?, 1.0 / (d as f32).sqrt());
        Ok([length_1(part(0, n_k)?)?, length_1(part(n_k, n_k)?)?, part(2 * n_k, n_v)?])
    }
}
