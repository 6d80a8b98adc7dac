//! Files and folders with a record next to them of where they came from.
//!
//! An unfinished file lies in `.partial` inside the target folder, under the target's name. It moves into place
//! only when it is complete and on the disk.

pub(crate) mod error;
pub(crate) mod partial;

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::control::Control;

pub use error::Error;
pub(crate) use error::{io, note_of, other, said, Result};
use partial::Lock;

/// The end of a record's name, after the file's.
const SUFFIX: &str = ".source.json";
/// A record in bytes: that of a folder has some two hundred for each file.
const MAX_RECORD: u64 = 1 << 20;
/// A record of a file or of a folder.
const RECORD: files::Kind = files::Kind::new("the record of a pull", |head| {
    let start: Vec<u8> = head.iter().copied().filter(|b| !b.is_ascii_whitespace()).take(64).collect();
    start.starts_with(b"{\"source\":\"hf:")
});

/// Where a file came from, as written next to it in `FILE.source.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The source, `hf:ORG/REPO/FILE`.
    pub source: String,
    /// The commit, as the hub named it.
    pub revision: Option<String>,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}
impl Origin {
    /// The record of a file.
    pub fn path_of(file: &Path) -> PathBuf {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(SUFFIX);
        file.with_file_name(name)
    }

    /// Reads the record of a file; `None` when there is none.
    ///
    /// # Errors
    /// A record that cannot be read, or is none.
    pub fn read(file: &Path) -> Result<Option<Origin>> {
        read(file, "a pull")
    }

    /// Checks that the record of a file or folder may be written: nothing has its name but an earlier record, which says
    /// nothing once its file is gone. A link is none.
    ///
    /// # Errors
    /// Anything else is there.
    fn check_place(of: &Path) -> Result<()> {
        let path = Origin::path_of(of);
        if path.is_symlink() {
            return Err(other(path.display(), "is a symbolic link, expected the record of a pull"));
        }
        RECORD.claim(&path).map_err(other_of)
    }
}

/// Reads the record of a file or folder that is there; a link is not followed. `of` goes into the error.
pub(crate) fn read<T: DeserializeOwned>(file: &Path, of: &str) -> Result<Option<T>> {
    let path = Origin::path_of(file);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = Path::new(path.file_name().unwrap_or_default());
    let Some(bytes) = files::foreign::Folder::open(folder)?.read(name, MAX_RECORD)? else { return Ok(None) };
    let bad = |e: serde_json::Error| format!("expected the record of {of}: {}", said(&e.to_string()));
    serde_json::from_slice(&bytes).map(Some).map_err(|e| other(path.display(), bad(e)))
}

/// Writes the record of a file or folder.
pub(crate) fn write(of: &Path, record: &impl Serialize) -> Result<()> {
    Origin::check_place(of)?;
    let path = Origin::path_of(of);
    let text = serde_json::to_string_pretty(record).unwrap_or_default() + "\n";
    files::replace(&path, &RECORD, |out| {
        out.write_all(text.as_bytes()).map_err(|e| files::Error::new(&path, e))
    })
    .map_err(other_of)
}

/// Without its cause: the program would offer to replace what is there.
fn other_of(e: files::Error) -> Error {
    other(e.path.display(), e.source)
}

/// Returns true if a text can be the name of a file with a record: not hidden, and not the name of a record.
pub(crate) fn is_file_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+=,@".contains(c);
    let record = text.to_ascii_lowercase().ends_with(SUFFIX);
    !text.is_empty() && !text.starts_with('.') && text.chars().all(plain) && !record
}

/// Checks that a text can be the name of a file or directory with a record.
///
/// # Errors
/// It cannot.
pub fn check_name(text: &str) -> Result<()> {
    if is_file_name(text) {
        return Ok(());
    }
    let what = "expected letters, digits and ._-+=,@, no leading dot, no .source.json ending";
    Err(other(format_args!("name '{text}'"), what))
}

/// Makes the file `to`, which has an origin as if it had been pulled. `make` writes it to the path that it is given, among
/// the unfinished files, so a program that is killed leaves no file without a record. Returns what `make` does, or `None`
/// if a file has the name already.
///
/// # Errors
/// Something else has the name; another program makes it; the errors of `make`, and those of the disk.
pub fn make_file<T, E: From<Error>>(
    to: &Path,
    make: impl FnOnce(&Path) -> Result<(T, Origin), E>,
) -> Result<Option<T>, E> {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    put(to.parent().unwrap_or(Path::new("")), &name, "made", |unfinished| {
        // Of a program that was killed.
        partial::remove(unfinished)?;
        make(unfinished)
    })
}

/// Has a new file or folder made among the unfinished files, and puts it in place with its record: a record without a file
/// says nothing, a file without a record would be of unknown origin. `None` if the name is taken already.
pub(crate) fn put<T, R: Serialize, E: From<Error>>(
    dir: &Path,
    name: &str,
    extension: &str,
    make: impl FnOnce(&Path) -> Result<(T, R), E>,
) -> Result<Option<T>, E> {
    check_name(name)?;
    let (path, is_folder) = (dir.join(name), extension == "folder");
    if is_there(&path, is_folder)? {
        if dir.join(partial::FOLDER).is_dir() {
            // A pull that was killed at its very end leaves its lock; taking it removes it.
            let _ = Lock::take(dir, name);
        }
        return Ok(None);
    }
    std::fs::create_dir_all(dir).map_err(io(dir))?;
    // What is in the way of the record is named now, and not when everything has arrived.
    Origin::check_place(&path)?;
    let _lock = Lock::take(dir, name)?;
    // The one who held the lock just now may have finished.
    if is_there(&path, is_folder)? {
        return Ok(None);
    }
    let unfinished = dir.join(partial::FOLDER).join(format!("{name}.{extension}"));
    let done = make(&unfinished).and_then(|(made, record)| {
        place(&unfinished, &path, &record)?;
        Ok(made)
    });
    // A pull goes on from what has arrived; what was made is made again.
    if done.is_err() && extension == "made" {
        let _ = partial::remove(&unfinished);
    }
    let made = done?;
    files::sync_folder(dir).map_err(io(dir))?;
    Ok(Some(made))
}

/// Puts what is complete in place, with its record.
fn place(unfinished: &Path, path: &Path, record: &impl Serialize) -> Result<()> {
    write(path, record)?;
    let Err(e) = files::rename_new(unfinished, path) else { return Ok(()) };
    if e.kind() != std::io::ErrorKind::AlreadyExists {
        return Err(io(path)(e));
    }
    // What another program has put there stays, without the record.
    let _ = std::fs::remove_file(Origin::path_of(path));
    Err(other(path.display(), "was created by another program in the meantime"))
}

/// Returns true if a file, or a folder, is there. Anything else of that name is an error.
fn is_there(path: &Path, is_folder: bool) -> Result<bool> {
    if path.symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
        return Ok(false);
    }
    let found = path.metadata().map_err(io(path))?;
    let (is, kind) =
        if is_folder { (found.is_dir(), "directory") } else { (found.is_file(), "regular file") };
    if !is {
        return Err(other(path.display(), format_args!("already exists and is not a {kind}")));
    }
    Ok(true)
}

/// A file's SHA-256 and its size in bytes.
///
/// # Errors
/// [`Error::Io`] for a file that cannot be read; [`Error::Stopped`].
pub fn sha256_of(path: &Path, control: &Control<'_>) -> Result<(String, u64)> {
    let mut file = files::foreign::open_file(path)?;
    let total = file.metadata().map_err(io(path))?.len();
    let (mut hash, mut done, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
    while !control.stopped() {
        let n = file.read(&mut buffer).map_err(io(path))?;
        if n == 0 {
            return Ok((format!("{:x}", hash.finalize()), done));
        }
        hash.update(&buffer[..n]);
        done += n as u64;
        control.report(format_args!("checking sha256"), done, total);
    }
    Err(Error::Stopped { from: path.display().to_string(), kept: 0 })
}
