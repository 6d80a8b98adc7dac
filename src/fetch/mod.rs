//! Fetches model files: sources on a model hub, checksums.
//!
//! A source names a file of the hub, and its last part is the file's name in the target folder. Next to each downloaded
//! file is a record of its origin ([`Origin`]). Unfinished files are in `.partial` inside the target folder, under the
//! target's name. Nothing that a server sends becomes part of a path, and files found there are not trusted. A file is
//! in place only when it is complete, its checksum was compared, and it is on the disk. A model's folder
//! ([`pull_folder`]) is in place only when all of its files are.

mod folder;
pub(crate) mod http;
mod source;
pub(crate) mod transfer;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::control::Control;
use crate::origin::{self, io, other, put, said, sha256_of, Error, Origin, Result};

pub use folder::{pull_folder, PulledFolder};
pub use source::{is_sha256, Repo, Source};

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
        /// Retries after the first try. The count resets after each MiB received.
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
/// [`Error::Stopped`]. Whatever part of the file has arrived stays if its checksum is known, and the next pull
/// of the same source into the same folder resumes from there.
pub fn pull(hub: &Hub, request: &Request<'_>, dir: &Path, control: &Control<'_>) -> Result<Pulled> {
    let name = request.name.unwrap_or(request.source.file_name());
    let path = dir.join(name);
    let pulled = put(dir, name, "part", |unfinished| {
        let (pulled, revision) = transfer::bring(hub, request, unfinished, &path, control)?;
        let (source, sha256) = (request.source.to_string(), pulled.sha256.clone());
        let revision = request.revision.map(str::to_owned).or(revision);
        let origin = Origin { source, revision, bytes: pulled.bytes, sha256 };
        Ok::<_, Error>((pulled, origin))
    })?;
    pulled.map_or_else(|| check_present(request, &path, control), Ok)
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

fn taken(path: &Path, found: &str, asked: &str) -> Error {
    other(path.display(), format_args!("is {}, not {asked}: {ELSEWHERE}", said(found)))
}

fn checksum(path: &Path, expected: &str, found: &str) -> Error {
    other(path.display(), format_args!("expected sha256 {expected}, found {found}"))
}
