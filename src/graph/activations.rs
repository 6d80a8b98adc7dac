//! Activation functions and their gradients, and the part of LayerNorm that RMS norm lacks. On the CPU, our own ops
//! replace those of ggml that use half-precision tables or several passes. Elsewhere, they are ops of every backend.

use ggml::graph::Builder;
use ggml::tensor::Tensor;
use ggml::Result;

use crate::hparams::Gelu;

/// `sqrt(2 / pi)` and the factor on the cube, of GELU's tanh form.
const GELU: [f32; 2] = [0.797_884_6, 0.044_715];

/// Builds activations of F32 tensors `[n, T]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Activations<'a, 'c> {
    pub(super) b: &'a Builder<'c>,
    /// True if the device runs ropewalk's own ops.
    pub(super) own: bool,
    /// True if values must be exact to the precision of floats. On the CPU, ggml's own GELU looks them up in a table of
    /// half precision.
    pub(super) exact: bool,
}

/// `x`, as a copy if its rows are not contiguous: devices need contiguous rows in the gradients of some ops.
pub(super) fn without_gaps<'c>(b: &Builder<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
    let (ne, nb) = (x.ne(), x.nb());
    let gap = (1..ne.len()).any(|i| ne[i] > 1 && nb[i] != 4 * ne[..i].iter().product::<usize>());
    if gap {
        b.cont(x)
    } else {
        Ok(x)
    }
}

/// `x` less the mean of each row. The function is its own gradient.
pub(super) fn centered<'c>(b: &Builder<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
    let n = x.ne()[0] as f32;
    b.sub(x, b.scale(b.sum_rows(x)?, 1.0 / n)?)
}

impl<'c> Activations<'_, 'c> {
    pub(super) fn gelu(&self, x: Tensor<'c>, form: Gelu) -> Result<Tensor<'c>> {
        match (form, self.own, self.exact) {
            (form, true, _) => self.b.gelu_exact(x, form == Gelu::Erf),
            (Gelu::Tanh, false, false) => self.b.gelu(x),
            (Gelu::Tanh, false, true) => self.b.mul(x, self.b.scale_bias(self.gelu_tanh(x)?, 0.5, 0.5)?),
            (Gelu::Erf, false, _) => self.b.gelu_erf(x),
        }
    }

    pub(super) fn geglu(&self, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        if self.own {
            self.b.geglu_exact(gate, up)
        } else {
            self.b.mul(self.gelu(gate, Gelu::Tanh)?, up)
        }
    }

    /// The gradient of `x` where `d` is that of `gelu(x)`.
    pub(super) fn gelu_back(&self, d: Tensor<'c>, x: Tensor<'c>, form: Gelu) -> Result<Tensor<'c>> {
        match (form, self.own) {
            (form, true) => self.b.gelu_back(d, x, form == Gelu::Erf),
            (Gelu::Tanh, false) => self.b.mul(self.gelu_slope(x)?, d),
            (Gelu::Erf, false) => self.b.mul(self.gelu_erf_slope(x)?, d),
        }
    }

    /// The gradients of `gate` and `up` where `d` is that of `geglu(gate, up)`.
    pub(super) fn geglu_back(
        &self,
        d: Tensor<'c>,
        gate: Tensor<'c>,
        up: Tensor<'c>,
    ) -> Result<[Tensor<'c>; 2]> {
        if self.own {
            return self.halves(self.b.geglu_back(d, gate, up)?, gate);
        }
        let d_gate = self.b.mul(self.gelu_slope(gate)?, self.b.mul(d, up)?)?;
        Ok([d_gate, self.b.mul(d, self.gelu(gate, Gelu::Tanh)?)?])
    }

    /// The gradients of `gate` and `up` where `d` is that of `swiglu(gate, up)`.
    pub(super) fn swiglu_back(
        &self,
        d: Tensor<'c>,
        gate: Tensor<'c>,
        up: Tensor<'c>,
    ) -> Result<[Tensor<'c>; 2]> {
        if self.own {
            return self.halves(self.b.swiglu_back(d, gate, up)?, gate);
        }
        // Columns of a fused product are rows with gaps.
        let gate = without_gaps(self.b, gate)?;
        let d_gate = self.b.silu_back(self.b.mul(d, up)?, gate)?;
        Ok([d_gate, self.b.mul(d, self.b.silu(gate)?)?])
    }

    fn halves(&self, both: Tensor<'c>, gate: Tensor<'c>) -> Result<[Tensor<'c>; 2]> {
        let n = gate.ne()[0];
        Ok([self.b.columns(both, 0, n)?, self.b.columns(both, n, n)?])
    }

    /// `tanh(c (x + a x^3))`.
    fn gelu_tanh(&self, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let (b, [c, a]) = (self.b, GELU);
        let x = b.cont(x)?;
        b.tanh(b.mul(x, b.scale_bias(b.mul(x, x)?, a * c, c)?)?)
    }

    /// The derivative of GELU at `x`, with t that tangent: `(1 + t) / 2 + x c (1 + 3 a x^2) (1 - t^2) / 2`.
    fn gelu_slope(&self, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let (b, [c, a], t) = (self.b, GELU, self.gelu_tanh(x)?);
        let x = b.cont(x)?;
        let slope = b.mul(x, b.scale_bias(b.mul(x, x)?, 3.0 * a * c, c)?)?;
        let rest = b.mul(slope, b.scale_bias(b.mul(t, t)?, -0.5, 0.5)?)?;
        b.add(rest, b.scale_bias(t, 0.5, 0.5)?)
    }

    /// The derivative of GELU by the error function: how much of the normal distribution lies below `x`, and `x` times
    /// its density. No backend has the first as an op: it is GELU itself over `x`, and 1/2 where that is 0.
    fn gelu_erf_slope(&self, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let (b, least, density) = (self.b, 1e-30, 0.398_942_3);
        // Beyond this the derivative is 0 or 1, and squares stay finite.
        let x = b.clamp(b.cont(x)?, -20.0, 20.0)?;
        let square = b.mul(x, x)?;
        let above = b.scale_bias(b.mul(b.gelu_erf(x)?, x)?, 1.0, least / 2.0)?;
        let below = b.div(above, b.scale_bias(square, 1.0, least)?)?;
        let bell = b.exp(b.scale(square, -0.5)?)?;
        b.add(below, b.mul(x, b.scale(bell, density)?)?)
    }
}
