//! The part of a product's result that one call computes.

use std::marker::PhantomData;
use std::ops::Range;

/// Some elements of a result of `n` rows of `m` floats: `columns` of each of `rows`. Whatever multiplies into it computes
/// these elements and writes no others.
#[derive(Debug)]
pub struct Output<'a> {
    out: *mut f32,
    m: usize,
    columns: Range<usize>,
    rows: Range<usize>,
    alive: PhantomData<&'a mut [f32]>,
}

impl<'a> Output<'a> {
    /// All elements of a slice, as rows of `m`.
    ///
    /// # Panics
    /// Where it is not whole rows.
    pub fn new(out: &'a mut [f32], m: usize) -> Output<'a> {
        assert!(m > 0 && out.len().is_multiple_of(m), "{} floats in rows of {m}", out.len());
        let n = out.len() / m;
        Output { out: out.as_mut_ptr(), m, columns: 0..m, rows: 0..n, alive: PhantomData }
    }

    /// Some elements of a result that other threads write at the same time.
    ///
    /// # Safety
    /// From `out` on lie `n` rows of `m` floats, one allocation that may be read and written during `'a`; they need not have
    /// been written before. During `'a` nobody else reads or writes the elements named here: threads that share a
    /// result name different ones, and whoever reads it waits for all of them.
    ///
    /// # Panics
    /// Where columns or rows are not among those of the result.
    pub unsafe fn shared(
        out: *mut f32,
        [m, n]: [usize; 2],
        columns: Range<usize>,
        rows: Range<usize>,
    ) -> Output<'a> {
        let all = Output { out, m, columns: 0..m, rows: 0..n, alive: PhantomData };
        all.assert_holds(&columns, &rows);
        Output { columns, rows, ..all }
    }

    /// Some of these elements; columns and rows are counted from the first of the whole result.
    pub fn part(&mut self, columns: Range<usize>, rows: Range<usize>) -> Output<'_> {
        self.assert_holds(&columns, &rows);
        Output { columns, rows, ..*self }
    }

    fn assert_holds(&self, columns: &Range<usize>, rows: &Range<usize>) {
        let inside = |part: &Range<usize>, all: &Range<usize>| {
            all.start <= part.start && part.start <= part.end && part.end <= all.end
        };
        assert!(
            inside(columns, &self.columns) && inside(rows, &self.rows),
            "columns {columns:?} of rows {rows:?} are not inside columns {:?} of rows {:?}",
            self.columns,
            self.rows
        );
    }

    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// An element. That of the next column lies after it, that of the next row [`Output::step`] floats further; all that are among
    /// these columns and rows may be written.
    pub(crate) fn at(&self, row: usize, column: usize) -> *mut f32 {
        assert!(self.rows.contains(&row) && self.columns.contains(&column), "row {row}, column {column}");
        self.out.wrapping_add(row * self.m + column)
    }

    /// Floats from a row to the next.
    pub(crate) fn step(&self) -> usize {
        self.m
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Safe functions: they give out nothing beyond the slice.
    #[test]
    fn outputs_stay_inside_their_slices() {
        let panics = |f: &mut dyn FnMut()| {
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).expect_err("accepted");
        };
        let mut all = [0.0f32; 12];
        panics(&mut || _ = Output::new(&mut all, 5));
        panics(&mut || _ = Output::new(&mut all, 0));
        let mut out = Output::new(&mut all, 4);
        assert_eq!((out.columns(), out.rows(), out.step()), (0..4, 0..3, 4));
        #[allow(clippy::reversed_empty_ranges)]
        for (columns, rows) in [(0..4, 0..4), (0..5, 0..3), (0..4, 2..1), (3..2, 0..3), (0..4, 4..4)] {
            panics(&mut || _ = out.part(columns.clone(), rows.clone()));
        }
        let mut part = out.part(1..3, 1..2);
        panics(&mut || _ = part.part(0..3, 1..2));
        panics(&mut || _ = part.part(1..3, 1..3));
        for (row, column) in [(0, 1), (2, 1), (1, 0), (1, 3)] {
            panics(&mut || _ = part.at(row, column));
        }
        // SAFETY: an element of the slice, which is borrowed.
        unsafe { *part.at(1, 2) = 1.0 };
        assert_eq!(all.iter().position(|x| *x == 1.0), Some(6));
    }
}
