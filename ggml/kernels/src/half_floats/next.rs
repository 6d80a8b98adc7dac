//! Prefetching of memory before it is read.

use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T1};
use std::ops::Range;

use super::{Weights, TOKENS};

/// Memory of the weights that are laid out next: so many short stretches are more than hardware prefetchers follow. Asked for a
/// little at a time, for what is read meanwhile waits behind it.
pub(super) struct Next<'a> {
    bits: &'a [u16],
    /// Distance of stretches, and of cache lines in one, in numbers.
    steps: [usize; 2],
    lines: usize,
    left: Range<usize>,
    at_once: usize,
}

impl<'a> Next<'a> {
    /// Words of rows of the result, while `n` rows of floats are multiplied.
    pub(super) fn new(w: &Weights<'a>, rows: Range<usize>, part: &Range<usize>, n: usize) -> Next<'a> {
        const LINE: usize = 32;
        let terms = part.start * w.format.in_word()..w.k.min(part.end * w.format.in_word());
        let (first, step, n_stretches, len) = if w.transposed {
            (terms.start * w.m + rows.start, w.m, terms.len(), rows.len())
        } else {
            (rows.start * w.k + terms.start, w.k, rows.len(), terms.len())
        };
        let lines = len.div_ceil(LINE);
        let total = n_stretches * lines;
        let bits = w.bits.get(first..).unwrap_or_default();
        Next {
            bits,
            steps: [step, LINE],
            lines,
            left: 0..total,
            at_once: total.div_ceil(n.div_ceil(TOKENS).max(1)),
        }
    }

    pub(super) fn prefetch(&mut self) {
        for i in self.left.by_ref().take(self.at_once) {
            let at = i / self.lines * self.steps[0] + i % self.lines * self.steps[1];
            // SAFETY: a prefetch has no effect that could be seen, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.bits.as_ptr().wrapping_add(at).cast()) }
        }
    }
}
