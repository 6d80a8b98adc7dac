//! Products of quantised weights with floats in 8-bit numbers, an op of our own for the CPU.

use std::cell::RefCell;
use std::ffi::c_void;

use kernels::codes::Kind;
use kernels::eight_bits::{available, Panel, Rounded, MOST, ROWS};

use crate::custom::share;
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
    /// F32 `[m, n]`: every row of a weight `[k, m]` in blocks of 32 times every row of `x`, F32 `[k, n]`, rounded to eight bits in
    /// blocks of 32. For the CPU ([`has_eight_bit_product`]); elsewhere the graph is refused. The result does not depend on
    /// the number of threads.
    pub fn eight_bit_product(&self, w: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let op = "eight_bit_product";
        let ([k, m, a, b], [l, n, c, d]) = (w.ne(), x.ne());
        let Some(kind) = kind(w.dtype()).filter(|_| available()) else {
            let what = format!("{} weights have no such product on this processor", w.dtype());
            return Err(Error::Op { op, what });
        };
        let whole = Some(w.nb()[1]) == w.dtype().row_bytes(k) && f32_rows(x);
        check(whole && k == l && a * b * c * d == 1, op, "a weight [k,m] and f32 [k,n]", &[w, x])?;
        possible(op, DType::F32, [m, n, 1, 1])?;
        self.custom(DType::F32, [m, n, 1, 1], &[w, x], run_product, kind)
    }
}

/// Floats that stay in a cache, rounded, while a weight goes by.
const FLOATS: usize = 256 << 10;
/// Rows of floats worth reading a weight for, once it is not in a cache.
const FEWEST: usize = 64;

thread_local! {
    static SCRATCH: RefCell<(Rounded, Panel)> = RefCell::default();
}

unsafe extern "C" fn run_product(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `eight_bit_product`; its sources are the weight and the floats checked there,
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
    let put = |row: usize, t: usize, products: &[f32]| {
        // SAFETY: dst is contiguous F32 [m, n], and threads take disjoint rows of the weight.
        let to = unsafe {
            std::slice::from_raw_parts_mut((dst.data as *mut f32).add(t * m + first + row), products.len())
        };
        to.copy_from_slice(products);
    };
    SCRATCH.with_borrow_mut(|(rounded, panel)| {
        rounded.set(kind, k, (0..n).map(floats));
        let many = (FLOATS / k).next_multiple_of(MOST).max(FEWEST);
        for at in (0..n).step_by(many) {
            rounded.products(panel, rows, w.nb[1], (at, many.min(n - at)), put);
        }
    });
}
