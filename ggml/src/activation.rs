//! Functions of single elements and LayerNorm: ggml's own, and ops of ours for the CPU, where ggml's GELU is a table of
//! half precision and the gradient of a gated function would take several passes.

use kernels::attention::exp2;
use kernels::sigmoid::sigmoid;

use crate::graph::Builder;
use crate::ops::{call, check, contiguous, even_rows, f32_rows};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// Ops of each element alone, by their names in ggml.
macro_rules! elementwise {
    ($x:ident: $ok:expr, $expected:literal; $($(#[$doc:meta])* $name:ident: $ggml:ident,)*) => {
        impl<'c> Builder<'c> {
            $($(#[$doc])*
            pub fn $name(&self, $x: Tensor<'c>) -> Result<Tensor<'c>> {
                check($ok, stringify!($name), $expected, &[$x])?;
                call!(self, stringify!($name), $ggml($x))
            })*
        }
    };
}

elementwise! {
    x: f32_rows(x) && even_rows(x), "f32 rows at one distance";
    /// The hyperbolic tangent, element by element.
    tanh: ggml_tanh,
    /// The exponential, element by element.
    exp: ggml_exp,
    /// `1 / (1 + exp(-x))`, element by element.
    sigmoid: ggml_sigmoid,
    /// `x / (1 + exp(-x))`, element by element.
    silu: ggml_silu,
    /// `ln(1 + exp(x))`, element by element.
    softplus: ggml_softplus,
    /// GELU by its tanh form, element by element; on the CPU out of a table of half precision.
    gelu: ggml_gelu,
    /// GELU by the error function, `x / 2 (1 + erf(x / sqrt(2)))`, element by element.
    gelu_erf: ggml_gelu_erf,
}

elementwise! {
    x: x.dtype() == DType::F32 && contiguous(x), "contiguous f32";
    /// The natural logarithm, element by element.
    log: ggml_log,
    /// The absolute value, element by element.
    abs: ggml_abs,
    /// The element, or 0 where it is below, element by element.
    relu: ggml_relu,
}

impl<'c> Builder<'c> {
    /// Each row less its mean, over its standard deviation.
    pub fn layer_norm(&self, a: Tensor<'c>, eps: f32) -> Result<Tensor<'c>> {
        check(f32_rows(a) && eps >= 0.0, "layer_norm", "f32 rows, eps >= 0", &[a])?;
        call!(self, "layer_norm", ggml_norm(a; eps))
    }

    /// `a * factor + shift`.
    pub fn scale_bias(&self, a: Tensor<'c>, factor: f32, shift: f32) -> Result<Tensor<'c>> {
        check(a.dtype() == DType::F32 && contiguous(a), "scale_bias", "contiguous f32", &[a])?;
        call!(self, "scale_bias", ggml_scale_bias(a; factor, shift))
    }

    /// GELU in floats of F32 `[n, T]`: by the error function, or by its tanh form,
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`. For the CPU; elsewhere the graph is refused.
    pub fn gelu_exact(&self, x: Tensor<'c>, erf: bool) -> Result<Tensor<'c>> {
        self.rows("gelu_exact", &[x], 1, move |[x, ..], out| match erf {
            true => x.iter().zip(out).for_each(|(&x, y)| *y = x * normal(x)[0]),
            false => x.iter().zip(out).for_each(|(&x, y)| *y = x * gelu_gate(x)),
        })
    }

    /// The gradient of `x` where `grad` is that of either form, both F32 `[n, T]`. For the CPU; elsewhere the graph is
    /// refused.
    pub fn gelu_back(&self, grad: Tensor<'c>, x: Tensor<'c>, erf: bool) -> Result<Tensor<'c>> {
        self.rows("gelu_back", &[grad, x], 1, move |[d, x, _], out| {
            let all = d.iter().zip(x).zip(out);
            match erf {
                true => all.for_each(|((d, &x), y)| *y = d * gelu_erf_slope(x)),
                false => all.for_each(|((d, &x), y)| *y = d * gelu_slope(x, gelu_gate(x))),
            }
        })
    }

    /// `gelu(gate) * up` of F32 `[n, T]`. For the CPU; elsewhere the graph is refused.
    pub fn geglu_exact(&self, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        self.rows("geglu_exact", &[gate, up], 1, |[gate, up, _], out| {
            gate.iter().zip(up).zip(out).for_each(|((&g, u), y)| *y = g * gelu_gate(g) * u);
        })
    }

    /// The gradients of `gate` and `up` where `grad` is that of `gelu(gate) * up`, all F32 `[n, T]`: `[2n, T]`,
    /// each row the gate's gradient and then the other's. For the CPU; elsewhere the graph is refused.
    pub fn geglu_back(&self, grad: Tensor<'c>, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        self.rows("geglu_back", &[grad, gate, up], 2, |args, out| {
            gated_back(args, out, |g| {
                let s = gelu_gate(g);
                (g * s, gelu_slope(g, s))
            });
        })
    }

    /// The gradients of `gate` and `up` where `grad` is that of `swiglu(gate, up)`, all F32 `[n, T]`: `[2n, T]`,
    /// each row the gate's gradient and then the other's. For the CPU; elsewhere the graph is refused.
    pub fn swiglu_back(&self, grad: Tensor<'c>, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        self.rows("swiglu_back", &[grad, gate, up], 2, |args, out| {
            gated_back(args, out, |g| {
                let s = sigmoid(g);
                (g * s, s * (1.0 + g * (1.0 - s)))
            });
        })
    }
}

/// `2 sqrt(2 / pi)`, and the factor on the cube.
const GELU: [f32; 2] = [1.595_769, 0.044_715];

/// The factor of `x` in GELU: `(1 + tanh z) / 2` is the sigmoid of `2z`.
#[inline(always)]
fn gelu_gate(x: f32) -> f32 {
    sigmoid(GELU[0] * (x + GELU[1] * x * x * x))
}

/// The derivative of GELU at `x`, where its gate is `s`.
#[inline(always)]
fn gelu_slope(x: f32, s: f32) -> f32 {
    // The gate closes long before the cube overflows.
    let inner = GELU[0] * (1.0 + 3.0 * GELU[1] * x * x);
    let bend = s * (1.0 - s);
    s + if bend == 0.0 { 0.0 } else { x * bend * inner }
}

/// The normal distribution at `x`: how much lies below, within 2e-7, and the density.
///
/// The error function is formula 7.1.26 of Abramowitz and Stegun, *Handbook of Mathematical Functions*.
#[inline(always)]
fn normal(x: f32) -> [f32; 2] {
    const P: f32 = 0.327_591_1;
    const A: [f32; 5] = [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152, 1.061_405_4];
    const DENSITY: f32 = 0.398_942_3;
    let bell = exp2(-0.5 * std::f32::consts::LOG2_E * x * x);
    let t = 1.0 / (1.0 + P * std::f32::consts::FRAC_1_SQRT_2 * x.abs());
    let rest = 0.5 * bell * t * (A[0] + t * (A[1] + t * (A[2] + t * (A[3] + t * A[4]))));
    [if x < 0.0 { rest } else { 1.0 - rest }, DENSITY * bell]
}

/// The derivative of `x` times how much of the normal distribution lies below it.
#[inline(always)]
fn gelu_erf_slope(x: f32) -> f32 {
    let [below, density] = normal(x);
    below + x * density
}

/// Gradients through `act(gate) * up`; `act` gives value and derivative.
#[inline(always)]
fn gated_back([d, gate, up]: [&[f32]; 3], out: &mut [f32], act: impl Fn(f32) -> (f32, f32)) {
    let (d_gate, d_up) = out.split_at_mut(gate.len());
    let inputs = d.iter().zip(gate).zip(up);
    for (((d, &g), u), (d_gate, d_up)) in inputs.zip(d_gate.iter_mut().zip(d_up)) {
        let (value, slope) = act(g);
        *d_gate = d * u * slope;
        *d_up = d * value;
    }
}
