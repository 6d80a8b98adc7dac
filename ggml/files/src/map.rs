//! Read-only memory maps of files.

use std::io::{self, Write};
use std::ops::Deref;
use std::path::Path;

use crate::{Error, Result};

/// The caller's word that nobody changes or truncates a file while it is mapped.
///
/// The compiler takes the bytes of a [`Map`] to stay as they are, and neither it nor the system can hold other
/// programs to that, or this one: this is the one promise on which safe code of this workspace rests unchecked,
/// so it is a value that whoever maps a file has to make. It may be made for files that the user was told not
/// to overwrite while they are in use (README), and for files that are only ever replaced by renaming, as
/// [`replace`](crate::replace) does.
///
/// Should it be broken, damage is small: readers copy out and check once all that later accesses rely on
/// (offsets, lengths, text), and what is left in the map are numbers, of which any bits are some number. A
/// truncated file ends the process with SIGBUS; see
/// [`explain_vanished_files`](crate::explain_vanished_files).
#[derive(Debug)]
pub struct Unchanging(());

impl Unchanging {
    /// Gives that word.
    pub fn while_mapped() -> Unchanging {
        Unchanging(())
    }
}

/// The bytes of a file of any format, mapped and read-only.
#[derive(Debug)]
pub struct Map {
    // Given back before the memory is unmapped: fields are dropped in this order.
    #[cfg(unix)]
    _registered: Option<crate::vanished::Registered>,
    memory: memmap2::Mmap,
}

impl Map {
    /// Maps a file, which stays as it is meanwhile.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a regular file.
    pub fn open(path: &Path, _: Unchanging) -> Result<Map> {
        let io = |source| Error::new(path, source);
        // Looked at before opening: opening a pipe would wait for somebody to write into it.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(std::io::Error::new(std::io::ErrorKind::InvalidInput, "is not a regular file")));
        }
        let file = std::fs::File::open(path).map_err(io)?;
        // SAFETY: the map is read-only and of a regular file, and the caller has given its word that nobody
        // changes or truncates it.
        let memory = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
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
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

/// Bytes copied at a time: fewer than a buffered writer holds.
const COPY: usize = 1 << 15;

/// Writes bytes of a map.
///
/// The system, given mapped memory that is gone, says "bad address", an error of the file written to; so the
/// bytes are read here, where it is a signal that tells the file.
///
/// # Errors
/// Those of `out`.
pub fn write_mapped(mapped: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let mut buffer = vec![0; COPY.min(mapped.len())];
    for chunk in mapped.chunks(COPY) {
        let buffer = &mut buffer[..chunk.len()];
        buffer.copy_from_slice(chunk);
        out.write_all(buffer)?;
    }
    Ok(())
}
