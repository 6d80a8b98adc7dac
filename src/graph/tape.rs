//! Reverse mode over the blocks of `blocks`: each records itself on a tape, and knows here what its gradient is.
//!
//! Weights stay quantised. A product and its gradient multiply by the weight widened to F32 (in ggml's products activations
//! are rounded to 8 bits, which leaves gradients that point elsewhere), and a frozen weight gets no gradient of its own.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;

use ggml::graph::{Builder, InputId, OutputId};
use ggml::tensor::Tensor;
use ggml::{DType, Result};

use super::blocks::{Graph, Tensors};
use super::Abilities;
use crate::hparams::Hparams;

/// What a graph that is going to be run backwards does besides.
#[derive(Clone, Copy)]
pub struct Recording<'a> {
    /// Weights whose outputs are kept between the forward and the backward run of a layer.
    pub keep: &'a dyn Fn(&str) -> bool,
    /// Whether kept outputs are read (backward run) rather than written.
    pub load: bool,
    /// Tensors that are trained whole, by name.
    pub whole: &'a dyn Fn(&str) -> bool,
    /// Probability with which an input of a low-rank pair is set to 0.
    pub dropout: f32,
    /// A weight is widened in pieces of so many bytes: output matrices of large vocabularies take gigabytes whole.
    pub wide_bytes: usize,
}

/// Where an output kept between the runs is handed over.
#[derive(Debug, Clone, Copy)]
pub enum Handover {
    /// Read it after the forward run.
    Save(OutputId),
    /// Fill it before the backward run.
    Load(InputId),
}

/// Gradient of a trained tensor.
#[derive(Debug, Clone)]
pub struct Gradient<'c> {
    /// The tensor's name; `{weight}.lora_a` and `{weight}.lora_b` for a pair.
    pub name: String,
    /// Of the tensor's shape.
    pub value: Tensor<'c>,
}

/// A block as it was built.
#[derive(Debug)]
pub(super) enum Step<'c> {
    Linear { out: Tensor<'c>, x: Tensor<'c>, weight: String, pairs: Vec<LowRank<'c>> },
    Norm { out: Tensor<'c>, x: Tensor<'c>, normed: Tensor<'c>, w: Tensor<'c>, name: String },
    Add { out: Tensor<'c>, a: Tensor<'c>, b: Tensor<'c> },
    SwiGlu { out: Tensor<'c>, gate: Tensor<'c>, up: Tensor<'c> },
}

#[derive(Debug)]
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

pub(super) struct Tape<'a, 'c> {
    how: Recording<'a>,
    steps: RefCell<Vec<Step<'c>>>,
    kept: RefCell<Vec<(String, Handover)>>,
    masks: RefCell<Vec<(String, InputId)>>,
    widened: RefCell<HashMap<String, Tensor<'c>>>,
    row_ids: RefCell<HashMap<Rows, (InputId, Tensor<'c>)>>,
}

/// Rows of a weight: the first, and how many.
type Rows = (usize, usize);

impl std::fmt::Debug for Tape<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tape").field("steps", &self.steps).finish_non_exhaustive()
    }
}

/// Gradients by tensor.
struct Grads<'c>(HashMap<usize, Tensor<'c>>);

impl<'c> Grads<'c> {
    fn of(&self, t: Tensor<'c>) -> Option<Tensor<'c>> {
        self.0.get(&t.id()).copied()
    }

    fn add(&mut self, b: &Builder<'c>, to: Tensor<'c>, grad: Tensor<'c>) -> Result<()> {
        let sum = self.of(to).map_or(Ok(grad), |before| b.add(before, grad))?;
        self.0.insert(to.id(), sum);
        Ok(())
    }
}

impl<'c> Tape<'_, 'c> {
    pub(super) fn push(&self, step: Step<'c>) {
        self.steps.borrow_mut().push(step);
    }

    /// [`Graph::linear`], recorded.
    pub(super) fn linear(
        &self,
        g: &Graph<'_, 'c>,
        x: Tensor<'c>,
        weight: &str,
        bias: impl Fn(Tensor<'c>) -> Result<Tensor<'c>>,
    ) -> Result<Tensor<'c>> {
        let b = g.b;
        let mut pairs = Vec::new();
        for pair in g.tensors.pairs(weight) {
            let (mut dropped, mut mask) = (x, None);
            if self.how.dropout > 0.0 {
                let (id, m) = b.input("dropout", DType::F32, &x.ne()[..2])?;
                self.masks.borrow_mut().push((weight.to_string(), id));
                (dropped, mask) = (b.mul(x, m)?, Some(m));
            }
            let (a, low_b) = (b.stored(&pair.a)?, b.stored(&pair.b)?);
            let h = b.scale(g.times(a, dropped)?, pair.scale)?;
            pairs.push(LowRank { a, b: low_b, scale: pair.scale, x: dropped, mask, h });
        }
        let keep = (self.how.keep)(weight);
        let out = if keep && self.how.load {
            let n_out = g.stored(weight)?.def().ne[1];
            let (id, out) = b.input("kept", DType::F32, &[n_out, x.ne()[1]])?;
            self.kept.borrow_mut().push((weight.to_string(), Handover::Load(id)));
            out
        } else {
            let mut whole: Option<Tensor<'c>> = None;
            for rows in self.pieces(g, weight)? {
                let part = g.times(self.wide(g, weight, rows)?, x)?;
                whole = Some(whole.map_or(Ok(part), |before| b.concat(before, part, 0))?);
            }
            let mut out = whole.ok_or_else(|| none(weight))?;
            for pair in &pairs {
                out = b.add(out, g.times(pair.b, pair.h)?)?;
            }
            let out = bias(out)?;
            if keep {
                self.kept.borrow_mut().push((weight.to_string(), Handover::Save(b.output(out))));
            }
            out
        };
        self.push(Step::Linear { out, x, weight: weight.to_string(), pairs });
        Ok(out)
    }

    /// Rows of a weight as F32 `[n_in, n]`. On the CPU a whole weight is widened once a graph; elsewhere, and of a large one,
    /// memory counts more than the work.
    fn wide(&self, g: &Graph<'_, 'c>, weight: &str, rows: Rows) -> Result<Tensor<'c>> {
        if let Some(&wide) = self.widened.borrow().get(weight) {
            return Ok(wide);
        }
        let b = g.b;
        let stored = g.stored(weight)?;
        let (w, (first, n)) = (b.stored(stored)?, rows);
        let is_whole = n == w.ne()[1];
        let row = w.nb()[1];
        let part = |w: Tensor<'c>| match is_whole {
            true => Ok(w),
            false => b.view(w, [w.ne()[0], n, 1, 1], [row, row * n, row * n], row * first),
        };
        if stored.def().dtype == DType::F32 {
            return part(w);
        }
        if g.abilities.custom_ops {
            let wide = b.widen(&[part(w)?], DType::F32)?;
            if is_whole {
                self.widened.borrow_mut().insert(weight.to_string(), wide);
            }
            return Ok(wide);
        }
        let known = self.row_ids.borrow().get(&rows).copied();
        let (_, ids) = match known {
            Some(ids) => ids,
            None => *self.row_ids.borrow_mut().entry(rows).or_insert(b.input("rows", DType::I32, &[n])?),
        };
        b.get_rows(w, ids)
    }

    /// The rows of a weight, in pieces that may be widened.
    fn pieces(&self, g: &Graph<'_, 'c>, weight: &str) -> Result<Vec<Rows>> {
        let def = g.stored(weight)?.def();
        let (n_in, n_out) = (def.ne[0], def.ne[1]);
        let whole = def.dtype == DType::F32;
        let most = if whole { n_out } else { (self.how.wide_bytes / (4 * n_in)).clamp(1, n_out) };
        Ok((0..n_out).step_by(most).map(|first| (first, most.min(n_out - first))).collect())
    }

    fn back(
        &self,
        g: &Graph<'_, 'c>,
        step: &Step<'c>,
        grads: &mut Grads<'c>,
        trained: &mut Vec<Gradient<'c>>,
    ) -> Result<()> {
        let b = g.b;
        match step {
            Step::Add { out, a, b: other } => {
                if let Some(d) = grads.of(*out) {
                    grads.add(b, *a, d)?;
                    grads.add(b, *other, d)?;
                }
            }
            Step::SwiGlu { out, gate, up } => {
                let Some(d) = grads.of(*out) else { return Ok(()) };
                if g.abilities.custom_ops {
                    let (both, n) = (b.swiglu_back(d, *gate, *up)?, gate.ne()[0]);
                    grads.add(b, *gate, b.columns(both, 0, n)?)?;
                    grads.add(b, *up, b.columns(both, n, n)?)?;
                } else {
                    let d_gate = b.silu_back(b.mul(d, *up)?, *gate)?;
                    grads.add(b, *gate, d_gate)?;
                    grads.add(b, *up, b.mul(d, b.silu(*gate)?)?)?;
                }
            }
            Step::Norm { out, x, normed, w, name } => {
                if let Some(d) = grads.of(*out) {
                    if (self.how.whole)(name) {
                        let value = g.sum_tokens(b.mul(d, *normed)?)?;
                        trained.push(Gradient { name: name.clone(), value });
                    }
                    grads.add(b, *x, b.rms_norm_back(b.mul(d, *w)?, *x, g.hp.rms_eps)?)?;
                }
            }
            Step::Linear { out, x, weight, pairs } => {
                let Some(d) = grads.of(*out) else { return Ok(()) };
                let mut sum: Option<Tensor<'c>> = None;
                for rows in self.pieces(g, weight)? {
                    let part = if rows.1 == d.ne()[0] { d } else { b.columns(d, rows.0, rows.1)? };
                    let part = g.times_transposed(self.wide(g, weight, rows)?, part)?;
                    sum = Some(sum.map_or(Ok(part), |before| b.add(before, part))?);
                }
                let mut d_x = sum.ok_or_else(|| none(weight))?;
                for p in pairs {
                    let d_h = b.scale(g.times_transposed(p.b, d)?, p.scale)?;
                    trained.push(Gradient { name: format!("{weight}.lora_a"), value: g.outer(p.x, d_h)? });
                    trained.push(Gradient { name: format!("{weight}.lora_b"), value: g.outer(p.h, d)? });
                    let through = g.times_transposed(p.a, d_h)?;
                    d_x = b.add(d_x, p.mask.map_or(Ok(through), |m| b.mul(through, m))?)?;
                }
                if (self.how.whole)(weight) {
                    trained.push(Gradient { name: weight.clone(), value: g.outer(*x, d)? });
                }
                grads.add(b, *x, d_x)?;
            }
        }
        Ok(())
    }
}

fn none(weight: &str) -> ggml::Error {
    ggml::Error::Op { op: "linear", what: format!("{weight} has no rows") }
}

impl<'a, 'c> Graph<'a, 'c> {
    /// A graph that can be run backwards.
    pub fn recorded(
        b: &'a Builder<'c>,
        hp: &'a Hparams,
        tensors: Tensors<'a>,
        abilities: Abilities,
        how: Recording<'a>,
    ) -> Self {
        let tape = Tape {
            how,
            steps: RefCell::default(),
            kept: RefCell::default(),
            masks: RefCell::default(),
            widened: RefCell::default(),
            row_ids: RefCell::default(),
        };
        Graph { tape: Some(tape), ..Graph::new(b, hp, tensors, abilities) }
    }

    /// Gradients, given those of some of the graph's tensors: of the tensors `wanted` (`None` where nothing reaches them), and
    /// of what is trained.
    #[allow(clippy::type_complexity)]
    pub fn backward(
        &self,
        seeds: &[(Tensor<'c>, Tensor<'c>)],
        wanted: &[Tensor<'c>],
    ) -> Result<(Vec<Option<Tensor<'c>>>, Vec<Gradient<'c>>)> {
        let (mut grads, mut trained) = (Grads(HashMap::new()), Vec::new());
        for &(tensor, grad) in seeds {
            grads.add(self.b, tensor, grad)?;
        }
        if let Some(tape) = &self.tape {
            for step in tape.steps.borrow().iter().rev() {
                tape.back(self, step, &mut grads, &mut trained)?;
            }
        }
        Ok((wanted.iter().map(|&t| grads.of(t)).collect(), trained))
    }

    /// Outputs handed over between the runs, by the weight they come from.
    pub fn kept(&self) -> Vec<(String, Handover)> {
        self.tape.as_ref().map_or_else(Vec::new, |t| t.kept.borrow().clone())
    }

    /// Inputs F32 `[n_in, T]` that hold 0 or `1 / (1 - dropout)`, by the weight.
    pub fn masks(&self) -> Vec<(String, InputId)> {
        self.tape.as_ref().map_or_else(Vec::new, |t| t.masks.borrow().clone())
    }

    /// Inputs I32 `[n]` that hold so many numbers from a first on.
    pub fn row_ids(&self) -> Vec<(Range<usize>, InputId)> {
        let range = |(first, n): Rows| first..first + n;
        let all =
            |t: &Tape<'a, 'c>| t.row_ids.borrow().iter().map(|(&rows, &(id, _))| (range(rows), id)).collect();
        self.tape.as_ref().map_or_else(Vec::new, all)
    }

    /// `a [k, m]` and `x [k, n]` to `[m, n]`, in floats.
    pub fn times(&self, a: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        match self.abilities.custom_ops {
            true => self.b.gemm(a, x),
            false => self.b.mul_mat(a, x),
        }
    }

    /// `a [m, k]` and `x [k, n]` to `[m, n]`.
    pub fn times_transposed(&self, a: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        match self.abilities.custom_ops {
            true => self.b.gemm_t(a, x),
            false => self.b.mul_mat(self.transposed(a)?, x),
        }
    }

    /// `a [m, k]` and `b [n, k]` to `[m, n]`: a sum over tokens.
    pub fn outer(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        match self.abilities.custom_ops {
            true => self.b.gemm_outer(a, b),
            false => self.b.mul_mat(self.transposed(a)?, self.transposed(b)?),
        }
    }

    fn transposed(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        self.b.cont(self.b.permute(a, [1, 0, 2, 3])?)
    }

    /// `[n, T]` to `[n]`.
    fn sum_tokens(&self, a: Tensor<'c>) -> Result<Tensor<'c>> {
        let n = a.ne()[0];
        self.b.reshape(self.b.sum_rows(self.transposed(a)?)?, &[n])
    }
}
