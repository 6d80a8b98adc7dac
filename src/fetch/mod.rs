//! Fetches model files: sources on a model hub, checksums.
//!
//! A source names a file of the hub, and its last part is the file's name in the target folder. Beside each
//! file that was fetched is a record of where it came from ([`Origin`]). What is unfinished is in `.partial`
//! inside the target folder, under the target's name: nothing a server says becomes part of a path, and nothing
//! that lies there is believed. A file is in place only when it is complete, its checksum was compared
//! and it is on the disk. A model's folder ([`pull_folder`]) is in place only when all its files are.

mod error;
mod folder;
mod http;
mod origin;
mod partial;
mod source;
mod transfer;

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::control::Control;

pub use error::FetchError;
use error::{io, other, said, Result};
pub use folder::{pull_folder, PulledFolder};
pub use origin::Origin;
use partial::Lock;
pub use source::{check_name, is_sha256, Repo, Source};

ropewalk_core::setters! {
    /// The model hub to fetch from, how long to wait for it, and how often to try. Without `Debug`: a token must not get
    /// into a log.
    #[derive(Clone)]
    pub struct Hub {
        /// Address of the hub; `None` for the public hub.
        pub endpoint: Option<String>,
        /// Access token for files that are not public. It is sent to the hub alone, and only over https.
        pub token: Option<String>,
        /// Address of a proxy, `http://HOST:PORT`. Servers on this machine are asked without it.
        pub proxy: Option<String>,
        /// Time for the head of an answer. Also the time over which a body must bring 256 bytes a second: less is a
        /// stalled connection, which is tried again.
        pub read: Duration,
        /// Tries after the first one. The count begins anew whenever another MiB of the file has arrived.
        pub retries: u32,
    }
}

impl Default for Hub {
    fn default() -> Hub {
        Hub { endpoint: None, token: None, proxy: None, read: Duration::from_secs(60), retries: 5 }
    }
}

ropewalk_core::setters! {
    /// A source to fetch, and what is known of it.
    #[derive(Debug, Clone)]
    pub struct Request<'a> {
        /// The source.
        pub source: &'a Source,
        /// The file's name in the target folder; `None` for the source's own. It is a name without folders.
        pub name: Option<&'a str>,
        /// The SHA-256 it must have, in lower-case hexadecimal.
        pub sha256: Option<&'a str>,
        /// The size it must have, in bytes.
        pub bytes: Option<u64>,
        /// The commit to fetch it from; `None` for the newest.
        pub revision: Option<&'a str>,
    }
}

impl<'a> Request<'a> {
    /// A source of which nothing is known.
    pub fn new(source: &'a Source) -> Request<'a> {
        Request { source, name: None, sha256: None, bytes: None, revision: None }
    }
}

/// A file that is in place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pulled {
    /// Path of the file.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 of the file.
    pub sha256: String,
    /// True if the checksum was compared with one known before.
    pub verified: bool,
    /// True if it was downloaded now, false if it existed already.
    #[serde(rename = "fetched")]
    pub fresh: bool,
}

/// Fetches one file into `dir`. A file that is there already is checked, and never replaced: its record must
/// name this source, and its size and checksum must be those recorded and those asked for. A file without a
/// record must have the checksum asked for. What was fetched must have the checksum asked for, or else the one
/// the hub gives, if it gives any.
///
/// # Errors
/// A file that cannot be written; a hub that refuses, or cannot be reached after all retries; another size or
/// checksum than expected; a file of another or an unknown source in the place; another pull at work there;
/// [`FetchError::Stopped`]. Whatever part of the file has arrived stays if its checksum is known, and the next pull
/// of the same source into the same folder resumes from there.
pub fn pull(hub: &Hub, request: &Request<'_>, dir: &Path, control: &Control<'_>) -> Result<Pulled> {
    let name = request.name.unwrap_or(request.source.file_name());
    let path = dir.join(name);
    let pulled = put(dir, name, "part", |unfinished| {
        let (pulled, revision) = transfer::bring(hub, request, unfinished, &path, control)?;
        let (source, sha256) = (request.source.to_string(), pulled.sha256.clone());
        let revision = request.revision.map(str::to_owned).or(revision);
        let origin = Origin { source, revision, bytes: pulled.bytes, sha256 };
        Ok::<_, FetchError>((pulled, origin))
    })?;
    pulled.map_or_else(|| check_present(request, &path, control), Ok)
}

/// Makes the file `to`, which has an origin as if it had been pulled. `make` writes it to the path that it is given, among
/// the unfinished files, so a program that is killed leaves no file without a record. Returns what `make` does, or `None`
/// if a file has the name already.
///
/// # Errors
/// Something else has the name; another program makes it; the errors of `make`, and those of the disk.
pub fn make_file<T, E: From<FetchError>>(
    to: &Path,
    make: impl FnOnce(&Path) -> Result<(T, Origin), E>,
) -> Result<Option<T>, E> {
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    put(to.parent().unwrap_or(Path::new("")), &name, "made", |unfinished| {
        // Of a program that was killed.
        partial::remove(unfinished)?;
        make(unfinished).inspect_err(|_| drop(partial::remove(unfinished)))
    })
}

/// Has a new file or folder made among the unfinished files, and puts it in place with its record: a record without a file
/// says nothing, a file without a record would be of unknown origin. `None` if the name is taken already.
fn put<T, R: Serialize, E: From<FetchError>>(
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
    let (made, record) = make(&unfinished)?;
    origin::write(&path, &record)?;
    if let Err(e) = files::rename_new(&unfinished, &path) {
        if e.kind() != std::io::ErrorKind::AlreadyExists {
            return Err(io(&path)(e).into());
        }
        // What another program has put there stays, without the record.
        let _ = std::fs::remove_file(Origin::path_of(&path));
        return Err(other(path.display(), "was created by another program in the meantime").into());
    }
    files::sync_folder(dir).map_err(io(dir))?;
    Ok(Some(made))
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

/// Checks a file that is there already against its record and what was asked for.
fn check_present(request: &Request<'_>, path: &Path, control: &Control<'_>) -> Result<Pulled> {
    let origin = Origin::read(path)?;
    let source = request.source.to_string();
    if let Some(origin) = origin.as_ref().filter(|o| o.source != source) {
        return Err(taken(path, &origin.source, &source));
    }
    let Some(sha256) = request.sha256.or(origin.as_ref().map(|o| o.sha256.as_str())) else {
        let what = "already exists, with unknown origin: pass the sha256 of";
        return Err(other(path.display(), format_args!("{what} {source}, or {ELSEWHERE}")));
    };
    let bytes = request.bytes.or(origin.as_ref().map(|o| o.bytes));
    let pulled = check(path, bytes, sha256, control)?;
    if origin.is_none() {
        let origin = Origin { source, revision: None, bytes: pulled.bytes, sha256: pulled.sha256.clone() };
        // The folder may be one that only others write to.
        if let Err(e) = origin::write(path, &origin) {
            control.note(format_args!("note: its origin is not recorded: {e}"));
        }
    }
    Ok(pulled)
}

/// Checks a file that is there already.
fn check(path: &Path, bytes: Option<u64>, sha256: &str, control: &Control<'_>) -> Result<Pulled> {
    let found = std::fs::metadata(path).map_err(io(path))?.len();
    if let Some(expected) = bytes.filter(|n| *n != found) {
        return Err(other(path.display(), format_args!("expected {expected} bytes, found {found}")));
    }
    let (found, bytes) = sha256_of(path, control)?;
    if sha256 != found {
        return Err(checksum(path, sha256, &found));
    }
    Ok(Pulled { path: path.to_owned(), bytes, sha256: found, verified: true, fresh: false })
}

const ELSEWHERE: &str = "choose another directory or name";

fn taken(path: &Path, found: &str, asked: &str) -> FetchError {
    other(path.display(), format_args!("is {}, not {asked}: {ELSEWHERE}", said(found)))
}

fn checksum(path: &Path, expected: &str, found: &str) -> FetchError {
    other(path.display(), format_args!("expected sha256 {expected}, found {found}"))
}

/// A file's SHA-256 and its size in bytes.
///
/// # Errors
/// [`FetchError::Io`] for a file that cannot be read; [`FetchError::Stopped`].
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
    Err(FetchError::Stopped { from: path.display().to_string(), kept: 0 })
}

#[cfg(test)]
mod tests;
