//! Reverse-mode differentiation of the ops in `blocks`: each is recorded on a tape, and its gradient is
//! defined here.
//!
//! Weights stay quantized. A product and its gradient multiply by the weight dequantized to F32, or in AMX tiles,
//! because ggml's own products round activations to 8 bits, which changes the direction of gradients. A frozen
//! weight gets no gradient.

use std::cell::RefCell;
use std::collections::HashMap;

use ggml::graph::{InputId, OutputId};
use ggml::tensor::{StoreTensor, Tensor};
use ggml::{DType, Result};

use super::activations::{centered, without_gaps};
use super::blocks::Graph;
use super::experts::ExpertsEntry;
use super::products::reduce;
use super::Choice;
use crate::hparams::Gelu;
use crate::ids::{LinearId, NormId, ParamId};
use crate::layers::Linear;

/// Settings of a graph that is recorded in order to be run backwards.
#[derive(Clone, Copy)]
pub struct Recording<'a> {
    /// Linear maps whose outputs are saved between the forward and the backward run of a layer (activation
    /// checkpointing).
    pub saves: &'a dyn Fn(LinearId) -> bool,
    /// True if saved outputs are read (backward run) rather than written.
    pub load: bool,
    /// Returns true if a norm's scale, a bias, or a full weight is trained. Low-rank pairs always are.
    pub trains: &'a dyn Fn(ParamId) -> bool,
    /// Probability with which an input of a low-rank pair is set to 0.
    pub dropout: f32,
    /// Bytes that a weight dequantized to floats may take at once: output matrices of large vocabularies take
    /// gigabytes.
    pub dequantize_bytes: usize,
}

/// The output or input through which a saved activation passes between the host and a graph.
#[derive(Debug, Clone, Copy)]
pub enum SavedActivation {
    /// To be read after the forward run.
    Save(OutputId),
    /// To be filled before the backward run.
    Load(InputId),
}

#[derive(Debug, Clone, Copy)]
pub struct Gradient<'c> {
    pub id: ParamId,
    /// Gradient in the tensor's shape.
    pub value: Tensor<'c>,
}

/// An op as it was built: its result, its operands, and the settings that its gradient needs. The parts of a split
/// are columns side by side.
pub(super) enum TapeEntry<'c> {
    Op(Tensor<'c>, Op<'c>),
    Experts(Box<ExpertsEntry<'c>>),
    Split { parts: Vec<Tensor<'c>>, x: Tensor<'c> },
}

/// An op with one result; a reshape has the same values in another shape.
pub(super) enum Op<'c> {
    Linear { x: Tensor<'c>, id: LinearId, weight_id: ParamId, weight: StoreTensor, pairs: Vec<LowRank<'c>> },
    Norm { x: Tensor<'c>, normed: Tensor<'c>, weight: Tensor<'c>, id: NormId, centered: bool, eps: f32 },
    Reshape { x: Tensor<'c> },
    Add { a: Tensor<'c>, b: Tensor<'c> },
    SwiGlu { gate: Tensor<'c>, up: Tensor<'c> },
    GeGlu { gate: Tensor<'c>, up: Tensor<'c> },
    Gelu { x: Tensor<'c>, form: Gelu },
    Scale { x: Tensor<'c>, factor: f32 },
    Softcap { x: Tensor<'c>, cap: f32 },
    Gate { x: Tensor<'c>, gate: Tensor<'c>, open: Tensor<'c> },
    Row { logits: Tensor<'c>, x: Tensor<'c>, row: Tensor<'c>, id: ParamId },
}

/// A low-rank pair as it was applied.
pub(super) struct LowRank<'c> {
    a: Tensor<'c>,
    b: Tensor<'c>,
    scale: f32,
    /// The input, with dropout.
    x: Tensor<'c>,
    mask: Option<Tensor<'c>>,
    /// `scale * A x`.
    h: Tensor<'c>,
}

/// A range of rows of a weight: the first, and their number.
type RowBlock = (usize, usize);

/// The recorded ops of a graph, in the order they were built.
pub(super) struct Tape<'a, 'c> {
    how: Recording<'a>,
    entries: RefCell<Vec<TapeEntry<'c>>>,
    pub(super) saved: RefCell<Vec<(LinearId, SavedActivation)>>,
    pub(super) dropout_masks: RefCell<Vec<(LinearId, InputId)>>,
    dequantized: RefCell<HashMap<LinearId, Tensor<'c>>>,
    pub(super) row_ids: RefCell<HashMap<RowBlock, (InputId, Tensor<'c>)>>,
}

pub(super) struct Grads<'c>(HashMap<usize, Tensor<'c>>);

impl<'c> Grads<'c> {
    pub(super) fn of(&self, t: Tensor<'c>) -> Option<Tensor<'c>> {
        self.0.get(&t.id()).copied()
    }

    pub(super) fn add(&mut self, g: &Graph<'_, 'c>, to: Tensor<'c>, grad: Tensor<'c>) -> Result<()> {
        let sum = self.of(to).map_or(Ok(grad), |before| g.b.add(before, grad))?;
        self.0.insert(to.id(), sum);
        Ok(())
    }
}

impl<'a, 'c> Tape<'a, 'c> {
    pub(super) fn new(how: Recording<'a>) -> Self {
        Tape {
            how,
            entries: RefCell::default(),
            saved: RefCell::default(),
            dropout_masks: RefCell::default(),
            dequantized: RefCell::default(),
            row_ids: RefCell::default(),
        }
    }

    pub(super) fn push(&self, entry: TapeEntry<'c>) {
        self.entries.borrow_mut().push(entry);
    }

    /// `W x + bias + scale * B A x`, recorded: `[n_in, T]` to `[n_out, T]`.
    pub(super) fn linear(&self, g: &Graph<'_, 'c>, x: Tensor<'c>, map: &Linear) -> Result<Tensor<'c>> {
        let b = g.b;
        let mut pairs = Vec::new();
        for pair in &map.adapters {
            let (mut dropped, mut mask) = (x, None);
            if self.how.dropout > 0.0 {
                let (id, m) = b.input("dropout", DType::F32, &x.ne()[..2])?;
                self.dropout_masks.borrow_mut().push((map.id, id));
                (dropped, mask) = (b.mul(x, m)?, Some(m));
            }
            let (a, low_b) = (b.stored(&pair.a)?, b.stored(&pair.b)?);
            let h = b.scale(g.times(a, dropped)?, pair.scale)?;
            pairs.push(LowRank { a, b: low_b, scale: pair.scale, x: dropped, mask, h });
        }
        let saves = (self.how.saves)(map.id);
        let out = if saves && self.how.load {
            let (id, out) = b.input("saved", DType::F32, &[map.n_out(), x.ne()[1]])?;
            self.saved.borrow_mut().push((map.id, SavedActivation::Load(id)));
            out
        } else {
            let mut out = self.times(g, map.id, &map.weight, x)?;
            for pair in &pairs {
                out = b.add(out, g.times(pair.b, pair.h)?)?;
            }
            let out = g.bias(out, map.bias.as_ref())?;
            if saves {
                self.saved.borrow_mut().push((map.id, SavedActivation::Save(b.output(out))));
            }
            out
        };
        let (id, weight_id, weight) = (map.id, map.weight_id, map.weight.clone());
        self.push(TapeEntry::Op(out, Op::Linear { x, id, weight_id, weight, pairs }));
        Ok(out)
    }

    /// A weight times `x [n_in, T]`.
    fn times(
        &self,
        g: &Graph<'_, 'c>,
        id: LinearId,
        weight: &StoreTensor,
        x: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let b = g.b;
        let Choice { dequantize, kernel } = g.choose(weight.def().dtype, x);
        let Some(to) = dequantize else { return g.multiply(kernel, b.stored(weight)?, x, false) };
        let part = |rows| g.multiply(kernel, self.dequantized(g, id, weight, rows, to)?, x, false);
        reduce(self.row_blocks(weight).into_iter().map(part), |all, part| b.concat(all, part, 0))
    }

    /// A weight, transposed, times `d [n_out, T]`.
    fn times_transposed(
        &self,
        g: &Graph<'_, 'c>,
        id: LinearId,
        weight: &StoreTensor,
        d: Tensor<'c>,
    ) -> Result<Tensor<'c>> {
        let b = g.b;
        let Choice { dequantize, kernel } = g.choose(weight.def().dtype, d);
        let Some(to) = dequantize else { return g.multiply(kernel, b.stored(weight)?, d, true) };
        let part = |rows: RowBlock| {
            let part = if rows.1 == d.ne()[0] { d } else { b.columns(d, rows.0, rows.1)? };
            g.multiply(kernel, self.dequantized(g, id, weight, rows, to)?, part, true)
        };
        reduce(self.row_blocks(weight).into_iter().map(part), |sum, part| b.add(sum, part))
    }

    /// Rows of a weight as floats `[n_in, n]`. On the CPU a whole weight is
    /// dequantized once a graph; elsewhere, and of a large one, memory counts more than the work.
    fn dequantized(
        &self,
        g: &Graph<'_, 'c>,
        id: LinearId,
        stored: &StoreTensor,
        rows: RowBlock,
        to: DType,
    ) -> Result<Tensor<'c>> {
        if let Some(&floats) = self.dequantized.borrow().get(&id) {
            return Ok(floats);
        }
        let b = g.b;
        let (w, (first, n)) = (b.stored(stored)?, rows);
        let is_whole = n == w.ne()[1];
        let row = w.nb()[1];
        let part = |w: Tensor<'c>| {
            if is_whole {
                return Ok(w);
            }
            b.view(w, [w.ne()[0], n, 1, 1], [row, row * n, row * n], row * first)
        };
        if g.capabilities.custom_ops {
            let floats = b.dequantize(&[part(w)?], to)?;
            if is_whole {
                self.dequantized.borrow_mut().insert(id, floats);
            }
            return Ok(floats);
        }
        let known = self.row_ids.borrow().get(&rows).copied();
        let (_, ids) = match known {
            Some(ids) => ids,
            None => *self.row_ids.borrow_mut().entry(rows).or_insert(b.input("rows", DType::I32, &[n])?),
        };
        b.get_rows(w, ids)
    }

    /// The rows of a weight, in blocks that may be dequantized at once.
    fn row_blocks(&self, weight: &StoreTensor) -> Vec<RowBlock> {
        let def = weight.def();
        let (n_in, n_out) = (def.ne[0], def.ne[1]);
        let most = (self.how.dequantize_bytes / (4 * n_in)).clamp(1, n_out);
        (0..n_out).step_by(most).map(|first| (first, most.min(n_out - first))).collect()
    }

    #[allow(clippy::type_complexity)]
    pub(super) fn backward(
        &self,
        g: &Graph<'_, 'c>,
        seeds: &[(Tensor<'c>, Tensor<'c>)],
        wanted: &[Tensor<'c>],
    ) -> Result<(Vec<Option<Tensor<'c>>>, Vec<Gradient<'c>>)> {
        let (mut grads, mut trained) = (Grads(HashMap::new()), Vec::new());
        for &(tensor, grad) in seeds {
            grads.add(g, tensor, grad)?;
        }
        for entry in self.entries.borrow().iter().rev() {
            self.entry_back(g, entry, &mut grads, &mut trained)?;
        }
        Ok((wanted.iter().map(|&t| grads.of(t)).collect(), trained))
    }

    fn entry_back(
        &self,
        g: &Graph<'_, 'c>,
        entry: &TapeEntry<'c>,
        grads: &mut Grads<'c>,
        trained: &mut Vec<Gradient<'c>>,
    ) -> Result<()> {
        let (b, activations) = (g.b, g.activations());
        let (out, op) = match entry {
            TapeEntry::Op(out, op) => (*out, op),
            TapeEntry::Split { parts, x } => return split_back(g, parts, *x, grads),
            TapeEntry::Experts(entry) => return entry.back(g, grads),
        };
        let Some(d) = grads.of(out) else { return Ok(()) };
        match op {
            Op::Add { a, b: other } => {
                grads.add(g, *a, d)?;
                grads.add(g, *other, d)
            }
            Op::Reshape { x } => grads.add(g, *x, g.reshape(d, &x.ne())?),
            Op::SwiGlu { gate, up } => {
                let [d_gate, d_up] = activations.swiglu_back(d, *gate, *up)?;
                grads.add(g, *gate, d_gate)?;
                grads.add(g, *up, d_up)
            }
            Op::GeGlu { gate, up } => {
                let [d_gate, d_up] = activations.geglu_back(d, *gate, *up)?;
                grads.add(g, *gate, d_gate)?;
                grads.add(g, *up, d_up)
            }
            Op::Gelu { x, form } => grads.add(g, *x, activations.gelu_back(d, *x, *form)?),
            Op::Scale { x, factor } => grads.add(g, *x, b.scale(d, *factor)?),
            Op::Softcap { x, cap } => {
                // From the input: the gradient of a loss may have been written over the output.
                let t = b.tanh(b.scale(*x, 1.0 / cap)?)?;
                grads.add(g, *x, b.sub(d, b.mul(b.mul(t, t)?, d)?)?)
            }
            &Op::Gate { x, gate, open } => {
                grads.add(g, x, b.mul(d, open)?)?;
                let d_open = b.mul(d, x)?;
                let d_open = if gate.ne() == x.ne() { d_open } else { b.sum_rows(d_open)? };
                // The derivative of s = sigmoid(x) is s (1 - s).
                grads.add(g, gate, b.mul(d_open, b.sub(open, b.mul(open, open)?)?)?)
            }
            // The row is always trained.
            &Op::Row { logits, x, row, id } => {
                let n = logits.ne()[0];
                let of_row = b.columns(d, n, 1)?;
                trained.push(Gradient { id, value: g.outer(x, of_row)? });
                grads.add(g, x, g.times_transposed(row, of_row)?)?;
                grads.add(g, logits, b.cont(b.columns(d, 0, n)?)?)
            }
            Op::Norm { x, normed, weight, id, centered: is_centered, eps } => {
                if (self.how.trains)(ParamId::Norm(*id)) {
                    let value = g.sum_rows(b.mul(d, *normed)?)?;
                    trained.push(Gradient { id: ParamId::Norm(*id), value });
                }
                if (self.how.trains)(ParamId::NormBias(*id)) {
                    trained.push(Gradient { id: ParamId::NormBias(*id), value: g.sum_rows(d)? });
                }
                let d = b.mul(d, *weight)?;
                let d_x = match is_centered {
                    false => b.rms_norm_back(d, without_gaps(b, *x)?, *eps)?,
                    true => centered(b, b.rms_norm_back(d, centered(b, *x)?, *eps)?)?,
                };
                grads.add(g, *x, d_x)
            }
            Op::Linear { x, id, weight_id, weight, pairs } => {
                let mut d_x = self.times_transposed(g, *id, weight, d)?;
                for pair in pairs {
                    let d_h = b.scale(g.times_transposed(pair.b, d)?, pair.scale)?;
                    trained.push(Gradient { id: ParamId::LoraA(*id), value: g.outer(pair.x, d_h)? });
                    trained.push(Gradient { id: ParamId::LoraB(*id), value: g.outer(pair.h, d)? });
                    let through = g.times_transposed(pair.a, d_h)?;
                    d_x = b.add(d_x, pair.mask.map_or(Ok(through), |m| b.mul(through, m))?)?;
                }
                if (self.how.trains)(*weight_id) {
                    trained.push(Gradient { id: *weight_id, value: g.outer(*x, d)? });
                }
                if (self.how.trains)(ParamId::Bias(*id)) {
                    trained.push(Gradient { id: ParamId::Bias(*id), value: g.sum_rows(d)? });
                }
                grads.add(g, *x, d_x)
            }
        }
    }
}

/// The gradient of `x` of which `parts` are the columns.
fn split_back<'c>(
    g: &Graph<'_, 'c>,
    parts: &[Tensor<'c>],
    x: Tensor<'c>,
    grads: &mut Grads<'c>,
) -> Result<()> {
    let of_parts: Vec<Tensor<'c>> = parts.iter().filter_map(|&part| grads.of(part)).collect();
    if of_parts.len() < parts.len() {
        // None of them is in use where the graph is run backwards from a later point only.
        let what = format!("{} of {} columns have a gradient", of_parts.len(), parts.len());
        return if of_parts.is_empty() { Ok(()) } else { Err(ggml::Error::Op { op: "split", what }) };
    }
    let whole = reduce(of_parts.into_iter().map(Ok), |all, part| g.b.concat(all, part, 0))?;
    grads.add(g, x, whole)
}
