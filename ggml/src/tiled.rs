//! Products of weights of any type with floats in AMX tiles, ops of our own for the CPU: floats are packed by one
//! node, and products of several weights share them.

use std::cell::RefCell;

use kernels::output::Output;
use kernels::tiled::{Scratch, Shape, COLUMNS};

use crate::custom::RowReader;
use crate::graph::Builder;
use crate::node::{Floats, Part};
use crate::ops::{check, f32_rows, weight};
use crate::tensor::Tensor;
use crate::{sys, DType, Error, Result};

/// Words of a cache line.
const LINE: usize = 16;
/// Parts that work is cut into for each thread, at least, so that they have about as much to do.
const PARTS: usize = 4;
/// Weights converted together: the width of a panel.
const PANEL: usize = 32;
/// Columns converted together, of weights with small blocks.
const FEW_COLUMNS: usize = 96;

/// Returns true if this machine has the tiles that these ops compute in.
pub fn has_tiles() -> bool {
    kernels::tiled::available()
}

/// Floats cut into halves and laid out in tiles.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'c> {
    words: Tensor<'c>,
    shape: Shape,
}

impl<'c> Builder<'c> {
    /// Packs F32 `[k, n]`, rows contiguous, for [`Builder::packed_product`]. For the CPU, with tiles
    /// ([`has_tiles`]); elsewhere the graph is refused.
    pub fn pack(&self, x: Tensor<'c>) -> Result<Packed<'c>> {
        let op = "pack";
        let [k, n, a, b] = x.ne();
        check(f32_rows(x) && a * b == 1, op, "an f32 matrix", &[x])?;
        if !has_tiles() {
            return Err(Error::Op { op, what: "this processor has no AMX tiles of bfloat16".into() });
        }
        let shape = Shape { k, n };
        // Memory of a node need not begin at a cache line.
        let n_words = shape.n_words().and_then(|n| n.checked_add(LINE));
        let words = self.prepared(op, n_words, x, move |part| run_pack(part, shape))?;
        Ok(Packed { words, shape })
    }

    /// F32 `[m, n]`: every row of a weight `[k, m]`, of any type that converts to floats, times every packed row
    /// `[k, n]`, each float right to 16 bits. `transposed`, the rows of a weight `[m, k]` weighted by each packed row and
    /// summed: the gradient of a product's input from that of its result. The result does not depend on the number of
    /// threads.
    pub fn packed_product(&self, w: Tensor<'c>, x: Packed<'c>, transposed: bool) -> Result<Tensor<'c>> {
        let (op, [n0, n1, ..], shape) = ("packed_product", w.ne(), x.shape);
        let (k, m) = if transposed { (n1, n0) } else { (n0, n1) };
        let expected = "a weight that agrees with the packed rows in the summed dimension";
        check(weight(w) && k == shape.k, op, expected, &[w])?;
        let run = if transposed { run_transposed } else { run_product };
        self.custom(op, DType::F32, [m, shape.n, 1, 1], &[w, x.words], move |part| run(&part, shape))
    }
}

/// Words before the first cache line of a node's memory.
fn before_line(t: &sys::ggml_tensor) -> usize {
    (t.data as *const u32).align_offset(4 * LINE)
}

fn run_pack(part: Part<'_>, shape: Shape) {
    let (x, first) = (part.source(0), before_line(part.node()));
    for (pair, words) in part.words(first, shape.n_pairs(), shape.pair_words()) {
        shape.pack(pair, |i| x.row([i, 0, 0]), words);
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// A thread's work on a product: the weight, the packed floats, and parts of both.
struct Work<'a> {
    rows: RowReader<'a>,
    packed: &'a [u32],
    shape: Shape,
    out: Floats<'a>,
    /// Elements of a row of the result.
    m: usize,
}

impl<'a> Work<'a> {
    /// Of a node of [`Builder::packed_product`].
    fn of(part: &Part<'a>, shape: Shape) -> Work<'a> {
        let (packed, [m, ..]) = (part.source(1).tensor(), part.ne());
        // SAFETY: a node of `pack` for this shape, which gave so many words values.
        let packed = unsafe {
            let first = (packed.data as *const u32).add(before_line(packed));
            std::slice::from_raw_parts(first, shape.n_words().unwrap_or(0))
        };
        Work { rows: RowReader::new(part.source(0)), packed, shape, out: part.floats(), m }
    }

    /// Calls `f` with the elements of the result that a part computes: whole pairs of tiles, and of the elements of their
    /// rows whole units of so many.
    fn share(&self, unit: usize, part: &Part<'_>, mut f: impl FnMut(Output<'_>)) {
        let (n_units, n_pairs) = (self.m.div_ceil(unit), self.shape.n_pairs());
        // Every part of the packed rows converts the weights again, so they are cut only where there are few units.
        let n_parts = (PARTS * part.nth().max(1)).div_ceil(n_units).clamp(1, n_pairs.max(1));
        let mine = part.share(n_units * n_parts);
        for part in 0..n_parts {
            let first = part * n_units;
            let units = mine.start.max(first)..mine.end.min(first + n_units);
            if !units.is_empty() {
                let pairs = n_pairs * part / n_parts..n_pairs * (part + 1) / n_parts;
                let columns = (units.start - first) * unit..self.m.min((units.end - first) * unit);
                // SAFETY: all parts of a node are cut alike, and have different units.
                f(unsafe { self.out.output(columns, self.shape.rows_of(pairs)) });
            }
        }
    }
}

fn run_product(part: &Part<'_>, shape: Shape) {
    let work = Work::of(part, shape);
    SCRATCH.with_borrow_mut(|scratch| {
        work.share(PANEL, part, |out| {
            let read = |row: usize, from: usize, out: &mut [f32]| work.rows.read(row, from, out);
            scratch.multiply(work.packed, work.shape, read, out);
        });
    });
}

fn run_transposed(part: &Part<'_>, shape: Shape) {
    let work = Work::of(part, shape);
    // Whole blocks, and enough of a row to be worth finding it.
    let unit = if work.rows.block() > PANEL { COLUMNS } else { FEW_COLUMNS };
    SCRATCH.with_borrow_mut(|scratch| {
        work.share(unit, part, |mut out| {
            let (columns, rows) = (out.columns(), out.rows());
            for first in columns.clone().step_by(unit) {
                let out = out.part(first..columns.end.min(first + unit), rows.clone());
                let read = |row: usize, from: usize, out: &mut [f32]| work.rows.read(row, from, out);
                scratch.multiply_transposed(work.packed, work.shape, read, out);
            }
        });
    });
}
