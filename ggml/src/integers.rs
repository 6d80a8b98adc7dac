//! Products of quantized weights with floats in 16-bit numbers, ops of our own for the CPU: floats are rounded by one
//! node, and products of several weights share them.

use std::cell::RefCell;

use kernels::integers::{Product, Scratch, Shape, BLOCK};

use crate::graph::Builder;
use crate::node::Part;
use crate::ops::{check, f32_rows, weight};
use crate::tensor::Tensor;
use crate::units::Units;
use crate::{DType, Error, Result};

/// Rows of a weight that a thread takes at once: whole panels.
const ROWS: usize = 32;
/// Units of work for each thread, at least, so that none waits long for another.
const UNITS: usize = 6;
/// Fewest tokens worth converting a weight for.
const TOKENS: usize = 96;

/// Returns true if this processor has integer products, and those in 8 bits.
pub fn available() -> bool {
    kernels::codes::available()
}

/// Returns true if there are integer products, and those in 8 bits, for weights of this type.
pub fn supports(dtype: DType) -> bool {
    kernels::codes::TYPES.contains(&dtype)
}

/// Returns true if this processor has integer products, and those in 8 bits, for weights of this type.
pub fn has_integer_product(dtype: DType) -> bool {
    available() && supports(dtype)
}

/// Floats rounded to 15 bits of the largest of each 32.
#[derive(Debug, Clone, Copy)]
pub struct Rounded<'c> {
    words: Tensor<'c>,
    shape: Shape,
}

struct Work {
    dtype: DType,
    shape: Shape,
    units: Units,
}

impl<'c> Builder<'c> {
    /// Rounds F32 `[k, n]`, rows contiguous, for [`Builder::integer_product`]. For the CPU
    /// ([`has_integer_product`]); elsewhere the graph is refused.
    pub fn rounded(&self, x: Tensor<'c>) -> Result<Rounded<'c>> {
        let op = "rounded";
        let [k, n, a, b] = x.ne();
        let whole = f32_rows(x) && a * b == 1 && k.is_multiple_of(BLOCK);
        check(whole, op, "an f32 matrix, a multiple of 32 wide", &[x])?;
        if !available() {
            return Err(Error::Op { op, what: "this processor has no fast products of integers".into() });
        }
        let shape = Shape { k, n };
        let words = self.prepared(op, shape.n_words(), x, move |part| run_round(part, shape))?;
        Ok(Rounded { words, shape })
    }

    /// F32 `[m, n]`: every row of a quantized weight `[k, m]` times every rounded row `[k, n]`. The result does not depend
    /// on the number of threads.
    pub fn integer_product(&self, w: Tensor<'c>, x: Rounded<'c>) -> Result<Tensor<'c>> {
        let op = "integer_product";
        let [k, m, ..] = w.ne();
        if !(weight(w) && k == x.shape.k && supports(w.dtype())) {
            let what =
                format!("expected a quantized weight as wide as the rounded rows, found {}", w.describe());
            return Err(Error::Op { op, what });
        }
        let ne = [m, x.shape.n, 1, 1];
        let work = Work { dtype: w.dtype(), shape: x.shape, units: Units::default() };
        self.custom(op, DType::F32, ne, &[w, x.words], move |part| run_product(&part, &work))
    }
}

fn run_round(part: Part<'_>, shape: Shape) {
    let x = part.source(0);
    for (i, words) in part.words(0, shape.n, shape.row_words()) {
        shape.pack(x.row([i, 0, 0]), words);
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

fn run_product(part: &Part<'_>, work: &Work) {
    let ([m, ..], w, shape) = (part.ne(), part.source(0), work.shape);
    let packed = bytemuck::cast_slice(part.source(1).all::<i32>());
    let (bytes, row_bytes, result) = (w.bytes(), w.tensor().nb[1], part.floats());
    let row = |i: usize| &bytes[i * row_bytes..][..row_bytes];
    let product = Product { dtype: work.dtype, row, packed, shape };
    let n_rows = m.div_ceil(ROWS);
    // Every part of the tokens converts the weight again, so they are cut only where there are few rows.
    let n_parts = (UNITS * part.nth().max(1)).div_ceil(n_rows.max(1)).min(shape.n / TOKENS).max(1);
    SCRATCH.with_borrow_mut(|scratch| {
        work.units.work(n_rows * n_parts, part.nth(), |unit| {
            let (part, at) = (unit / n_rows, unit % n_rows);
            let tokens = shape.n * part / n_parts..shape.n * (part + 1) / n_parts;
            let rows = at * ROWS..m.min((at + 1) * ROWS);
            // SAFETY: units are of different elements, and each is one thread's.
            scratch.multiply(&product, unsafe { result.output(rows, tokens) });
        });
    });
}
