//! Products of matrices of floats that are rounded to bfloat16 on the way.

use super::{Format, Scratch, ROWS, TOKENS, WORDS};
use crate::gemm::Matrix;

impl Scratch {
    /// [`crate::gemm::multiply`] of elements rounded to bfloat16; sums are floats. In each of the matrices elements of rows or of
    /// columns lie side by side.
    ///
    /// # Safety
    /// The promise of [`crate::gemm::multiply`].
    ///
    /// # Panics
    /// Where the processor lacks the instructions, or shapes do not agree.
    pub unsafe fn product(
        &mut self,
        out: *mut f32,
        cs: usize,
        add: bool,
        a: Matrix<'_>,
        b: Matrix<'_>,
        factor: f32,
    ) {
        assert!(Format::Bf16.available() && a.n_cols() == b.n_rows(), "the caller's shapes agree");
        let words = a.n_cols().div_ceil(2);
        self.x.resize(b.n_cols() * words);
        self.panel.resize(WORDS.min(words) * ROWS);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions, and the result may be written (the caller's promise).
        unsafe {
            super::floats::columns(b, factor, &mut self.x);
            for from in (0..words).step_by(WORDS) {
                let part = from..words.min(from + WORDS);
                let terms = 2 * part.start..a.n_cols().min(2 * part.end);
                for first in (0..a.n_rows()).step_by(ROWS) {
                    let rows = first..a.n_rows().min(first + ROWS);
                    super::floats::pack(a.part(rows.clone(), terms.clone()), &mut self.panel);
                    let panel = &self.panel[..part.len() * ROWS];
                    for j in (0..b.n_cols()).step_by(TOKENS) {
                        let x = &self.x[j * words..][..TOKENS.min(b.n_cols() - j) * words];
                        let to = (out.add(j * cs + first), cs);
                        super::avx512::tile_bf16(
                            panel,
                            (&x[part.start..], words),
                            rows.len(),
                            to,
                            add || from > 0,
                        );
                    }
                }
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("{out:?} {cs} {add} {factor}: no other processor has them");
    }
}
