//! The logit of the landmark token: a row of the output matrix that the model's file does not have.

use ggml::tensor::{StoreTensor, Tensor};
use ggml::Result;

use super::products::Products;
use super::tape::{Gradient, Grads, TapeEntry};
use super::Graph;
use crate::ids::ParamId;

/// The operands of one more row of logits, for its gradient.
#[derive(Debug)]
pub(super) struct RowEntry<'c> {
    pub(super) out: Tensor<'c>,
    logits: Tensor<'c>,
    x: Tensor<'c>,
    row: Tensor<'c>,
    id: ParamId,
}

impl<'c> Graph<'_, 'c> {
    /// Logits `[n, T]` with those of one more row below, `row . x`: F32 `[n + 1, T]`. `x` is `[n_embd, T]`, and `row`,
    /// the tensor `id`, F32 `[n_embd]`.
    pub fn with_row(
        &self,
        logits: Tensor<'c>,
        x: Tensor<'c>,
        row: &StoreTensor,
        id: ParamId,
    ) -> Result<Tensor<'c>> {
        let row = self.b.stored(row)?;
        let out = self.b.concat(logits, self.products().times(row, x)?, 0)?;
        self.record(|| TapeEntry::Row(Box::new(RowEntry { out, logits, x, row, id })));
        Ok(out)
    }
}

impl<'c> RowEntry<'c> {
    /// Adds to the gradients of logits and input; the row is always trained.
    pub(super) fn back(
        &self,
        p: &Products<'_, 'c>,
        grads: &mut Grads<'c>,
        trained: &mut Vec<Gradient<'c>>,
    ) -> Result<()> {
        let Some(d) = grads.of(self.out) else { return Ok(()) };
        let n = self.logits.ne()[0];
        let of_row = p.b.columns(d, n, 1)?;
        trained.push(Gradient { id: self.id, value: p.outer(self.x, of_row)? });
        grads.add(p, self.x, p.times_transposed(self.row, of_row)?)?;
        grads.add(p, self.logits, p.b.cont(p.b.columns(d, 0, n)?)?)
    }
}
