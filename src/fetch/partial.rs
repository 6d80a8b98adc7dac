//! Unfinished files, and the lock that keeps other pulls away.
//!
//! They are in the folder `.partial` of the target folder, under the target's name. No file there says anything of
//! another: an unfinished file counts for its bytes, whose checksum is compared with the source's before they are put in
//! place.
//!
//! Others know these names as well, and an archive or another user may have put something there. The folder has to be
//! this user's and no link; what is opened in it is a regular file of this user under one name, and only such files
//! are written, renamed or removed.

use std::fs::{self, File};
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::error::{io, other, Result};
use super::{hash, FetchError};
use crate::control::Control;

/// The folder of unfinished files. No file of a source has such a name: see [`Source`](super::Source).
pub(super) const FOLDER: &str = ".partial";

/// A lock on a name in the target folder: one pull at a time writes there. Dropping it removes its file, and
/// the folder of unfinished files when that is empty.
#[derive(Debug)]
pub(super) struct Lock {
    lock: Option<files::Lock>,
    folder: PathBuf,
    name: String,
}
impl Lock {
    /// Locks `name` in the folder `dir`.
    pub(super) fn take(dir: &Path, name: &str) -> Result<Lock> {
        let folder = dir.join(FOLDER);
        loop {
            let own = || files::Lock::own(&folder.join(name)).map_err(FetchError::from);
            match make_folder(&folder, 0o700).and_then(|()| own()) {
                Ok(lock) => return Ok(Lock { lock: Some(lock), folder, name: name.to_owned() }),
                // A pull that just ended removed the folder.
                Err(FetchError::Io { source, .. })
                    if source.kind() == ErrorKind::NotFound && dir.is_dir() => {}
                Err(FetchError::Io { source, .. }) if source.kind() == ErrorKind::WouldBlock => {
                    let path = dir.join(name);
                    return Err(other(path.display(), format_args!("is already being pulled: {source}")));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// The unfinished file of the name, with the extension `part`, or its unfinished folder, `folder`.
    pub(super) fn unfinished(&self, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.name))
    }
}
impl Drop for Lock {
    fn drop(&mut self) {
        self.lock = None;
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Makes a folder with this mode, or finds that it is there as this user's own.
pub(super) fn make_folder(path: &Path, mode: u32) -> Result<()> {
    let mut how = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut how, mode);
    #[cfg(not(unix))]
    let _ = (mode, &mut how);
    let made = match how.create(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => files::own_folder(path),
        made => made,
    };
    made.map_err(io(path))
}

/// Removes this user's own regular file, if it is there.
pub(super) fn remove(path: &Path) -> Result<()> {
    if files::own_file(path).map_err(io(path))? {
        fs::remove_file(path).map_err(io(path))?;
    }
    Ok(())
}

/// An unfinished file. The lock of its name must be held.
#[derive(Debug)]
pub(super) struct Partial {
    /// Where it is.
    pub(super) path: PathBuf,
    file: File,
}
impl Partial {
    /// Opens what an earlier pull left, or begins.
    pub(super) fn open(path: PathBuf) -> Result<Partial> {
        let file = files::open_own(&path).map_err(io(&path))?;
        Ok(Partial { path, file })
    }

    /// Length so far, in bytes.
    pub(super) fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(io(&self.path))?.len())
    }

    /// Forgets what is there.
    pub(super) fn clear(&self) -> Result<()> {
        self.file.set_len(0).map_err(io(&self.path))
    }

    /// Adds bytes at the end.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.seek(SeekFrom::End(0)).and_then(|_| self.file.write_all(bytes)).map_err(io(&self.path))
    }

    /// Its SHA-256.
    pub(super) fn sha256(&mut self, control: &Control<'_>) -> Result<String> {
        self.file.rewind().map_err(io(&self.path))?;
        Ok(hash(&mut self.file, &self.path, control)?.0)
    }

    /// Waits until what is `whole` is on the disk; removes the rest if nothing is in it.
    pub(super) fn close(self, whole: bool) -> Result<()> {
        if whole {
            return self.file.sync_all().map_err(io(&self.path));
        }
        if self.len()? == 0 {
            drop(self.file);
            remove(&self.path)?;
        }
        Ok(())
    }
}
