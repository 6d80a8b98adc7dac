//! Tensors of a running graph as rows of floats: the only file of attention that touches memory it was not lent.

use std::marker::PhantomData;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use crate::sys;

/// Rows of a tensor `[d, n1, n2]` in host memory, whatever their element type.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) d: usize,
    pub(super) n1: usize,
    pub(super) n2: usize,
    data: *const u8,
    nb1: usize,
    nb2: usize,
    dtype: sys::ggml_type,
    to_float: sys::ggml_to_float_t,
    alive: PhantomData<&'a [u8]>,
}

impl<'a> Rows<'a> {
    /// # Safety
    /// A computed source of a running node, three-dimensional, of a type that converts to f32, its elements side by side
    /// within rows; it stays as it is for `'a`.
    pub(super) unsafe fn of(t: &'a sys::ggml_tensor) -> Rows<'a> {
        // SAFETY: a static table with an entry for every type.
        let to_float = unsafe { (*sys::ggml_get_type_traits(t.type_)).to_float };
        Rows {
            d: t.ne[0] as usize,
            n1: t.ne[1] as usize,
            n2: t.ne[2] as usize,
            data: t.data as *const u8,
            nb1: t.nb[1],
            nb2: t.nb[2],
            dtype: t.type_,
            to_float,
            alive: PhantomData,
        }
    }

    /// Row `(i, j)` as floats.
    #[inline]
    pub(super) fn read(&self, i: usize, j: usize, out: &mut [f32]) {
        assert!(i < self.n1 && j < self.n2 && out.len() == self.d);
        // SAFETY: inside the tensor by the assertion.
        let row = unsafe { self.data.add(i * self.nb1 + j * self.nb2) };
        match (self.dtype, self.to_float) {
            (sys::GGML_TYPE_F16, _) => {
                // SAFETY: a row of d halves, which lie at even addresses as offsets and strides are whole elements.
                let bits = unsafe { std::slice::from_raw_parts(row.cast::<u16>(), self.d) };
                bits.reinterpret_cast::<half::f16>().convert_to_f32_slice(out);
            }
            // SAFETY: a row of d elements in whole blocks, and `out` has room for as many floats.
            (_, Some(to_float)) => unsafe { to_float(row.cast(), out.as_mut_ptr(), self.d as i64) },
            // SAFETY: as above; only f32, of the types that convert, needs no conversion.
            (_, None) => unsafe { out.as_mut_ptr().copy_from_nonoverlapping(row.cast(), self.d) },
        }
    }
}

/// `x` in pieces of W; what is left over is left out.
#[inline(always)]
pub(super) fn pieces<const W: usize>(x: &[f32]) -> &[[f32; W]] {
    // SAFETY: an array of W floats is laid out as W floats, and that many pieces are inside x.
    unsafe { std::slice::from_raw_parts(x.as_ptr().cast(), x.len() / W) }
}

/// Like [`pieces`].
#[inline(always)]
pub(super) fn pieces_mut<const W: usize>(x: &mut [f32]) -> &mut [[f32; W]] {
    // SAFETY: as in `pieces`; the borrow is unique.
    unsafe { std::slice::from_raw_parts_mut(x.as_mut_ptr().cast(), x.len() / W) }
}
