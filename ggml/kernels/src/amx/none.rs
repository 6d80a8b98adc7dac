//! No tiles: nothing here is ever called.

use super::Operand;

/// There are none: nobody can make this field. (An empty enum itself would make callers' code unreachable, of which
/// the compiler warns.)
pub(crate) struct Tiles(Never);

enum Never {}

impl Tiles {
    pub(crate) fn new() -> Option<Tiles> {
        None
    }

    /// # Safety
    /// There is nothing to call this on.
    pub(crate) unsafe fn product(
        &self,
        a: &Operand<'_>,
        b: &Operand<'_>,
        n_steps: usize,
        _: bool,
        _: *mut f32,
        _: usize,
    ) {
        assert!(a.holds(n_steps) && b.holds(n_steps));
        match self.0 {}
    }

    pub(crate) fn cut(&self, _: &[f32], _: &mut [u32], _: &mut [u32]) {
        match self.0 {}
    }

    pub(crate) fn cut_pairs(&self, _: &[f32], _: &[f32], _: &mut [u32], _: &mut [u32]) {
        match self.0 {}
    }

    /// # Safety
    /// There is nothing to call this on.
    pub(crate) unsafe fn cut_rows(&self, _: *const f32, _: usize, _: &mut [u32; 512]) {
        match self.0 {}
    }

    /// # Safety
    /// There is nothing to call this on.
    pub(crate) unsafe fn cut_columns(&self, _: *const f32, _: usize, _: &mut [u32; 512]) {
        match self.0 {}
    }

    pub(crate) fn transpose(&self, _: &[u32], _: usize, _: &mut [u32], _: usize) {
        match self.0 {}
    }
}
