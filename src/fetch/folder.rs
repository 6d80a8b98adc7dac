//! Fetches a model folder: the files of a repository that an import reads, as one.
//!
//! Files arrive one by one in a folder of `.partial`, under their names. That folder gets the name asked for when all of
//! them are there and checked, so what has the name is whole. All are of one commit: by the next call, what has the
//! checksum of the hub's newest listing stays, and the rest is fetched anew. Nothing else may lie in the folder. What does
//! is somebody else's: it is named and left alone, and nothing is fetched next to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ropewalk_import::TEMPLATES;
use serde::{Deserialize, Serialize};

use super::error::{other, said};
use super::origin::Origin;
use super::partial::{self, foreign, Lock};
use super::{bring, check, io, is_sha256, size, source, taken, transfer};
use super::{FetchError, Hub, Pulled, Repo, Request, Result, ELSEWHERE};
use crate::control::{Control, Progress};

/// Size limit of a hub's listing of a repository, in bytes: a few hundred for each file.
const MAX_LISTING: usize = 16 << 20;
/// Files of a repository.
const MAX_FILES: usize = 100_000;
/// Length limit of the name of a file, in bytes: with others around it, what file systems take.
const MAX_NAME: usize = 200;
/// Chat templates beside the first: as many as an import reads.
const MAX_TEMPLATES: usize = 64;
/// A record of a folder, in bytes: some two hundred for each of a thousand files.
const MAX_RECORD: u64 = 1 << 20;

/// A folder that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledFolder {
    /// Path of the directory.
    pub path: PathBuf,
    /// The commit.
    pub revision: String,
    /// Files of the directory.
    pub files: Vec<Pulled>,
    /// True if any of it was downloaded now.
    pub fresh: bool,
}

/// Where a folder came from, as written beside it in `FOLDER.source.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The source, `hf:ORG/REPO`.
    source: String,
    revision: String,
    files: Vec<File>,
}

#[derive(Debug, Serialize, Deserialize)]
struct File {
    name: String,
    bytes: u64,
    sha256: String,
    /// True if the checksum was compared with one of the hub.
    #[serde(skip)]
    verified: bool,
}

/// A hub's listing of a repository.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
}

/// Fetches what an import reads of a repository into the folder `name` of `dir`, the repository's own name if `None`:
/// config.json, weights in safetensors with their index, tokenizer, chat template and generation config. A folder that is
/// there already is checked against its record, file by file, and never replaced.
///
/// # Errors
/// Returns the errors of [`pull`](super::pull), and an error if a repository has no model that can be imported, or if its index
/// names a file that it does not have.
pub fn pull_folder(
    hub: &Hub,
    repo: &Repo,
    name: Option<&str>,
    dir: &Path,
    control: &Control<'_>,
) -> Result<PulledFolder> {
    let name = name.unwrap_or(repo.name());
    if !source::is_file_name(name) {
        return Err(FetchError::Name(name.to_owned()));
    }
    let path = dir.join(name);
    if is_there(&path)? {
        return check_present(repo, &path, control);
    }
    fs::create_dir_all(dir).map_err(io(dir))?;
    let lock = Lock::take(dir, name, repo, control)?;
    // While this waited for the lock, the one who held it may have finished.
    if is_there(&path)? {
        return check_present(repo, &path, control);
    }
    // Report what is in the way before asking for anything.
    Origin::check_place(&path)?;
    let unfinished = lock.unfinished("folder");
    contents(&unfinished)?;
    let listing = list(hub, repo, control)?;
    partial::make_folder(&unfinished, false)?;
    let templates = unfinished.join(TEMPLATES);
    let files = match fill(hub, repo, &listing, &unfinished, &path, control) {
        Ok(files) => files,
        Err(e) => {
            // Nothing arrived: nothing is left.
            let _ = fs::remove_dir(&templates);
            let _ = fs::remove_dir(&unfinished);
            return Err(e);
        }
    };
    let names: BTreeSet<&str> = files.iter().map(|f| f.name.as_str()).collect();
    for name in contents(&unfinished)?.iter().filter(|name| !names.contains(name.as_str())) {
        partial::remove(&unfinished.join(name))?; // Of a commit with other files.
    }
    if !names.iter().any(|name| ropewalk_import::template(name).is_some()) {
        let _ = fs::remove_dir(&templates);
    }
    for folder in [&templates, &unfinished].into_iter().filter(|folder| folder.is_dir()) {
        files::sync_folder(folder).map_err(io(folder))?;
    }
    let record = Record { source: repo.to_string(), revision: listing.sha, files };
    let text = serde_json::to_string_pretty(&record).unwrap_or_default() + "\n";
    // A record without a folder says nothing; a folder without a record would be of unknown origin.
    Origin::check_place(&path)?;
    lock.write(&Origin::path_of(&path), &text)?;
    if is_there(&path)? {
        return Err(io(&path)(std::io::Error::other(
            "another program created a directory there in the meantime",
        )));
    }
    fs::rename(&unfinished, &path).map_err(io(&path))?;
    files::sync_folder(dir).map_err(io(dir))?;
    let pulled = |f: File| Pulled {
        path: path.join(f.name),
        bytes: f.bytes,
        sha256: f.sha256,
        verified: f.verified,
        fresh: true,
    };
    let files = record.files.into_iter().map(pulled).collect();
    Ok(PulledFolder { path, revision: record.revision, files, fresh: true })
}

/// Paths of the files in an unfinished folder, which need not be there.
///
/// # Errors
/// Anything but files that a pull brings: another name, a link, a folder, a pipe, another user's file.
fn contents(folder: &Path) -> Result<Vec<String>> {
    let mut all = Vec::new();
    let templates = folder.join(TEMPLATES);
    for (folder, before) in [(folder, String::new()), (templates.as_path(), format!("{TEMPLATES}/"))] {
        match files::own_folder(folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            found => found.map_err(foreign(folder))?,
        }
        for entry in fs::read_dir(folder).map_err(io(folder))? {
            let path = entry.map_err(io(folder))?.path();
            if path == templates {
                continue;
            }
            let name = format!("{before}{}", path.file_name().unwrap_or_default().to_string_lossy());
            let brought = ropewalk_import::is_read(&name) || name.ends_with(".safetensors");
            if !brought || !source::is_path(&name) || all.len() == MAX_FILES {
                let what = "is in a folder of unfinished files, and no pull brings it";
                return Err(other(path.display(), format_args!("{what}; {}", partial::LEFT)));
            }
            files::own_file(&path).map_err(foreign(&path))?;
            all.push(name);
        }
    }
    Ok(all)
}

/// Returns true if there is a directory. Anything else of that name is an error.
fn is_there(path: &Path) -> Result<bool> {
    match path.symlink_metadata() {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(io(path)(e)),
        Ok(_) if path.is_dir() => Ok(true),
        Ok(_) => Err(io(path)(std::io::Error::other("already exists and is not a directory"))),
    }
}

/// Checks a folder that is there already against its record.
fn check_present(repo: &Repo, path: &Path, control: &Control<'_>) -> Result<PulledFolder> {
    let at = Origin::path_of(path);
    let asked = repo.to_string();
    let Some(text) = partial::read(&at, MAX_RECORD)? else {
        let what = format!("already exists, and no record says that it is {asked}: {ELSEWHERE}");
        return Err(other(path.display(), what));
    };
    let bad = |what: String| other(at.display(), what);
    let record: Record = serde_json::from_str(&text)
        .map_err(|e| bad(format!("expected the record of a pulled folder: {}", said(&e.to_string()))))?;
    if record.source != asked {
        return Err(taken(path, &record.source, &asked));
    }
    let mut files = Vec::new();
    for file in &record.files {
        if !source::is_path(&file.name) {
            return Err(bad(format!("expected names of files, found '{}'", said(&file.name))));
        }
        let path = path.join(&file.name);
        let found = fs::metadata(&path).map_err(io(&path))?.len();
        if found != file.bytes {
            return Err(size(&path, file.bytes, found));
        }
        let source = repo.file(&file.name);
        let show = |p: &Progress<'_>| {
            control.report(format_args!("{}: {}", file.name, p.what), p.done, p.total);
        };
        let control = control.with_progress(&show);
        files.push(check(&source, &path, &file.sha256, &control)?);
    }
    Ok(PulledFolder { path: path.to_owned(), revision: record.revision, files, fresh: false })
}

/// Asks the hub which commit is the newest, and which files it has.
fn list(hub: &Hub, repo: &Repo, control: &Control<'_>) -> Result<Listing> {
    let body = transfer::listing(hub, repo, MAX_LISTING, control)?;
    let remote = |what: String| other(repo, what);
    let listing: Listing = serde_json::from_slice(&body).map_err(|e| {
        remote(format!("expected a list of files, found something else: {}", said(&e.to_string())))
    })?;
    let hexadecimal = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    if !(7..=64).contains(&listing.sha.len()) || !listing.sha.chars().all(hexadecimal) {
        return Err(remote("its list of files names no commit".into()));
    }
    if listing.siblings.len() > MAX_FILES {
        return Err(remote(format!("has {} files, expected at most {MAX_FILES}", listing.siblings.len())));
    }
    Ok(listing)
}

/// Brings all files into the unfinished folder: first the small ones, whose index says which the others are.
fn fill(
    hub: &Hub,
    repo: &Repo,
    listing: &Listing,
    unfinished: &Path,
    path: &Path,
    control: &Control<'_>,
) -> Result<Vec<File>> {
    let no_model = |what: String| other(repo, what);
    // Nothing that lies in a folder of the repository, but for templates, or has a name that could be a path, is looked at.
    let sound = |s: &&Sibling| s.rfilename.len() <= MAX_NAME && source::is_path(&s.rfilename);
    let all: Vec<&Sibling> = listing.siblings.iter().filter(sound).collect();
    let names = || all.iter().map(|s| s.rfilename.as_str());
    let has = |end: &str| names().any(|n| n.ends_with(end));
    if !names().any(|n| n == "config.json") || !has(".safetensors") {
        let mut what = "expected config.json and weights in safetensors".to_owned();
        let gguf: Vec<String> =
            names().filter(|n| n.ends_with(".gguf")).map(|n| format!("{repo}/{n}")).collect();
        if !gguf.is_empty() {
            let gguf = said(&gguf.join(" "));
            what = format!("{what}; it has GGUF files, of which one can be pulled: {gguf}");
        }
        return Err(no_model(what));
    }
    let small: Vec<&Sibling> =
        all.iter().copied().filter(|s| ropewalk_import::is_read(&s.rfilename)).collect();
    let n_templates = small.iter().filter(|s| ropewalk_import::template(&s.rfilename).is_some()).count();
    if n_templates > MAX_TEMPLATES {
        return Err(no_model(format!(
            "expected at most {MAX_TEMPLATES} chat templates, found {n_templates}"
        )));
    }
    if n_templates > 0 {
        partial::make_folder(&unfinished.join(TEMPLATES), false)?;
    }
    let mut files = each(hub, repo, &listing.sha, &small, unfinished, path, control)?;
    let weights = ropewalk_import::weights(unfinished, names()).map_err(|e| {
        // The folder has a name that says nothing to the user.
        let what = e.to_string().replace(&format!("{}: ", unfinished.display()), "");
        no_model(said(&what.replace(&format!("{}{}", unfinished.display(), std::path::MAIN_SEPARATOR), "")))
    })?;
    let weights: BTreeSet<&str> = weights.iter().map(String::as_str).collect();
    let weights: Vec<&Sibling> =
        all.iter().copied().filter(|s| weights.contains(s.rfilename.as_str())).collect();
    let missing = |s: &&Sibling| {
        let here = fs::metadata(unfinished.join(&s.rfilename)).map_or(0, |m| m.len());
        s.size.unwrap_or_default().saturating_sub(here)
    };
    transfer::check_space(unfinished, weights.iter().map(missing).fold(0, u64::saturating_add))?;
    files.extend(each(hub, repo, &listing.sha, &weights, unfinished, path, control)?);
    Ok(files)
}

/// Brings files of one commit into the unfinished folder; `path` is where it is to be.
fn each(
    hub: &Hub,
    repo: &Repo,
    revision: &str,
    wanted: &[&Sibling],
    unfinished: &Path,
    path: &Path,
    control: &Control<'_>,
) -> Result<Vec<File>> {
    let mut files = Vec::new();
    for sibling in wanted {
        let name = &sibling.rfilename;
        let source = repo.file(name);
        let sha256 = sibling.lfs.as_ref().and_then(|l| l.sha256.as_deref()).filter(|s| is_sha256(s));
        let request =
            Request { sha256, bytes: sibling.size, revision: Some(revision), ..Request::new(&source) };
        let at = unfinished.join(name);
        if sha256.is_none() {
            // Of another commit, perhaps, and nothing would tell.
            partial::remove(&at)?;
        }
        let show = |p: &Progress<'_>| control.report(format_args!("{name}: {}", p.what), p.done, p.total);
        let (pulled, _) = bring(hub, &request, at, &path.join(name), &control.with_progress(&show))?;
        let Pulled { bytes, sha256, verified, .. } = pulled;
        files.push(File { name: name.clone(), bytes, sha256, verified });
    }
    Ok(files)
}

/// Writes the record of a file that was made from a repository, so that it is found by that name.
///
/// # Errors
/// A file that cannot be read, or a record that cannot be written.
pub fn record(path: &Path, repo: &Repo, revision: &str, control: &Control<'_>) -> Result<()> {
    let source = repo.to_string();
    let Some((sha256, bytes)) = super::sha256_of(path, control)? else {
        return Err(FetchError::Stopped { from: source, kept: 0 });
    };
    let (dir, name) = (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default());
    let name = name.to_string_lossy();
    let lock = Lock::take(dir, &name, repo, control)?;
    Origin { source, revision: Some(revision.to_owned()), bytes, sha256 }.write(path, &lock)
}
