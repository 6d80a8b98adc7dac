//! Read-only memory maps of files.

use std::ops::Deref;
use std::path::Path;

use crate::{Error, Result};

/// The bytes of a file of any format, mapped and read-only.
///
/// As with every memory map, whoever changes the file meanwhile changes what is read, and whoever truncates
/// it makes the process fail with SIGBUS. Replacing it by renaming, as [`replace`](crate::replace) does, is
/// harmless.
#[derive(Debug)]
pub struct Map(memmap2::Mmap);

impl Map {
    /// Maps a file.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> Result<Map> {
        let io = |source| Error::new(path, source);
        // Looked at before opening: opening a pipe would wait for somebody to write into it.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(std::io::Error::new(std::io::ErrorKind::InvalidInput, "is not a regular file")));
        }
        let file = std::fs::File::open(path).map_err(io)?;
        // SAFETY: the map is read-only and of a regular file; what it needs, that nobody changes or truncates
        // the file meanwhile, no program can enforce: it is the documented contract of `Map`. Readers copy
        // out and check once all that later accesses rely on (offsets, lengths), so a change cannot move an
        // access out of the map; it can only change the numbers read, or end the process with SIGBUS.
        unsafe { memmap2::Mmap::map(&file) }.map(Map).map_err(io)
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
