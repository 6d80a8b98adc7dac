//! No tiles: nothing here is ever called.

use super::Operand;

/// There are none.
pub(crate) enum Tiles {}

impl Tiles {
    pub(crate) fn new() -> Option<Tiles> {
        None
    }

    /// # Safety
    /// There is nothing to call this on.
    pub(crate) unsafe fn product(
        &self,
        _: &Operand<'_>,
        _: &Operand<'_>,
        _: usize,
        _: bool,
        _: *mut f32,
        _: usize,
    ) {
        match *self {}
    }

    pub(crate) fn cut(&self, _: &[f32], _: &mut [u32], _: &mut [u32]) {
        match *self {}
    }

    pub(crate) fn cut_pairs(&self, _: &[f32], _: &[f32], _: &mut [u32], _: &mut [u32]) {
        match *self {}
    }

    pub(crate) fn transpose(&self, _: &[u32], _: usize, _: &mut [u32], _: usize) {
        match *self {}
    }
}
