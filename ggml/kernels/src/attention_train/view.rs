//! Tensors in memory as heads of rows, and the range of keys that each query sees.

use std::marker::PhantomData;
use std::ops::Range;

use crate::gemm::Matrix;

/// F32 `[d, n_head, n]` in host memory, rows contiguous.
#[derive(Clone, Copy)]
pub struct Heads<'a> {
    pub(crate) d: usize,
    n_head: usize,
    pub(crate) n: usize,
    data: *const f32,
    /// Floats from a head to the next, and from a token to the next.
    steps: [usize; 2],
    alive: PhantomData<&'a [f32]>,
}

impl<'a> Heads<'a> {
    /// Rows of `ne[0]` floats: head `h` of token `t` begins `h * steps[0] + t * steps[1]` floats after
    /// `data`.
    ///
    /// # Safety
    /// All rows lie in one allocation that can be read, have values, and are written by nobody during `'a`.
    pub unsafe fn new(data: *const f32, ne: [usize; 3], steps: [usize; 2]) -> Heads<'a> {
        let [d, n_head, n] = ne;
        Heads { d, n_head, n, data, steps, alive: PhantomData }
    }

    /// Width of a head, number of heads and number of tokens.
    pub fn shape(&self) -> [usize; 3] {
        [self.d, self.n_head, self.n]
    }

    /// One head of one token.
    pub(crate) fn row(&self, head: usize, token: usize) -> &'a [f32] {
        assert!(head < self.n_head && token < self.n);
        // SAFETY: inside the tensor, which stays as it is (`new`).
        unsafe {
            std::slice::from_raw_parts(self.data.add(head * self.steps[0] + token * self.steps[1]), self.d)
        }
    }

    /// One head of a range of tokens, which are the rows.
    pub(crate) fn head(&self, head: usize, tokens: Range<usize>) -> Matrix<'a> {
        assert!(head < self.n_head && tokens.end <= self.n && !tokens.is_empty());
        // SAFETY: as above.
        unsafe {
            let first = self.data.add(head * self.steps[0] + tokens.start * self.steps[1]);
            Matrix::at(first, tokens.len(), self.d, self.steps[1], 1)
        }
    }
}

/// The same in memory that is written: each thread has a view, and uses the rows that are its own through it.
pub struct HeadsMut<'a> {
    d: usize,
    n_head: usize,
    n: usize,
    data: *mut f32,
    steps: [usize; 2],
    alive: PhantomData<&'a mut [f32]>,
}

impl<'a> HeadsMut<'a> {
    /// # Safety
    /// All rows, as [`Heads::new`] places them, lie in one allocation that may be read and written during `'a`, and none
    /// shares a float with another. Whoever else uses that memory during `'a` (views of other threads) keeps off the rows
    /// that this view is asked for, while they are used.
    pub unsafe fn new(data: *mut f32, ne: [usize; 3], steps: [usize; 2]) -> HeadsMut<'a> {
        let [d, n_head, n] = ne;
        HeadsMut { d, n_head, n, data, steps, alive: PhantomData }
    }

    /// Width of a head, number of heads and number of tokens.
    pub fn shape(&self) -> [usize; 3] {
        [self.d, self.n_head, self.n]
    }

    /// One head of one token.
    ///
    /// # Safety
    /// Nobody else uses the row while it is borrowed.
    pub unsafe fn row(&mut self, head: usize, token: usize) -> &mut [f32] {
        // SAFETY: `at` is inside the tensor (`new`); the row is the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.at(head, token), self.d) }
    }

    /// The first float of a head of a token, and with [`HeadsMut::step`] those of the tokens after it.
    pub(crate) fn at(&self, head: usize, token: usize) -> *mut f32 {
        assert!(head < self.n_head && token < self.n);
        self.data.wrapping_add(head * self.steps[0] + token * self.steps[1])
    }

    /// Floats from a token to the next.
    pub(crate) fn step(&self) -> usize {
        self.steps[1]
    }
}

/// For each query token, the contiguous range of keys that it attends to: causal attention, a sliding window,
/// or the keys of the token's own document. The lower half of the query heads may have other ranges than the
/// upper half, as in LongLoRA's shifted sparse attention.
#[derive(Clone, Copy)]
pub struct KeyRanges<'a> {
    /// Tables for the heads below `second`, and for the others.
    tables: [&'a [i32]; 2],
    second: usize,
    n_keys: usize,
}

impl<'a> KeyRanges<'a> {
    /// From `[T][2]`: the first key each token sees, and the one after its last; clamped to `0..n_keys` where
    /// they are used.
    pub fn new(pairs: &'a [i32], n_keys: usize) -> KeyRanges<'a> {
        KeyRanges { tables: [pairs, pairs], second: usize::MAX, n_keys }
    }

    /// From `[2][T][2]`: the ranges of the first `n_head / 2` query heads, rounded down, then those of the others.
    pub fn halves(pairs: &'a [i32], n_keys: usize, n_head: usize) -> KeyRanges<'a> {
        let (first, second) = pairs.split_at(pairs.len() / 2);
        KeyRanges { tables: [first, second], second: n_head / 2, n_keys }
    }

    /// The keys among `keys` that a query head of a token sees. The result lies inside `keys` and `0..n_keys`
    /// whatever the pair says.
    pub(crate) fn seen(&self, head: usize, token: usize, keys: &Range<usize>) -> Range<usize> {
        self.seen_in(self.tables[usize::from(head >= self.second)], token, keys)
    }

    fn seen_in(&self, table: &[i32], token: usize, keys: &Range<usize>) -> Range<usize> {
        let clamp = |i: i32| usize::try_from(i).unwrap_or(0).min(self.n_keys);
        let (first, end) = (clamp(table[2 * token]), clamp(table[2 * token + 1]));
        let start = first.clamp(keys.start, keys.end);
        start..end.min(keys.end).max(start)
    }

    /// The tokens from the first of which one of `heads` sees any of `keys` to the last, and the keys that
    /// these see.
    pub(crate) fn window(
        &self,
        heads: &Range<usize>,
        tokens: Range<usize>,
        keys: &Range<usize>,
    ) -> Option<(Range<usize>, Range<usize>)> {
        let used = [heads.start < self.second, heads.end > self.second];
        let tables = || self.tables.into_iter().zip(used).filter(|(_, used)| *used);
        let pairs = tokens.flat_map(|t| tables().map(move |(table, _)| (t, self.seen_in(table, t, keys))));
        let mut seeing = pairs.filter(|(_, seen)| !seen.is_empty());
        let (first, mut seen) = seeing.next()?;
        let mut last = first;
        for (t, range) in seeing {
            last = t;
            seen = seen.start.min(range.start)..seen.end.max(range.end);
        }
        Some((first..last + 1, seen))
    }
}
