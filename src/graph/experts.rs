//! Mixtures of experts: a router gives each token to some of them, whose results are summed with its weights.
//!
//! This follows llama.cpp's `build_moe_ffn`. In inference, products round to 8 bits; in training they are in floats,
//! and the choice of experts has no gradient.

use ggml::experts::{Chosen, Gating, GatingKind, LEAST_SUM};
use ggml::tensor::{StoreTensor, Tensor};
use ggml::{Error, Result};

use super::blocks::Graph;
use super::tape::{Grads, TapeEntry};
use super::{Kernel, Pass};
use crate::layers::{ExpertActivation, ExpertStack, Experts, SharedExpert};

/// A mixture of experts as it was built.
pub(super) struct ExpertsEntry<'c> {
    /// `[n_embd, T]`
    out: Tensor<'c>,
    x: Tensor<'c>,
    /// `[n_expert, T]`
    logits: Tensor<'c>,
    chosen: Chosen<'c>,
    /// `[1, n_used, T]`
    weights: Tensor<'c>,
    /// Gate and up projection of each place, `[n_ff, n_used, T]`.
    gate: Tensor<'c>,
    up: Tensor<'c>,
    /// Down projection of each place, `[n_embd, n_used, T]`.
    down: Tensor<'c>,
    gating: Gating,
    activation: ExpertActivation,
    /// Weights of the gate, up, and down projections.
    stacks: [StoreTensor; 3],
}

impl<'c> Graph<'_, 'c> {
    /// A mixture of experts: `[n_embd, T]` to the same.
    ///
    /// # Errors
    /// Tensors that do not fit; on devices without ops of our own, a graph that is to be run backwards.
    pub fn experts(&self, x: Tensor<'c>, experts: &Experts) -> Result<Tensor<'c>> {
        let (b, trains) = (self.b, self.tape.is_some());
        if trains && !self.capabilities.custom_ops {
            let what = "training a mixture of experts is for the CPU, and by ops of our own (not portable)";
            return Err(Error::Op { op: "experts", what: what.into() });
        }
        let logits = self.linear(x, &experts.router)?;
        let (chosen, weights) = self.weights_of_chosen(logits, experts)?;
        let pass = if trains { Pass::TrainingExperts } else { Pass::Experts };
        let product = |stack: &ExpertStack, x| -> Result<Tensor<'c>> {
            let w = b.stored(&stack.weight)?;
            let choice = self.capabilities.matmul.choose(w.dtype(), chosen.n_tokens(), pass);
            let y = b.matmul_experts(choice.kernel, w, x, chosen, false)?;
            stack.bias.as_ref().map_or(Ok(y), |bias| b.add_chosen(y, b.stored(bias)?, chosen))
        };
        let [n_embd, n, ..] = x.ne();
        let each = b.reshape(x, &[n_embd, 1, n])?;
        self.watch_experts(each, chosen, &[&experts.gate, &experts.up])?;
        let (gate, up) = (product(&experts.gate, each)?, product(&experts.up, each)?);
        let h = match experts.activation {
            ExpertActivation::SwiGlu => b.swiglu(gate, up)?,
            ExpertActivation::SwiGluOai(numbers) => b.swiglu_oai(gate, up, numbers)?,
        };
        self.watch_experts(h, chosen, &[&experts.down])?;
        let down = product(&experts.down, h)?;
        let out = b.sum_places(b.mul(down, weights)?)?;
        b.name(out, "ffn_moe_out");
        self.record(|| {
            let (gating, activation) = (experts.gating, experts.activation);
            let stacks = [&experts.gate, &experts.up, &experts.down].map(|stack| stack.weight.clone());
            let entry =
                ExpertsEntry { out, x, logits, chosen, weights, gate, up, down, gating, activation, stacks };
            TapeEntry::Experts(Box::new(entry))
        });
        Ok(out)
    }

    /// An expert that every token is given to: `[n_embd, T]` to the same.
    pub fn shared_expert(&self, x: Tensor<'c>, expert: &SharedExpert) -> Result<Tensor<'c>> {
        let [gate, up] = self.linears(x, [&expert.gate, &expert.up])?;
        let out = self.linear(self.swiglu(gate, up)?, &expert.down)?;
        self.gated(out, self.linear(x, &expert.router)?)
    }

    /// The experts with the largest logits `[n_expert, T]`, and their weights, `[1, n_used, T]`.
    fn weights_of_chosen(&self, logits: Tensor<'c>, experts: &Experts) -> Result<(Chosen<'c>, Tensor<'c>)> {
        let (b, gating) = (self.b, experts.gating);
        let p = match gating.kind {
            GatingKind::Softmax => b.soft_max(logits)?,
            GatingKind::SoftmaxOfChosen => logits,
        };
        let chosen = b.top_k(p, experts.n_used)?;
        let mut weights = b.of_chosen(p, chosen)?;
        if gating.kind == GatingKind::SoftmaxOfChosen {
            weights = b.soft_max(weights)?;
        }
        if gating.normalised {
            let sum = b.clamp(b.sum_rows(weights)?, LEAST_SUM, f32::INFINITY)?;
            weights = b.div(weights, sum)?;
        }
        Ok((chosen, b.reshape(weights, &[1, chosen.n_used(), chosen.n_tokens()])?))
    }
}

impl<'c> ExpertsEntry<'c> {
    /// Adds to the gradients of the input and of the logits.
    pub(super) fn back(&self, g: &Graph<'_, 'c>, grads: &mut Grads<'c>) -> Result<()> {
        let (b, chosen) = (g.b, self.chosen);
        let Some(d) = grads.of(self.out) else { return Ok(()) };
        let (n_used, n) = (chosen.n_used(), chosen.n_tokens());
        let d = b.reshape(d, &[d.ne()[0], 1, n])?;
        let d_weights = b.reshape(b.sum_rows(b.mul(self.down, d)?)?, &[n_used, n])?;
        grads.add(g, self.logits, b.router_back(self.logits, chosen, d_weights, self.gating)?)?;

        let [gate, up, down] = &self.stacks;
        let transposed =
            |stack: &StoreTensor, d| b.matmul_experts(Kernel::F32, b.stored(stack)?, d, chosen, true);
        let d_h = b.mul(transposed(down, d)?, self.weights)?;
        let [n_ff, ..] = self.gate.ne();
        let flat = |t: Tensor<'c>| b.reshape(t, &[n_ff, n_used * n]);
        let both = match self.activation {
            ExpertActivation::SwiGlu => b.swiglu_back(flat(d_h)?, flat(self.gate)?, flat(self.up)?)?,
            ExpertActivation::SwiGluOai(numbers) => {
                b.swiglu_oai_back(flat(d_h)?, flat(self.gate)?, flat(self.up)?, numbers)?
            }
        };
        let part = |from| b.reshape(b.cont(b.columns(both, from, n_ff)?)?, &[n_ff, n_used, n]);
        let d_x = b.add(transposed(gate, part(0)?)?, transposed(up, part(n_ff)?)?)?;
        grads.add(g, self.x, b.sum_places(d_x)?)
    }
}
