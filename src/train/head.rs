//! The loss over one block of tokens: logits of the whole sequence never exist.

use std::ops::Range;

use ggml::graph::{Builder, Executor, InputId, OutputId};
use ggml::{DType, Result};

use super::layer::Ctx;
use crate::Token;

/// Inputs and outputs of the loss's graph.
#[derive(Debug)]
pub(super) struct Ids {
    /// F32 `[n_embd, n]`: the last layer's output.
    pub(super) x: InputId,
    targets: InputId,
    back: Option<BackInputs>,
    row_ids: Vec<(Range<usize>, InputId)>,
    /// F32 `[1, n]`: the probability of each target.
    pub(super) p: OutputId,
    /// The gradient of x, in a backward run.
    pub(super) d_x: Option<OutputId>,
}

#[derive(Debug)]
struct BackInputs {
    targets: InputId,
    one: InputId,
    weights: InputId,
}

/// Probabilities are at least this, so that no loss is infinite: e^-87.
const MIN_P: f32 = 1e-38;

impl Ctx<'_> {
    /// The loss of `n` tokens; `back`: the gradient of x, too, and of what is trained in the head.
    pub(super) fn loss(&self, b: &Builder<'_>, n: usize, back: bool) -> Result<Ids> {
        self.head(b, |g| {
            let (x_id, x) = b.input("x", DType::F32, &[g.hp.n_embd, n])?;
            let (targets, at) = b.input("targets", DType::I32, &[n])?;
            let logits = (self.model.arch().head)(g, x)?;
            let n_vocab = logits.ne()[0];
            let p = b.reshape(b.soft_max_plain(logits)?, &[1, n_vocab * n])?;
            let picked = b.get_rows(p, at)?;
            let mut ids =
                Ids { x: x_id, targets, back: None, row_ids: Vec::new(), p: b.output(picked), d_x: None };
            if back {
                let (rows_id, rows) = b.input("target_rows", DType::I64, &[n])?;
                let (one_id, one) = b.input("one", DType::F32, &[1])?;
                let (weights_id, weights) = b.input("weights", DType::F32, &[1, n])?;
                ids.back = Some(BackInputs { targets: rows_id, one: one_id, weights: weights_id });
                // The gradient of -ln softmax is softmax, less 1 at the target.
                let d = b.set_rows(p, b.sub(picked, one)?, rows)?;
                let d_logits = b.mul(b.reshape(d, &[n_vocab, n])?, weights)?;
                let (d_x, trained) = g.backward(&[(logits, d_logits)], &[x])?;
                self.sum(b, &trained)?;
                ids.d_x = d_x[0].map(|t| b.output(t));
            }
            ids.row_ids = g.row_ids();
            Ok(ids)
        })
    }
}

impl Ids {
    /// Fills all but x; `weights` are what each token's loss counts in the gradient.
    pub(super) fn fill(
        &self,
        exec: &mut Executor,
        n_vocab: usize,
        targets: &[Token],
        weights: &[f32],
    ) -> Result<()> {
        let at = || targets.iter().enumerate().map(|(i, &t)| (i * n_vocab) as i64 + i64::from(t));
        exec.set(self.targets, &at().map(|i| i as i32).collect::<Vec<_>>())?;
        if let Some(back) = &self.back {
            exec.set(back.targets, &at().collect::<Vec<_>>())?;
            exec.set(back.one, &[1.0f32])?;
            exec.set(back.weights, weights)?;
        }
        fill_row_ids(exec, &self.row_ids)
    }
}

/// The numbers of each.
pub(super) fn fill_row_ids(exec: &mut Executor, ids: &[(Range<usize>, InputId)]) -> Result<()> {
    ids.iter().try_for_each(|(rows, id)| exec.set(*id, &rows.clone().map(|i| i as i32).collect::<Vec<_>>()))
}

/// Nats, of a probability.
pub(super) fn nll(p: f32) -> f64 {
    // `max` would turn NaN into a number.
    let p = if p < MIN_P { MIN_P } else { p };
    -f64::from(p).ln()
}
