//! Gates: what passes one is multiplied by the gate's sigmoid.

use ggml::tensor::Tensor;
use ggml::Result;

use super::products::Products;
use super::tape::{Grads, TapeEntry};
use super::Graph;
use crate::layers::Norm;

/// A gate as it was built.
#[derive(Debug)]
pub(super) struct GateEntry<'c> {
    pub(super) out: Tensor<'c>,
    x: Tensor<'c>,
    gate: Tensor<'c>,
    open: Tensor<'c>,
}

impl<'c> Graph<'_, 'c> {
    /// `x * sigmoid(gate)`, F32 `[n, T]`; the gate is of that shape, or has one number for each token, `[1, T]`.
    pub fn gated(&self, x: Tensor<'c>, gate: Tensor<'c>) -> Result<Tensor<'c>> {
        let open = self.b.sigmoid(gate)?;
        let out = self.b.mul(x, open)?;
        self.record(|| TapeEntry::Gate(Box::new(GateEntry { out, x, gate, open })));
        Ok(out)
    }

    /// The result of a gated delta-net from its output `[d, n_head, T]`: a norm of each head, times `silu(z)`, z being
    /// `[d * n_head, T]`.
    pub fn gated_norm(&self, out: Tensor<'c>, norm: &Norm, z: Tensor<'c>) -> Result<Tensor<'c>> {
        self.swiglu(z, self.flat(self.norm(out, norm)?)?)
    }
}

impl<'c> GateEntry<'c> {
    /// Adds to the gradients of what passes and of the gate.
    pub(super) fn back(&self, p: &Products<'_, 'c>, grads: &mut Grads<'c>) -> Result<()> {
        let (b, &GateEntry { out, x, gate, open }) = (p.b, self);
        let Some(d) = grads.of(out) else { return Ok(()) };
        grads.add(p, x, b.mul(d, open)?)?;
        let d_open = b.mul(d, x)?;
        let d_open = if gate.ne() == x.ne() { d_open } else { b.sum_rows(d_open)? };
        // The derivative of s = sigmoid(x) is s (1 - s).
        grads.add(p, gate, b.mul(d_open, b.sub(open, b.mul(open, open)?)?)?)
    }
}
