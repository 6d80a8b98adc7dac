//! Products of float matrices by the kernels of crate `gemm-f32`, which accept any strides.

use std::marker::PhantomData;
use std::ops::Range;

/// Rows or columns of the result that a thread takes at a time: a multiple of the kernels' register block, 16
/// x 6 with AVX2. Crate `gemm` computes small results by other kernels, which sum in another order; so with
/// few columns or rows a unit is large enough (`THIN_UNIT`) never to be such a result, and no bit depends on
/// the number of threads.
const UNIT: usize = 48;
const THIN_UNIT: usize = 288;
/// A result with fewer rows or columns than this is cut in units of `THIN_UNIT`.
const THIN: usize = 9;
/// Terms summed by one call of the kernels: fixed, so that the order of sums does not depend on the shape of
/// a thread's part.
const DEPTH: usize = 512;

/// A matrix of floats in memory: element `(i, j)` lies `i * rs + j * cs` floats after the first.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: *const f32,
    rs: usize,
    cs: usize,
    rows: usize,
    cols: usize,
    alive: PhantomData<&'a [f32]>,
}

impl<'a> Matrix<'a> {
    /// # Safety
    /// All elements lie in one allocation that can be read, have values, and are written by nobody during `'a`.
    pub unsafe fn at(data: *const f32, rows: usize, cols: usize, rs: usize, cs: usize) -> Matrix<'a> {
        Matrix { data, rs, cs, rows, cols, alive: PhantomData }
    }

    /// Rows of `cols` elements in a slice, `rs` apart.
    pub fn rows(data: &'a [f32], rows: usize, cols: usize, rs: usize) -> Matrix<'a> {
        assert!(
            rows > 0 && cols > 0 && fits(rows, rs, cols, data.len()),
            "{rows} rows of {cols}, {rs} apart"
        );
        Matrix { data: data.as_ptr(), rs, cs: 1, rows, cols, alive: PhantomData }
    }

    pub fn n_rows(&self) -> usize {
        self.rows
    }

    pub fn n_cols(&self) -> usize {
        self.cols
    }

    pub(crate) fn first(&self) -> *const f32 {
        self.data
    }

    /// Floats from an element to that of the next row, and to that of the next column.
    pub(crate) fn steps(&self) -> [usize; 2] {
        [self.rs, self.cs]
    }

    /// The transposed matrix, of the same memory.
    pub fn transposed(self) -> Matrix<'a> {
        Matrix { rs: self.cs, cs: self.rs, rows: self.cols, cols: self.rows, ..self }
    }

    /// The submatrix of these rows and columns.
    pub fn part(self, rows: Range<usize>, cols: Range<usize>) -> Matrix<'a> {
        let inside = |part: &Range<usize>, n: usize| part.start <= part.end && part.end <= n;
        assert!(inside(&rows, self.rows) && inside(&cols, self.cols), "{rows:?}, {cols:?}");
        let data = self.data.wrapping_add(rows.start * self.rs + cols.start * self.cs);
        Matrix { data, rows: rows.len(), cols: cols.len(), ..self }
    }
}

/// Returns true if `n` lines of `len` elements, `step` apart, fit in `room` elements.
fn fits(n: usize, step: usize, len: usize, room: usize) -> bool {
    let last = n.checked_sub(1).and_then(|n| n.checked_mul(step));
    last.and_then(|at| at.checked_add(len)).is_some_and(|end| end <= room)
}

/// `out = a b`, or `out += a b` if `add`, times `factor`; element `(i, j)` of the result lies `i + j * cs`
/// after `out`.
///
/// # Safety
/// The elements of the result can be written, no other thread uses them during the call, and none of them belongs to
/// `a` or `b`; `add` also reads them.
pub unsafe fn multiply(out: *mut f32, cs: usize, add: bool, a: Matrix<'_>, b: Matrix<'_>, factor: f32) {
    assert_eq!(a.cols, b.rows, "the caller's shapes agree");
    let step = |n: usize| n as isize;
    for from in (0..a.cols).step_by(DEPTH) {
        let to = (from + DEPTH).min(a.cols);
        let (a, b) = (a.part(0..a.rows, from..to), b.part(from..to, 0..b.cols));
        // SAFETY: a and b can be read (`Matrix::at`), the result can be written (the caller's promise), and
        // shapes agree.
        unsafe {
            gemm_f32::gemm::f32::get_gemm_fn()(
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
                gemm_common::Parallelism::None,
            );
        }
    }
}

/// [`multiply`] with the result in a slice.
///
/// # Panics
/// When it does not fit, its columns overlap, or shapes do not agree.
pub fn multiply_into(out: &mut [f32], cs: usize, add: bool, a: Matrix<'_>, b: Matrix<'_>, factor: f32) {
    assert_holds(out, cs, a, b);
    // SAFETY: the result lies in the slice, and the borrow keeps everybody else, a and b too, out of it.
    unsafe { multiply(out.as_mut_ptr(), cs, add, a, b, factor) }
}

/// Panics when a slice does not hold the result of [`multiply`], or its columns overlap.
pub(crate) fn assert_holds(out: &[f32], cs: usize, a: Matrix<'_>, b: Matrix<'_>) {
    assert!(a.rows <= cs && fits(b.cols, cs, a.rows, out.len()), "{} columns, {cs} apart", b.cols);
}

/// The part of `n` rows or columns that thread `ith` of `nth` does, in whole units, the last one larger by
/// what is left.
fn units(n: usize, unit: usize, ith: usize, nth: usize) -> Range<usize> {
    let n_units = (n / unit).max(1);
    let bound = |i: usize| if i >= nth { n } else { n_units * i / nth * unit };
    bound(ith)..bound(ith + 1)
}

/// The rows and columns of an `m` by `n` result that thread `ith` of `nth` computes: a share of the longer
/// side in whole units.
pub fn divide(m: usize, n: usize, ith: usize, nth: usize) -> (Range<usize>, Range<usize>) {
    let unit = if m.min(n) < THIN { THIN_UNIT } else { UNIT };
    let mine = units(m.max(n), unit, ith, nth.max(1));
    if m > n {
        (mine, 0..n)
    } else {
        (0..m, mine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Safe functions: whatever they are given, no memory outside the slices is read or written.
    #[test]
    fn matrices_stay_inside_their_slices() {
        let data = [1.0f32; 12];
        let panics = |f: &dyn Fn()| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).expect_err("accepted");
        };
        let whole = Matrix::rows(&data, 3, 4, 4);
        for (rows, cols) in [(0..4, 0..4), (0..3, 0..5), (3..9, 0..1), (0..1, 2..usize::MAX)] {
            panics(&|| _ = whole.part(rows.clone(), cols.clone()));
        }
        for (rows, cols, rs) in [(4, 4, 4), (3, 13, 0), (3, 4, 1 << 63), (3, usize::MAX, 1), (0, 4, 4)] {
            panics(&|| _ = Matrix::rows(&data, rows, cols, rs));
        }
        let product = |len: usize, cs: usize| {
            let mut out = vec![0.0; len];
            multiply_into(&mut out, cs, false, whole.transposed(), whole, 1.0);
            out
        };
        panics(&|| drop(product(15, 4)));
        panics(&|| drop(product(16, 3)));
        panics(&|| drop(product(16, usize::MAX / 2)));
        assert_eq!(product(16, 4), [3.0; 16]);
    }

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
