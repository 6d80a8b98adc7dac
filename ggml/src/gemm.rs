//! Products of floats, ops of our own for the CPU: a matrix with rows, with its transpose, and sums over tokens.
//!
//! ggml's product of floats wants both operands contracted over their rows, and is slower; the kernels of crate `gemm` take
//! any strides. Each of ggml's threads computes a part of the result with them alone.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use crate::graph::Builder;
use crate::ops::{check, f32_rows, possible};
use crate::tensor::Tensor;
use crate::{sys, DType, Result};

/// Rows or columns of the result a thread takes at a time: a multiple of what the kernels hold in registers, 16 x 6 with
/// AVX2. Small results are other kernels' work and those sum in another order, so with few columns or rows a unit is large
/// enough never to be one of them.
const UNIT: usize = 48;
const THIN_UNIT: usize = 288;
/// Fewer rows or columns than this are few.
const THIN: usize = 9;
/// Terms summed in one go, given to the kernels so that it does not depend on the part's shape.
const DEPTH: usize = 512;

/// Floats in memory: element `(i, j)` lies `i * rs + j * cs` behind the first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: *const f32,
    rs: usize,
    cs: usize,
    rows: usize,
    cols: usize,
    alive: PhantomData<&'a [f32]>,
}

impl<'a> Matrix<'a> {
    /// # Safety
    /// All elements lie in memory that can be read, and that nobody writes, during `'a`.
    pub(crate) unsafe fn at(data: *const f32, rows: usize, cols: usize, rs: usize, cs: usize) -> Matrix<'a> {
        Matrix { data, rs, cs, rows, cols, alive: PhantomData }
    }

    /// Rows of `cols` elements in a slice, `rs` apart.
    pub(crate) fn rows(data: &'a [f32], rows: usize, cols: usize, rs: usize) -> Matrix<'a> {
        assert!(rows > 0 && cols > 0 && (rows - 1) * rs + cols <= data.len());
        Matrix { data: data.as_ptr(), rs, cs: 1, rows, cols, alive: PhantomData }
    }

    /// Rows as columns.
    pub(crate) fn transposed(self) -> Matrix<'a> {
        Matrix { rs: self.cs, cs: self.rs, rows: self.cols, cols: self.rows, ..self }
    }

    /// # Safety
    /// As for [`Matrix::at`], of a 2-D F32 tensor of the running graph: its rows as columns, so element `(i, j)` is `ne0 = i`,
    /// `ne1 = j`.
    unsafe fn of(t: &'a sys::ggml_tensor) -> Matrix<'a> {
        let (rows, cols) = (t.ne[0] as usize, t.ne[1] as usize);
        // SAFETY: the caller's promise; strides are those of the tensor, whole floats.
        unsafe { Matrix::at(t.data as *const f32, rows, cols, 1, t.nb[1] / 4) }
    }

    fn part(self, rows: Range<usize>, cols: Range<usize>) -> Matrix<'a> {
        debug_assert!(rows.end <= self.rows && cols.end <= self.cols);
        let data = self.data.wrapping_add(rows.start * self.rs + cols.start * self.cs);
        Matrix { data, rows: rows.len(), cols: cols.len(), ..self }
    }
}

/// `out = a b`, or `out += a b` if `add`, times `factor`; element `(i, j)` of the result lies `i + j * cs` behind `out`.
///
/// # Safety
/// Those elements may be written, by nobody else meanwhile, and are none of `a`'s or `b`'s; `add` reads them, too.
pub(crate) unsafe fn multiply(
    out: *mut f32,
    cs: usize,
    add: bool,
    a: Matrix<'_>,
    b: Matrix<'_>,
    factor: f32,
) {
    assert_eq!(a.cols, b.rows, "the caller's shapes agree");
    let step = |n: usize| n as isize;
    for from in (0..a.cols).step_by(DEPTH) {
        let to = (from + DEPTH).min(a.cols);
        let (a, b) = (a.part(0..a.rows, from..to), b.part(from..to, 0..b.cols));
        // SAFETY: a and b can be read (`Matrix::at`), the result can be written (the caller's promise), and shapes agree.
        unsafe {
            gemm::gemm(
                a.rows,
                b.cols,
                a.cols,
                out,
                step(cs),
                1,
                add || from > 0,
                a.data,
                step(a.cs),
                step(a.rs),
                b.data,
                step(b.cs),
                step(b.rs),
                1.0,
                factor,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}

/// [`multiply`] with the result in a slice.
pub(crate) fn multiply_into(
    out: &mut [f32],
    cs: usize,
    add: bool,
    a: Matrix<'_>,
    b: Matrix<'_>,
    factor: f32,
) {
    assert!(a.rows <= cs && (b.cols - 1) * cs + a.rows <= out.len());
    // SAFETY: the result lies in the slice, and the borrow keeps everybody else, a and b too, out of it.
    unsafe { multiply(out.as_mut_ptr(), cs, add, a, b, factor) }
}

/// What is transposed, for the user data of a node.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    /// Both contracted over `ne0`.
    Rows,
    /// `a` contracted over `ne1`.
    Transposed,
    /// Both contracted over `ne1`.
    Outer,
}

impl<'c> Builder<'c> {
    /// F32 `[m, n]`: every row of `a` `[k, m]` times every row of `b` `[k, n]`, F32 matrices whose rows are contiguous. For
    /// the CPU; elsewhere the graph is refused. The result does not depend on the number of threads.
    pub fn gemm(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        let ([k, m, ..], [l, n, ..]) = (a.ne(), b.ne());
        self.product("gemm", Kind::Rows, [a, b], [k, l], [m, n])
    }

    /// F32 `[m, n]`: the rows of `a` `[m, k]` weighted by each row of `b` `[k, n]` and summed; with `a` a weight, the gradient
    /// of the product's input from that of its result. As [`Builder::gemm`] otherwise.
    pub fn gemm_t(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        let ([m, k, ..], [l, n, ..]) = (a.ne(), b.ne());
        self.product("gemm_t", Kind::Transposed, [a, b], [k, l], [m, n])
    }

    /// F32 `[m, n]`: the sum over tokens `i` of row `i` of `a` `[m, k]` by row `i` of `b` `[n, k]`; with inputs and gradients
    /// of results, the gradient of a weight `[m, n]`. As [`Builder::gemm`] otherwise.
    pub fn gemm_outer(&self, a: Tensor<'c>, b: Tensor<'c>) -> Result<Tensor<'c>> {
        let ([m, k, ..], [n, l, ..]) = (a.ne(), b.ne());
        self.product("gemm_outer", Kind::Outer, [a, b], [k, l], [m, n])
    }

    fn product(
        &self,
        op: &'static str,
        kind: Kind,
        [a, b]: [Tensor<'c>; 2],
        [k, l]: [usize; 2],
        [m, n]: [usize; 2],
    ) -> Result<Tensor<'c>> {
        let plain = |t: Tensor<'_>| f32_rows(t) && t.ne()[2] * t.ne()[3] == 1 && t.nb()[1].is_multiple_of(4);
        check(
            k == l && plain(a) && plain(b),
            op,
            "two f32 matrices that agree in the summed dimension",
            &[a, b],
        )?;
        possible(op, DType::F32, [m, n, 1, 1])?;
        self.custom(DType::F32, [m, n, 1, 1], &[a, b], run_product, kind)
    }
}

/// The part of `n` rows or columns that thread `ith` of `nth` does, in whole units, the last one larger by what is left.
fn units(n: usize, unit: usize, ith: usize, nth: usize) -> Range<usize> {
    let n_units = (n / unit).max(1);
    let bound = |i: usize| if i >= nth { n } else { n_units * i / nth * unit };
    bound(ith)..bound(ith + 1)
}

unsafe extern "C" fn run_product(dst: *mut sys::ggml_tensor, ith: i32, nth: i32, data: *mut c_void) {
    // SAFETY: ggml passes the node made in `product`, whose user data is the kind boxed there and whose sources are the
    // two matrices checked there, computed before. All are alive, and the sources as they are, while it runs.
    let (dst, kind, a, b) = unsafe {
        let dst = &*dst;
        (dst, *(data as *const Kind), Matrix::of(&*dst.src[0]), Matrix::of(&*dst.src[1]))
    };
    let a = if kind == Kind::Rows { a.transposed() } else { a };
    let b = if kind == Kind::Outer { b.transposed() } else { b };
    let (m, n) = (a.rows, b.cols);
    let unit = if m.min(n) < THIN { THIN_UNIT } else { UNIT };
    let mine = units(m.max(n), unit, ith as usize, nth.max(1) as usize);
    if mine.is_empty() {
        return;
    }
    let (rows, cols) = if m > n { (mine, 0..n) } else { (0..m, mine) };
    let (a, b) = (a.part(rows.clone(), 0..a.cols), b.part(0..b.rows, cols.clone()));
    // SAFETY: dst is contiguous F32 [m, n]; threads take disjoint parts of it; a custom op never runs in place, so it is
    // nobody's source.
    unsafe { multiply((dst.data as *mut f32).add(rows.start + cols.start * m), m, false, a, b, 1.0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_cover_everything_once() {
        for (n, unit, nth) in
            [(1, 48, 3), (47, 48, 2), (96, 48, 2), (1000, 48, 7), (300, 288, 4), (2000, 288, 5)]
        {
            let parts: Vec<_> = (0..nth).map(|i| units(n, unit, i, nth)).collect();
            assert!(parts.iter().all(|p| p.is_empty() || p.len() >= unit.min(n)));
            assert_eq!(parts.into_iter().flatten().collect::<Vec<_>>(), (0..n).collect::<Vec<_>>());
        }
    }
}
