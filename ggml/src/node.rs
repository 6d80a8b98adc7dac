//! A running node of ours, as the threads that compute it see it: its sources are slices, and each thread writes its part of
//! the result.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;

use kernels::int8::ROWS;
use kernels::output::Output;
use kernels::pool;

use crate::custom::MAX_ARGS;
use crate::dtype::{Element, SysType};
use crate::sys;

/// A node that runs, whose sources have values and stay as they are.
struct Running<'a>(&'a sys::ggml_tensor);

// SAFETY: threads only read the header; each part of a node writes its own part of the result.
unsafe impl Sync for Running<'_> {}

impl<'a> Running<'a> {
    fn part(&self, ith: usize, nth: usize) -> Part<'a> {
        Part { node: self.0, ith, nth }
    }

    /// Bytes that the node reads and writes.
    fn bytes(&self) -> usize {
        // SAFETY: a node and its sources are valid.
        let n_bytes = |t: *const sys::ggml_tensor| unsafe { sys::ggml_nbytes(t) };
        let sources = self.0.src.iter().take_while(|s| !s.is_null());
        sources.fold(n_bytes(self.0), |sum, &s| sum.saturating_add(n_bytes(s)))
    }
}

/// Computes a node by a function of its parts.
///
/// # Safety
/// Called by ggml alone, for a node made in `custom`, with the function that was put there.
pub(crate) unsafe extern "C" fn run<F: Fn(Part<'_>) + Sync>(
    dst: *mut sys::ggml_tensor,
    _: i32,
    _: i32,
    f: *mut c_void,
) {
    // SAFETY: the function is alive while the graph is; the node runs, and its sources were computed before.
    let (f, node) = unsafe { (&*f.cast_const().cast::<F>(), Running(&*dst)) };
    let nth = pool::parts(|| node.bytes());
    pool::share(nth, |ith| f(node.part(ith, nth)));
}

/// A part of a node that runs: there is one for each number below that of all parts, and all are done before the next node
/// runs.
///
/// Sources have values and stay as they are meanwhile: custom ops do not run in place, so the result is not in their memory,
/// except that the result of `Builder::custom_over` is in the memory of the first. An op that writes to a source makes sure
/// that no other source is there.
pub(crate) struct Part<'a> {
    node: &'a sys::ggml_tensor,
    ith: usize,
    nth: usize,
}

impl<'a> Part<'a> {
    pub(crate) fn node(&self) -> &'a sys::ggml_tensor {
        self.node
    }

    /// The number of this part.
    pub(crate) fn ith(&self) -> usize {
        self.ith
    }

    /// How many parts there are.
    pub(crate) fn nth(&self) -> usize {
        self.nth
    }

    /// Shape of the result.
    pub(crate) fn ne(&self) -> [usize; 4] {
        self.node.ne.map(|n| n as usize)
    }

    /// The items of `n` that this part computes.
    pub(crate) fn share(&self, n: usize) -> Range<usize> {
        kernels::share(n, self.ith, self.nth)
    }

    /// A source that may be missing.
    ///
    /// # Panics
    /// If the result is in its memory.
    pub(crate) fn optional(&self, i: usize) -> Option<Source<'a>> {
        source(self.node, i)
    }

    /// # Panics
    /// If there is no such source, or the result is in its memory.
    pub(crate) fn source(&self, i: usize) -> Source<'a> {
        self.optional(i).expect("the op has this source")
    }

    pub(crate) fn sources(&self) -> impl Iterator<Item = Source<'a>> {
        let node = self.node;
        (0..MAX_ARGS).map_while(move |i| source(node, i))
    }

    /// The rows of the result that this part computes, and their numbers.
    ///
    /// # Panics
    /// If the result is not contiguous, or of another type.
    pub(crate) fn rows<T: Element>(self) -> impl Iterator<Item = (usize, &'a mut [T])> {
        let [n, ..] = self.ne();
        let (data, n_rows) = (Source(self.node).elements::<T>(), self.ne()[1..].iter().product());
        // SAFETY: a row of the result; no source is there, parts have different rows, and this one gives them out once.
        self.share(n_rows).map(move |i| (i, unsafe { std::slice::from_raw_parts_mut(data.add(i * n), n) }))
    }

    /// The parts of `n` words, from word `first` on, of which this part computes some, zeroed, and their numbers. Before a
    /// node runs nobody has written its memory, and memory without values must not be borrowed. Some words stay as they are
    /// here, such as those of a group's missing rows.
    ///
    /// # Panics
    /// If the result is not a list of I32, or too short.
    pub(crate) fn words(
        self,
        first: usize,
        n_parts: usize,
        n: usize,
    ) -> impl Iterator<Item = (usize, &'a mut [u32])> {
        let data = Source(self.node).elements::<i32>().cast::<u32>();
        let end = n_parts.checked_mul(n).and_then(|words| words.checked_add(first));
        assert!(end.is_some_and(|end| end <= self.ne()[0]), "{n_parts} times {n} words");
        // SAFETY: inside the result; no source is there, parts have different words, and this one gives them out once.
        self.share(n_parts).map(move |i| unsafe {
            let words = data.add(first + i * n);
            words.write_bytes(0, n);
            (i, std::slice::from_raw_parts_mut(words, n))
        })
    }

    /// The result. Each part writes other elements of it.
    ///
    /// # Panics
    /// If it is not contiguous F32.
    pub(crate) fn floats(&self) -> Floats<'a> {
        let ([m, ..], n) = (self.ne(), self.ne()[1..].iter().product());
        Floats { data: Source(self.node).elements(), m, n, alive: PhantomData }
    }
}

/// A contiguous result: `n` rows of `m` floats, no source's memory.
#[derive(Clone, Copy)]
pub(crate) struct Floats<'a> {
    data: *mut f32,
    m: usize,
    n: usize,
    alive: PhantomData<&'a mut [f32]>,
}

impl<'a> Floats<'a> {
    /// Some columns of some rows.
    ///
    /// # Safety
    /// Nobody else reads or writes these elements meanwhile.
    pub(crate) unsafe fn output(self, columns: Range<usize>, rows: Range<usize>) -> Output<'a> {
        // SAFETY: the whole result; the elements are the caller's, as it promises.
        unsafe { Output::shared(self.data, [self.m, self.n], columns, rows) }
    }

    /// Some elements, counted from the first of all.
    ///
    /// # Safety
    /// Nobody else reads or writes these elements meanwhile.
    pub(crate) unsafe fn elements(self, range: Range<usize>) -> &'a mut [f32] {
        assert!(range.start <= range.end && range.end <= self.m * self.n, "{range:?}");
        // SAFETY: inside the result by the assertion, and the caller's, as it promises.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(range.start), range.len()) }
    }

    /// Writes elements of a row from `from` on.
    ///
    /// # Safety
    /// Nobody else reads or writes these elements meanwhile.
    pub(crate) unsafe fn write(self, row: usize, from: usize, values: &[f32]) {
        let inside = from.checked_add(values.len()).is_some_and(|end| end <= self.m);
        assert!(inside && row < self.n, "{} numbers from {from} on of row {row}", values.len());
        // SAFETY: inside the result by the assertion, and the caller's, as it promises.
        unsafe {
            let to = self.data.add(row * self.m + from);
            match <&[f32; ROWS]>::try_from(values) {
                // With AVX-512, nearly always. A length known when compiling needs no call of memmove.
                Ok(values) => to.cast::<[f32; ROWS]>().write(*values),
                Err(_) => to.copy_from_nonoverlapping(values.as_ptr(), values.len()),
            }
        }
    }
}

fn source(node: &sys::ggml_tensor, i: usize) -> Option<Source<'_>> {
    assert!(i > 0 || node.view_src.is_null(), "the result is in the memory of source 0");
    // SAFETY: a source of a running node, or null.
    unsafe { node.src[i].as_ref() }.map(Source)
}

/// A source of a node that runs: it has values, and stays as it is.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a>(&'a sys::ggml_tensor);

impl<'a> Source<'a> {
    pub(crate) fn tensor(self) -> &'a sys::ggml_tensor {
        self.0
    }

    pub(crate) fn ne(self) -> [usize; 4] {
        self.0.ne.map(|n| n as usize)
    }

    fn data<T: Element>(self) -> *mut T {
        let data = self.0.data.cast::<T>();
        assert!(T::HOLDS.iter().any(|t| t.sys() == self.0.type_) && data.is_aligned(), "{:?}", T::HOLDS);
        data
    }

    /// The first of the elements, which lie side by side.
    fn elements<T: Element>(self) -> *mut T {
        // SAFETY: a valid tensor.
        assert!(unsafe { sys::ggml_is_contiguous(self.0) }, "the op has checked that it is contiguous");
        self.data()
    }

    /// All elements.
    ///
    /// # Panics
    /// If it is not contiguous, or of another type.
    pub(crate) fn all<T: Element>(self) -> &'a [T] {
        // SAFETY: so many elements, which have values and which nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.elements::<T>(), self.ne().iter().product()) }
    }

    /// The bytes of all elements.
    ///
    /// # Panics
    /// If it is not contiguous.
    pub(crate) fn bytes(self) -> &'a [u8] {
        // SAFETY: a valid tensor, whose elements have values and are written by nobody meanwhile.
        unsafe {
            assert!(sys::ggml_is_contiguous(self.0), "the op has checked that it is contiguous");
            std::slice::from_raw_parts(self.0.data as *const u8, sys::ggml_nbytes(self.0))
        }
    }

    /// The first of rows of floats: the elements of a row lie side by side, and rows are whole floats apart.
    ///
    /// # Panics
    /// If it is not such rows of F32.
    pub(crate) fn float_rows(self) -> *const f32 {
        let ([n, ne @ ..], [step, nb @ ..]) = (self.ne(), self.0.nb);
        let size = size_of::<f32>();
        let whole = ne.iter().zip(nb).all(|(&n, nb)| n <= 1 || nb.is_multiple_of(size));
        // ggml takes a tensor whose rows have one element for contiguous whatever its first step.
        assert!(whole && (n <= 1 || step == size), "rows of floats, {:?} bytes apart", self.0.nb);
        self.data::<f32>()
    }

    /// A row of floats.
    ///
    /// # Panics
    /// If there is no such row, or these are not [`Source::float_rows`].
    pub(crate) fn row(self, at: [usize; 3]) -> &'a [f32] {
        let ([n, ne @ ..], [_, nb @ ..]) = (self.ne(), self.0.nb);
        assert!(at.iter().zip(ne).all(|(i, n)| *i < n), "row {at:?} of {ne:?}");
        let offset: usize = at.iter().zip(nb).map(|(i, nb)| i * nb).sum();
        // SAFETY: a row of the tensor, which has values and which nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.float_rows().byte_add(offset), n) }
    }
}
