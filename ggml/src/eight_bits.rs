//! Products of quantised weights with floats in 8-bit numbers, an op of our own for the CPU.

use std::cell::RefCell;
use std::ffi::c_void;
use std::ops::Range;

use kernels::codes::Kind;
use kernels::eight_bits::{available, Panel, Rounded, MOST, ROWS};
use kernels::experts::Groups;

use crate::custom::share;
use crate::experts::{elements, Chosen};
use crate::graph::Builder;
use crate::integers::kind;
use crate::ops::{check, f32_rows, possible};
use crate::tensor::Tensor;
use crate::{sys, DType, Error, Result};

/// Whether there is such a product for weights of this type on this processor.
pub fn has_eight_bit_product(dtype: DType) -> bool {
    available() && kind(dtype).is_some()
}

impl<'c> Builder<'c> {
    /// F32 `[m, n]`: every row of a quantised weight `[k, m]` times every row of `x`, F32 `[k, n]`, rounded to eight bits in
    /// blocks of 32. For the CPU ([`has_eight_bit_product`]); elsewhere the graph is refused. The result does not depend on
    /// the number of threads.
    pub fn eight_bit_product(&self, w: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let op = "eight_bit_product";
        let ([k, m, a, b], [l, n, c, d]) = (w.ne(), x.ne());
        let kind = kind_of(op, w)?;
        let whole = Some(w.nb()[1]) == w.dtype().row_bytes(k) && f32_rows(x);
        check(whole && k == l && a * b * c * d == 1, op, "a weight [k,m] and f32 [k,n]", &[w, x])?;
        possible(op, DType::F32, [m, n, 1, 1])?;
        self.custom(DType::F32, [m, n, 1, 1], &[w, x], run_product, kind)
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
        let kind = kind_of(op, w)?;
        let ne = [m, chosen.n_used(), chosen.n_tokens(), 1];
        possible(op, DType::F32, ne)?;
        self.custom(DType::F32, ne, &[w, x, chosen.ids()], run_experts, kind)
    }
}

fn kind_of(op: &'static str, w: Tensor<'_>) -> Result<Kind> {
    kind(w.dtype()).filter(|_| available()).ok_or_else(|| {
        let what = format!("{} weights have no such product on this processor", w.dtype());
        Error::Op { op, what }
    })
}

/// Floats that stay in a cache, rounded, while a weight goes by.
const FLOATS: usize = 256 << 10;
/// Rows of floats worth reading a weight for, once it is not in a cache.
const FEWEST: usize = 64;

thread_local! {
    static SCRATCH: RefCell<(Rounded, Panel)> = RefCell::default();
}

/// The rows of a weight that a thread takes: whole [`ROWS`].
fn rows_of(m: usize, ith: i32, nth: i32) -> Range<usize> {
    let mine = share(m.div_ceil(ROWS), ith, nth);
    m.min(mine.start * ROWS)..m.min(mine.end * ROWS)
}

/// A product's result: contiguous F32 of rows of `m`.
struct Out {
    data: *mut f32,
    m: usize,
}

impl Out {
    /// # Safety
    /// There is such a row, and so many numbers from `from` on, which no other thread touches.
    unsafe fn put(&self, row: usize, from: usize, products: &[f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.data.add(row * self.m + from);
            std::ptr::copy_nonoverlapping(products.as_ptr(), to, products.len());
        }
    }
}

unsafe extern "C" fn run_product(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `eight_bit_product`; its sources are the weight and the floats checked there,
    // computed before, its user data was boxed there.
    let (dst, w, x, kind) = unsafe { (&*dst, &*(*dst).src[0], &*(*dst).src[1], *(data as *const Kind)) };
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
    let out = Out { data: dst.data as *mut f32, m };
    SCRATCH.with_borrow_mut(|(rounded, panel)| {
        rounded.set(kind, k, (0..n).map(floats));
        products(rounded, panel, rows, w.nb[1], 0..n, k, |row, t, products| {
            // SAFETY: dst is contiguous F32 [m, n], and threads take disjoint rows of the weight.
            unsafe { out.put(t, mine.start + row, products) }
        });
    });
}

unsafe extern "C" fn run_experts(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `experts_eight_bit_product`; its sources are the weights, the floats and the
    // indices checked there, computed before, its user data was boxed there.
    let (dst, w, x, ids, kind) = unsafe {
        (&*dst, &*(*dst).src[0], &*(*dst).src[1], elements::<i32>((*dst).src[2]), *(data as *const Kind))
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
    let out = Out { data: dst.data as *mut f32, m };
    let groups = Groups::of(ids, n_expert);
    let order: Vec<usize> = (0..n_expert).flat_map(|expert| groups.rows(expert)).copied().collect();
    SCRATCH.with_borrow_mut(|(rounded, panel)| {
        rounded.set(kind, k, order.iter().map(|row| &floats[row / shared * k..][..k]));
        let mut first = 0;
        for expert in 0..n_expert {
            let of_expert = first..first + groups.rows(expert).len();
            first = of_expert.end;
            if of_expert.is_empty() {
                continue;
            }
            // SAFETY: rows of an expert's weight that are there, whole blocks.
            let rows = unsafe { weight_rows(w, expert, &mine) };
            products(rounded, panel, rows, w.nb[1], of_expert, k, |row, t, products| {
                // SAFETY: dst is contiguous F32 [m, n_used, T], with a row for each place; threads take disjoint rows of
                // weights.
                unsafe { out.put(order[t], mine.start + row, products) }
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

/// Products of rows of `k` weights with some of the rounded rows, as many at a time as stay in a cache.
fn products(
    rounded: &Rounded,
    panel: &mut Panel,
    rows: &[u8],
    row_bytes: usize,
    floats: Range<usize>,
    k: usize,
    mut put: impl FnMut(usize, usize, &[f32]),
) {
    let many = (FLOATS / k).next_multiple_of(MOST).max(FEWEST);
    for at in floats.clone().step_by(many) {
        rounded.products(panel, rows, row_bytes, (at, many.min(floats.end - at)), &mut put);
    }
}
