//! Products of weights of any type with floats in AMX tiles, ops of our own for the CPU: floats are packed by one
//! node, and products of several weights share them.

use std::cell::RefCell;
use std::ffi::c_void;

use kernels::tiled::{Output, Scratch, Shape};

use crate::custom::{share, RowReader};
use crate::graph::Builder;
use crate::ops::{check, f32_rows, possible};
use crate::tensor::Tensor;
use crate::{sys, DType, Error, Result};

/// Words of a cache line.
const LINE: usize = 16;
/// Parts that work is cut into for each thread, at least, so that they have about as much to do.
const PARTS: usize = 4;
/// Weights converted together: the width of a panel.
const PANEL: usize = 32;

/// Whether this machine has the tiles that these ops compute in.
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
        let op = "packed_product";
        let [k, m, a, b] = w.ne();
        let rows = w.dtype().can_dequantize() && Some(w.nb()[1]) == w.dtype().row_bytes(k);
        check(rows && a * b == 1 && k == x.shape.k, op, "a weight [k,m] of the packed rows' length", &[w])?;
        let ne = [m, x.shape.n, 1, 1];
        possible(op, DType::F32, ne)?;
        self.custom(DType::F32, ne, &[w, x.words], run_product, x.shape)
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
        let words = unsafe { std::slice::from_raw_parts_mut(aligned(dst).add(words.start), words.len()) };
        shape.pack(pair, row, words);
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

unsafe extern "C" fn run_product(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `packed_product`: its sources are a weight checked there and the node of
    // `pack`, computed before; its user data is the shape boxed there.
    let (dst, w, shape) = unsafe { (&*dst, &*(*dst).src[0], *(data as *const Shape)) };
    // SAFETY: a node of `pack`, as above.
    let packed = unsafe {
        let words = shape.n_words().unwrap_or(0);
        std::slice::from_raw_parts(aligned(&*dst.src[1]).cast_const(), words)
    };
    // SAFETY: a matrix of whole rows of a type that converts, alive while the graph is.
    let rows = unsafe { RowReader::new(w) };
    let m = dst.ne[0] as usize;
    let n_panels = m.div_ceil(PANEL);
    // Every part of the packed rows converts the weights anew, so they are cut only where there are few weights.
    let n_parts = (PARTS * nth.max(1) as usize).div_ceil(n_panels).clamp(1, shape.n_pairs().max(1));
    let mine = share(n_panels * n_parts, ith, nth);
    SCRATCH.with_borrow_mut(|scratch| {
        for part in 0..n_parts {
            let panels = mine.start.max(part * n_panels)..mine.end.min((part + 1) * n_panels);
            if panels.is_empty() {
                continue;
            }
            let weights =
                (panels.start - part * n_panels) * PANEL..m.min((panels.end - part * n_panels) * PANEL);
            let pairs = shape.n_pairs() * part / n_parts..shape.n_pairs() * (part + 1) / n_parts;
            // SAFETY: dst is contiguous F32 [m, n]; threads take disjoint parts of it; it is no source's memory, for
            // custom ops do not run in place.
            let out = unsafe { Output::new(dst.data as *mut f32, m) };
            scratch.multiply(packed, shape, pairs, weights, |row, from, out| rows.read(row, from, out), out);
        }
    });
}
