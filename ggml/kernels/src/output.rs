//! The matrix that threads write a product to, each its own elements.

/// Rows of `m` floats, one for each row of floats that weights are multiplied with.
#[derive(Clone, Copy)]
pub struct Output {
    pub(crate) out: *mut f32,
    pub(crate) m: usize,
}

impl Output {
    /// # Safety
    /// As many rows of `m` floats as are multiplied lie from `out` on, and may be written; of these, the elements that a
    /// call asks for are written and read by nobody else meanwhile.
    pub unsafe fn new(out: *mut f32, m: usize) -> Output {
        Output { out, m }
    }
}
