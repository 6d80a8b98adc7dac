//! Products of quantised weights with few rows of floats, an op of our own for the CPU.

use std::cell::RefCell;
use std::ffi::c_void;

use kernels::codes::Kind;
use kernels::few::{available, Rounded, MOST, ROWS};

use crate::custom::share;
use crate::graph::Builder;
use crate::integers::kind;
use crate::ops::{check, f32_rows, possible};
use crate::tensor::Tensor;
use crate::{sys, DType, Error, Result};

/// Most rows of floats for which this op is faster than products in 16-bit integers, measured on Zen 4 with Q4_1.
pub const MOST_ROWS: usize = 4 * MOST;

/// Whether there is such a product for weights of this type on this processor.
pub fn has_few_rows_product(dtype: DType) -> bool {
    kind(dtype).is_some_and(available)
}

impl<'c> Builder<'c> {
    /// F32 `[m, n]`: every row of a weight `[k, m]` in blocks of 32 times every row of `x`, F32 `[k, n]`, rounded to eight bits in
    /// blocks of 32. For the CPU ([`has_few_rows_product`]); elsewhere the graph is refused. The result does not depend on
    /// the number of threads.
    pub fn few_rows_product(&self, w: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let op = "few_rows_product";
        let ([k, m, a, b], [l, n, c, d]) = (w.ne(), x.ne());
        let Some(kind) = kind(w.dtype()).filter(|kind| available(*kind)) else {
            let what = format!("{} weights have no such product on this processor", w.dtype());
            return Err(Error::Op { op, what });
        };
        let whole = Some(w.nb()[1]) == w.dtype().row_bytes(k) && f32_rows(x);
        check(whole && k == l && a * b * c * d == 1, op, "a weight [k,m] and f32 [k,n]", &[w, x])?;
        possible(op, DType::F32, [m, n, 1, 1])?;
        self.custom(DType::F32, [m, n, 1, 1], &[w, x], run_product, kind)
    }
}

thread_local! {
    static ROUNDED: RefCell<Rounded> = RefCell::default();
}

unsafe extern "C" fn run_product(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `few_rows_product`; its sources are the weight and the floats checked there,
    // computed before, its user data was boxed there.
    let (dst, w, x, kind) = unsafe { (&*dst, &*(*dst).src[0], &*(*dst).src[1], *(data as *const Kind)) };
    let (k, m, n) = (w.ne[0] as usize, dst.ne[0] as usize, dst.ne[1] as usize);
    let mine = share(m.div_ceil(ROWS), ith, nth);
    let (first, end) = (mine.start * ROWS, m.min(mine.end * ROWS));
    if first >= end {
        return;
    }
    // SAFETY: rows of the weight that are there, whole blocks.
    let rows = unsafe {
        std::slice::from_raw_parts((w.data as *const u8).add(first * w.nb[1]), (end - first) * w.nb[1])
    };
    // SAFETY: row i of x, k contiguous floats.
    let floats = |i: usize| unsafe {
        std::slice::from_raw_parts((x.data as *const u8).add(i * x.nb[1]).cast::<f32>(), k)
    };
    let put = |row: usize, t: usize, value: f32| {
        // SAFETY: dst is contiguous F32 [m, n], and threads take disjoint rows of the weight.
        unsafe { *(dst.data as *mut f32).add(t * m + first + row) = value }
    };
    ROUNDED.with_borrow_mut(|rounded| {
        rounded.set(kind, k, (0..n).map(floats));
        let mut at = 0;
        while at < n {
            let each = |row: usize, t: usize, products: &[f32]| {
                products.iter().enumerate().for_each(|(i, p)| put(row, t + i, *p));
            };
            let nb = w.nb[1];
            match n - at {
                1 => rounded.products::<1>(rows, nb, at, |row, p| each(row, at, &p)),
                2 => rounded.products::<2>(rows, nb, at, |row, p| each(row, at, &p)),
                3 => rounded.products::<3>(rows, nb, at, |row, p| each(row, at, &p)),
                _ => rounded.products::<MOST>(rows, nb, at, |row, p| each(row, at, &p)),
            }
            at += MOST;
        }
    });
}
