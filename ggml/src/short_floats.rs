//! Products of weights in 16-bit floats with floats, ops of our own for the CPU where the processor has instructions for them.

use std::cell::RefCell;
use std::ffi::c_void;

use kernels::gemm::divide;
use kernels::output::Output;
use kernels::short_floats::{Format, Scratch, Weights};

use crate::graph::Builder;
use crate::ops::{check, f32_rows, possible};
use crate::tensor::Tensor;
use crate::{sys, DType, Error, Result};

/// Returns true if this processor has a product of short floats for weights of this type.
pub fn has_short_product(dtype: DType) -> bool {
    format(dtype).is_some_and(Format::available)
}

fn format(dtype: DType) -> Option<Format> {
    match dtype {
        DType::BF16 => Some(Format::Bf16),
        DType::F16 => Some(Format::F16),
        _ => None,
    }
}

struct Work {
    format: Format,
    transposed: bool,
}

impl<'c> Builder<'c> {
    /// F32 `[m, n]`: every row of a weight, BF16 or F16 `[k, m]`, times every row of `x`, F32 `[k, n]`, which is rounded to bfloat16
    /// beside weights in it, and not rounded beside half precision. Sums are floats; the result does not depend on the number of
    /// threads. For the CPU ([`has_short_product`]); elsewhere the graph is refused.
    pub fn short_product(&self, w: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let [k, m, ..] = w.ne();
        self.product_in_shorts("short_product", w, x, [k, m], false)
    }

    /// F32 `[m, n]`: the rows of a weight, BF16 `[m, k]`, times the numbers of each row of `x`, F32 `[k, n]`, and summed: the
    /// gradient of a product's input from that of its result. As [`Builder::short_product`] otherwise.
    pub fn short_product_t(&self, w: Tensor<'c>, x: Tensor<'c>) -> Result<Tensor<'c>> {
        let [m, k, ..] = w.ne();
        self.product_in_shorts("short_product_t", w, x, [k, m], true)
    }

    fn product_in_shorts(
        &self,
        op: &'static str,
        w: Tensor<'c>,
        x: Tensor<'c>,
        [k, m]: [usize; 2],
        transposed: bool,
    ) -> Result<Tensor<'c>> {
        let known = format(w.dtype()).filter(|format| format.available());
        let Some(format) = known.filter(|format| !transposed || *format == Format::Bf16) else {
            let what = format!("{} weights have no such product on this processor", w.dtype());
            return Err(Error::Op { op, what });
        };
        let [n0, _, a, b] = w.ne();
        let [l, n, c, d] = x.ne();
        let whole = w.nb()[..2] == [2, 2 * n0] && a * b == 1;
        let fits = whole && f32_rows(x) && l == k && c * d == 1;
        check(fits, op, "a weight of 16-bit floats, and f32 rows as long as its sums", &[w, x])?;
        possible(op, DType::F32, [m, n, 1, 1])?;
        self.custom(DType::F32, [m, n, 1, 1], &[w, x], run_product, Work { format, transposed })
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

unsafe extern "C" fn run_product(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `product_in_shorts`; its sources are the weight and the floats checked there, computed
    // before, its user data was boxed there.
    let (dst, w, x, work) = unsafe { (&*dst, &*(*dst).src[0], &*(*dst).src[1], &*(data as *const Work)) };
    let (k, m, n) = (x.ne[0] as usize, dst.ne[0] as usize, dst.ne[1] as usize);
    let (columns, rows) = divide(m, n, ith as usize, nth.max(1) as usize);
    if columns.is_empty() || rows.is_empty() {
        return;
    }
    // SAFETY: the weight is contiguous, k times m numbers.
    let bits = unsafe { std::slice::from_raw_parts(w.data as *const u16, k * m) };
    let weights = Weights::new(work.format, bits, [k, m], work.transposed);
    // SAFETY: row i of x, k contiguous floats.
    let row = |i: usize| unsafe {
        std::slice::from_raw_parts((x.data as *const u8).add(i * x.nb[1]).cast::<f32>(), k)
    };
    // SAFETY: dst is contiguous F32 [m, n], and no source's memory; `divide` gives the threads of a node different elements.
    let out = unsafe { Output::shared(dst.data as *mut f32, [m, n], columns, rows) };
    SCRATCH.with_borrow_mut(|scratch| scratch.multiply(&weights, row, out));
}
