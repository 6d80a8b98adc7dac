//! Nodes of our own that compute rows of floats out of rows of their arguments: on the CPU each thread takes some of the
//! rows. Sums, products and norms are among them, as ggml would compute those on one thread.

use kernels::sigmoid::sigmoid;

use crate::graph::Builder;
use crate::node::{Part, Source};
use crate::ops::{broadcasts, call, check, f32_rows};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

const MAX_ARGS: usize = 3;

/// Numbers summed side by side, so that the order of a sum is the same whatever the width of registers.
const LANES: usize = 16;

/// The rows of the arguments, of which those there are not are empty.
pub(crate) type Args<'a> = [&'a [f32]; MAX_ARGS];

/// Computes a row of the result from those of the arguments.
pub(crate) trait RowKernel: Fn(Args<'_>, &mut [f32]) + Copy + Send + Sync + 'static {}

impl<F: Fn(Args<'_>, &mut [f32]) + Copy + Send + Sync + 'static> RowKernel for F {}

/// Ops of two tensors, of which the second is repeated to the first's shape, by their names in ggml.
macro_rules! repeating {
    ($($(#[$doc:meta])* $name:ident: $ggml:ident, $op:tt;)*) => {
        impl<'c> Builder<'c> {
            $($(#[$doc])*
            pub fn $name(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
                let op = stringify!($name);
                let ok = broadcasts(b.ne(), a.ne()) && f32_rows(a) && b.dtype() == DType::F32;
                check(ok, op, "f32 rows, b to repeat into a", &[a, b])?;
                if self.divided(a, b) {
                    let f = |[a, b, _]: Args<'_>, out: &mut [f32]| each(a, b, out, |a, b| a $op b);
                    return self.repeated_rows(op, &[a, b], 1, f);
                }
                call!(self, op, $ggml(a, b))
            })*
        }
    };
}

repeating! {
    /// `a + b`, `b` repeated to `a`'s shape.
    add: ggml_add, +;
    /// `a - b`, `b` repeated to `a`'s shape.
    sub: ggml_sub, -;
    /// `a * b` element by element, `b` repeated to `a`'s shape.
    mul: ggml_mul, *;
}

impl<'c> Builder<'c> {
    /// A node of F32 whose rows are `times` as wide as those of `args`, all of one shape, each computed by `f` out of one row of
    /// every argument. For the CPU; elsewhere the graph is refused.
    pub(crate) fn rows<F: RowKernel>(
        &self,
        op: &'static str,
        args: &[Tensor<'c>],
        times: usize,
        f: F,
    ) -> Result<Tensor<'c>> {
        let ok = args.windows(2).all(|pair| pair[0].ne() == pair[1].ne());
        check(ok, op, "f32 matrices of one shape", args)?;
        self.repeated_rows(op, args, times, f)
    }

    /// The same where arguments after the first are repeated over the outer dimensions of the first.
    fn repeated_rows<F: RowKernel>(
        &self,
        op: &'static str,
        args: &[Tensor<'c>],
        times: usize,
        f: F,
    ) -> Result<Tensor<'c>> {
        let n = args.first().map_or([0; 4], |t| t.ne());
        let fits = |t: Tensor<'_>| f32_rows(t) && t.ne()[0] == n[0] && broadcasts(t.ne(), n);
        let aligned = |t: Tensor<'_>| t.nb()[1..].iter().all(|nb| nb.is_multiple_of(4));
        let ok = args.len() <= MAX_ARGS && args.iter().all(|&t| fits(t) && aligned(t));
        check(ok, op, "f32 of one length of rows, to repeat into the first", args)?;
        let ne = [n[0].saturating_mul(times), n[1], n[2], n[3]];
        self.custom(op, DType::F32, ne, args, move |part| run_rows(part, f))
    }

    /// Returns true if a sum or product of `a` and `b` is computed by the pool's threads.
    fn divided(&self, a: Tensor<'c>, b: Tensor<'c>) -> bool {
        let [n, ..] = a.ne();
        self.own && b.ne()[0] == n && f32_rows(b) && 4 * a.ne().iter().product::<usize>() >= self.divide_from
    }

    pub(crate) fn swiglu_rows(&self, gate: Tensor<'c>, up: Tensor<'c>) -> Result<Tensor<'c>> {
        self.rows("swiglu", &[gate, up], 1, |[gate, up, _], out| {
            each(gate, up, out, |g, u| g * sigmoid(g) * u)
        })
    }

    pub(crate) fn rms_norm_rows(&self, x: Tensor<'c>, eps: f32) -> Result<Tensor<'c>> {
        self.rows("rms_norm", &[x], 1, move |[x, ..], out| {
            let [squares, _] = sums(x, x);
            let factor = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
            x.iter().zip(out).for_each(|(x, y)| *y = x * factor as f32);
        })
    }

    pub(crate) fn rms_norm_back_rows(&self, grad: Tensor<'c>, x: Tensor<'c>, eps: f32) -> Result<Tensor<'c>> {
        self.rows("rms_norm_back", &[grad, x], 1, move |[d, x, _], out| {
            let (n, [squares, along]) = (x.len() as f64, sums(x, d));
            let square = squares / n + f64::from(eps);
            let (factor, off) = (1.0 / square.sqrt(), along / n / square);
            let (factor, off) = (factor as f32, (off * factor) as f32);
            each(d, x, out, |d, x| d * factor - x * off);
        })
    }
}

#[inline(always)]
fn each(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    a.iter().zip(b).zip(out).for_each(|((&a, &b), y)| *y = f(a, b));
}

/// The sums of `x * x` and of `x * d`.
#[inline(always)]
fn sums(x: &[f32], d: &[f32]) -> [f64; 2] {
    let mut lanes = [[0.0f64; LANES]; 2];
    for (x, d) in x.chunks(LANES).zip(d.chunks(LANES)) {
        for (i, (&x, &d)) in x.iter().zip(d).enumerate() {
            lanes[0][i] += f64::from(x) * f64::from(x);
            lanes[1][i] += f64::from(x) * f64::from(d);
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

fn run_rows(part: Part<'_>, f: impl RowKernel) {
    let [_, n1, n2, _] = part.ne();
    let sources: [Option<Source<'_>>; MAX_ARGS] = std::array::from_fn(|i| part.optional(i));
    for (row, out) in part.rows::<f32>() {
        let at = [row % n1, row / n1 % n2, row / n1 / n2];
        let args: Args<'_> = sources.map(|source| match source {
            Some(source) => source.row(std::array::from_fn(|i| at[i] % source.ne()[i + 1])),
            None => &[],
        });
        f(args, out);
    }
}
