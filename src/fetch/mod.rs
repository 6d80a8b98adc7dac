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

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ropewalk_core::text::hex;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::control::Control;

pub use error::FetchError;
use error::{io, other, said, Result};
pub use folder::{make_file, pull_folder, PulledFolder};
pub use origin::Origin;
use partial::{Lock, Partial};
pub use source::{check_name, is_sha256, Repo, Source};

ropewalk_core::setters! {
    /// The model hub to fetch from, and how long to wait for it. Without `Debug`: a token must not get into a log.
    #[derive(Clone, Default)]
    pub struct Hub {
        /// Address of the hub; `None` for the public hub.
        pub endpoint: Option<String>,
        /// Access token for files that are not public. It is sent to the hub alone, and only over https.
        pub token: Option<String>,
        /// Address of a proxy, `http://HOST:PORT`. Servers on this machine are asked without it.
        pub proxy: Option<String>,
        /// Times and counts.
        pub limits: Limits,
    }
}

ropewalk_core::setters! {
    /// How long to wait for a hub, and how often to try.
    #[derive(Debug, Clone)]
    pub struct Limits {
        /// For a connection.
        pub connect: Duration,
        /// For the head of an answer. Also the time over which a body must bring 256 bytes a second: less is a
        /// stalled connection, which is tried again.
        pub read: Duration,
        /// Tries after the first one. The count begins anew whenever another MiB of the file has arrived.
        pub retries: u32,
        /// Before the first retry; twice as long before each further one, up to a minute.
        pub wait: Duration,
    }
}

impl Default for Limits {
    fn default() -> Limits {
        let seconds = Duration::from_secs;
        Limits { connect: seconds(10), read: seconds(60), retries: 5, wait: seconds(1) }
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
    let Some(lock) = claim(dir, name, false)? else { return check_present(request, &path, control) };
    let unfinished = lock.unfinished("part");
    let (pulled, revision) = bring(hub, request, unfinished.clone(), &path, control)?;
    let revision = request.revision.map(str::to_owned).or(revision);
    let (source, sha256) = (request.source.to_string(), pulled.sha256.clone());
    place(&unfinished, dir, &path, &Origin { source, revision, bytes: pulled.bytes, sha256 })?;
    Ok(pulled)
}

/// Locks a name of the target folder that nothing has yet; `None` if a file, or a folder, is there.
fn claim(dir: &Path, name: &str, folder: bool) -> Result<Option<Lock>> {
    check_name(name)?;
    let path = dir.join(name);
    if is_there(&path, folder)? {
        if dir.join(partial::FOLDER).is_dir() {
            // A pull that was killed at its very end leaves its lock; taking it removes it.
            let _ = Lock::take(dir, name);
        }
        return Ok(None);
    }
    std::fs::create_dir_all(dir).map_err(io(dir))?;
    // What is in the way of the record is named now, and not when everything has arrived.
    Origin::check_place(&path)?;
    let lock = Lock::take(dir, name)?;
    // While this waited for the lock, the one who held it may have finished.
    Ok((!is_there(&path, folder)?).then_some(lock))
}

/// Returns true if a file, or a folder, is there. Anything else of that name is an error.
fn is_there(path: &Path, folder: bool) -> Result<bool> {
    if let Err(e) = path.symlink_metadata() {
        return if e.kind() == std::io::ErrorKind::NotFound { Ok(false) } else { Err(io(path)(e)) };
    }
    let found = std::fs::metadata(path).map_err(io(path))?;
    let (is, kind) = if folder { (found.is_dir(), "directory") } else { (found.is_file(), "regular file") };
    if is {
        return Ok(true);
    }
    Err(other(path.display(), format_args!("already exists and is not a {kind}")))
}

/// Brings a file that is to be at `path` into its unfinished file, which is checked and on the disk then. Also returns the
/// commit, if the hub names it.
fn bring(
    hub: &Hub,
    request: &Request<'_>,
    unfinished: PathBuf,
    path: &Path,
    control: &Control<'_>,
) -> Result<(Pulled, Option<String>)> {
    let mut partial = Partial::open(unfinished)?;
    let done = transfer::complete(hub, request, &mut partial, path, control);
    let (path, bytes) = (path.to_owned(), partial.len()?);
    partial.close(done.is_ok())?;
    let (sha256, verified, revision) = done?;
    Ok((Pulled { path, bytes, sha256, verified, fresh: true }, revision))
}

/// Puts what is complete in place, with its record: a record without a file says nothing, a file without a record would
/// be of unknown origin. What another program has put there meanwhile stays, without the record.
fn place(unfinished: &Path, dir: &Path, path: &Path, record: &impl Serialize) -> Result<()> {
    origin::write(path, record)?;
    if let Err(e) = files::rename_new(unfinished, path) {
        if e.kind() != std::io::ErrorKind::AlreadyExists {
            return Err(io(path)(e));
        }
        let _ = std::fs::remove_file(Origin::path_of(path));
        return Err(other(path.display(), "was created by another program in the meantime"));
    }
    files::sync_folder(dir).map_err(io(dir))
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
    hash(&mut files::foreign::open_file(path)?, path, control)
}

/// The same of an open file, from where it stands.
fn hash(file: &mut File, path: &Path, control: &Control<'_>) -> Result<(String, u64)> {
    let total = file.metadata().map_err(io(path))?.len();
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        if control.stopped() {
            return Err(FetchError::Stopped { from: path.display().to_string(), kept: 0 });
        }
        let n = file.read(&mut buffer).map_err(io(path))?;
        if n == 0 {
            return Ok((hex(&hash.finalize()), done));
        }
        hash.update(&buffer[..n]);
        done += n as u64;
        control.report(format_args!("checking sha256"), done, total);
    }
}

#[cfg(test)]
mod tests;
