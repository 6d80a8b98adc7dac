//! The blocks that layers are built from, each of which works on one token alone: norms, linear layers, feed-forward.
//! A tape records each block as it is built, for the backward pass.

use std::ops::Range;

use ggml::graph::{Builder, InputId};
use ggml::tensor::{StoreTensor, Tensor};
use ggml::{DType, Result};

use super::activations::{centered, Activations};
use super::moments::Watch;
use super::products::PreparedInputs;
use super::tape::{Gradient, Op, Recording, SavedActivation, Tape, TapeEntry};
use super::Capabilities;
use crate::hparams::Gelu;
use crate::ids::{LinearId, ParamId};
use crate::layers::{Linear, Norm};

/// A model's graph under construction: the ops that work on each token alone.
pub struct Graph<'a, 'c> {
    /// Builder of the underlying ggml graph, for ops that need no gradient.
    pub b: &'a Builder<'c>,
    pub(super) capabilities: Capabilities,
    pub(super) tape: Option<Tape<'a, 'c>>,
    pub(super) moments: Option<Watch>,
    pub(super) prepared: PreparedInputs<'c>,
}

impl<'a, 'c> Graph<'a, 'c> {
    /// A graph that only runs forwards.
    pub fn new(b: &'a Builder<'c>, capabilities: Capabilities) -> Self {
        Graph { b, capabilities, tape: None, moments: None, prepared: PreparedInputs::default() }
    }

    /// A graph that can be run backwards.
    pub fn recorded(b: &'a Builder<'c>, capabilities: Capabilities, how: Recording<'a>) -> Self {
        Graph { tape: Some(Tape::new(how)), ..Graph::new(b, capabilities) }
    }

    pub(super) fn activations(&self) -> Activations<'a, 'c> {
        Activations { b: self.b, own: self.capabilities.custom_ops, exact: self.tape.is_some() }
    }

    pub(super) fn record(&self, entry: impl FnOnce() -> TapeEntry<'c>) {
        if let Some(tape) = &self.tape {
            tape.push(entry());
        }
    }

    fn op(&self, out: Tensor<'c>, op: Op<'c>) -> Tensor<'c> {
        self.record(|| TapeEntry::Op(out, op));
        out
    }

    pub(super) fn bias(&self, x: Tensor<'c>, bias: Option<&StoreTensor>) -> Result<Tensor<'c>> {
        bias.map_or(Ok(x), |bias| self.b.add(x, self.b.stored(bias)?))
    }

    pub fn stored_f32(&self, tensor: &StoreTensor) -> Result<Tensor<'c>> {
        let stored = self.b.stored(tensor)?;
        if stored.dtype() == DType::F32 {
            return Ok(stored);
        }
        self.b.to_f32(stored)
    }

    /// `W x + bias` plus the low-rank pairs of adapters: `[n_in, T]` to `[n_out, T]`.
    pub fn linear(&self, x: Tensor<'c>, map: &Linear) -> Result<Tensor<'c>> {
        self.watch(x, map)?;
        self.unwatched(x, map)
    }

    fn unwatched(&self, x: Tensor<'c>, map: &Linear) -> Result<Tensor<'c>> {
        let out = if let Some(tape) = &self.tape {
            tape.linear(self, x, map)?
        } else {
            let choice = self.choose(map.weight.def().dtype, x);
            let y = self.product(choice, &[self.b.stored(&map.weight)?], x)?;
            self.bias(self.low_rank(y, x, map)?, map.bias.as_ref())?
        };
        self.b.name(out, &map.id.to_string());
        Ok(out)
    }

    fn low_rank(&self, mut y: Tensor<'c>, x: Tensor<'c>, map: &Linear) -> Result<Tensor<'c>> {
        for pair in &map.adapters {
            let h = self.b.scale(self.b.mul_mat(self.b.stored(&pair.a)?, x)?, pair.scale)?;
            y = self.b.add(y, self.b.mul_mat(self.b.stored(&pair.b)?, h)?)?;
        }
        Ok(y)
    }

    /// Several linear maps of one input, as one product where the weights are dequantized and small.
    pub fn linears<const N: usize>(&self, x: Tensor<'c>, maps: [&Linear; N]) -> Result<[Tensor<'c>; N]> {
        maps.iter().try_for_each(|map| self.watch(x, map))?;
        let mut out = [x; N];
        let choose = |map: &Linear| self.choose(map.weight.def().dtype, x);
        let choice = choose(maps[0]);
        let bytes = maps.iter().map(|map| map.n_in() * map.n_out() * size_of::<f32>()).sum();
        let alike = maps.iter().all(|map| choose(map) == choice);
        if self.tape.is_some() || !alike || !choice.joins(bytes) {
            for (out, map) in out.iter_mut().zip(maps) {
                *out = self.unwatched(x, map)?;
            }
            return Ok(out);
        }
        let weights = maps.iter().map(|map| self.b.stored(&map.weight)).collect::<Result<Vec<_>>>()?;
        let all = self.product(choice, &weights, x)?;
        let mut from = 0;
        for (out, map) in out.iter_mut().zip(maps) {
            let y = self.b.columns(all, from, map.n_out())?;
            *out = self.bias(self.low_rank(y, x, map)?, map.bias.as_ref())?;
            from += map.n_out();
        }
        Ok(out)
    }

    /// A norm over the first dimension, scaled, with its bias.
    pub fn norm(&self, x: Tensor<'c>, norm: &Norm) -> Result<Tensor<'c>> {
        let b = self.b;
        let weight = b.stored(&norm.weight)?;
        let normed = match (norm.centered, &self.tape) {
            (false, _) => b.rms_norm(x, norm.eps)?,
            (true, None) => b.layer_norm(x, norm.eps)?,
            // A LayerNorm is the RMS norm of what is left when the mean is taken off, and so is its gradient.
            (true, Some(_)) => b.rms_norm(centered(b, x)?, norm.eps)?,
        };
        let out = self.bias(b.mul(normed, weight)?, norm.bias.as_ref())?;
        let Norm { id, centered, eps, .. } = *norm;
        Ok(self.op(out, Op::Norm { x, normed, weight, id, centered, eps }))
    }

    /// Norm of each head alone: `[n_head * d, T]` to the same, with a scale `[d]`.
    pub fn head_norm(&self, x: Tensor<'c>, norm: &Norm) -> Result<Tensor<'c>> {
        self.flat(self.norm(self.heads(x, norm.weight.def().ne[0])?, norm)?)
    }

    /// `[n_head * d, T]` as `[d, n_head, T]`.
    pub fn heads(&self, x: Tensor<'c>, d: usize) -> Result<Tensor<'c>> {
        let [width, n, ..] = x.ne();
        // Maps of one input may have been computed as one product; then the rows of `x` are strided.
        let out = self.b.view(x, [d, width / d, n, 1], [4 * d, x.nb()[1], x.nb()[1] * n], 0)?;
        Ok(self.op(out, Op::Reshape { x }))
    }

    /// `[d, n_head, T]` as `[n_head * d, T]`, a copy where heads do not lie side by side.
    pub fn flat(&self, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let [d, n_head, n, _] = x.ne();
        Ok(self.op(self.reshape(x, &[d * n_head, n])?, Op::Reshape { x }))
    }

    /// `a + b`, of one shape.
    pub fn add(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        Ok(self.op(self.b.add(a, b)?, Op::Add { a, b }))
    }

    /// `silu(gate) * up`.
    pub fn swiglu(&self, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        Ok(self.op(self.b.swiglu(gate, up)?, Op::SwiGlu { gate, up }))
    }

    /// `gelu(gate) * up`, with the tanh form of GELU.
    pub fn geglu(&self, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        Ok(self.op(self.activations().geglu(gate, up)?, Op::GeGlu { gate, up }))
    }

    /// GELU: `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))` or `x / 2 (1 + erf(x / sqrt(2)))`.
    pub fn gelu(&self, x: Tensor<'c>, form: Gelu) -> Result<Tensor<'c>> {
        Ok(self.op(self.activations().gelu(x, form)?, Op::Gelu { x, form }))
    }

    /// `factor * x`; `x` itself where the factor is 1.
    pub fn scale(&self, x: Tensor<'c>, factor: f32) -> Result<Tensor<'c>> {
        if factor == 1.0 {
            return Ok(x);
        }
        Ok(self.op(self.b.scale(x, factor)?, Op::Scale { x, factor }))
    }

    /// `cap * tanh(x / cap)`.
    pub fn softcap(&self, x: Tensor<'c>, cap: f32) -> Result<Tensor<'c>> {
        let out = self.b.scale(self.b.tanh(self.b.scale(x, 1.0 / cap)?)?, cap)?;
        Ok(self.op(out, Op::Softcap { x, cap }))
    }

    /// `x * sigmoid(gate)`, F32 `[n, T]`; the gate is of that shape, or has one number for each token, `[1, T]`.
    pub fn gated(&self, x: Tensor<'c>, gate: Tensor<'c>) -> Result<Tensor<'c>> {
        let open = self.b.sigmoid(gate)?;
        Ok(self.op(self.b.mul(x, open)?, Op::Gate { x, gate, open }))
    }

    /// The result of a gated delta-net from its output `[d, n_head, T]`: a norm of each head, times `silu(z)`, z being
    /// `[d * n_head, T]`.
    pub fn gated_norm(&self, out: Tensor<'c>, norm: &Norm, z: Tensor<'c>) -> Result<Tensor<'c>> {
        self.swiglu(z, self.flat(self.norm(out, norm)?)?)
    }

    /// Logits `[n, T]` with those of one more row below, `row . x`: F32 `[n + 1, T]`. `x` is `[n_embd, T]`, and `row`,
    /// the tensor `id`, F32 `[n_embd]`: the row of the landmark token, which the output matrix of the file lacks.
    pub fn with_row(
        &self,
        logits: Tensor<'c>,
        x: Tensor<'c>,
        row: &StoreTensor,
        id: ParamId,
    ) -> Result<Tensor<'c>> {
        let row = self.b.stored(row)?;
        let out = self.b.concat(logits, self.times(row, x)?, 0)?;
        Ok(self.op(out, Op::Row { logits, x, row, id }))
    }

    /// `x [sum of widths, T]` cut into columns of these widths, as views whose rows are strided.
    pub fn split<const N: usize>(&self, x: Tensor<'c>, widths: [usize; N]) -> Result<[Tensor<'c>; N]> {
        let (mut parts, mut from) = ([x; N], 0);
        for (part, width) in parts.iter_mut().zip(widths) {
            *part = self.b.columns(x, from, width)?;
            from += width;
        }
        self.record(|| TapeEntry::Split { parts: parts.to_vec(), x });
        Ok(parts)
    }

    /// Runs the graph backwards from `seeds`, pairs of a tensor and its gradient. Returns the gradients of
    /// the tensors `wanted` (`None` for one that no seed depends on), and those of the trained tensors.
    #[allow(clippy::type_complexity)]
    pub fn backward(
        &self,
        seeds: &[(Tensor<'c>, Tensor<'c>)],
        wanted: &[Tensor<'c>],
    ) -> Result<(Vec<Option<Tensor<'c>>>, Vec<Gradient<'c>>)> {
        let tape = self.tape.as_ref();
        let tape = tape
            .ok_or_else(|| ggml::Error::Op { op: "backward", what: "the graph was not recorded".into() })?;
        tape.backward(self, seeds, wanted)
    }

    /// Saved activations with the linear map each is the output of.
    pub fn saved(&self) -> Vec<(LinearId, SavedActivation)> {
        self.tape.as_ref().map_or_else(Vec::new, |tape| tape.saved.borrow().clone())
    }

    /// Dropout masks with their linear map: inputs F32 `[n_in, T]` to be filled with 0 or `1 / (1 -
    /// dropout)`.
    pub fn dropout_masks(&self) -> Vec<(LinearId, InputId)> {
        self.tape.as_ref().map_or_else(Vec::new, |tape| tape.dropout_masks.borrow().clone())
    }

    /// Row numbers for lookups of weight rows: each range with the input I32 `[n]` to be filled with its
    /// numbers.
    pub fn row_ids(&self) -> Vec<(Range<usize>, InputId)> {
        let of = |tape: &Tape<'_, '_>| {
            let ids = tape.row_ids.borrow();
            ids.iter().map(|(&(first, n), &(id, _))| (first..first + n, id)).collect()
        };
        self.tape.as_ref().map_or_else(Vec::new, of)
    }
}
