//! Training of the RoPE method `clex`: draws a factor t and positions for each sequence, and propagates the gradient of
//! the frequencies through the differential equation to its network.

use std::sync::Arc;

use ggml::graph::{Executor, OutputId};
use rand::Rng;

use super::layer::Block;
use super::params::{generator, ParamSet};
use crate::hparams::{ClexNet, Hparams};
use crate::ids::ParamId;
use crate::model::{Error, Result};
use crate::rope::{Clex, Part, Plan, Spec};

/// The factor and the positions one sequence is trained at.
///
/// Draws as the published code does (DAMO-NLP-SG/CLEX, `clex_layer.py`), for n tokens and an original context of L: t
/// is an integer from 1 to `max-factor`, each as likely; with s = floor(n / L), at least 1, the positions are 0, then
/// (p + 1) / s for n - 2 different p out of 0 to n t - 3 in ascending order, then floor(n t / s) - 1. The last can thus
/// be lower than some before it by less than 1. At t = 1 and s = 1 they are 0 to n - 1.
#[derive(Debug, Clone, PartialEq)]
pub struct ClexDraw {
    /// The factor.
    pub t: usize,
    /// A position for each token.
    pub positions: Vec<f64>,
}

impl ClexDraw {
    /// The draw for a sequence of `n` tokens: the same for the same seed and number of sequences before it.
    pub fn new(clex: &Clex, seed: u64, n_seen: u64, n: usize) -> ClexDraw {
        let mut rng = generator(seed, &format!("clex {n_seen}"));
        let t = clex.factor.unwrap_or_else(|| rng.random_range(1..=clex.max_factor.max(1)));
        let scale = (n / clex.original.max(1)).max(1);
        if n < 2 {
            return ClexDraw { t, positions: vec![0.0; n] };
        }
        let mut drawn = rand::seq::index::sample(&mut rng, n * t - 2, n - 2).into_vec();
        drawn.sort_unstable();
        let between = drawn.into_iter().map(|p| (p + 1) as f64 / scale as f64);
        let last = (n * t / scale - 1) as f64;
        ClexDraw { t, positions: std::iter::once(0.0).chain(between).chain([last]).collect() }
    }
}

/// The method's parameters and the shape of the network's up projection, `[n_rot/2, n_hidden]`, or `None` under another
/// method.
///
/// # Errors
/// Returns an error if layers rotate different numbers of dimensions, which one network cannot serve, or if the spec
/// does not change the model.
fn network(plan: &Plan, hp: &Hparams) -> Result<Option<(Clex, [usize; 2])>> {
    let Some(clex) = Clex::of(&plan.spec, plan.n_ctx_orig(hp)) else { return Ok(None) };
    let kinds = hp.attention.iter().zip(plan.kinds()).filter(|(_, kind)| kind.applies);
    let mut widths: Vec<usize> = kinds.map(|(layer, _)| layer.n_rot()).collect();
    widths.dedup();
    let keeps = |p: &Part| p.get("keep-short").is_some_and(|v| v.to_string() == "true");
    if plan.n_ctx <= clex.original && plan.spec.part("clex").is_some_and(keeps) {
        let what = format!("rope {}: keep-short leaves nothing to train at {} tokens", plan.spec, plan.n_ctx);
        return Err(Error::Unsupported(what));
    }
    match widths[..] {
        [n_rot] => Ok(Some((clex, [n_rot / 2, clex.n_hidden(n_rot)]))),
        _ => Err(Error::Unsupported(format!(
            "rope {}: one network serves all layers, but they rotate {widths:?} dimensions",
            plan.spec
        ))),
    }
}

/// The shape of the network's up projection, `[n_rot/2, n_hidden]`, under a plan of `clex`.
pub(super) fn shape(plan: &Plan, hp: &Hparams) -> Result<Option<[usize; 2]>> {
    Ok(network(plan, hp)?.map(|(_, shape)| shape))
}

/// Bytes on the host that solving takes.
pub(super) fn n_bytes(plan: &Plan, hp: &Hparams) -> Result<usize> {
    Ok(network(plan, hp)?.map_or(0, |(clex, [pairs, hidden])| clex.n_bytes(pairs, hidden)))
}

#[derive(Debug)]
pub(super) struct ClexTraining {
    clex: Clex,
    /// Of the up projection.
    shape: [usize; 2],
    spec: Spec,
    n_ctx: usize,
    /// The model's numbers, with the network as it is trained.
    hp: Hparams,
    pub(super) plan: Plan,
    draw: ClexDraw,
    /// Gradients of the frequencies, for each kind of layer `[n_pairs]`.
    grads: Vec<Vec<f64>>,
}

impl ClexTraining {
    /// `None` under another method.
    pub(super) fn new(plan: &Plan, hp: &Hparams) -> Result<Option<ClexTraining>> {
        Ok(network(plan, hp)?.map(|(clex, shape)| ClexTraining {
            clex,
            shape,
            spec: plan.spec.clone(),
            n_ctx: plan.n_ctx,
            hp: hp.clone(),
            plan: plan.clone(),
            draw: ClexDraw { t: 1, positions: Vec::new() },
            grads: Vec::new(),
        }))
    }

    /// Prepares a sequence of `n` tokens: in training (`drawn` is the seed and the number of sequences before it) at
    /// a factor and positions that are drawn, else at those of the trainer's context.
    pub(super) fn start(&mut self, params: &ParamSet, n: usize, drawn: Option<(u64, u64)>) -> Result<()> {
        let value = |id: ParamId| params.value(id).map_or(Vec::new(), <[f32]>::to_vec);
        let [pairs, hidden] = self.shape;
        let net = ClexNet::new(pairs, hidden, value(ParamId::ClexUp), value(ParamId::ClexDown));
        self.hp.clex =
            Some(Arc::new(net.map_err(|what| Error::Invalid(format!("network of clex: {what}")))?));
        self.draw = match drawn {
            Some((seed, n_seen)) => ClexDraw::new(&self.clex, seed, n_seen, n),
            None => ClexDraw { t: self.clex.t(self.n_ctx), positions: (0..n).map(|i| i as f64).collect() },
        };
        self.plan = Plan::new(&Clex::fixed(&self.spec, self.draw.t)?, &self.hp, self.n_ctx)?;
        self.grads = self.plan.kinds().iter().map(|kind| vec![0.0; kind.freqs.n_pairs()]).collect();
        Ok(())
    }

    /// A position for each token of the sequence at hand.
    pub(super) fn positions(&self) -> &[f64] {
        &self.draw.positions
    }

    /// Adds the gradients of the frequencies of a block's layer, from those of its angles: F32 `[n_pairs, heads, n]`
    /// of queries and of keys.
    pub(super) fn add(
        &mut self,
        exec: &Executor,
        block: Block,
        angles: &[OutputId],
        scratch: &mut Vec<f32>,
    ) -> Result<()> {
        let kind = self.hp.layers[block.il].kind;
        let Some(sums) = kind.and_then(|kind| self.grads.get_mut(kind)) else { return Ok(()) };
        let positions = &self.draw.positions[block.start..block.start + block.n];
        for &id in angles {
            exec.read_f32(id, scratch)?;
            for (rows, position) in scratch.chunks_exact(scratch.len() / block.n).zip(positions) {
                for row in rows.chunks_exact(sums.len()) {
                    sums.iter_mut().zip(row).for_each(|(sum, g)| *sum += position * f64::from(*g));
                }
            }
        }
        Ok(())
    }

    /// Takes the gradients of all frequencies through the equation to the sums of the matrices' gradients.
    pub(super) fn finish(&mut self, params: &ParamSet) -> Result<()> {
        let Some(net) = self.hp.clex.clone() else { return Ok(()) };
        for ((layer, plan), grad) in self.hp.attention.iter().zip(self.plan.kinds()).zip(&self.grads) {
            let Some(rotation) = layer.rotation.filter(|_| plan.applies && self.draw.t > 1) else { continue };
            // Of logarithms, from those of the frequencies themselves.
            let of_ln: Vec<f64> = grad.iter().zip(&plan.freqs.theta).map(|(g, theta)| g * theta).collect();
            let found = self.clex.backward(&net, rotation.freq_base, self.draw.t, &of_ln);
            for (id, more) in [(ParamId::ClexUp, found.up), (ParamId::ClexDown, found.down)] {
                params.add_to_grad(id, |sum| {
                    sum.iter_mut().zip(more).for_each(|(s, g)| *s = (f64::from(*s) + g) as f32);
                })?;
            }
        }
        Ok(())
    }
}
