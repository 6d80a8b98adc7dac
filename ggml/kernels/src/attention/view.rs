//! Rows of any element type in memory, read as floats. The only file of this module that reads memory through
//! raw pointers.

use std::ffi::c_void;
use std::marker::PhantomData;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::units::{convert, Unit, Q4, Q8, UNIT};

/// Converts a row of `n` values to floats: what ggml's table of types has for a type.
///
/// # Safety
/// The first pointer leads to a row of whole blocks that hold `n` values, the second to room for as many
/// floats.
pub type ToFloat = unsafe extern "C" fn(row: *const c_void, out: *mut f32, n: i64);

/// How the elements of a row are stored.
#[derive(Clone, Copy)]
pub enum Format {
    /// Floats, native endian.
    F32,
    F16,
    /// ggml's `block_q8_0`: blocks of 32, a half-precision scale and then signed bytes.
    Q8_0,
    /// ggml's `block_q4_0`: blocks of 32, a half-precision scale and then four bits each.
    Q4_0,
    /// A type that this function converts.
    Other(ToFloat),
}

/// Rows of a tensor `[d, n1, n2]` in host memory, whatever their element type.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    pub(crate) d: usize,
    pub(crate) n1: usize,
    pub(crate) n2: usize,
    data: *const u8,
    nb1: usize,
    nb2: usize,
    row_bytes: usize,
    format: Format,
    alive: PhantomData<&'a [u8]>,
}

/// Rows of one plane of a tensor, in units.
#[derive(Clone, Copy)]
pub(super) struct Plane<'a, U> {
    data: *const u8,
    /// Bytes from one row to the next.
    pub(super) stride: usize,
    n: usize,
    n_units: usize,
    alive: PhantomData<&'a [U]>,
}

impl<'a, U: Unit> Plane<'a, U> {
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> &'a [U] {
        assert!(i < self.n);
        // SAFETY: a row in these units inside the tensor, by the assertion; aligned, as `Rows::new` was promised.
        unsafe { self.at(i * self.stride) }
    }

    /// The row at an offset.
    ///
    /// # Safety
    /// It is one of [`Rows::offsets`], of the rows that this plane is of.
    #[inline(always)]
    pub(super) unsafe fn at(&self, offset: usize) -> &'a [U] {
        // SAFETY: the caller's.
        unsafe { std::slice::from_raw_parts(self.data.add(offset).cast(), self.n_units) }
    }
}

impl<'a> Rows<'a> {
    /// Rows of `ne[0]` elements, `row_bytes` long. Row `(i, j)` of `ne[1]` by `ne[2]` is at byte
    /// `i * nb[0] + j * nb[1]`.
    ///
    /// # Safety
    /// All rows lie in one allocation that can be read, have values, and are written by nobody during `'a`. They are
    /// aligned as the format wants, and `row_bytes` long: whole blocks of it, of `ne[0]` elements together. The
    /// function of [`Format::Other`] converts such rows.
    pub unsafe fn new(
        data: *const u8,
        ne: [usize; 3],
        nb: [usize; 2],
        row_bytes: usize,
        format: Format,
    ) -> Rows<'a> {
        let ([d, n1, n2], [nb1, nb2]) = (ne, nb);
        Rows { d, n1, n2, data, nb1, nb2, row_bytes, format, alive: PhantomData }
    }

    /// Number of rows of a plane: the second dimension.
    pub fn n_rows(&self) -> usize {
        self.n1
    }

    /// Returns true if rows can be read in place as these units.
    pub(super) fn are<U: Unit>(&self) -> bool {
        U::is(self.format) && self.d.is_multiple_of(UNIT)
    }

    /// Rows `(.., j)` where they lie.
    #[inline(always)]
    pub(super) fn plane<U: Unit>(&self, j: usize) -> Plane<'a, U> {
        assert!(j < self.n2 && self.are::<U>());
        let data = self.data.wrapping_add(j * self.nb2);
        Plane { data, stride: self.nb1, n: self.n1, n_units: self.d / UNIT, alive: PhantomData }
    }

    /// Bytes from the first row of any plane to each of these: checked here, for all planes.
    pub(super) fn offsets(&self, rows: &[usize], offsets: &mut [usize]) {
        assert!(rows.iter().fold(0, |most, &row| most.max(row)) < self.n1);
        offsets.iter_mut().zip(rows).for_each(|(offset, row)| *offset = row * self.nb1);
    }

    /// Returns true if elements are F32.
    pub(super) fn are_floats(&self) -> bool {
        matches!(self.format, Format::F32)
    }

    /// Prefetches row `(i, j)`: rows of one head do not lie side by side, which hardware prefetchers do not
    /// predict.
    #[inline]
    pub(super) fn prefetch(&self, i: usize, j: usize) {
        #[cfg(target_arch = "x86_64")]
        if i < self.n1 && j < self.n2 {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            for at in (0..self.row_bytes).step_by(64) {
                // SAFETY: inside the tensor, and a prefetch has no effect that could be seen.
                unsafe {
                    let line = self.data.add(i * self.nb1 + j * self.nb2 + at);
                    _mm_prefetch::<_MM_HINT_T0>(line.cast());
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (i, j);
    }

    /// Row `(i, j)` as floats. The types caches mostly have are read here: ggml's conversions in its base
    /// library are not made for the host's instructions.
    #[inline]
    pub(crate) fn read(&self, i: usize, j: usize, out: &mut [f32]) {
        assert!(i < self.n1 && j < self.n2 && out.len() == self.d);
        // SAFETY: inside the tensor by the assertion.
        let row = unsafe { self.data.add(i * self.nb1 + j * self.nb2) };
        match self.format {
            Format::F16 => {
                // SAFETY: a row of d halves, which lie at even addresses as offsets and strides are whole
                // elements.
                let bits = unsafe { std::slice::from_raw_parts(row.cast::<u16>(), self.d) };
                bits.reinterpret_cast::<half::f16>().convert_to_f32_slice(out);
            }
            Format::Q8_0 => convert(self.plane::<Q8>(j).row(i), out),
            Format::Q4_0 => convert(self.plane::<Q4>(j).row(i), out),
            // SAFETY: a row of d elements in whole blocks, and `out` has room for as many floats.
            Format::Other(to_float) => unsafe { to_float(row.cast(), out.as_mut_ptr(), self.d as i64) },
            // SAFETY: as above, of floats.
            Format::F32 => unsafe { out.as_mut_ptr().copy_from_nonoverlapping(row.cast(), self.d) },
        }
    }
}
