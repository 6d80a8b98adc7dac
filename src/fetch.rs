//! Fetches model files: the manifest of known models, sources on a model hub, checksums.
//!
//! The transfer is crate hf-hub's. Its unfinished files are in `.partial` inside the target folder, so that a
//! pull that was cut off is resumed and the last step is a rename inside one file system. A file is in place
//! only when it is complete and its checksum was compared.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use hf_hub::api::sync::{ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::control::Control;

/// An error of fetching a file, in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// A manifest is malformed.
    #[error("manifest {origin}: {what}")]
    Manifest {
        /// Name of the manifest.
        origin: String,
        /// The entry, its key, the value expected and the value found.
        what: String,
    },
    /// The text is not a source.
    #[error("source '{0}': expected hf:ORG/REPO/FILE")]
    Source(String),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The hub refused, or cannot be reached.
    #[error("{from}: {what}")]
    Remote {
        /// The source asked for.
        from: String,
        /// The hub's answer, or the error of the connection.
        what: String,
    },
    /// The file has another checksum than expected.
    #[error("{}: expected sha256 {expected}, found {found}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The checksum expected.
        expected: String,
        /// The checksum found.
        found: String,
    },
}
type Result<T, E = FetchError> = std::result::Result<T, E>;

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> FetchError + '_ {
    move |source| FetchError::Io { path: path.to_owned(), source }
}

/// A file of a model hub: `hf:ORG/REPO/FILE`, where FILE may lie in folders of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// `ORG/REPO`.
    pub repo: String,
    /// Path in the repository.
    pub file: String,
}
impl FromStr for Source {
    type Err = FetchError;
    fn from_str(text: &str) -> Result<Self> {
        let bad = || FetchError::Source(text.to_owned());
        let rest = text.strip_prefix("hf:").ok_or_else(bad)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-+=,@".contains(c);
        let parts: Vec<&str> = rest.split('/').collect();
        let sound = |p: &&str| !p.is_empty() && !p.starts_with('.') && p.chars().all(plain);
        match parts.as_slice() {
            [org, repo, file @ ..] if !file.is_empty() && parts.iter().all(sound) => {
                Ok(Source { repo: format!("{org}/{repo}"), file: file.join("/") })
            }
            _ => Err(bad()),
        }
    }
}
impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hf:{}/{}", self.repo, self.file)
    }
}
impl Source {
    /// The name of the file in the target folder.
    pub fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(&self.file)
    }

    /// All parts of a split model when this is its first part (`NAME-00001-of-0000N.gguf`), else this source
    /// alone.
    pub fn parts(&self) -> Vec<Source> {
        let split = || {
            let (stem, total) = self.file.strip_suffix(".gguf")?.rsplit_once("-00001-of-")?;
            let n: u32 = total.parse().ok().filter(|&n| total.len() == 5 && n > 0)?;
            Some(
                (1..=n)
                    .map(|i| Source {
                        repo: self.repo.clone(),
                        file: format!("{stem}-{i:05}-of-{n:05}.gguf"),
                    })
                    .collect(),
            )
        };
        split().unwrap_or_else(|| vec![self.clone()])
    }
}

/// A model of the manifest.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name that a user types.
    pub name: String,
    /// Other names for it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The source, `hf:ORG/REPO/FILE`.
    pub source: String,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SPDX identifier or name of the licence.
    pub licence: String,
    /// Notes for a reader of the list.
    #[serde(default)]
    pub notes: String,
}
impl Entry {
    /// The name of the file in the target folder.
    pub fn file_name(&self) -> &str {
        self.source.rsplit('/').next().unwrap_or(&self.source)
    }
}

/// The list of known models.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The models, in the order of the file.
    #[serde(default, rename = "model")]
    pub models: Vec<Entry>,
}
impl Manifest {
    /// The manifest compiled into the program, `models/manifest.toml`.
    pub fn builtin() -> Result<Manifest> {
        Manifest::parse(include_str!("../models/manifest.toml"), "models/manifest.toml")
    }

    /// Reads and checks a manifest; `origin` names it in errors.
    ///
    /// # Errors
    /// [`FetchError::Manifest`] for a text that is not TOML, an unknown or missing key, a bad source or
    /// checksum, or a name that is there twice.
    pub fn parse(text: &str, origin: &str) -> Result<Manifest> {
        let fail = |what: String| FetchError::Manifest { origin: origin.to_owned(), what };
        let manifest: Manifest = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(0, |s| text[..s.start].matches('\n').count() + 1);
            fail(format!("line {line}: {}", e.message()))
        })?;
        let mut seen = std::collections::HashSet::new();
        for entry in &manifest.models {
            entry.source.parse::<Source>().map_err(|e| fail(format!("{}: {e}", entry.name)))?;
            if !is_sha256(&entry.sha256) {
                let what = "sha256: expected 64 lower-case hexadecimal digits, found";
                return Err(fail(format!("{}: {what} '{}'", entry.name, entry.sha256)));
            }
            for name in std::iter::once(&entry.name).chain(&entry.aliases) {
                if name.is_empty() || !seen.insert(name) {
                    return Err(fail(format!("name '{name}': empty, or there twice")));
                }
            }
        }
        Ok(manifest)
    }

    /// The entry with this name or alias.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.models.iter().find(|m| m.name == name || m.aliases.iter().any(|a| a == name))
    }
}

/// Whether a text is a SHA-256 as this module writes it: 64 lower-case hexadecimal digits.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The model hub to fetch from.
#[derive(Debug, Clone)]
pub struct Hub {
    /// Address of the hub; `None` for hf-hub's default.
    pub endpoint: Option<String>,
    /// Access token for files that are not public.
    pub token: Option<String>,
}

/// A file that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// Its path.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256.
    pub sha256: String,
    /// Whether its checksum was compared with one known before.
    pub verified: bool,
    /// Whether it was downloaded now; false when it was there already.
    pub fresh: bool,
}

/// Fetches one file into `dir`. A file that is there already is only checked, and never replaced. Its
/// checksum must be `sha256`; when that is `None`, the one recorded beside the file or the one that the hub
/// gives, if there is any.
///
/// # Errors
/// A file that cannot be written, a hub that refuses or cannot be reached, another checksum than expected.
pub fn pull(
    hub: &Hub,
    source: &Source,
    dir: &Path,
    sha256: Option<&str>,
    control: &Control<'_>,
) -> Result<Pulled> {
    std::fs::create_dir_all(dir).map_err(io(dir))?;
    let path = dir.join(source.file_name());
    let record = dir.join(format!("{}.sha256", source.file_name()));
    if path.exists() {
        let recorded = std::fs::read_to_string(&record).ok();
        let recorded = recorded.as_deref().and_then(|r| r.split_whitespace().next()).filter(|r| is_sha256(r));
        return check(path, sha256.or(recorded), false, control);
    }
    let partial = dir.join(".partial");
    let blob = download(hub, source, &partial, control)?;
    // For large files the hub's own name of the content is its sha256.
    let etag = blob.file_name().and_then(|n| n.to_str()).filter(|n| is_sha256(n)).map(str::to_owned);
    let pulled = match check(blob.clone(), sha256.or(etag.as_deref()), true, control) {
        Ok(pulled) => pulled,
        Err(e) => {
            // The download is not the file asked for; it would fail again.
            let _ = std::fs::remove_file(&blob);
            return Err(match e {
                FetchError::Checksum { expected, found, .. } => {
                    FetchError::Checksum { path, expected, found }
                }
                other => other,
            });
        }
    };
    let line = format!("{}  {}\n", pulled.sha256, source.file_name());
    std::fs::write(&record, line).map_err(io(&record))?;
    std::fs::File::open(&blob).and_then(|f| f.sync_all()).map_err(io(&blob))?;
    std::fs::rename(&blob, &path).map_err(io(&path))?;
    let repo = Repo::new(source.repo.clone(), RepoType::Model).folder_name();
    let _ = std::fs::remove_dir_all(partial.join(repo));
    let _ = std::fs::remove_dir(&partial);
    Ok(Pulled { path, ..pulled })
}

/// Computes a file's SHA-256 and compares it with the one expected.
fn check(path: PathBuf, expected: Option<&str>, fresh: bool, control: &Control<'_>) -> Result<Pulled> {
    let (found, bytes) = sha256_of(&path, control)?;
    match expected {
        Some(e) if e != found => Err(FetchError::Checksum { path, expected: e.to_owned(), found }),
        _ => Ok(Pulled { path, bytes, sha256: found, verified: expected.is_some(), fresh }),
    }
}

/// A file's SHA-256 and its size in bytes.
///
/// # Errors
/// [`FetchError::Io`] for a file that cannot be read.
pub fn sha256_of(path: &Path, control: &Control<'_>) -> Result<(String, u64)> {
    let mut file = std::fs::File::open(path).map_err(io(path))?;
    let total = file.metadata().map_err(io(path))?.len();
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        let n = file.read(&mut buffer).map_err(io(path))?;
        if n == 0 {
            break;
        }
        hash.update(&buffer[..n]);
        done += n as u64;
        control.report(format_args!("checking sha256"), done, total);
    }
    Ok((hash.finalize().iter().map(|b| format!("{b:02x}")).collect(), done))
}

/// Passes hf-hub's progress to a [`Control`].
struct Relay<'a> {
    control: &'a Control<'a>,
    done: u64,
    total: u64,
    /// Reads that brought bytes. The first report is not counted: it is what an earlier try had downloaded.
    reads: &'a mut u64,
    resumed: bool,
}
impl hf_hub::api::Progress for Relay<'_> {
    fn init(&mut self, size: usize, _filename: &str) {
        (self.total, self.done, self.resumed) = (size as u64, 0, false);
    }
    fn update(&mut self, size: usize) {
        self.done += size as u64;
        *self.reads += u64::from(self.resumed && size > 0);
        self.resumed = true;
        self.control.report(format_args!("downloading"), self.done, self.total);
    }
    fn finish(&mut self) {}
}

/// Downloads into hf-hub's cache at `cache` and returns the path of the content.
fn download(hub: &Hub, source: &Source, cache: &Path, control: &Control<'_>) -> Result<PathBuf> {
    let remote = |what: String| FetchError::Remote { from: source.to_string(), what };
    // hf-hub makes symbolic links, which need an absolute path.
    std::fs::create_dir_all(cache).map_err(io(cache))?;
    let cache = cache.canonicalize().map_err(io(cache))?;
    let mut builder = ApiBuilder::from_cache(Cache::new(cache.clone())).with_token(hub.token.clone());
    if let Some(endpoint) = &hub.endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    let repo = Repo::new(source.repo.clone(), RepoType::Model);
    let blobs = cache.join(repo.folder_name()).join("blobs");
    let api = builder.build().map_err(|e| remote(e.to_string()))?.repo(repo);
    let mut cleaned = false;
    loop {
        let mut reads = 0;
        let relay = Relay { control, done: 0, total: 0, reads: &mut reads, resumed: false };
        // hf-hub's own retries restart an append at byte 0, so each try here is a call of its own.
        match api.download_with_progress(&source.file, relay) {
            Ok(link) => return link.canonicalize().map_err(io(&link)),
            Err(e) => match explain(e) {
                Failure::BadPartial if !cleaned => {
                    cleaned = true;
                    remove_partials(&blobs)?;
                }
                Failure::BadPartial => return Err(remote("the unfinished file does not fit".to_owned())),
                Failure::Dropped(_) if reads > 0 => std::thread::sleep(Duration::from_secs(1)),
                Failure::Dropped(what) | Failure::Refused(what) => return Err(remote(what)),
            },
        }
    }
}

enum Failure {
    /// The unfinished file of an earlier pull is longer than the file.
    BadPartial,
    /// The connection failed; another try may help when bytes had arrived.
    Dropped(String),
    /// The hub refused.
    Refused(String),
}

fn explain(e: ApiError) -> Failure {
    match e {
        ApiError::InvalidResume => Failure::BadPartial,
        ApiError::IoError(e) if e.kind() == std::io::ErrorKind::StorageFull => {
            Failure::Refused(e.to_string())
        }
        ApiError::IoError(e) => Failure::Dropped(e.to_string()),
        ApiError::LockAcquisition(_) => Failure::Refused("another pull of this file is under way".to_owned()),
        ApiError::RequestError(e) => {
            let text = e.to_string();
            match e.into_response().map(|r| r.status()) {
                Some(404) => Failure::Refused("not found".to_owned()),
                Some(401 | 403) => {
                    Failure::Refused("not public: set HF_TOKEN to a token that may read it".to_owned())
                }
                Some(416) => Failure::BadPartial,
                Some(_) => Failure::Refused(text),
                None => Failure::Dropped(text),
            }
        }
        other => Failure::Refused(other.to_string()),
    }
}

fn remove_partials(blobs: &Path) -> Result<()> {
    for entry in std::fs::read_dir(blobs).map_err(io(blobs))?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "part") {
            std::fs::remove_file(&path).map_err(io(&path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "fetch_tests.rs"]
mod tests;
