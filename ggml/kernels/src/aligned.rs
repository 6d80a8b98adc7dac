//! A vector whose first element is on a cache line: loads that span two lines are slow, for an AMX tile seven times as
//! slow.

use std::ops::{Deref, DerefMut};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Numbers from a cache line on.
#[derive(Debug, Default)]
pub(crate) struct Aligned<T> {
    data: Vec<T>,
    n: usize,
}

impl<T: Copy> Aligned<T> {
    /// `n` times `value`, in the memory that is there.
    pub(crate) fn refill(&mut self, n: usize, value: T) {
        self.n = n;
        self.data.clear();
        self.data.resize(n + LINE / size_of::<T>(), value);
    }

    /// At least `n` elements; what they are is not determined.
    pub(crate) fn resize(&mut self, n: usize)
    where
        T: Default,
    {
        if self.n < n {
            self.refill(n, T::default());
        }
    }

    /// Elements before the first.
    fn offset(&self) -> usize {
        self.data.as_ptr().align_offset(LINE).min(self.data.len() - self.n)
    }
}

impl<T: Copy> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.data[self.offset()..][..self.n]
    }
}

impl<T: Copy> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let offset = self.offset();
        &mut self.data[offset..][..self.n]
    }
}
