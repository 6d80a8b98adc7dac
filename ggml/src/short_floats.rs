//! Products of weights in 16-bit floats with floats, ops of our own for the CPU where the processor has instructions for them.

use std::cell::RefCell;

use kernels::gemm::divide;
use kernels::short_floats::{Format, Scratch, Weights};

use crate::graph::Builder;
use crate::node::Part;
use crate::ops::{check, f32_rows, weight};
use crate::tensor::Tensor;
use crate::{DType, Error, Result};

/// Returns true if this processor has a product of short floats for weights of this type.
pub fn has_short_product(dtype: DType) -> bool {
    format(dtype).is_some_and(Format::available)
}

fn format(dtype: DType) -> Option<Format> {
    match dtype {
        DType::BF16 => Some(Format::Bf16),
        DType::F16 => Some(Format::F16),
        _ => None,
    }
}

impl<'c> Builder<'c> {
    /// F32 `[m, n]`: every row of a weight, BF16 or F16 `[k, m]`, times every row of `x`, F32 `[k, n]`. `x` is rounded
    /// to bfloat16 if the weight is BF16. `transposed`: the rows of a weight, BF16 `[m, k]`, times the numbers of each
    /// row of `x`, summed, which is the gradient of a product's input from that of its result. Sums are floats and do
    /// not depend on the number of threads. Only for the CPU ([`has_short_product`]); elsewhere the graph is rejected.
    pub fn short_product(&self, w: Tensor<'c>, x: Tensor<'c>, transposed: bool) -> Result<Tensor<'c>> {
        let op = "short_product";
        let known = format(w.dtype()).filter(|format| format.available());
        let Some(format) = known.filter(|format| !transposed || *format == Format::Bf16) else {
            let what = format!("{} weights have no such product on this processor", w.dtype());
            return Err(Error::Op { op, what });
        };
        let ([n0, n1, ..], [l, n, c, d]) = (w.ne(), x.ne());
        let (k, m) = if transposed { (n1, n0) } else { (n0, n1) };
        let fits = weight(w) && f32_rows(x) && l == k && c * d == 1;
        check(fits, op, "a weight of 16-bit floats, and f32 rows as long as its sums", &[w, x])?;
        self.custom(op, DType::F32, [m, n, 1, 1], &[w, x], move |part| {
            run_product(part, format, transposed);
        })
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

fn run_product(part: Part<'_>, format: Format, transposed: bool) {
    let ([m, n, ..], x) = (part.ne(), part.source(1));
    let (columns, rows) = divide(m, n, part.ith(), part.nth());
    if columns.is_empty() || rows.is_empty() {
        return;
    }
    let weights = Weights::new(format, part.source(0).all::<u16>(), [x.ne()[0], m], transposed);
    // SAFETY: `divide` gives the parts of a node different elements.
    let out = unsafe { part.floats().output(columns, rows) };
    SCRATCH.with_borrow_mut(|scratch| scratch.multiply(&weights, |i| x.row([i, 0, 0]), out));
}
