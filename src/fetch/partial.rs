//! Unfinished files, and the lock that keeps other pulls away.
//!
//! They are in the folder `.partial` of the target folder, under names that are made from the source and the
//! target's name alone. No file there says anything of another: an unfinished file counts for its bytes, whose checksum
//! is compared with the source's before they are put in place.
//!
//! Others know these names as well, and an archive or another user may have put something there. The folder has to be
//! this user's and no link; what is opened in it is a regular file of this user under one name, and only such files
//! are written, renamed or removed.

use std::fmt::Display;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::{other, said};
use super::{hash, hex, io, FetchError, Result};
use crate::control::Control;

/// The folder of unfinished files. No file of a source has such a name: see [`Source`](super::Source).
const FOLDER: &str = ".partial";
/// What to do about what is in the way.
pub(super) const LEFT: &str = "pull does not touch it: remove it, or choose another directory";
/// Records are short; a longer file is none, in bytes.
pub(super) const MAX_RECORD: u64 = 64 << 10;

/// A lock on a name in the target folder: one pull at a time writes there. Dropping it removes its file, and
/// the folder of unfinished files when that is empty.
#[derive(Debug)]
pub(super) struct Lock {
    file: Option<File>,
    path: PathBuf,
    /// Where a record is written before it is renamed. The name stays the same so that a killed pull litters nothing.
    fresh: PathBuf,
}
impl Lock {
    /// Locks `name` in the folder `dir` for a pull of `source`.
    pub(super) fn take(dir: &Path, name: &str, source: &dyn Display, control: &Control<'_>) -> Result<Lock> {
        let folder = dir.join(FOLDER);
        let path = folder.join(format!("{}.lock", key(name)));
        let fresh = folder.join(format!("{}.new", key(&format!("{name}\n{source}"))));
        loop {
            match make_folder(&folder, true) {
                // A pull that just ended removed the folder.
                Err(FetchError::Io { source, .. })
                    if source.kind() == ErrorKind::NotFound && dir.is_dir() =>
                {
                    continue
                }
                made => made?,
            }
            let mut file = match files::open_own(&path) {
                Ok(file) => file,
                Err(e) if e.kind() == ErrorKind::NotFound && fs::symlink_metadata(&folder).is_err() => {
                    continue
                }
                Err(e) => return Err(foreign(&path)(e)),
            };
            match file.try_lock() {
                Ok(()) if !files::is_at(&file, &path) => continue, // A pull that just ended removed it.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    let _ = file.take(MAX_RECORD).read_to_string(&mut holder);
                    let holder = if holder.is_empty() { "another process" } else { holder.trim() };
                    let what = format!("is already being pulled, from {}", said(holder));
                    return Err(other(dir.join(name).display(), what));
                }
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {
                    control.note(format_args!(
                        "note: {}: this file system has no locks: make sure that no other pull writes here",
                        dir.display()
                    ))
                }
                Err(TryLockError::Error(e)) => return Err(io(&path)(e)),
            }
            let holder = format!("{source}, by process {}\n", std::process::id());
            let written = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
            let lock = Lock { file: Some(file), path, fresh };
            written.map_err(|e| FetchError::Io { path: dir.join(name), source: e })?;
            // What is in the way of the record is named now, and not when everything has arrived.
            files::own_file(&lock.fresh).map_err(foreign(&lock.fresh))?;
            return Ok(lock);
        }
    }

    /// The unfinished file of the source, with the extension `part`, or its unfinished folder, `folder`.
    pub(super) fn unfinished(&self, extension: &str) -> PathBuf {
        self.fresh.with_extension(extension)
    }

    /// Removes the unfinished file, and what a killed pull left of a record.
    pub(super) fn sweep(&self) -> Result<()> {
        remove(&self.unfinished("part"))?;
        remove(&self.fresh)
    }

    /// Writes a short text file.
    pub(super) fn write(&self, path: &Path, text: &str) -> Result<()> {
        let mut file = files::open_own(&self.fresh).map_err(foreign(&self.fresh))?;
        let written = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
        written.and_then(|()| file.sync_all()).map_err(io(&self.fresh))?;
        fs::rename(&self.fresh, path).map_err(io(path))
    }
}
impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while it is still locked: whoever opened it meanwhile finds that it leads nowhere.
        let _ = fs::remove_file(&self.path);
        self.file = None;
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

/// Makes a folder, or finds that it is there as this user's own. A `private` one lets nobody else in.
pub(super) fn make_folder(path: &Path, private: bool) -> Result<()> {
    let mut how = fs::DirBuilder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        how.mode(if private { 0o700 } else { 0o777 });
    }
    #[cfg(not(unix))]
    let _ = (private, &mut how);
    match how.create(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => files::own_folder(path).map_err(foreign(path)),
        made => made.map_err(io(path)),
    }
}

/// Names the path of what is there and is not this pull's; other errors are the disk's.
pub(super) fn foreign(path: &Path) -> impl FnOnce(std::io::Error) -> FetchError + '_ {
    move |e| match e.kind() {
        ErrorKind::InvalidInput => other(path.display(), format_args!("{e}; {LEFT}")),
        _ => io(path)(e),
    }
}

/// Removes this user's own regular file, if it is there.
pub(super) fn remove(path: &Path) -> Result<()> {
    if files::own_file(path).map_err(foreign(path))? {
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
        let file = files::open_own(&path).map_err(foreign(&path))?;
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

    /// Its SHA-256; `None` when it was asked to stop.
    pub(super) fn sha256(&mut self, control: &Control<'_>) -> Result<Option<String>> {
        self.file.rewind().map_err(io(&self.path))?;
        Ok(hash(&mut self.file, &self.path, control)?.map(|(sha256, _)| sha256))
    }

    /// Removes it if nothing is in it.
    pub(super) fn leave(self) -> Result<()> {
        let (len, path) = (self.len()?, self.path);
        drop(self.file);
        if len == 0 {
            remove(&path)?;
        }
        Ok(())
    }

    /// Waits until it is on the disk, under its name.
    pub(super) fn finish(&self) -> Result<()> {
        self.file.sync_all().map_err(io(&self.path))?;
        if files::is_at(&self.file, &self.path) {
            return Ok(());
        }
        Err(other(self.path.display(), "was replaced by another program in the meantime"))
    }
}

/// Returns true if this directory has a directory of unfinished downloads.
pub(super) fn left(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(FOLDER)).is_ok_and(|m| m.is_dir())
}

/// A name for a text, of which no two have the same.
fn key(text: &str) -> String {
    hex(&Sha256::digest(text))[..32].to_owned()
}

/// A text file of at most so many bytes, if it is there. A link is not followed.
pub(super) fn read(path: &Path, limit: u64) -> Result<Option<String>> {
    let name = path.file_name().unwrap_or_default();
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let read = || match fs::metadata(folder) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        _ => files::foreign::Folder::open(folder)?.read(Path::new(name), limit),
    };
    let Some(bytes) = read().map_err(|e| io(path)(e.source))? else { return Ok(None) };
    let text = String::from_utf8(bytes).map_err(|_| std::io::Error::other("is not UTF-8"));
    text.map(Some).map_err(io(path))
}
