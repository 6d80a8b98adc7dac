//! How the parts of a node share work that is not of one size.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Work of a node cut into units: each part takes the next one when it has finished the one before.
#[derive(Debug, Default)]
pub(crate) struct Units {
    /// The next unit that no part has taken.
    next: AtomicUsize,
    /// Parts that found no unit left.
    done: AtomicUsize,
}

impl Units {
    /// Calls `f` with units of work `0..n`; each of the node's `nth` parts calls this once.
    pub(crate) fn work(&self, n: usize, nth: usize, mut f: impl FnMut(usize)) {
        loop {
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                break;
            }
            f(i);
        }
        // The last part to leave resets the counters for the next compute.
        if self.done.fetch_add(1, Ordering::AcqRel) + 1 == nth.max(1) {
            self.next.store(0, Ordering::Relaxed);
            self.done.store(0, Ordering::Release);
        }
    }
}
