//! Products of weights of any type with floats in AMX tiles, ops of our own for the CPU: floats are packed by one
//! node, and products of several weights share them.

use std::cell::RefCell;
use std::ffi::c_void;

use kernels::output::Output;
use kernels::tiled::{Scratch, Shape, COLUMNS};

use crate::custom::{share, zeroed, ComputeFn, RowReader};
use crate::graph::Builder;
use crate::ops::{check, f32_rows, matrix, possible};
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
        let words = shape.n_words().and_then(|n| n.checked_add(LINE));
        let words = words.ok_or_else(|| Error::Op { op, what: format!("{n} rows of {k} are too many") })?;
        possible(op, DType::I32, [words, 1, 1, 1])?;
        let words = self.custom(DType::I32, [words, 1, 1, 1], &[x], run_pack, shape)?;
        Ok(Packed { words, shape })
    }

    /// F32 `[m, n]`: every row of a weight `[k, m]`, of any type that converts to floats, times every packed row
    /// `[k, n]`, each float right to 16 bits. The result does not depend on the number of threads.
    pub fn packed_product(&self, w: Tensor<'c>, x: Packed<'c>) -> Result<Tensor<'c>> {
        let [k, m, ..] = w.ne();
        self.product_of("packed_product", w, x, [k, m], run_product)
    }

    /// F32 `[k, n]`: the rows of a weight `[k, m]` weighted by each packed row `[m, n]` and summed: the gradient of the
    /// input of [`Builder::packed_product`] from that of its result. As that one otherwise.
    pub fn packed_product_t(&self, w: Tensor<'c>, x: Packed<'c>) -> Result<Tensor<'c>> {
        let [k, m, ..] = w.ne();
        self.product_of("packed_product_t", w, x, [m, k], run_transposed)
    }

    /// A product that sums `summed` elements of the weight and of each packed row, to rows of `rows`.
    fn product_of(
        &self,
        op: &'static str,
        w: Tensor<'c>,
        x: Packed<'c>,
        [summed, rows]: [usize; 2],
        f: ComputeFn,
    ) -> Result<Tensor<'c>> {
        let [k, _, a, b] = w.ne();
        let whole = matrix(w) && Some(w.nb()[1]) == w.dtype().row_bytes(k);
        check(
            whole && a * b == 1 && summed == x.shape.k,
            op,
            "a weight that agrees with the packed rows in the summed dimension",
            &[w],
        )?;
        let ne = [rows, x.shape.n, 1, 1];
        possible(op, DType::F32, ne)?;
        self.custom(DType::F32, ne, &[w, x.words], f, x.shape)
    }
}

/// The first cache line of a node's memory.
fn aligned(t: &sys::ggml_tensor) -> *mut u32 {
    let data = t.data as *mut u32;
    data.wrapping_add(data.align_offset(4 * LINE))
}

unsafe extern "C" fn run_pack(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `pack`: its source is an F32 matrix with contiguous rows, computed before,
    // its user data the shape boxed there.
    let (dst, x, shape) = unsafe { (&*dst, &*(*dst).src[0], *(data as *const Shape)) };
    let row = |i: usize| {
        // SAFETY: row i of x, which has as many as the shape.
        unsafe { std::slice::from_raw_parts((x.data as *const u8).add(i * x.nb[1]).cast::<f32>(), shape.k) }
    };
    for pair in share(shape.n_pairs(), ith, nth) {
        let words = shape.words_of(pair);
        // SAFETY: dst has a line more than the shape has words; threads take disjoint pairs of tiles.
        let words = unsafe { zeroed(aligned(dst).add(words.start), words.len()) };
        shape.pack(pair, row, words);
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
    out: *mut f32,
    /// Elements of a row of the result.
    m: usize,
}

impl<'a> Work<'a> {
    /// # Safety
    /// `dst` is a running node of [`Builder::product_of`], whose sources are computed; `shape` is its user data.
    unsafe fn of(dst: &'a sys::ggml_tensor, shape: Shape) -> Work<'a> {
        let m = dst.ne[0] as usize;
        // SAFETY: the caller's promise: the sources are a weight checked there, alive while the graph is, and a node
        // of `pack`; dst is contiguous F32 [m, n], and no source's memory, for custom ops do not run in place.
        unsafe {
            let words = shape.n_words().unwrap_or(0);
            let packed = std::slice::from_raw_parts(aligned(&*dst.src[1]).cast_const(), words);
            Work { rows: RowReader::new(&*dst.src[0]), packed, shape, out: dst.data as *mut f32, m }
        }
    }

    /// Calls `f` with the parts of the result that are thread `ith`'s to compute: whole pairs of tiles, and of the elements
    /// of their rows whole units of so many.
    ///
    /// # Safety
    /// No other thread of the node has this `ith` and `nth`, and all have this `nth` and `unit`.
    unsafe fn share(&self, unit: usize, ith: i32, nth: i32, mut f: impl FnMut(Output<'_>)) {
        let (n_units, n_pairs) = (self.m.div_ceil(unit), self.shape.n_pairs());
        // Every part of the packed rows converts the weights anew, so they are cut only where there are few units.
        let n_parts = (PARTS * nth.max(1) as usize).div_ceil(n_units).clamp(1, n_pairs.max(1));
        let mine = share(n_units * n_parts, ith, nth);
        for part in 0..n_parts {
            let first = part * n_units;
            let units = mine.start.max(first)..mine.end.min(first + n_units);
            if !units.is_empty() {
                let pairs = n_pairs * part / n_parts..n_pairs * (part + 1) / n_parts;
                let columns = (units.start - first) * unit..self.m.min((units.end - first) * unit);
                let rows = self.shape.rows_of(pairs);
                // SAFETY: the result is contiguous F32 [m, n], and no source's memory; threads have different units of
                // different parts (the caller's promise).
                f(unsafe { Output::shared(self.out, [self.m, self.shape.n], columns, rows) });
            }
        }
    }
}

unsafe extern "C" fn run_product(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `packed_product`, its sources computed, and the shape boxed there.
    let work = unsafe { Work::of(&*dst, *(data as *const Shape)) };
    SCRATCH.with_borrow_mut(|scratch| {
        let multiply = |out: Output<'_>| {
            let read = |row: usize, from: usize, out: &mut [f32]| work.rows.read(row, from, out);
            scratch.multiply(work.packed, work.shape, read, out);
        };
        // SAFETY: ggml gives each thread of a node its own number, and all of them theirs.
        unsafe { work.share(PANEL, ith, nth, multiply) };
    });
}

unsafe extern "C" fn run_transposed(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: as in `run_product`, the node made in `packed_product_t`.
    let work = unsafe { Work::of(&*dst, *(data as *const Shape)) };
    // Whole blocks, and enough of a row to be worth finding it.
    let unit = if work.rows.block() > PANEL { COLUMNS } else { FEW_COLUMNS };
    SCRATCH.with_borrow_mut(|scratch| {
        let multiply = |mut out: Output<'_>| {
            let (columns, rows) = (out.columns(), out.rows());
            for first in columns.clone().step_by(unit) {
                let out = out.part(first..columns.end.min(first + unit), rows.clone());
                let read = |row: usize, from: usize, out: &mut [f32]| work.rows.read(row, from, out);
                scratch.multiply_transposed(work.packed, work.shape, read, out);
            }
        };
        // SAFETY: as in `run_product`.
        unsafe { work.share(unit, ith, nth, multiply) };
    });
}
