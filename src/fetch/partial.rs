//! The unfinished file of a pull, what is known of it, and the lock that keeps other pulls away.
//!
//! They are in the folder `.partial` of the target folder, under names that are made from the source and the
//! target's name alone. What is known of the contents is a record inside a file, never part of a name.

use std::fmt::Display;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{hex, io, FetchError, Result};
use crate::control::Control;

/// The folder of unfinished files. No file of a source has such a name: see [`Source`].
const FOLDER: &str = ".partial";
/// Records are short; a longer file is none, in bytes.
pub(super) const MAX_RECORD: u64 = 64 << 10;

/// Metadata, from the hub, of the contents that an unfinished file holds the beginning of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Known {
    /// Size of the whole file in bytes.
    pub(super) bytes: u64,
    /// The hub's tag of the contents, which is compared and never read.
    pub(super) tag: Option<String>,
    /// Whether the tag is of the server that sends the contents, which can compare it too (`If-Range`).
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
            fs::create_dir_all(&folder).map_err(io(&folder))?;
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let mut file = match opened {
                Ok(file) => file,
                // A pull that just ended removed the folder.
                Err(e) if e.kind() == ErrorKind::NotFound && !folder.exists() => continue,
                Err(e) => return Err(io(&path)(e)),
            };
            match file.try_lock() {
                Ok(()) if !leads_to(&path, &file) => continue, // A pull that just ended removed it.
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut holder = String::new();
                    let _ = file.take(MAX_RECORD).read_to_string(&mut holder);
                    let holder = if holder.is_empty() { "another process" } else { holder.trim() };
                    return Err(FetchError::Busy { path: dir.join(name), holder: holder.to_owned() });
                }
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => {
                    control.note(format_args!(
                        "note: {}: no locks in this file system: see to it that no other pull writes here",
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

#[cfg(unix)]
fn leads_to(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |m: &fs::Metadata| (m.dev(), m.ino());
    matches!((fs::metadata(path), file.metadata()), (Ok(a), Ok(b)) if identity(&a) == identity(&b))
}

#[cfg(not(unix))]
fn leads_to(path: &Path, _: &File) -> bool {
    path.exists()
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
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let file = opened.map_err(io(&path))?;
        // A record that cannot be read is as good as none: the file is fetched again.
        let known =
            read(&record, MAX_RECORD).ok().flatten().and_then(|text| serde_json::from_str(&text).ok());
        Ok(Partial { path, record, fresh, file, known })
    }

    /// Metadata of the contents that the file holds the beginning of, if they are known.
    pub(super) fn known(&self) -> Option<&Known> {
        self.known.as_ref()
    }

    /// Its length so far, in bytes.
    pub(super) fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(io(&self.path))?.len())
    }

    /// Forgets what is there.
    pub(super) fn clear(&mut self) -> Result<()> {
        // In this order: a record never names contents that are not the file's.
        self.file.set_len(0).map_err(io(&self.path))?;
        self.known = None;
        match fs::remove_file(&self.record) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(io(&self.record)(e)),
            _ => Ok(()),
        }
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

    /// Waits until it is on the disk.
    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_all().map_err(io(&self.path))
    }
}

/// The unfinished folder of a repository.
pub(super) fn folder(dir: &Path, name: &str, source: &dyn Display) -> PathBuf {
    dir.join(FOLDER).join(format!("{}.folder", key(&[name, &source.to_string()])))
}

/// Whether pulls into this folder left anything behind.
pub(super) fn left(dir: &Path) -> bool {
    dir.join(FOLDER).exists()
}

/// Bytes of unfinished files in this folder.
pub(super) fn bytes(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir.join(FOLDER)).into_iter().flatten().flatten();
    entries.filter_map(|e| e.metadata().ok()).filter(fs::Metadata::is_file).map(|m| m.len()).sum()
}

/// Removes whatever an earlier pull left behind. The lock must be held.
pub(super) fn sweep(dir: &Path, name: &str, source: &dyn Display) -> Result<()> {
    for path in paths(dir, name, source) {
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(io(&path)(e)),
            _ => {}
        }
    }
    Ok(())
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

/// The beginning of a text file, at most so many bytes, if it is there.
pub(super) fn read(path: &Path, limit: u64) -> Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(path)(e)),
    };
    let mut text = String::new();
    file.take(limit).read_to_string(&mut text).map_err(io(path))?;
    Ok(Some(text))
}

/// Writes a short text file: first as `fresh`, whose name stays the same so that a killed pull litters nothing.
pub(super) fn write(fresh: &Path, path: &Path, text: &str) -> Result<()> {
    let mut file = File::create(fresh).map_err(io(fresh))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(io(fresh))?;
    fs::rename(fresh, path).map_err(io(path))
}
