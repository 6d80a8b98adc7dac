//! Mixtures of experts: a router's choice, products with the weights of the experts chosen, and their gradients.
//!
//! ggml aborts on an index past the last expert, and on the CPU sorts what is no number by undefined behavior. So indices
//! come from [`Builder::top_k`] alone, as [`Chosen`]. ggml's product rounds activations to 8 bits, as libllama does; that
//! for training, and its transpose, are ops of our own, in floats: tokens are grouped by expert, and each thread
//! dequantizes a part of one expert's weight at a time, so no stack is ever in memory as floats.

use std::cell::RefCell;

use kernels::experts::{top_k, Groups, Scratch, Shape};

use crate::custom::RowReader;
use crate::graph::Builder;
use crate::matmul::{int8, Kernel};
use crate::node::Part;
use crate::ops::{call, check, contiguous, even_rows, f32_rows, matrix, plain, possible};
use crate::tensor::Tensor;
use crate::units::Units;
use crate::{sys, DType, Error, Result};

pub use kernels::experts::{Gating, GatingKind, LEAST_SUM};

/// The experts chosen for each token of a graph, in places.
#[derive(Debug, Clone, Copy)]
pub struct Chosen<'c> {
    /// I32 `[n_used, T]`, each below `n_expert`, none twice for a token.
    ids: Tensor<'c>,
    n_expert: usize,
}

impl<'c> Chosen<'c> {
    pub fn n_used(&self) -> usize {
        self.ids.ne()[0]
    }

    pub fn n_tokens(&self) -> usize {
        self.ids.ne()[1]
    }

    /// The indices, I32 `[n_used, T]`, to be read.
    pub fn ids(&self) -> Tensor<'c> {
        self.ids
    }
}

/// Returns true if `t` is contiguous F32 of this shape.
fn floats(t: Tensor<'_>, ne: [usize; 3]) -> bool {
    plain(t, DType::F32, [ne[0], ne[1], ne[2], 1])
}

/// The scalars of a product node.
#[derive(Debug)]
struct Product {
    shape: Shape,
    n_expert: usize,
    transposed: bool,
    units: Units,
}

impl<'c> Builder<'c> {
    /// The `k` largest of each token's scores (contiguous F32 `[n_expert, T]`). On the CPU always by an op of our own, for
    /// ggml's sorts by an order that NaN breaks, which is undefined behavior: the largest first, of equal ones the first, and
    /// what is no number last. Elsewhere by ggml's op, in any order.
    pub fn top_k(&self, scores: Tensor<'c>, k: usize) -> Result<Chosen<'c>> {
        let (op, [n, t, ..]) = ("top_k", scores.ne());
        let ok = floats(scores, [n, t, 1]) && (1..=n).contains(&k) && i32::try_from(n).is_ok();
        check(ok, op, &format!("contiguous f32 [n,T] with n at least k = {k}, and k above 0"), &[scores])?;
        let ids = if self.device.is_cpu() {
            self.custom(op, DType::I32, [k, t, 1, 1], &[scores], run_top_k)?
        } else {
            call!(self, "top_k", ggml_top_k(scores; k as i32))?
        };
        Ok(Chosen { ids, n_expert: n })
    }

    /// The values of the experts chosen: of contiguous F32 `[n_expert, T]`, F32 `[n_used, T]`.
    pub fn of_chosen(&self, values: Tensor<'c>, chosen: Chosen<'c>) -> Result<Tensor<'c>> {
        let (op, n, t) = ("of_chosen", chosen.n_expert, chosen.n_tokens());
        check(floats(values, [n, t, 1]), op, "contiguous f32 [n_expert,T]", &[values, chosen.ids])?;
        let rows = self.reshape(values, &[1, n, t])?;
        let picked = call!(self, "of_chosen", ggml_get_rows(rows, chosen.ids))?;
        self.reshape(picked, &[chosen.n_used(), t])
    }

    /// The product of each place's expert: weights `[k, m, n_expert]` of any type, `x` contiguous F32 `[k, 1 or n_used, T]`, to
    /// F32 `[m, n_used, T]`. `transposed`, `x` F32 `[m, 1 or n_used, T]` to F32 `[k, n_used, T]`, which is the gradient of
    /// the product's input at each place where `x` is that of its result. Kernels of ours are for the CPU; elsewhere the
    /// graph is refused.
    pub fn matmul_experts(
        &self,
        kernel: Kernel,
        w: Tensor<'c>,
        x: Tensor<'c>,
        chosen: Chosen<'c>,
        transposed: bool,
    ) -> Result<Tensor<'c>> {
        let (op, dtype, [n_in, n_out, ..]) = ("matmul_experts", w.dtype(), w.ne());
        let [_, len] = self.product_shape(op, w, x, chosen, usize::from(transposed))?;
        let (ne, args) = ([len, chosen.n_used(), chosen.n_tokens(), 1], [w, x, chosen.ids]);
        match kernel {
            Kernel::F32 => {
                let shape = Shape { n_in, n_out, shared: chosen.n_used() / x.ne()[1] };
                let units = Units::default();
                let product = Product { shape, n_expert: chosen.n_expert, transposed, units };
                self.custom(op, DType::F32, ne, &args, move |part| products(&part, &product))
            }
            Kernel::Int8 if !transposed => {
                kernel.check(op, dtype, transposed)?;
                self.custom(op, DType::F32, ne, &args, move |part| int8::run_experts(&part, dtype))
            }
            Kernel::Ggml if !transposed => {
                possible(op, DType::F32, ne)?;
                match self.in_parts(sys::GGML_OP_MUL_MAT_ID, ne, &args)? {
                    Some(out) => Ok(out),
                    None => call!(self, "matmul_experts", ggml_mul_mat_id(w, x, chosen.ids)),
                }
            }
            _ => Err(Error::Op {
                op,
                what: format!("{kernel}: expected a kernel that has products of experts"),
            }),
        }
    }

    /// Checks a product that sums over dimension `over` of the weights: that dimension, and the other one.
    fn product_shape(
        &self,
        op: &'static str,
        w: Tensor<'c>,
        x: Tensor<'c>,
        chosen: Chosen<'c>,
        over: usize,
    ) -> Result<[usize; 2]> {
        let (a, b) = (w.ne(), x.ne());
        let places = b[1] == 1 || b[1] == chosen.n_used();
        let shapes = a[over] == b[0] && a[2] == chosen.n_expert && places && b[2..] == [chosen.n_tokens(), 1];
        check(
            shapes && matrix(w) && a[3] == 1 && contiguous(w) && f32_rows(x) && contiguous(x),
            op,
            "weights [k,m,n_expert] and contiguous f32 [.,1 or n_used,T] that agree in the summed dimension",
            &[w, x, chosen.ids],
        )?;
        Ok([a[over], a[1 - over]])
    }

    /// Adds to `x`, F32 `[n, n_used, T]`, the bias of each place's expert: of F32 `[n, n_expert]`.
    pub fn add_chosen(&self, x: Tensor<'c>, bias: Tensor<'c>, chosen: Chosen<'c>) -> Result<Tensor<'c>> {
        let (op, n) = ("add_chosen", x.ne()[0]);
        let shapes =
            x.ne() == [n, chosen.n_used(), chosen.n_tokens(), 1] && bias.ne() == [n, chosen.n_expert, 1, 1];
        let expected = "f32 rows [n,n_used,T] and [n,n_expert]";
        check(shapes && f32_rows(x) && f32_rows(bias), op, expected, &[x, bias, chosen.ids])?;
        call!(self, "add_chosen", ggml_add_id(x, bias, chosen.ids))
    }

    /// The sum over the places of each token: contiguous F32 `[n, n_used, T]` to `[n, T]`.
    pub fn sum_places(&self, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let [n, n_used, t, _] = x.ne();
        check(floats(x, [n, n_used, t]), "sum_places", "contiguous f32 [n,n_used,T]", &[x])?;
        let place = |i: usize| self.view(x, [n, t, 1, 1], [x.nb()[2], x.nb()[3], x.nb()[3]], i * x.nb()[1]);
        if n_used == 1 {
            return self.reshape(x, &[n, t]);
        }
        (1..n_used).try_fold(place(0)?, |sum, i| self.add(sum, place(i)?))
    }

    /// Which experts were chosen, in ones and zeros: F32 `[n_expert, T]`, or `by_place` a column for each place, F32
    /// `[n_expert, n_used * T]`. For the CPU; elsewhere the graph is refused.
    pub fn one_hot(&self, chosen: Chosen<'c>, by_place: bool) -> Result<Tensor<'c>> {
        check(contiguous(chosen.ids), "one_hot", "contiguous indices", &[chosen.ids])?;
        let (n_used, t) = (chosen.n_used(), chosen.n_tokens());
        let ne = [chosen.n_expert, if by_place { n_used.saturating_mul(t) } else { t }, 1, 1];
        self.custom("one_hot", DType::F32, ne, &[chosen.ids], run_one_hot)
    }

    /// The gradient of a router's logits, F32 `[n_expert, T]`, from that of the weights of the experts chosen, F32
    /// `[n_used, T]`. For the CPU; elsewhere the graph is refused.
    pub fn router_back(
        &self,
        logits: Tensor<'c>,
        chosen: Chosen<'c>,
        d_weights: Tensor<'c>,
        gating: Gating,
    ) -> Result<Tensor<'c>> {
        let (op, n, t) = ("router_back", chosen.n_expert, chosen.n_tokens());
        let shapes = floats(logits, [n, t, 1]) && floats(d_weights, [chosen.n_used(), t, 1]);
        let args = [logits, chosen.ids, d_weights];
        check(shapes, op, "contiguous f32 [n_expert,T] and [n_used,T]", &args)?;
        self.custom(op, DType::F32, [n, t, 1, 1], &args, move |part| run_router_back(part, gating))
    }

    /// `x / (1 + exp(-alpha x)) * (y + 1)` of `x = min(gate, limit)` and `y` the nearest number to `up` within `limit`
    /// of 0: the activation of gpt-oss. F32 of one shape.
    pub fn swiglu_oai(
        &self,
        gate: Tensor<'c>,
        up: Tensor<'c>,
        [alpha, limit]: [f32; 2],
    ) -> Result<Tensor<'c>> {
        let rows = |t| f32_rows(t) && even_rows(t);
        let ok = gate.ne() == up.ne() && rows(gate) && rows(up) && alpha.is_finite() && limit > 0.0;
        check(
            ok,
            "swiglu_oai",
            "two f32 tensors of one shape, a finite alpha, a limit above 0",
            &[gate, up],
        )?;
        call!(self, "swiglu_oai", ggml_swiglu_oai(gate, up; alpha, limit))
    }

    /// The gradients of `gate` and `up` where `grad` is that of [`Builder::swiglu_oai`], all contiguous F32 of one
    /// shape: twice as wide, each row the gate's gradient and then the other's. For the CPU; elsewhere the graph is
    /// refused.
    pub fn swiglu_oai_back(
        &self,
        grad: Tensor<'c>,
        gate: Tensor<'c>,
        up: Tensor<'c>,
        [alpha, limit]: [f32; 2],
    ) -> Result<Tensor<'c>> {
        let (op, ne, args) = ("swiglu_oai_back", grad.ne(), [grad, gate, up]);
        let ok = args.iter().all(|&t| floats(t, [ne[0], ne[1], ne[2]])) && alpha.is_finite() && limit > 0.0;
        check(ok, op, "three contiguous f32 tensors of one shape, a finite alpha, a limit above 0", &args)?;
        self.rows(op, &args, 2, move |[d, gate, up], out| {
            let (d_gate, d_up) = out.split_at_mut(gate.len());
            for (i, (d_gate, d_up)) in d_gate.iter_mut().zip(d_up).enumerate() {
                let (x, y) = (gate[i].min(limit), up[i].clamp(-limit, limit));
                let s = 1.0 / (1.0 + (-alpha * x).exp());
                let slope = s * (1.0 + alpha * x * (1.0 - s));
                *d_gate = if gate[i] > limit { 0.0 } else { d[i] * (y + 1.0) * slope };
                *d_up = if up[i].abs() > limit { 0.0 } else { d[i] * x * s };
            }
        })
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    static ORDER: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

fn run_top_k(part: Part<'_>) {
    let scores = part.source(0);
    ORDER.with_borrow_mut(|order| {
        part.rows::<i32>().for_each(|(t, ids)| top_k(scores.row([t, 0, 0]), order, ids));
    });
}

fn run_one_hot(part: Part<'_>) {
    let ids = part.source(0).all::<i32>();
    let k = ids.len() / part.ne()[1];
    for (column, out) in part.rows::<f32>() {
        out.fill(0.0);
        ids[column * k..(column + 1) * k].iter().for_each(|&expert| out[expert as usize] = 1.0);
    }
}

fn products(part: &Part<'_>, product: &Product) {
    let Product { shape, n_expert, transposed, ref units } = *product;
    let (reader, x, ids) =
        (RowReader::new(part.source(0)), part.source(1).all::<f32>(), part.source(2).all::<i32>());
    let (groups, out) = (Groups::of(ids, n_expert), part.floats());
    let write = |row: usize, first: usize, values: &[f32]| {
        // SAFETY: each unit writes its own columns of its expert's rows, and a row has one expert.
        unsafe { out.write(row, first, values) }
    };
    let n_units = if transposed { shape.units_t() } else { shape.units() };
    SCRATCH.with_borrow_mut(|scratch| {
        units.work(n_units * n_expert, part.nth(), |i| {
            let (expert, unit) = (i / n_units, i % n_units);
            let rows = groups.rows(expert);
            if rows.is_empty() {
                return;
            }
            let read = |row: usize, from: usize, to: &mut [f32]| {
                reader.read(expert * shape.n_out + row, from, to);
            };
            if transposed {
                scratch.product_t(shape, unit, rows, x, read, write);
            } else {
                scratch.product(shape, unit, rows, x, read, write);
            }
        });
    });
}

fn run_router_back(part: Part<'_>, gating: Gating) {
    let (logits, ids, d_weights) = (part.source(0), part.source(1).all::<i32>(), part.source(2));
    let k = ids.len() / part.ne()[1];
    for (t, out) in part.rows::<f32>() {
        gating.back(logits.row([t, 0, 0]), &ids[t * k..(t + 1) * k], d_weights.row([t, 0, 0]), out);
    }
}
