//! Fine-tuning, a layer at a time: low-rank pairs on quantized weights, or all parameters of a model in floats.
//!
//! The forward run saves each layer's input and, where memory allows, more activations ([`Checkpointing`]).
//! The loss is taken over blocks of tokens. The backward run goes from the last layer to the first: each is
//! computed again and differentiated in blocks of tokens, attention in blocks of queries against all keys
//! before them. So the memory of a step grows linearly with the context: each layer's input on the host, and
//! the keys, values and their gradients of one layer on the device.

mod attention;
mod cache;
pub mod checkpoint;
mod clex;
mod delta_net;
mod embed;
mod export;
mod fill;
mod full;
mod head;
mod init;
mod landmark;
mod layer;
mod log;
mod longce;
mod memory;
pub mod optim;
mod params;
pub mod recipe;
mod run;
mod run_params;
mod saved;
mod seen;
pub mod set;
mod settings;
mod stages;
mod targets;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ggml::graph::{Builder, Executor, Outcome, OutputId};

use crate::graph::SavedActivation;
use crate::model::{Error, Model, Result};
use crate::rope::{LayerPlan, Plan};
use crate::Token;

use clex::ClexTraining;
use delta_net::StateCache;
use landmark::Text;
use layer::{Block, Ctx, LayerIds, Setup};
use saved::{saved_rows, Activation, Rows};
use seen::Seen;

pub use clex::ClexDraw;
pub use export::write_adapter;
pub use full::write_model;
pub use init::{Init, SampleOrder};
pub use log::{History, LOG};
pub use longce::LongCe;
pub use memory::{Budget, MemoryPlan};
pub use params::{LoraParams, ParamSet, Trainable, Trained};
pub use run::Run;
pub use run_params::{RunParams, RunReport};
pub use saved::{Checkpointing, SavedType};
pub use seen::TrainAttention;
pub use set::{Settings, KEYS};
pub use settings::{Sequence, TrainParams};
pub use stages::Stage;

/// A model in training.
#[derive(Debug)]
pub struct Trainer {
    setup: Setup,
    exec: Executor,
    checkpointing: Checkpointing,
    inputs: Vec<Rows>,
    saved: Vec<Vec<(Activation, Rows)>>,
    grad: Rows,
    /// The state of the rope method `clex`, under which plan and positions are those of the sequence at hand.
    clex: Option<ClexTraining>,
    positions: Vec<i32>,
    /// Sequences so far, which dropout and draws of `clex` depend on.
    n_seen: u64,
    cancel: Arc<AtomicBool>,
    scratch: Vec<f32>,
}

impl Trainer {
    /// Prepares a model for training.
    ///
    /// # Errors
    /// Settings out of range; a method that changes the attention pattern, where that is not trained; a model with
    /// adapters; too little memory.
    pub fn new(model: &Model, settings: &TrainParams) -> Result<Trainer> {
        if !model.adapters().is_empty() {
            return Err(Error::Unsupported(
                "training starts from a model without adapters; merge the adapters first".into(),
            ));
        }
        let need = MemoryPlan::new(model, settings)?;
        need.check(model)?;
        let setup = Setup::new(model, settings, false)?;
        let (hp, n) = (model.hparams(), settings.attention.n_positions(settings.n_ctx));
        let rows = |width| Rows::new(width, n, settings.saved_type);
        let inputs = (0..hp.n_layer).map(|_| rows(hp.n_embd)).collect::<Result<_>>()?;
        let saved_of = |il| {
            let widths = saved::widths(&setup.transformer, hp, il, need.checkpointing);
            widths.into_iter().map(|(what, width)| Ok((what, rows(width)?))).collect()
        };
        let saved = (0..hp.n_layer).map(saved_of).collect::<Result<_>>()?;
        let exec = setup.capabilities.executor(model.backend_device(), settings.n_threads)?;
        Ok(Trainer {
            clex: ClexTraining::new(&setup.plan, hp)?,
            setup,
            checkpointing: need.checkpointing,
            inputs,
            saved,
            grad: Rows::new(hp.n_embd, n, SavedType::F32)?,
            positions: Vec::new(),
            n_seen: 0,
            cancel: exec.backend().cancel_flag(),
            scratch: Vec::new(),
            exec,
        })
    }

    /// Settings of the trainer, with `n_block` at most the context.
    pub fn settings(&self) -> &TrainParams {
        &self.setup.settings
    }

    /// The plan trained under; under `clex`, with its network untrained.
    pub fn plan(&self) -> &Plan {
        &self.setup.plan
    }

    /// The trained tensors.
    pub fn params(&self) -> &ParamSet {
        &self.setup.params
    }

    /// The trained tensors, to be changed.
    pub fn params_mut(&mut self) -> &mut ParamSet {
        &mut self.setup.params
    }

    /// Which activations are saved between the runs.
    pub fn checkpointing(&self) -> Checkpointing {
        self.checkpointing
    }

    /// A flag that ends the running call with [`Error::Interrupted`] when set. The caller that sets it resets
    /// it.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Sequences trained on so far; dropout and draws of `clex` depend on it, so a resumed run sets it.
    pub fn set_seen(&mut self, n: u64) {
        self.n_seen = n;
    }

    /// The mean loss of a sequence, in nats per token, under the model's own attention. No gradient is computed. Under
    /// `clex` its factor is that of the trainer's context.
    pub fn loss(&mut self, sequence: Sequence<'_>) -> Result<f64> {
        Ok(self.run(sequence, None)?.0)
    }

    /// The loss of each target of a sequence, in nats; weights do not count. No gradient is computed.
    pub fn losses(&mut self, sequence: Sequence<'_>) -> Result<Vec<f64>> {
        Ok(self.run(sequence, None)?.1)
    }

    /// The mean loss of a sequence, in nats per token. `factor` times its gradient is added to the sums of
    /// the step. Under `clex` the sequence is put at a factor and positions drawn for it ([`ClexDraw`]).
    ///
    /// # Errors
    /// A loss that is not finite, [`Error::Interrupted`], the device: then the sums hold part of a gradient
    /// and are to be discarded ([`ParamSet::zero_grads`]).
    pub fn accumulate(&mut self, sequence: Sequence<'_>, factor: f32) -> Result<f64> {
        let (loss, _) = self.run(sequence, Some(factor))?;
        self.n_seen += 1;
        Ok(loss)
    }

    /// The mean loss, and that of each target.
    fn run(&mut self, sequence: Sequence<'_>, factor: Option<f32>) -> Result<(f64, Vec<f64>)> {
        let Text { inputs, targets, weights, segment_starts } = self.text(&sequence)?;
        let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        let (model, n) = (self.setup.model.clone(), inputs.len());
        let hp = model.hparams();
        self.positions = match sequence.positions {
            [] => (0..n as i32).collect(),
            given => given.iter().map(|&p| p as i32).collect(),
        };
        let training = factor.is_some();
        let group = if training { self.setup.settings.attention.group(n)? } else { None };
        let seen = Seen::new(&segment_starts, n, group);
        if let Some(clex) = &mut self.clex {
            let drawn = factor.map(|_| (self.setup.settings.trainable.seed(), self.n_seen));
            clex.start(&self.setup.params, n, drawn)?;
        }
        self.embed(&inputs)?;
        let (mut loss, mut each) = (0.0, Vec::with_capacity(n));
        for il in 0..hp.n_layer {
            for block in self.blocks(il, n) {
                let y = self.forward(block, &seen, training)?;
                if il + 1 < hp.n_layer {
                    let y = read(&self.exec, y, &mut self.scratch)?;
                    self.inputs[il + 1].put(block.start, y);
                    continue;
                }
                let mut y_rows = std::mem::take(&mut self.scratch);
                self.exec.read_f32(y, &mut y_rows)?;
                let at = block.start..block.start + block.n;
                let counts: Vec<f32> = weights[at.clone()].iter().map(|w| w / total as f32).collect();
                let losses = self.head(&y_rows, block, &targets[at], &counts, factor)?;
                self.scratch = y_rows;
                // A loss of weight 0 may be infinite but not NaN: its gradient is multiplied by 0.
                let counted = losses.iter().zip(&counts).filter(|(nll, &w)| w > 0.0 || nll.is_nan());
                loss += counted.map(|(&nll, &w)| nll * f64::from(w)).sum::<f64>();
                each.extend(losses);
            }
        }
        if !loss.is_finite() {
            return Err(Error::Invalid(format!("the loss is {loss}: {}", self.find_nonfinite(n))));
        }
        if factor.is_some() {
            for il in (0..hp.n_layer).rev() {
                self.backward(il, n, &seen)?;
            }
            self.embedding_gradient(&inputs)?;
            self.clex.as_mut().map_or(Ok(()), |clex| clex.finish(&self.setup.params))?;
        }
        Ok((loss, each))
    }

    /// Checks a sequence, and puts landmarks into it where these are trained.
    fn text(&self, sequence: &Sequence<'_>) -> Result<Text> {
        let invalid = |what| Err(Error::Invalid(what));
        let (n, n_ctx) = (sequence.tokens.len().saturating_sub(1), self.setup.settings.n_ctx);
        if n == 0 || n > n_ctx {
            let expected = format!("2 to {} tokens", n_ctx + 1);
            return Err(Error::argument("sequence", expected, sequence.tokens.len()));
        }
        let n_vocab = self.setup.model.hparams().n_vocab;
        if let Some(t) = sequence.tokens.iter().find(|&&t| t < 0 || t as usize >= n_vocab) {
            return Err(Error::argument("token", format_args!("0 to {}", n_vocab - 1), t));
        }
        let weights = match sequence.weights.len() {
            0 => vec![1.0; n],
            len if len == n => sequence.weights.to_vec(),
            len => return Err(Error::argument("weights", format_args!("{n}, one per target"), len)),
        };
        let total: f64 = weights.iter().map(|&w| f64::from(w)).sum();
        if weights.iter().any(|w| !w.is_finite() || *w < 0.0) || total <= 0.0 {
            return invalid("weights: expected numbers of at least 0, not all 0".into());
        }
        if !sequence.segment_starts.is_sorted() {
            return invalid("segment_starts: expected ascending positions".into());
        }
        let (positions, most) = (sequence.positions, self.setup.settings.planned_ctx());
        let ascend = positions.len() == n && positions.is_sorted_by(|a, b| a < b);
        if !positions.is_empty() && (!ascend || positions.last().is_some_and(|&p| p as usize >= most)) {
            return invalid(format!("positions: expected {n} in ascending order, below {most}"));
        }
        let text = Text::plain(sequence, weights);
        let Some(landmarks) = self.setup.settings.attention.landmarks() else { return Ok(text) };
        Ok(text.with_landmarks(landmarks, self.setup.model.landmark_token()))
    }

    fn blocks(&self, il: usize, n: usize) -> Vec<Block> {
        let size = self.setup.settings.n_block;
        (0..n).step_by(size).map(|start| Block { il, start, n: size.min(n - start) }).collect()
    }

    fn forward(&mut self, block: Block, seen: &Seen, training: bool) -> Result<OutputId> {
        let ids = self.layer(block, seen, training, |ctx, b| ctx.forward(b, block))?;
        for &(what, activation) in &ids.saved {
            if let SavedActivation::Save(id) = activation {
                let rows = read(&self.exec, id, &mut self.scratch)?;
                saved_rows(&mut self.saved[block.il], what)?.put(block.start, rows);
            }
        }
        output(ids.out)
    }

    fn head(
        &mut self,
        y: &[f32],
        block: Block,
        targets: &[Token],
        weights: &[f32],
        factor: Option<f32>,
    ) -> Result<Vec<f64>> {
        let ids = {
            let (exec, ctx) = self.ctx(false, false);
            exec.build(ctx.max_tensors(0), |b| ctx.loss(b, block.n, factor.is_some()))?
        };
        let scaled: Vec<f32> = weights.iter().map(|w| w * factor.unwrap_or(0.0)).collect();
        ids.fill(&mut self.exec, self.setup.model.hparams().n_vocab, targets, &scaled)?;
        self.exec.set(ids.x, y)?;
        self.compute()?;
        let losses = ids.losses(&self.exec)?;
        if let Some(id) = ids.d_x {
            let mut rows = Vec::new();
            self.grad.put(block.start, read(&self.exec, id, &mut rows)?);
        }
        Ok(losses)
    }

    fn backward(&mut self, il: usize, n: usize, seen: &Seen) -> Result<()> {
        let blocks = self.blocks(il, n);
        let alone = blocks.len() == 1;
        let model = self.setup.model.clone();
        let attention = model.hparams().attention_of(il);
        // Nothing begins after the last block of a recurrent layer.
        let again = blocks.len() - usize::from(alone || attention.is_none());
        for &block in &blocks[..again] {
            self.layer(block, seen, true, |ctx, b| ctx.keys(b, block))?;
        }
        match (attention, &self.setup.states) {
            (Some(layer), _) => {
                let maps = self.setup.plan.of_layer(il).map(LayerPlan::key_maps);
                self.setup.cache.of(layer, &maps.unwrap_or_default()).zero_grads()?;
            }
            (None, states) => states.as_ref().map_or(Ok(()), StateCache::zero_grads)?,
        }
        for &block in blocks.iter().rev() {
            let ids = self.layer(block, seen, true, |ctx, b| ctx.backward(b, block, alone))?;
            let rows = read(&self.exec, output(ids.out)?, &mut self.scratch)?;
            self.grad.put(block.start, rows);
            if let Some(clex) = &mut self.clex {
                clex.add(&self.exec, block, &ids.angles, &mut self.scratch)?;
            }
        }
        Ok(())
    }

    /// Builds a graph of a layer over a block, fills its inputs and runs it.
    fn layer(
        &mut self,
        block: Block,
        seen: &Seen,
        training: bool,
        build: impl FnOnce(&Ctx<'_>, &Builder<'_>) -> ggml::Result<LayerIds>,
    ) -> Result<LayerIds> {
        let (exec, ctx) = self.ctx(training, seen.is_grouped());
        let ids = exec.build(ctx.max_tensors(block.end()), |b| build(&ctx, b))?;
        self.fill(&ids, block, seen)?;
        self.compute()?;
        Ok(ids)
    }

    /// Without `training`, only the layers' inputs are saved.
    fn ctx(&mut self, training: bool, grouped: bool) -> (&mut Executor, Ctx<'_>) {
        let ctx = Ctx {
            setup: &self.setup,
            plan: self.clex.as_ref().map_or(&self.setup.plan, |clex| &clex.plan),
            checkpointing: if training { self.checkpointing } else { Checkpointing::Inputs },
            training,
            grouped,
            trains_angles: self.clex.is_some(),
        };
        (&mut self.exec, ctx)
    }

    fn compute(&mut self) -> Result<()> {
        if self.cancel.load(Ordering::Relaxed) || self.exec.compute()? == Outcome::Cancelled {
            return Err(Error::Interrupted);
        }
        Ok(())
    }

    /// The first place where activations stop being finite numbers, in words.
    fn find_nonfinite(&self, n: usize) -> String {
        let mut row = vec![0.0; self.setup.model.hparams().n_embd];
        for (il, rows) in self.inputs.iter().enumerate() {
            for i in 0..n {
                rows.get(i, &mut row);
                if row.iter().any(|x| !x.is_finite()) {
                    let before = il.checked_sub(1);
                    let what = before.map_or("the embedding".into(), |il| format!("the output of blk.{il}"));
                    return format!("{what} is not finite at token {i}");
                }
            }
        }
        "the last layer's output or the logits are not finite".into()
    }
}

fn output(id: Option<OutputId>) -> Result<OutputId> {
    id.ok_or_else(|| Error::Invalid("a training graph without output".into()))
}

/// An output's values, without a copy where it is in host memory.
fn read<'e>(exec: &'e Executor, id: OutputId, scratch: &'e mut Vec<f32>) -> Result<&'e [f32]> {
    if let Some(rows) = exec.borrow_f32(id)? {
        return Ok(rows);
    }
    exec.read_f32(id, scratch)?;
    Ok(scratch)
}
