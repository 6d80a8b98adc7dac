//! Products of quantized weights with floats in 8-bit numbers. Floats are rounded in blocks of 32, as ggml does for
//! weight types with blocks of 32. For K-quants, ggml rounds them in blocks of 256.
//!
//! Several rows of weights are read at once, and their codes are multiplied without conversion: the offset is
//! subtracted from sums that are known in advance.

// Other processors have none of the loops, and `available` says so.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_variables))]

#[cfg(target_arch = "x86_64")]
mod products;
mod rounded;

pub use rounded::{Layout, Rounded, Rounding};

use gguf::DType;

use crate::aligned::Aligned;
use crate::quants;
use crate::simd::Instructions;

/// Rows of floats multiplied at a time, at most.
pub const MOST: usize = 8;
/// Rows of floats from which on codes are put in order before they are multiplied.
const PANEL_FROM: usize = 2 * MOST;
/// Rows of weights that are taken together, at most: fewer take as long. Sums do not depend on it.
pub const ROWS: usize = 16;

impl Instructions {
    /// The offset of codes for the instructions to multiply them: they take one factor without a sign.
    fn offset(self, dtype: DType) -> i32 {
        let quants::Facts { signed, offset, .. } = quants::facts(dtype);
        match (self, signed) {
            // Signs are moved to the other factor instead.
            (Instructions::Avx2, true) => 0,
            (_, true) => 128,
            (_, false) => i32::from(offset),
        }
    }
}

impl Rounded<'_> {
    /// Products of rows of weights, each of `row_bytes`, with `n` rounded rows from `first` on: `out` gets the number of a row of
    /// weights, counted from 0, that of a rounded row, and the products of this one with rows of weights from that one on.
    ///
    /// `out` is a trait object, so that the loops for each type and set of instructions are compiled once.
    ///
    /// # Panics
    /// Where rows are not as long as the rounded ones, or these are fewer.
    pub fn products(
        &self,
        dtype: DType,
        panel: &mut Panel,
        rows: &[u8],
        row_bytes: usize,
        (first, n): (usize, usize),
        out: &mut dyn FnMut(usize, usize, &[f32]),
    ) {
        assert!(self.layout.serves(dtype), "{dtype:?}: rows are rounded for {:?}", self.layout.dtype);
        assert!(dtype.row_bytes(self.layout.k) == Some(row_bytes) && rows.len().is_multiple_of(row_bytes));
        assert!(first + n <= self.layout.n_groups() * self.layout.width);
        let with = self.layout.with;
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions that rows were rounded for.
        unsafe {
            let (x, at) = (self, (first, n));
            match with {
                Instructions::Avx2 => {
                    quants::with_format!(dtype, products::avx2::all, (x, panel, rows, row_bytes, at, out))
                }
                Instructions::AvxVnni => {
                    quants::with_format!(dtype, products::avx_vnni::all, (x, panel, rows, row_bytes, at, out))
                }
                Instructions::Avx512 => {
                    quants::with_format!(dtype, products::avx512::all, (x, panel, rows, row_bytes, at, out))
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{with:?}, {dtype:?}: no rows were rounded");
    }
}

/// Codes of some rows of weights in the order in which they are multiplied, for more floats than a few.
#[derive(Default)]
pub struct Panel {
    /// `[part][quad][lane]`, four codes each
    codes: Aligned<i32>,
    /// `[part][2][lane]`: the bits of factors, and of what is added.
    factors: Aligned<i32>,
}

#[cfg(test)]
mod tests;
