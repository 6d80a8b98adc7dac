//! The parts that layers are made of, resolved when a model is loaded: a missing or misshapen tensor is an
//! error here, never while a graph is built.

use std::cell::RefCell;
use std::sync::Arc;

use ggml::backend::Device;
use ggml::experts::Gating;
use ggml::tensor::{Store, StoreTensor};
use ggml::{Error, Result};

use crate::adapter::{Adapter, LowRankPair};
use crate::hparams::{ExpertHparams, Hparams, LayerAttention};
use crate::ids::{self, LinearId, NormId, NormRole, ParamId, Role};
use crate::weights::{TensorSpec, Weights};

/// A linear map, `W x + bias`, with the low-rank pairs that adapters add to it.
#[derive(Debug, Clone)]
pub struct Linear {
    /// Identifies the map in the model.
    pub id: LinearId,
    /// `[n_in, n_out]`, of any type a row can be dequantized from.
    pub weight: StoreTensor,
    /// The tensor that holds the weight: the layer's, or the embedding if that is also the output matrix.
    pub weight_id: ParamId,
    /// F32 `[n_out]`.
    pub bias: Option<StoreTensor>,
    /// Low-rank pairs of the adapters in force.
    pub adapters: Vec<LowRankPair>,
}

impl Linear {
    /// Width of its input.
    pub fn n_in(&self) -> usize {
        self.weight.def().ne[0]
    }

    /// Width of its output.
    pub fn n_out(&self) -> usize {
        self.weight.def().ne[1]
    }
}

/// A linear map of each expert.
#[derive(Debug, Clone)]
pub struct ExpertStack {
    /// `[n_in, n_out, n_expert]`, of any type a row can be dequantized from.
    pub weight: StoreTensor,
    /// F32 `[n_out, n_expert]`.
    pub bias: Option<StoreTensor>,
}

/// The function of the gate and the up projection of an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertActivation {
    /// `silu(gate) * up`.
    SwiGlu,
    /// That of gpt-oss with these alpha and limit: [`ggml::graph::Builder::swiglu_oai`].
    SwiGluOai([f32; 2]),
}

/// A mixture of experts.
#[derive(Debug, Clone)]
pub struct Experts {
    /// From the input to a logit for each expert.
    pub router: Linear,
    /// Gates.
    pub gate: ExpertStack,
    /// Up projections.
    pub up: ExpertStack,
    /// Down projections.
    pub down: ExpertStack,
    /// Experts that each token is given to.
    pub n_used: usize,
    /// How the weights of those follow from the logits.
    pub gating: Gating,
    /// Between the projections.
    pub activation: ExpertActivation,
}

/// A shared expert, which every token uses in addition to a mixture of experts.
#[derive(Debug, Clone)]
pub struct SharedExpert {
    /// To one number for each token, whose sigmoid the expert's output is multiplied by.
    pub router: Linear,
    /// Gate.
    pub gate: Linear,
    /// Up projection.
    pub up: Linear,
    /// Down projection.
    pub down: Linear,
}

/// A gated delta-net: what a recurrent layer has in place of attention.
#[derive(Debug, Clone)]
pub struct DeltaNet {
    /// To queries, keys and values, before the convolution.
    pub qkv: Linear,
    /// To the gate of the output.
    pub gate: Linear,
    /// To how much is forgotten, a number for each head of values.
    pub alpha: Linear,
    /// To how much is learned, a number for each head of values.
    pub beta: Linear,
    /// Weights of the convolution, `[n_conv, n_embd_conv]`, of any type a row can be dequantized from.
    pub conv: StoreTensor,
    /// Added to alpha, F32 `[n_head_v]`.
    pub dt: StoreTensor,
    /// Factor on the softplus of that, F32 `[n_head_v]`; negative.
    pub a: StoreTensor,
    /// Norm of each head of the output.
    pub norm: Norm,
    /// Output projection.
    pub out: Linear,
}

/// An RMS norm or a LayerNorm.
#[derive(Debug, Clone)]
pub struct Norm {
    /// Identifies the norm in the model.
    pub id: NormId,
    /// The scale, F32 `[n]`.
    pub weight: StoreTensor,
    /// Added last, F32 `[n]`.
    pub bias: Option<StoreTensor>,
    /// True if the mean is subtracted first.
    pub centered: bool,
    /// Added to the mean square.
    pub eps: f32,
}

/// The norms of an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Values over their root mean square.
    Rms,
    /// LayerNorm: values less their mean, over their standard deviation.
    Layer(Bias),
}

/// Presence of a bias for a linear map or a norm in the model's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// It has none.
    No,
    /// It must have one.
    Yes,
    /// It may have one.
    Optional,
}

/// A linear map of a model, as its architecture declares it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinearShape {
    /// Identifies the map in the model.
    pub id: LinearId,
    /// The tensor its weight is.
    pub weight_id: ParamId,
    /// Width of its input.
    pub n_in: usize,
    /// Width of its output.
    pub n_out: usize,
    /// True if it has a bias.
    pub bias: bool,
}

/// Gives an architecture its tensors and records which ones it asked for.
pub(crate) struct Loader<'a> {
    /// The model's numbers.
    pub hp: &'a Hparams,
    norm_kind: NormKind,
    source: Source<'a>,
    linears: RefCell<Vec<LinearShape>>,
    norms: RefCell<Vec<(ParamId, usize)>>,
}

enum Source<'a> {
    /// Only records the tensors asked for, before those of a file are loaded. The handles it gives point into
    /// an empty store, and layers made of them are dropped. `has`: whether the file has a tensor of this name.
    Listing { specs: RefCell<Vec<TensorSpec>>, nowhere: Arc<Store>, has: &'a dyn Fn(&str) -> bool },
    /// A loaded model, with the adapters in force.
    Model { weights: &'a Weights, adapters: &'a [Adapter] },
}

impl<'a> Loader<'a> {
    pub(crate) fn listing(
        hp: &'a Hparams,
        norm_kind: NormKind,
        has: &'a dyn Fn(&str) -> bool,
    ) -> Result<Loader<'a>> {
        let nowhere = Store::planned(Device::find("cpu")?, Vec::new())?;
        Ok(Loader::from(hp, norm_kind, Source::Listing { specs: RefCell::default(), nowhere, has }))
    }

    pub(crate) fn model(
        hp: &'a Hparams,
        norm_kind: NormKind,
        weights: &'a Weights,
        adapters: &'a [Adapter],
    ) -> Loader<'a> {
        Loader::from(hp, norm_kind, Source::Model { weights, adapters })
    }

    fn from(hp: &'a Hparams, norm_kind: NormKind, source: Source<'a>) -> Loader<'a> {
        Loader { hp, norm_kind, source, linears: RefCell::default(), norms: RefCell::default() }
    }

    /// The tensors asked for, in that order; empty for a loaded model.
    pub(crate) fn into_specs(self) -> Vec<TensorSpec> {
        match self.source {
            Source::Listing { specs, .. } => specs.into_inner(),
            Source::Model { .. } => Vec::new(),
        }
    }

    /// The linear maps asked for, in that order.
    pub(crate) fn linears(&self) -> Vec<LinearShape> {
        self.linears.borrow().clone()
    }

    /// Scales and biases of the norms asked for with their width, in that order.
    pub(crate) fn norms(&self) -> Vec<(ParamId, usize)> {
        self.norms.borrow().clone()
    }

    /// A tensor of the file, or the one that an adapter replaces it with.
    fn optional(&self, id: ParamId, shape: &[usize], required: bool) -> Result<Option<StoreTensor>> {
        let name = id.to_string();
        match &self.source {
            Source::Listing { specs, nowhere, .. } => {
                specs.borrow_mut().push(TensorSpec { name, shape: shape.to_vec(), required });
                Ok(Some(StoreTensor { store: Arc::clone(nowhere), index: 0 }))
            }
            Source::Model { weights, adapters } => {
                let replaced = adapters.iter().rev().find_map(|a| a.module(id));
                Ok(replaced.or_else(|| weights.get(&name)).cloned())
            }
        }
    }

    fn required(&self, id: ParamId, shape: &[usize]) -> Result<StoreTensor> {
        let none = || Error::Argument(format!("{id}: expected a tensor of shape {shape:?}, found none"));
        self.optional(id, shape, true)?.ok_or_else(none)
    }

    /// A tensor of the file that no adapter replaces.
    fn fixed(&self, name: String, shape: &[usize]) -> Result<StoreTensor> {
        match &self.source {
            Source::Listing { specs, nowhere, .. } => {
                specs.borrow_mut().push(TensorSpec { name, shape: shape.to_vec(), required: true });
                Ok(StoreTensor { store: Arc::clone(nowhere), index: 0 })
            }
            Source::Model { weights, .. } => weights.get(&name).cloned().ok_or_else(|| {
                Error::Argument(format!("{name}: expected a tensor of shape {shape:?}, found none"))
            }),
        }
    }

    fn pairs(&self, id: LinearId) -> Vec<LowRankPair> {
        match &self.source {
            Source::Listing { .. } => Vec::new(),
            Source::Model { adapters, .. } => adapters.iter().filter_map(|a| a.pair(id)).cloned().collect(),
        }
    }

    fn linear(&self, id: LinearId, [n_in, n_out]: [usize; 2], bias: Bias) -> Result<Linear> {
        // The one row of a map to a number is a vector in files, and is not quantized.
        let shape = [n_in, n_out];
        let shape = if n_out == 1 { &shape[..1] } else { &shape };
        let weight = self.required(ParamId::Weight(id), shape)?;
        let bias = self.bias(ParamId::Bias(id), n_out, bias)?;
        let weight_id = ParamId::Weight(id);
        self.linears.borrow_mut().push(LinearShape { id, weight_id, n_in, n_out, bias: bias.is_some() });
        Ok(Linear { id, weight, weight_id, bias, adapters: self.pairs(id) })
    }

    fn bias(&self, id: ParamId, n: usize, bias: Bias) -> Result<Option<StoreTensor>> {
        match bias {
            Bias::No => Ok(None),
            Bias::Yes => self.required(id, &[n]).map(Some),
            Bias::Optional => self.optional(id, &[n], false),
        }
    }

    fn norm(&self, id: NormId, n: usize) -> Result<Norm> {
        let weight = self.required(ParamId::Norm(id), &[n])?;
        let (centered, bias) = match self.norm_kind {
            NormKind::Rms => (false, Bias::No),
            NormKind::Layer(bias) => (true, bias),
        };
        let bias = self.bias(ParamId::NormBias(id), n, bias)?;
        let with_bias = bias.iter().map(|_| ParamId::NormBias(id));
        self.norms.borrow_mut().extend(std::iter::once(ParamId::Norm(id)).chain(with_bias).map(|id| (id, n)));
        Ok(Norm { id, weight, bias, centered, eps: self.hp.norm_eps })
    }

    /// Returns true if the file has the weight of this map.
    fn has(&self, id: LinearId) -> bool {
        match &self.source {
            Source::Listing { has, .. } => has(&id.weight()),
            Source::Model { weights, .. } => weights.get(&id.weight()).is_some(),
        }
    }

    pub(crate) fn layer(&self, il: usize) -> LayerLoader<'_, 'a> {
        LayerLoader { loader: self, il }
    }

    /// The token embedding `[n_embd, n_vocab]`, when an adapter replaces it; else its rows are read from the
    /// file.
    pub(crate) fn embedding(&self) -> Result<Option<StoreTensor>> {
        let shape = [self.hp.n_embd, self.hp.n_vocab];
        match &self.source {
            Source::Listing { .. } => self.optional(ParamId::Embedding, &shape, true).map(|_| None),
            Source::Model { adapters, .. } => {
                Ok(adapters.iter().rev().find_map(|a| a.module(ParamId::Embedding)).cloned())
            }
        }
    }

    pub(crate) fn output_norm(&self) -> Result<Norm> {
        self.norm(NormId::OUTPUT, self.hp.n_embd)
    }

    /// The embedding as the output: an adapter's, unless that is for the input alone.
    fn tied_output(&self, shape: &[usize]) -> Result<StoreTensor> {
        match &self.source {
            Source::Model { adapters, .. } => {
                let replaces = adapters.iter().rev().find(|a| a.module(ParamId::Embedding).is_some());
                match replaces {
                    Some(adapter) if adapter.keeps_output() => {
                        self.fixed(ParamId::Embedding.to_string(), shape)
                    }
                    _ => self.required(ParamId::Embedding, shape),
                }
            }
            Source::Listing { .. } => self.required(ParamId::Embedding, shape),
        }
    }

    /// The output matrix: the token embedding if the file has no separate one.
    pub(crate) fn output(&self, bias: Bias) -> Result<Linear> {
        let (id, shape) = (LinearId::OUTPUT, [self.hp.n_embd, self.hp.n_vocab]);
        let own = self.optional(ParamId::Weight(id), &shape, false)?;
        let (weight, weight_id) = match own {
            Some(weight) => (weight, ParamId::Weight(id)),
            None => (self.tied_output(&shape)?, ParamId::Embedding),
        };
        let bias = self.bias(ParamId::Bias(id), shape[1], bias)?;
        let [n_in, n_out] = shape;
        self.linears.borrow_mut().push(LinearShape { id, weight_id, n_in, n_out, bias: bias.is_some() });
        Ok(Linear { id, weight, weight_id, bias, adapters: self.pairs(id) })
    }
}

/// A [`Loader`] for the tensors of one layer.
#[derive(Clone, Copy)]
pub(crate) struct LayerLoader<'l, 'a> {
    loader: &'l Loader<'a>,
    il: usize,
}

impl LayerLoader<'_, '_> {
    /// The model's numbers.
    pub(crate) fn hp(&self) -> &Hparams {
        self.loader.hp
    }

    pub(crate) fn n_ff(&self) -> usize {
        self.loader.hp.layers[self.il].n_ff
    }

    pub(crate) fn attention(&self) -> Result<&LayerAttention> {
        let none = || Error::Argument(format!("layer {}: it has no attention", self.il));
        self.loader.hp.attention_of(self.il).ok_or_else(none)
    }

    /// The layer's gated delta-net; `None` in layers with attention.
    pub(crate) fn delta_net(&self) -> Result<Option<DeltaNet>> {
        let hp = self.hp();
        let (Some(net), None) = (hp.delta_net, hp.attention_of(self.il)) else { return Ok(None) };
        let (n_embd, n_head, n_value) = (hp.n_embd, net.n_head_v, net.n_embd_v());
        let [conv, dt, a] = ids::delta_net(self.il);
        Ok(Some(DeltaNet {
            qkv: self.linear(Role::Qkv, n_embd, net.n_embd_conv(), Bias::No)?,
            gate: self.linear(Role::AttnGate, n_embd, n_value, Bias::No)?,
            alpha: self.linear(Role::SsmAlpha, n_embd, n_head, Bias::No)?,
            beta: self.linear(Role::SsmBeta, n_embd, n_head, Bias::No)?,
            conv: self.loader.fixed(conv, &[net.n_conv, net.n_embd_conv()])?,
            dt: self.loader.fixed(dt, &[n_head])?,
            a: self.loader.fixed(a, &[n_head])?,
            norm: self.norm(NormRole::Ssm, net.n_embd_head)?,
            out: self.linear(Role::SsmOut, n_value, n_embd, Bias::No)?,
        }))
    }

    /// A linear map from `n_in` to `n_out` values.
    pub(crate) fn linear(&self, role: Role, n_in: usize, n_out: usize, bias: Bias) -> Result<Linear> {
        self.loader.linear(LinearId::layer(self.il, role), [n_in, n_out], bias)
    }

    /// The layer's attention sinks, F32 `[n_head]`.
    pub(crate) fn sinks(&self) -> Result<StoreTensor> {
        self.loader.fixed(ids::sinks(self.il), &[self.attention()?.n_head])
    }

    /// The layer's mixture of experts. `bias`: whether all of its maps have one.
    pub(crate) fn experts(
        &self,
        gating: Gating,
        activation: ExpertActivation,
        bias: Bias,
    ) -> Result<Experts> {
        let hp = self.hp();
        let found_none = || Error::Argument("expert_count: expected a number, found none".into());
        let ExpertHparams { n_expert, n_used, .. } = hp.experts.ok_or_else(found_none)?;
        let stack = |role, n_in, n_out| -> Result<ExpertStack> {
            let id = LinearId::layer(self.il, role);
            let weight = self.loader.required(ParamId::Weight(id), &[n_in, n_out, n_expert])?;
            let bias = match bias {
                Bias::No => None,
                Bias::Yes => Some(self.loader.required(ParamId::Bias(id), &[n_out, n_expert])?),
                Bias::Optional => self.loader.optional(ParamId::Bias(id), &[n_out, n_expert], false)?,
            };
            Ok(ExpertStack { weight, bias })
        };
        let (n_embd, n_ff) = (hp.n_embd, self.n_ff());
        Ok(Experts {
            router: self.linear(Role::Router, n_embd, n_expert, bias)?,
            gate: stack(Role::GateExps, n_embd, n_ff)?,
            up: stack(Role::UpExps, n_embd, n_ff)?,
            down: stack(Role::DownExps, n_ff, n_embd)?,
            n_used,
            gating,
            activation,
        })
    }

    /// The expert that every token is given to.
    pub(crate) fn shared_expert(&self) -> Result<SharedExpert> {
        let n_embd = self.hp().n_embd;
        let found_none =
            || Error::Argument("expert_shared_feed_forward_length: expected a number, found none".into());
        let n_ff = self.hp().experts.and_then(|experts| experts.n_ff_shared).ok_or_else(found_none)?;
        Ok(SharedExpert {
            router: self.linear(Role::SharedRouter, n_embd, 1, Bias::No)?,
            gate: self.linear(Role::SharedGate, n_embd, n_ff, Bias::No)?,
            up: self.linear(Role::SharedUp, n_embd, n_ff, Bias::No)?,
            down: self.linear(Role::SharedDown, n_ff, n_embd, Bias::No)?,
        })
    }

    /// Returns true if the file has a linear map in this role.
    pub(crate) fn has(&self, role: Role) -> bool {
        self.loader.has(LinearId::layer(self.il, role))
    }

    /// A norm over `n` values.
    pub(crate) fn norm(&self, role: NormRole, n: usize) -> Result<Norm> {
        self.loader.norm(NormId::layer(self.il, role), n)
    }
}
