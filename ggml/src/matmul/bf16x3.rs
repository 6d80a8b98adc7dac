//! Products of weights of any type with floats in AMX tiles.

use std::cell::RefCell;

use kernels::bf16x3::{Scratch, Shape, COLUMNS};
use kernels::output::Output;

use crate::custom::RowReader;
use crate::node::{Floats, Part};
use crate::sys;

/// Words of a cache line.
const LINE: usize = 16;
/// Parts that work is cut into for each thread, at least, so that they have about as much to do.
const PARTS: usize = 4;
/// Weights converted together: the width of a panel.
const PANEL: usize = 32;
/// Columns converted together, of weights with small blocks.
const FEW_COLUMNS: usize = 96;

/// Words of all packed floats. Memory of a node need not begin at a cache line.
pub(super) fn n_words(shape: Shape) -> Option<usize> {
    shape.n_words()?.checked_add(LINE)
}

/// Words before the first cache line of a node's memory.
fn before_line(t: &sys::ggml_tensor) -> usize {
    (t.data as *const u32).align_offset(4 * LINE)
}

pub(super) fn pack(part: Part<'_>, shape: Shape) {
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
    /// Of a node of [`Builder::matmul_prepared`](crate::graph::Builder::matmul_prepared).
    fn of(part: &Part<'a>, shape: Shape) -> Work<'a> {
        let (packed, [m, ..]) = (part.source(1).tensor(), part.ne());
        // SAFETY: a node of `prepare` for this shape, which gave so many words values.
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

pub(super) fn run(part: &Part<'_>, shape: Shape, transposed: bool) {
    if transposed {
        return run_transposed(part, shape);
    }
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
