//! Products of quantized weights with floats in 8-bit numbers, ops of our own for the CPU. Of many rows of floats, one node rounds
//! them for the products of several weights; of a few, each thread of a product rounds them all.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ops::Range;

use kernels::eight_bits::{available, Layout, Panel, Rounded, Rounding, MOST, ROWS};
use kernels::experts::Groups;

use crate::custom::{share, zeroed};
use crate::experts::{elements, Chosen};
use crate::graph::Builder;
use crate::integers::supports;
use crate::ops::{check, f32_rows, matrix, possible};
use crate::tensor::Tensor;
use crate::units::Units;
use crate::{sys, DType, Error, Result};

/// Returns true if this processor has an 8-bit product for weights of this type.
pub fn has_eight_bit_product(dtype: DType) -> bool {
    available() && supports(dtype)
}

/// Floats rounded to eight bits in blocks of 32.
#[derive(Debug, Clone, Copy)]
pub struct EightBits<'c> {
    words: Tensor<'c>,
    layout: Layout,
    n: usize,
}

impl EightBits<'_> {
    /// Returns true if the rows can also be multiplied with weights of this type.
    pub fn serve(&self, dtype: DType) -> bool {
        self.layout.serves(dtype)
    }
}

struct Work {
    dtype: DType,
    layout: Layout,
    units: Units,
}

impl<'c> Builder<'c> {
    /// Rounds F32 `[k, n]`, rows contiguous, for [`Builder::shared_eight_bit_product`] with weights of this type. For the CPU
    /// ([`has_eight_bit_product`]); elsewhere the graph is refused.
    pub fn eight_bits(&self, x: Tensor<'c>, dtype: DType) -> Result<EightBits<'c>> {
        let op = "eight_bits";
        check_type(op, dtype)?;
        let [k, n, a, b] = x.ne();
        let whole = f32_rows(x) && a * b == 1 && k > 0 && k.is_multiple_of(dtype.block_size());
        check(whole, op, "an f32 matrix, whole blocks of the weight's type wide", &[x])?;
        let layout = Layout::new(dtype, k, n);
        let words = layout.n_words();
        let words = words.ok_or_else(|| Error::Op { op, what: format!("{n} rows of {k} are too many") })?;
        possible(op, DType::I32, [words, 1, 1, 1])?;
        let words = self.custom(DType::I32, [words, 1, 1, 1], &[x], run_round, layout)?;
        Ok(EightBits { words, layout, n })
    }

    /// F32 `[m, n]`: every row of a quantized weight `[k, m]` times every rounded row `[k, n]`. The result does not depend on the
    /// number of threads, and is that of [`Builder::eight_bit_product`].
    pub fn shared_eight_bit_product(&self, w: Tensor<'c>, x: EightBits<'c>) -> Result<Tensor<'c>> {
        let op = "shared_eight_bit_product";
        let [k, m, a, b] = w.ne();
        check_type(op, w.dtype())?;
        let whole = matrix(w) && Some(w.nb()[1]) == w.dtype().row_bytes(k) && a * b == 1;
        if !(whole && x.serve(w.dtype()) && x.layout.k() == k) {
            let what = format!("expected a weight that the rounded rows serve, found {}", w.describe());
            return Err(Error::Op { op, what });
        }
        possible(op, DType::F32, [m, x.n, 1, 1])?;
        let work = Work { dtype: w.dtype(), layout: x.layout, units: Units::default() };
        self.custom(DType::F32, [m, x.n, 1, 1], &[w, x.words], run_shared, work)
    }

    /// F32 `[m, n]`: every row of a quantized weight `[k, m]` times every row of `x`, F32 `[k, n]`, rounded to eight bits in
    /// blocks of 32. For the CPU ([`has_eight_bit_product`]); elsewhere the graph is refused. The result does not depend on
    /// the number of threads.
    pub fn eight_bit_product(&self, w: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let op = "eight_bit_product";
        let ([k, m, a, b], [l, n, c, d]) = (w.ne(), x.ne());
        check_type(op, w.dtype())?;
        let whole = matrix(w) && Some(w.nb()[1]) == w.dtype().row_bytes(k) && f32_rows(x);
        check(whole && k == l && a * b * c * d == 1, op, "a weight [k,m] and f32 [k,n]", &[w, x])?;
        possible(op, DType::F32, [m, n, 1, 1])?;
        self.custom(DType::F32, [m, n, 1, 1], &[w, x], run_product, w.dtype())
    }

    /// The same for each place's expert: weights `[k, m, n_expert]`, `x` F32 `[k, 1 or n_used, T]`, to F32 `[m, n_used, T]`.
    pub fn experts_eight_bit_product(
        &self,
        w: Tensor<'c>,
        x: Tensor<'c>,
        chosen: Chosen<'c>,
    ) -> Result<Tensor<'c>> {
        let op = "experts_eight_bit_product";
        let [_, m] = self.product_shape(op, w, x, chosen, 0)?;
        check_type(op, w.dtype())?;
        let ne = [m, chosen.n_used(), chosen.n_tokens(), 1];
        possible(op, DType::F32, ne)?;
        self.custom(DType::F32, ne, &[w, x, chosen.ids()], run_experts, w.dtype())
    }
}

fn check_type(op: &'static str, dtype: DType) -> Result<()> {
    if has_eight_bit_product(dtype) {
        return Ok(());
    }
    Err(Error::Op { op, what: format!("{dtype} weights have no such product on this processor") })
}

/// Floats that stay in a cache, rounded, while a weight goes by.
const FLOATS: usize = 256 << 10;
/// Rows of floats worth reading a weight for, once it is not in a cache.
const FEWEST: usize = 64;

/// Rows of a weight that a thread takes at once where floats are many: few enough that none waits long for another.
const UNIT: usize = 8 * ROWS;

thread_local! {
    static SCRATCH: RefCell<(Rounding, Panel)> = RefCell::default();
}

unsafe extern "C" fn run_round(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `eight_bits`: its source is an F32 matrix with contiguous rows, computed before,
    // its user data the layout boxed there.
    let (dst, x, layout) = unsafe { (&*dst, &*(*dst).src[0], *(data as *const Layout)) };
    let n_words = layout.group_words();
    for group in share(layout.n_groups(), ith, nth) {
        // SAFETY: dst has the words of all groups, and threads take disjoint ones.
        let words = unsafe { zeroed((dst.data as *mut u32).add(group * n_words), n_words) };
        for row in layout.rows(group) {
            // SAFETY: a row of x, which has as many as the layout.
            let x = unsafe {
                std::slice::from_raw_parts((x.data as *const u8).add(row * x.nb[1]).cast::<f32>(), layout.k())
            };
            layout.round(row, x, words);
        }
    }
}

unsafe extern "C" fn run_shared(dst: *mut sys::ggml_tensor, _: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `shared_eight_bit_product`; its sources are the weight checked there and a node of
    // `eight_bits`, computed before, its user data was boxed there.
    let (dst, w, x, work) = unsafe { (&*dst, &*(*dst).src[0], &*(*dst).src[1], &*(data as *const Work)) };
    let (m, n) = (dst.ne[0] as usize, dst.ne[1] as usize);
    // SAFETY: `eight_bits` made a node of as many words as the layout has, and `run_round` gave all of them values.
    let words =
        unsafe { std::slice::from_raw_parts(x.data as *const u32, work.layout.n_words().unwrap_or(0)) };
    let rounded = Rounded::new(work.layout, words);
    let out = Out { data: dst.data as *mut f32, m, n };
    let (many, n_units) = (at_once(work.layout.k()), m.div_ceil(UNIT));
    SCRATCH.with_borrow_mut(|(_, panel)| {
        // Units that follow one another share floats.
        work.units.work(n_units * n.div_ceil(many), nth, |unit| {
            let (from, rows) = (unit / n_units * many, unit % n_units * UNIT);
            let mine = rows..m.min(rows + UNIT);
            // SAFETY: rows of the weight that are there, whole blocks.
            let rows = unsafe { weight_rows(w, 0, &mine) };
            let which = (from, many.min(n - from));
            rounded.products(work.dtype, panel, rows, w.nb[1], which, |row, t, products| {
                // SAFETY: dst is contiguous F32 [m, n], and units are of disjoint elements.
                unsafe { out.put(t, mine.start + row, products) }
            });
        });
    });
}

/// The rows of a weight that a thread takes: whole [`ROWS`].
fn rows_of(m: usize, ith: i32, nth: i32) -> Range<usize> {
    let mine = share(m.div_ceil(ROWS), ith, nth);
    m.min(mine.start * ROWS)..m.min(mine.end * ROWS)
}

/// A product's result: contiguous F32, `n` rows of `m`.
struct Out {
    data: *mut f32,
    m: usize,
    n: usize,
}

impl Out {
    /// # Safety
    /// This is the result of a running node, and nobody else reads or writes these numbers of this row meanwhile.
    ///
    /// # Panics
    /// Where there is no such row, or it has not so many numbers from `from` on.
    unsafe fn put(&self, row: usize, from: usize, products: &[f32]) {
        let inside = from.checked_add(products.len()).is_some_and(|end| end <= self.m);
        assert!(inside && row < self.n, "{} numbers from {from} on of row {row}", products.len());
        // SAFETY: inside by the assertion, and this thread's (the caller's promise).
        unsafe {
            let to = self.data.add(row * self.m + from);
            std::ptr::copy_nonoverlapping(products.as_ptr(), to, products.len());
        }
    }
}

unsafe extern "C" fn run_product(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `eight_bit_product`; its sources are the weight and the floats checked there,
    // computed before, its user data was boxed there.
    let (dst, w, x, dtype) = unsafe { (&*dst, &*(*dst).src[0], &*(*dst).src[1], *(data as *const DType)) };
    let (k, m, n) = (w.ne[0] as usize, dst.ne[0] as usize, dst.ne[1] as usize);
    let mine = rows_of(m, ith, nth);
    if mine.is_empty() {
        return;
    }
    // SAFETY: rows of the weight that are there, whole blocks.
    let rows = unsafe { weight_rows(w, 0, &mine) };
    // SAFETY: row i of x, k contiguous floats.
    let floats = |i: usize| unsafe {
        std::slice::from_raw_parts((x.data as *const u8).add(i * x.nb[1]).cast::<f32>(), k)
    };
    let out = Out { data: dst.data as *mut f32, m, n };
    SCRATCH.with_borrow_mut(|(rounding, panel)| {
        let rounded = rounding.set(dtype, k, (0..n).map(|i| Some(floats(i))));
        products(dtype, &rounded, panel, rows, w.nb[1], 0..n, |row, t, products| {
            // SAFETY: dst is contiguous F32 [m, n], and threads take disjoint rows of the weight.
            unsafe { out.put(t, mine.start + row, products) }
        });
    });
}

unsafe extern "C" fn run_experts(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `experts_eight_bit_product`; its sources are the weights, the floats and the
    // indices checked there, computed before, its user data was boxed there.
    let (dst, w, x, ids, dtype) = unsafe {
        (&*dst, &*(*dst).src[0], &*(*dst).src[1], elements::<i32>((*dst).src[2]), *(data as *const DType))
    };
    let (k, m, n_expert) = (w.ne[0] as usize, dst.ne[0] as usize, w.ne[2] as usize);
    let mine = rows_of(m, ith, nth);
    if mine.is_empty() {
        return;
    }
    // Places that share a row of floats.
    let shared = (dst.ne[1] / x.ne[1]) as usize;
    // SAFETY: x is contiguous F32 of rows of k.
    let floats = unsafe { elements::<f32>(x) };
    let out = Out { data: dst.data as *mut f32, m, n: (dst.ne[1] * dst.ne[2]) as usize };
    let groups = Groups::of(ids, n_expert);
    // Rows of an expert lie side by side, so each one's begin with a group of theirs.
    let places = |expert: usize| {
        let rows = groups.rows(expert);
        let gap = rows.len().next_multiple_of(MOST) - rows.len();
        rows.iter().copied().map(Some).chain(std::iter::repeat_n(None, gap))
    };
    let order: Vec<Option<usize>> = (0..n_expert).flat_map(places).collect();
    SCRATCH.with_borrow_mut(|(rounding, panel)| {
        let row = |row: usize| &floats[row / shared * k..][..k];
        let rounded = rounding.set(dtype, k, order.iter().map(|place| place.map(row)));
        let mut first = 0;
        for expert in 0..n_expert {
            let n = groups.rows(expert).len();
            let of_expert = first..first + n;
            first += n.next_multiple_of(MOST);
            if of_expert.is_empty() {
                continue;
            }
            // SAFETY: rows of an expert's weight that are there, whole blocks.
            let rows = unsafe { weight_rows(w, expert, &mine) };
            products(dtype, &rounded, panel, rows, w.nb[1], of_expert, |row, t, products| {
                let Some(place) = order[t] else { return };
                // SAFETY: dst is contiguous F32 [m, n_used, T], with a row for each place; threads take disjoint rows of
                // weights.
                unsafe { out.put(place, mine.start + row, products) }
            });
        }
    });
}

/// Rows of the weight of an expert.
///
/// # Safety
/// They are there, one behind the other, and stay as they are for `'a`.
unsafe fn weight_rows<'a>(w: &sys::ggml_tensor, expert: usize, rows: &Range<usize>) -> &'a [u8] {
    let (nb, from) = (w.nb[1], expert * w.nb[2] + rows.start * w.nb[1]);
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts((w.data as *const u8).add(from), rows.len() * nb) }
}

/// Rows of `k` floats that stay in a cache, rounded.
fn at_once(k: usize) -> usize {
    (FLOATS / k).next_multiple_of(MOST).max(FEWEST)
}

/// Products of rows of weights with some of the rounded rows, as many at a time as stay in a cache.
fn products(
    dtype: DType,
    rounded: &Rounded<'_>,
    panel: &mut Panel,
    rows: &[u8],
    row_bytes: usize,
    floats: Range<usize>,
    mut put: impl FnMut(usize, usize, &[f32]),
) {
    let many = at_once(rounded.k());
    for at in floats.clone().step_by(many) {
        let which = (at, many.min(floats.end - at));
        rounded.products(dtype, panel, rows, row_bytes, which, &mut put);
    }
}
