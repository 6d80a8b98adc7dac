//! Products of quantized weights with floats in 16-bit numbers.

use std::cell::RefCell;

use kernels::int16::{Product, Scratch, Shape};

use crate::node::Part;
use crate::units::Units;
use crate::DType;

/// Rows of a weight that a thread takes at once: whole panels.
const ROWS: usize = 32;
/// Units of work for each thread, at least, so that none waits long for another.
const UNITS: usize = 6;
/// Fewest tokens worth converting a weight for.
const TOKENS: usize = 96;

pub(super) fn pack(part: Part<'_>, shape: Shape) {
    let x = part.source(0);
    for (i, words) in part.words(0, shape.n, shape.row_words()) {
        shape.pack(x.row([i, 0, 0]), words);
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

pub(super) fn run(part: &Part<'_>, shape: Shape, dtype: DType, units: &Units) {
    let ([m, ..], w) = (part.ne(), part.source(0));
    let packed = bytemuck::cast_slice(part.source(1).all::<i32>());
    let (bytes, row_bytes, result) = (w.bytes(), w.tensor().nb[1], part.floats());
    let row = |i: usize| &bytes[i * row_bytes..][..row_bytes];
    let product = Product { dtype, row, packed, shape };
    let n_rows = m.div_ceil(ROWS);
    // Every part of the tokens converts the weight again, so they are cut only where there are few rows.
    let n_parts = (UNITS * part.nth().max(1)).div_ceil(n_rows.max(1)).min(shape.n / TOKENS).max(1);
    SCRATCH.with_borrow_mut(|scratch| {
        units.work(n_rows * n_parts, part.nth(), |unit| {
            let (part, at) = (unit / n_rows, unit % n_rows);
            let tokens = shape.n * part / n_parts..shape.n * (part + 1) / n_parts;
            let rows = at * ROWS..m.min((at + 1) * ROWS);
            // SAFETY: units are of different elements, and each is one thread's.
            scratch.multiply(&product, unsafe { result.output(rows, tokens) });
        });
    });
}
