//! The loss over one block of tokens: logits of the whole sequence never exist.

use std::ops::Range;

use ggml::graph::{Builder, Executor, InputId, OutputId};
use ggml::tensor::Tensor;
use ggml::{DType, Result};

use super::layer::Ctx;
use crate::Token;

#[derive(Debug)]
pub(super) struct LossIds {
    /// F32 `[n_embd, n]`: the last layer's output.
    pub(super) x: InputId,
    targets: InputId,
    back: Option<BackInputs>,
    row_ids: Vec<(Range<usize>, InputId)>,
    /// One number per target: the loss, or with ops of every backend the probability.
    per_target: OutputId,
    own: bool,
    /// The gradient of x, in a backward run.
    pub(super) d_x: Option<OutputId>,
}

#[derive(Debug)]
struct BackInputs {
    weights: InputId,
    /// Rows of the targets, and 1; where ops are every backend's.
    rows: Option<(InputId, InputId)>,
}

/// One number for each target (see [`LossIds`]), inputs of a backward run, and the gradient of the logits.
type Loss<'c> = (OutputId, Option<BackInputs>, Option<Tensor<'c>>);

fn own_loss<'c>(b: &Builder<'c>, logits: Tensor<'c>, targets: Tensor<'c>, back: bool) -> Result<Loss<'c>> {
    let stats = b.cross_entropy(logits, targets)?;
    let nll = b.output(b.cont(b.columns(stats, 0, 1)?)?);
    if !back {
        return Ok((nll, None, None));
    }
    let (id, weights) = b.input("weights", DType::F32, &[logits.ne()[1]])?;
    let d_logits = b.cross_entropy_back(logits, targets, stats, weights)?;
    Ok((nll, Some(BackInputs { weights: id, rows: None }), Some(d_logits)))
}

fn any_loss<'c>(b: &Builder<'c>, logits: Tensor<'c>, at: Tensor<'c>, back: bool) -> Result<Loss<'c>> {
    let [n_vocab, n, ..] = logits.ne();
    let p = b.reshape(b.soft_max(logits)?, &[1, n_vocab * n])?;
    let picked = b.get_rows(p, at)?;
    let probabilities = b.output(picked);
    if !back {
        return Ok((probabilities, None, None));
    }
    let (rows_id, rows) = b.input("target_rows", DType::I64, &[n])?;
    let (one_id, one) = b.input("one", DType::F32, &[1])?;
    let (id, weights) = b.input("weights", DType::F32, &[1, n])?;
    // The gradient of -ln softmax is softmax, less 1 at the target.
    let d = b.set_rows(p, b.sub(picked, one)?, rows)?;
    let d_logits = b.mul(b.reshape(d, &[n_vocab, n])?, weights)?;
    Ok((probabilities, Some(BackInputs { weights: id, rows: Some((rows_id, one_id)) }), Some(d_logits)))
}

/// Probabilities are at least this, so that no loss is infinite: e^-87.
const MIN_P: f32 = 1e-38;

impl Ctx<'_> {
    /// The loss of `n` tokens. `back`: also the gradients of `x` and of the trained tensors of the output.
    pub(super) fn loss(&self, b: &Builder<'_>, n: usize, back: bool) -> Result<LossIds> {
        self.head(b, |g| {
            let (x_id, x) = b.input("x", DType::F32, &[self.hp().n_embd, n])?;
            let (targets, at) = b.input("targets", DType::I32, &[n])?;
            let logits = self.setup.transformer.all_logits(g, x)?;
            let own = self.setup.capabilities.custom_ops;
            let build = if own { own_loss } else { any_loss };
            let (per_target, back, d_logits) = build(b, logits, at, back)?;
            let mut ids = LossIds { x: x_id, targets, back, row_ids: Vec::new(), per_target, own, d_x: None };
            if let Some(d_logits) = d_logits {
                let (d_x, trained) = g.backward(&[(logits, d_logits)], &[x])?;
                self.sum(b, &trained)?;
                ids.d_x = d_x[0].map(|t| b.output(t));
            }
            ids.row_ids = g.row_ids();
            Ok(ids)
        })
    }
}

impl LossIds {
    /// Fills all inputs but `x`; `weights` are the factors of the tokens' losses in the gradient.
    pub(super) fn fill(
        &self,
        exec: &mut Executor,
        n_vocab: usize,
        targets: &[Token],
        weights: &[f32],
    ) -> Result<()> {
        // Ordinary ops take the probabilities as one long column.
        let step = if self.own { 0 } else { n_vocab };
        let at = || targets.iter().enumerate().map(|(i, &t)| (i * step) as i64 + i64::from(t));
        exec.set(self.targets, &at().map(|i| i as i32).collect::<Vec<_>>())?;
        if let Some(back) = &self.back {
            exec.set(back.weights, weights)?;
            if let Some((rows, one)) = back.rows {
                exec.set(rows, &at().collect::<Vec<_>>())?;
                exec.set(one, &[1.0f32])?;
            }
        }
        fill_row_ids(exec, &self.row_ids)
    }

    /// The loss of each token, nats, after a run.
    pub(super) fn losses(&self, exec: &Executor) -> Result<Vec<f64>> {
        let mut per_target = Vec::new();
        exec.read_f32(self.per_target, &mut per_target)?;
        let nll = if self.own { f64::from } else { nll };
        Ok(per_target.into_iter().map(nll).collect())
    }
}

/// Fills inputs of row numbers, each with the numbers of its range.
pub(super) fn fill_row_ids(exec: &mut Executor, ids: &[(Range<usize>, InputId)]) -> Result<()> {
    ids.iter().try_for_each(|(rows, id)| exec.set(*id, &rows.clone().map(|i| i as i32).collect::<Vec<_>>()))
}

/// Nats, of a probability.
fn nll(p: f32) -> f64 {
    // `max` would turn NaN into a number.
    let p = if p < MIN_P { MIN_P } else { p };
    -f64::from(p).ln()
}
