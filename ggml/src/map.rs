//! Files mapped into memory, to be read where they lie.

use std::ops::Deref;
use std::path::Path;

use crate::{Error, Result};

/// The bytes of a file of any format, mapped and read-only.
///
/// As with every memory map, whoever changes the file meanwhile changes what is read, and whoever truncates it makes the
/// process fail with SIGBUS. Replacing it by renaming, as [`replace`](crate::gguf::replace) does, is harmless.
#[derive(Debug)]
pub struct Map(memmap2::Mmap);

impl Map {
    /// Maps a file.
    ///
    /// # Errors
    /// [`Error::Io`] with the path: the file cannot be opened, or is not a regular one.
    pub fn open(path: &Path) -> Result<Map> {
        open(path).map(Map)
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

pub(crate) fn open(path: &Path) -> Result<memmap2::Mmap> {
    let io = |source| Error::io(path, source);
    // Looked at before opening: opening a pipe would wait for somebody to write into it.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(std::io::Error::new(std::io::ErrorKind::InvalidInput, "is not a regular file")));
    }
    let file = std::fs::File::open(path).map_err(io)?;
    // SAFETY: the map is read-only and of a regular file; what it needs, that nobody changes or truncates the
    // file meanwhile, no program can enforce: it is the documented contract of `Map` and `gguf::File::open`. All that
    // later accesses rely on (offsets, lengths) is copied out and checked once, so a change cannot move an access
    // out of the map; it can only change the numbers read, or end the process with SIGBUS.
    unsafe { memmap2::Mmap::map(&file) }.map_err(io)
}
