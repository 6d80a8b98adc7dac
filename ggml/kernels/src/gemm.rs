//! Products of float matrices by the kernels of crate `gemm-f32`, which accept any strides.
//!
//! The kernels read the left matrix by columns. One that lies in memory by rows, as weights do, they copy float by float,
//! which takes as long as the product with some thirty columns. [`multiply`] transposes it in registers first.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use crate::simd::{allows, Level};

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
/// Rows that are transposed at a time: with [`DEPTH`] columns they stay in a core's cache.
const PANEL: usize = 128;
/// Up to this many elements of a result, the kernels have others for matrices that lie by rows, which sum in another order.
const SMALL: usize = 256;

thread_local! {
    /// Transposed rows.
    static COLUMNS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

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

    pub(crate) fn get(&self, i: usize, j: usize) -> f32 {
        assert!(i < self.rows && j < self.cols, "{i}, {j}");
        // SAFETY: an element (`at`).
        unsafe { *self.data.add(i * self.rs + j * self.cs) }
    }

    /// A row whose elements lie side by side.
    pub(crate) fn row(&self, i: usize) -> Option<&'a [f32]> {
        assert!(i < self.rows, "{i}");
        // SAFETY: as above.
        (self.cs == 1)
            .then(|| unsafe { std::slice::from_raw_parts(self.data.wrapping_add(i * self.rs), self.cols) })
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
    let by_rows = a.cs == 1 && a.rs > 1 && b.cols >= THIN && a.rows * b.cols > SMALL;
    for from in (0..a.cols).step_by(DEPTH) {
        let to = (from + DEPTH).min(a.cols);
        let (a, b) = (a.part(0..a.rows, from..to), b.part(from..to, 0..b.cols));
        let add = add || from > 0;
        if !by_rows {
            // SAFETY: the caller's promise.
            unsafe { call(out, cs, add, a, b, factor) };
            continue;
        }
        COLUMNS.with_borrow_mut(|columns| {
            for first in (0..a.rows).step_by(PANEL) {
                let part = a.part(first..(first + PANEL).min(a.rows), 0..a.cols);
                let part = transposed_into(part, columns);
                // SAFETY: the caller's promise, of some of the rows; the copy belongs to this thread.
                unsafe { call(out.add(first), cs, add, part, b, factor) };
            }
        });
    }
}

/// The call of a kernel: the instructions it is for come first where it is chosen by them, and its functions after the factors.
macro_rules! product {
    ($kernel:expr, $out:expr, $cs:expr, $add:expr, $a:expr, $b:expr, $factor:expr $(, $simd:expr, $($function:expr),+)?) => {
        $kernel(
            $($simd,)? $a.rows, $b.cols, $a.cols, $out, $cs as isize, 1, $add, $a.data, $a.cs as isize, $a.rs as isize,
            $b.data, $b.cs as isize, $b.rs as isize, 1.0, $factor, false, false, false,
            $($($function,)+)? gemm_common::Parallelism::None,
        )
    };
}

/// [`multiply`] by one call of the kernels.
///
/// # Safety
/// The promise of [`multiply`].
unsafe fn call(out: *mut f32, cs: usize, add: bool, a: Matrix<'_>, b: Matrix<'_>, factor: f32) {
    // The crate itself takes the widest registers that the processor has.
    #[cfg(target_arch = "x86_64")]
    if let Some(v3) = gemm_common::simd::V3::try_new().filter(|_| !allows(Level::Avx512)) {
        // SAFETY: the caller's promise.
        return unsafe { avx2(v3, out, cs, add, a, b, factor) };
    }
    let kernel = gemm_f32::gemm::f32::get_gemm_fn();
    // SAFETY: a and b can be read (`Matrix::at`), the result can be written (the caller's promise), and shapes agree.
    unsafe { product!(kernel, out, cs, add, a, b, factor) }
}

/// [`call`] with the instructions that every processor with AVX2 has: the same bits on all of them.
///
/// # Safety
/// The promise of [`multiply`].
#[cfg(target_arch = "x86_64")]
unsafe fn avx2(
    v3: gemm_common::simd::V3,
    out: *mut f32,
    cs: usize,
    add: bool,
    a: Matrix<'_>,
    b: Matrix<'_>,
    factor: f32,
) {
    use gemm_f32::microkernel::fma::f32::{H_M, H_N, H_UKR, MR_DIV_N, NR, UKR};
    const N: usize = 8;
    let kernel = gemm_common::gemm::gemm_basic_generic::<_, f32, N, { MR_DIV_N * N }, NR, MR_DIV_N, H_M, H_N>;
    let sum = |a, b, c| a * b + c;
    // SAFETY: as above.
    unsafe { product!(kernel, out, cs, add, a, b, factor, v3, sum, &UKR, &H_UKR, false) }
}

/// The same matrix by columns. Each has the room of whole registers, so that it is never a row.
fn transposed_into<'a>(a: Matrix<'_>, to: &'a mut Vec<f32>) -> Matrix<'a> {
    let step = a.rows.next_multiple_of(2 * SIDE);
    assert!(a.cs == 1 && a.cols <= DEPTH);
    if to.len() < step * DEPTH {
        to.resize(step * DEPTH, 0.0);
    }
    let (rows, cols) = (a.rows / SIDE * SIDE, a.cols / SIDE * SIDE);
    let element = |i: usize, j: usize| {
        // SAFETY: i < a.rows and j < a.cols.
        unsafe { *a.data.add(i * a.rs + j) }
    };
    // Of two squares next to each other, the columns are whole cache lines.
    for pair in (0..rows).step_by(2 * SIDE) {
        for j in (0..cols).step_by(SIDE) {
            for i in (pair..rows.min(pair + 2 * SIDE)).step_by(SIDE) {
                let to = &mut to[j * step + i..][..(SIDE - 1) * step + SIDE];
                // SAFETY: these rows and columns are there.
                unsafe { square(a.data.add(i * a.rs + j), a.rs, to, step) };
            }
        }
    }
    for (j, to) in to.chunks_exact_mut(step).take(a.cols).enumerate() {
        let done = if j < cols { rows } else { 0 };
        to[done..a.rows].iter_mut().zip(done..).for_each(|(to, i)| *to = element(i, j));
    }
    Matrix { data: to.as_ptr(), rs: 1, cs: step, rows: a.rows, cols: a.cols, alive: PhantomData }
}

/// Rows and columns that are transposed in registers.
const SIDE: usize = 8;

/// Transposes [`SIDE`] rows of so many floats, `rs` apart, into columns that are `step` apart.
///
/// # Safety
/// The floats are there.
unsafe fn square(from: *const f32, rs: usize, to: &mut [f32], step: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX; the caller's promise.
        return unsafe { square_avx(from, rs, to, step) };
    }
    // SAFETY: the caller's promise.
    unsafe { square_portable(from, rs, to, step) }
}

/// [`square`] on any processor.
///
/// # Safety
/// The promise of [`square`].
unsafe fn square_portable(from: *const f32, rs: usize, to: &mut [f32], step: usize) {
    for (j, to) in to.chunks_mut(step).enumerate() {
        // SAFETY: the caller's promise.
        to[..SIDE].iter_mut().enumerate().for_each(|(i, to)| *to = unsafe { *from.add(i * rs + j) });
    }
}

/// [`square`] in registers.
///
/// # Safety
/// The promise of [`square`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn square_avx(from: *const f32, rs: usize, to: &mut [f32], step: usize) {
    use std::arch::x86_64::*;
    assert!(to.len() >= (SIDE - 1) * step + SIDE);
    let mut a = [_mm256_setzero_ps(); SIDE];
    for (i, a) in a.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *a = unsafe { _mm256_loadu_ps(from.add(i * rs)) };
    }
    // Within each 128 bits, squares of four; then their halves.
    for four in a.as_chunks_mut::<4>().0 {
        let [p, q] = [_mm256_unpacklo_ps(four[0], four[1]), _mm256_unpacklo_ps(four[2], four[3])];
        let [r, s] = [_mm256_unpackhi_ps(four[0], four[1]), _mm256_unpackhi_ps(four[2], four[3])];
        *four = [
            _mm256_shuffle_ps::<0x44>(p, q),
            _mm256_shuffle_ps::<0xee>(p, q),
            _mm256_shuffle_ps::<0x44>(r, s),
            _mm256_shuffle_ps::<0xee>(r, s),
        ];
    }
    for i in 0..4 {
        let halves = [
            (i, _mm256_permute2f128_ps::<0x20>(a[i], a[4 + i])),
            (4 + i, _mm256_permute2f128_ps::<0x31>(a[i], a[4 + i])),
        ];
        for (j, column) in halves {
            // SAFETY: the assertion above.
            unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(j * step), column) };
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
    fn squares_are_transposed_on_any_processor() {
        let from: Vec<f32> = (0..100).map(|i| i as f32).collect();
        let (rs, step) = (11, 16);
        let want: Vec<f32> = (0..120)
            .map(|at| if at % step < SIDE { from[at % step * rs + at / step] } else { -1.0 })
            .collect();
        for square in [square, square_portable] {
            let mut to = vec![-1.0; 120];
            // SAFETY: eight rows of eight floats, eleven apart, are 85.
            unsafe { square(from.as_ptr(), rs, &mut to, step) };
            assert_eq!(to, want);
        }
    }

    /// By rows or by columns, a matrix gives the same bits.
    #[test]
    fn rows_are_multiplied_as_columns_are() {
        for (m, n, k) in
            [(128, 9, 512), (300, 10, 600), (33, 40, 7), (129, 16, 513), (1, 300, 20), (50, 5, 90)]
        {
            let value = |i: usize| ((i * 7919) % 1013) as f32 / 506.0 - 1.0;
            let rows: Vec<f32> = (0..m * (k + 3)).map(value).collect();
            let columns: Vec<f32> =
                (0..k * (m + 1)).map(|i| rows[i % (m + 1) % m * (k + 3) + i / (m + 1)]).collect();
            let right: Vec<f32> = (0..n * k).map(|i| value(3 * i + 1)).collect();
            let product = |a: Matrix<'_>| {
                let mut out = vec![0.5; n * (m + 2)];
                multiply_into(&mut out, m + 2, true, a, Matrix::rows(&right, n, k, k).transposed(), 0.75);
                out
            };
            let got = product(Matrix::rows(&rows, m, k, k + 3));
            let want = product(Matrix::rows(&columns, k, m, m + 1).transposed());
            if n < THIN || m * n <= SMALL || m == 1 {
                assert!(got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 1e-4 * k as f32), "{m} {n} {k}");
            } else {
                assert_eq!(got, want, "{m} {n} {k}");
            }
        }
    }

    /// What a lowered level takes, on a processor without AVX-512, is what the crate would take.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn products_in_avx2_have_the_bits_of_the_crate_s() {
        let Some(v3) = gemm_common::simd::V3::try_new() else {
            return;
        };
        let wider = is_x86_feature_detected!("avx512f");
        for (m, n, k) in [(1, 1, 1), (3, 5, 2), (16, 6, 64), (100, 90, 512), (7, 300, 33), (300, 1, 9)] {
            let a: Vec<f32> = (0..m * k).map(|i| ((i * 7919) % 1013) as f32 / 506.0 - 1.0).collect();
            let b: Vec<f32> = (0..n * k).map(|i| ((i * 6991) % 997) as f32 / 498.0 - 1.0).collect();
            let (left, right) = (Matrix::rows(&a, m, k, k), Matrix::rows(&b, n, k, k).transposed());
            for left in [left, Matrix::rows(&a, k, m, m).transposed()] {
                let [mut got, mut want] = [vec![0.5f32; m * n], vec![0.5f32; m * n]];
                // SAFETY: the results are slices of m by n.
                unsafe {
                    avx2(v3, got.as_mut_ptr(), m, true, left, right, 0.75);
                    call(want.as_mut_ptr(), m, true, left, right, 0.75);
                }
                for (at, (got, want)) in got.iter().zip(&want).enumerate() {
                    let product = |l: usize| f64::from(left.get(at % m, l)) * f64::from(right.get(l, at / m));
                    let exact = 0.5 + 0.75 * (0..k).map(product).sum::<f64>();
                    assert!((f64::from(*got) - exact).abs() <= 1e-6 * k as f64, "{m} {n} {k}: {got} {exact}");
                    assert!(wider || got.to_bits() == want.to_bits(), "{m} {n} {k}: {got} {want}");
                }
            }
        }
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
