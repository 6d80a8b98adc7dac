//! Read-only memory maps of files, which give their bytes by copies only.

use std::io::{self, Write};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;

use crate::memory::{room, OutOfMemory};
use crate::{Error, Result};

/// A file of any format, mapped and read-only.
///
/// Other programs can change a file while it is mapped, and nothing can hold them to a promise not to. So no
/// reference to the mapped memory exists in Rust: [`Bytes`] copies out of it, and what is checked (text, lengths,
/// offsets) is the copy. A file that changes gives other numbers; one that is truncated ends the process with SIGBUS, see
/// [`explain_vanished_files`](crate::explain_vanished_files). Files that are replaced by renaming, as
/// [`replace`](crate::replace) does, stay as they were mapped.
#[derive(Debug)]
pub struct Map {
    // Given back before the memory is unmapped: fields are dropped in this order.
    #[cfg(unix)]
    _registered: Option<crate::vanished::Registered>,
    memory: memmap2::MmapRaw,
}

impl Map {
    /// Maps a file.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> Result<Map> {
        let io = |source| Error::new(path, source);
        let file = crate::foreign::open_file(path)?;
        let memory = memmap2::MmapOptions::new().map_raw_read_only(&file).map_err(io)?;
        #[cfg(unix)]
        let _registered = {
            let start = memory.as_ptr() as usize;
            crate::vanished::register(start..start + memory.len(), path)
        };
        Ok(Map {
            #[cfg(unix)]
            _registered,
            memory,
        })
    }
    /// Size of the file when it was mapped, bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }
    /// Returns true if the file was empty.
    pub fn is_empty(&self) -> bool {
        self.memory.len() == 0
    }
    /// Address of the first byte, which stays valid while the map lives.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.as_ptr()
    }
    /// All of it.
    pub fn bytes(&self) -> Bytes<'_> {
        Bytes { start: self.memory.as_ptr(), len: self.memory.len(), life: PhantomData }
    }
}

/// Bytes that can be copied but not referred to, since others may change them: a part of a [`Map`], or a slice.
#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    start: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

// SAFETY: the memory is readable by every thread while 'a lasts, and read in a way that bears changes.
unsafe impl Send for Bytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for Bytes<'_> {}

impl<'a> Bytes<'a> {
    /// How many there are.
    pub fn len(self) -> usize {
        self.len
    }
    /// Returns true if there are no bytes.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
    /// A part of them; `None` where they end before it.
    pub fn get(self, range: Range<usize>) -> Option<Bytes<'a>> {
        let len = range.end.checked_sub(range.start).filter(|_| range.end <= self.len)?;
        // SAFETY: `range` was just found inside the bytes.
        Some(Bytes { start: unsafe { self.start.add(range.start) }, len, life: PhantomData })
    }
    /// A part of them.
    ///
    /// # Panics
    /// They end before it.
    #[track_caller]
    pub fn slice(self, range: Range<usize>) -> Bytes<'a> {
        let n = self.len;
        self.get(range.clone()).unwrap_or_else(|| panic!("bytes {range:?} of {n}"))
    }
    /// Parts of `size` bytes, the last of which may be shorter.
    ///
    /// # Panics
    /// `size` is 0.
    pub fn chunks(self, size: usize) -> impl Iterator<Item = Bytes<'a>> {
        (0..self.len).step_by(size).map(move |at| self.slice(at..self.len.min(at.saturating_add(size))))
    }
    /// Copies all of them.
    ///
    /// # Panics
    /// `out` has another length.
    #[track_caller]
    pub fn copy_to(self, out: &mut [u8]) {
        assert_eq!(self.len, out.len(), "bytes copied");
        const WORD: usize = size_of::<u64>();
        let (from, to, n) = (self.start, out.as_mut_ptr(), self.len);
        let byte = |i: usize| {
            debug_assert!(i < n);
            // SAFETY: `i < n`, the length of both. Volatile, for nothing may be inferred from a value read before.
            unsafe { to.add(i).write(from.add(i).read_volatile()) }
        };
        let head = from.align_offset(WORD).min(n);
        let end = head + (n - head) / WORD * WORD;
        (0..head).for_each(byte);
        for i in (head..end).step_by(WORD) {
            // SAFETY: `i + WORD <= end <= n`, and `from + i` is aligned. Volatile as above.
            unsafe { to.add(i).cast::<u64>().write_unaligned(from.add(i).cast::<u64>().read_volatile()) };
        }
        (end..n).for_each(byte);
    }
    /// The `N` bytes from `at` on; `None` where they end before.
    pub fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        let mut out = [0; N];
        self.get(at..at.checked_add(N)?)?.copy_to(&mut out);
        Some(out)
    }
    /// A copy of them.
    pub fn to_vec(self) -> Result<Vec<u8>, OutOfMemory> {
        let mut out = room(self.len)?;
        out.resize(self.len, 0);
        self.copy_to(&mut out);
        Ok(out)
    }
    /// Gives copies of parts of them, in order, until `take` fails.
    pub fn each<E>(self, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut buffer = vec![0; COPY.min(self.len)];
        self.chunks(COPY).try_for_each(|chunk| {
            let buffer = &mut buffer[..chunk.len()];
            chunk.copy_to(buffer);
            take(buffer)
        })
    }
    /// Writes all of them.
    ///
    /// The system, given mapped memory that is gone, says "bad address", an error of the file written to; so the bytes
    /// are read here, where it is a signal that tells the file.
    pub fn write_to(self, out: &mut dyn Write) -> io::Result<()> {
        self.each(|part| out.write_all(part))
    }
}

/// Bytes copied at a time: fewer than a buffered writer holds.
const COPY: usize = 1 << 15;

impl<'a> From<&'a [u8]> for Bytes<'a> {
    fn from(bytes: &'a [u8]) -> Bytes<'a> {
        Bytes { start: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }
}
impl<'a> From<&'a Vec<u8>> for Bytes<'a> {
    fn from(bytes: &'a Vec<u8>) -> Bytes<'a> {
        bytes.as_slice().into()
    }
}
impl<'a, const N: usize> From<&'a [u8; N]> for Bytes<'a> {
    fn from(bytes: &'a [u8; N]) -> Bytes<'a> {
        bytes.as_slice().into()
    }
}

impl std::fmt::Debug for Bytes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len)
    }
}

/// Compares the bytes as read.
impl PartialEq for Bytes<'_> {
    fn eq(&self, other: &Bytes<'_>) -> bool {
        let mut at = 0;
        let mut theirs = vec![0; COPY.min(other.len)];
        self.len == other.len
            && self
                .each(|ours| {
                    let theirs = &mut theirs[..ours.len()];
                    other.slice(at..at + ours.len()).copy_to(theirs);
                    at += ours.len();
                    if ours == theirs {
                        Ok(())
                    } else {
                        Err(())
                    }
                })
                .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_copied_whatever_its_alignment() {
        let all: Vec<u8> = (0..100).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, &all).unwrap();
        let map = Map::open(&path).unwrap();
        assert_eq!((map.len(), map.is_empty()), (100, false));
        for bytes in [map.bytes(), Bytes::from(&all)] {
            for start in 0..=100 {
                for end in start..=100 {
                    assert_eq!(bytes.slice(start..end).to_vec().unwrap(), all[start..end]);
                }
            }
            assert!(bytes.get(0..101).is_none() && bytes.get(101..101).is_none());
            #[allow(clippy::reversed_empty_ranges)]
            let backwards = bytes.get(5..4);
            assert!(backwards.is_none() && bytes.get(usize::MAX..usize::MAX).is_none());
            assert_eq!(bytes.array(96), Some([96, 97, 98, 99]));
            assert_eq!((bytes.array::<4>(97), bytes.array::<4>(usize::MAX)), (None, None));
            let sizes: Vec<usize> = bytes.chunks(30).map(Bytes::len).collect();
            assert_eq!(sizes, [30, 30, 30, 10]);
            let mut written = Vec::new();
            bytes.write_to(&mut written).unwrap();
            assert_eq!(written, all);
        }
        assert!(map.bytes() == Bytes::from(&all) && map.bytes() != Bytes::from(&all[1..]));
        assert!(map.bytes().slice(0..99) != Bytes::from(&all[1..]));
    }

    /// Text that becomes other text while it is looked at: what is checked is the copy, so a checked copy stays valid.
    #[test]
    fn a_file_that_changes_does_not_change_what_was_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, "sound text").unwrap();
        let map = Map::open(&path).unwrap();
        let text = String::from_utf8(map.bytes().to_vec().unwrap()).unwrap();
        use std::io::Seek;
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.rewind().unwrap();
        file.write_all(&[0xff; 10]).unwrap();
        assert!(map.bytes() == Bytes::from(&[0xff; 10]), "the change is seen in the map");
        assert_eq!(text, "sound text");
    }
}
