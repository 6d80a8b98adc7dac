//! The unfinished file of a pull, what is known of it, and the lock that keeps other pulls away.
//!
//! They are in the folder `.partial` of the target folder, under names that are made from the source and the
//! target's name alone. What is known of the contents is a record inside a file, never part of a name.
//!
//! So others know these names as well, and an archive or another user may have put something there. The folder has to be
//! this user's and no link; what is opened in it is a regular file of this user under one name, and only such files
//! are written, renamed or removed.

use std::fmt::Display;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{hex, io, FetchError, Result};
use crate::control::Control;

/// The folder of unfinished files. No file of a source has such a name: see [`Source`].
pub(super) const FOLDER: &str = ".partial";
/// Records are short; a longer file is none, in bytes.
pub(super) const MAX_RECORD: u64 = 64 << 10;

/// Metadata, from the hub, of the contents that an unfinished file holds the beginning of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    /// Size of the whole file in bytes.
    pub(super) bytes: u64,
    /// The hub's tag of the contents, which is compared and never read.
    pub(super) tag: Option<String>,
    /// True if the tag is from the server that sends the contents, which can compare it too (`If-Range`).
    pub(super) own: bool,
    /// SHA-256 of the whole file, if the hub gives it.
    pub(super) sha256: Option<String>,
    /// The commit.
    pub(super) revision: Option<String>,
}

/// A lock on a name in the target folder: one pull at a time writes there. Dropping it removes its file, and
/// the folder of unfinished files when that is empty.
#[derive(Debug)]
pub(super) struct Lock {
    file: Option<File>,
    folder: PathBuf,
    path: PathBuf,
}
impl Lock {
    /// Locks `name` in the folder `dir` for a pull of `source`.
    pub(super) fn take(dir: &Path, name: &str, source: &dyn Display, control: &Control<'_>) -> Result<Lock> {
        let folder = dir.join(FOLDER);
        let path = lock_path(dir, name);
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
                    return Err(FetchError::Busy { path: dir.join(name), holder: holder.to_owned() });
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
            let lock = Lock { file: Some(file), folder, path };
            return written.map(|()| lock).map_err(|e| FetchError::Io { path: dir.join(name), source: e });
        }
    }
}
impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while it is still locked: whoever opened it meanwhile finds that it leads nowhere.
        let _ = fs::remove_file(&self.path);
        self.file = None;
        let _ = fs::remove_dir(&self.folder);
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
        ErrorKind::InvalidInput => FetchError::Foreign { path: path.to_owned(), what: e.to_string() },
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

/// The unfinished file of one source, and the record of what it holds.
#[derive(Debug)]
pub(super) struct Partial {
    /// The file.
    pub(super) path: PathBuf,
    record: PathBuf,
    /// The record is written here first.
    fresh: PathBuf,
    file: File,
    known: Option<Known>,
}
impl Partial {
    /// Opens what an earlier pull left, or begins. The lock must be held.
    pub(super) fn open(dir: &Path, name: &str, source: &dyn Display, _: &Lock) -> Result<Partial> {
        let [path, record, fresh] = paths(dir, name, source);
        for path in [&record, &fresh] {
            files::own_file(path).map_err(foreign(path))?;
        }
        let file = files::open_own(&path).map_err(foreign(&path))?;
        // A record that cannot be read is as good as none: the file is fetched again.
        let known =
            read(&record, MAX_RECORD).ok().flatten().and_then(|text| serde_json::from_str(&text).ok());
        Ok(Partial { path, record, fresh, file, known })
    }

    /// Metadata of the contents that the file holds the beginning of, if they are known.
    pub(super) fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    /// Length so far, in bytes.
    pub(super) fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(io(&self.path))?.len())
    }

    /// Forgets what is there.
    pub(super) fn clear(&mut self) -> Result<()> {
        // In this order: a record never names contents that are not the file's.
        self.file.set_len(0).map_err(io(&self.path))?;
        self.known = None;
        remove(&self.record)
    }

    /// Begins anew with contents of which this is known.
    pub(super) fn begin(&mut self, known: Known) -> Result<()> {
        self.clear()?;
        let text = serde_json::to_string(&known).unwrap_or_default();
        write(&self.fresh, &self.record, &text)?;
        self.known = Some(known);
        Ok(())
    }

    /// Adds bytes at the end.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.seek(SeekFrom::End(0)).and_then(|_| self.file.write_all(bytes)).map_err(io(&self.path))
    }

    /// Waits until it is on the disk, and gives it its name.
    pub(super) fn place(self, to: &Path) -> Result<()> {
        self.file.sync_all().map_err(io(&self.path))?;
        if !files::is_at(&self.file, &self.path) {
            let what = "was replaced by another program in the meantime".to_owned();
            return Err(FetchError::Foreign { path: self.path, what });
        }
        fs::rename(&self.path, to).map_err(io(to))
    }
}

/// The unfinished folder of a repository.
pub(super) fn folder(dir: &Path, name: &str, source: &dyn Display) -> PathBuf {
    dir.join(FOLDER).join(format!("{}.folder", key(&[name, &source.to_string()])))
}

/// Returns true if this directory has a directory of unfinished downloads.
pub(super) fn left(dir: &Path) -> bool {
    fs::symlink_metadata(dir.join(FOLDER)).is_ok_and(|m| m.is_dir())
}

/// Bytes of unfinished files in this folder.
pub(super) fn bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir.join(FOLDER)).into_iter().flatten().flatten();
    entries.filter_map(|e| e.metadata().ok()).filter(fs::Metadata::is_file).map(|m| m.len()).sum()
}

/// Removes whatever an earlier pull left behind. The lock must be held.
pub(super) fn sweep(dir: &Path, name: &str, source: &dyn Display) -> Result<()> {
    paths(dir, name, source).iter().try_for_each(|path| remove(path))
}

/// The names that a pull uses in the folder of unfinished files.
pub(super) fn names(dir: &Path, name: &str, source: &dyn Display) -> [PathBuf; 4] {
    let [part, record, fresh] = paths(dir, name, source);
    [part, record, fresh, lock_path(dir, name)]
}

/// The record of what an unfinished folder holds.
pub(super) fn listing(dir: &Path, name: &str, source: &dyn Display) -> PathBuf {
    folder(dir, name, source).with_extension("names")
}

/// Where records are written before they are renamed.
pub(super) fn fresh(dir: &Path, name: &str, source: &dyn Display) -> PathBuf {
    let [_, _, fresh] = paths(dir, name, source);
    fresh
}

fn lock_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(FOLDER).join(format!("{}.lock", key(&[name])))
}

/// The unfinished file, its record, and the record before it is renamed.
fn paths(dir: &Path, name: &str, source: &dyn Display) -> [PathBuf; 3] {
    let key = key(&[name, &source.to_string()]);
    ["part", "json", "new"].map(|extension| dir.join(FOLDER).join(format!("{key}.{extension}")))
}

/// A name for these texts, of which no two have the same.
fn key(texts: &[&str]) -> String {
    hex(&Sha256::digest(texts.join("\n")))[..32].to_owned()
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

/// Writes a short text file: first as `fresh`, whose name stays the same so that a killed pull litters nothing.
pub(super) fn write(fresh: &Path, path: &Path, text: &str) -> Result<()> {
    let mut file = files::open_own(fresh).map_err(foreign(fresh))?;
    let write = |file: &mut File| {
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write(&mut file).map_err(io(fresh))?;
    fs::rename(fresh, path).map_err(io(path))
}
