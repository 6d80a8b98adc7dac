//! Fetches a model folder: the files of a repository that an import reads, as one.
//!
//! Files arrive one by one in a folder of `.partial`, each as any file that is pulled. That folder gets the name asked for
//! when all of them are there and checked, so what has the name is whole. All are of one commit: if the hub has another
//! by the next call, what is the same in both stays and the rest is fetched anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ropewalk_import::TEMPLATES;
use serde::{Deserialize, Serialize};

use super::contents::Contents;
use super::origin::Origin;
use super::partial::{self, Lock};
use super::{check, io, is_sha256, pull, source, transfer, FetchError, Hub, Pulled, Repo, Request, Result};
use crate::control::{Control, Progress};

/// Size limit of a hub's listing of a repository, in bytes: a few hundred for each file.
const MAX_LISTING: usize = 16 << 20;
/// Files of a repository.
const MAX_FILES: usize = 100_000;
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
/// Returns the errors of [`pull`], and an error if a repository has no model that can be imported, or if its index
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
    let _lock = Lock::take(dir, name, repo, control)?;
    // While this waited for the lock, the one who held it may have finished.
    if is_there(&path)? {
        return check_present(repo, &path, control);
    }
    // Report what is in the way before asking for anything.
    Origin::check_place(&path)?;
    let mut contents = Contents::open(dir, name, repo)?;
    let listing = list(hub, repo, dir, control)?;
    contents.make()?;
    let done = fill(hub, repo, &listing, &mut contents, control);
    let files = match done {
        Ok(files) => files,
        Err(e) => {
            // Nothing arrived: nothing is left.
            let _ = fs::remove_dir(contents.folder.join(TEMPLATES));
            if fs::remove_dir(&contents.folder).is_ok() {
                let _ = contents.forget();
            }
            return Err(e);
        }
    };
    let paths: Vec<String> = files.iter().map(|f| path_in(&contents.folder, f)).collect();
    contents.keep_only(&paths.iter().map(String::as_str).collect())?;
    let file =
        |(f, name): (&Pulled, &String)| File { name: name.clone(), bytes: f.bytes, sha256: f.sha256.clone() };
    let record = Record {
        source: repo.to_string(),
        revision: listing.sha.clone(),
        files: files.iter().zip(&paths).map(file).collect(),
    };
    let text = serde_json::to_string_pretty(&record).unwrap_or_default() + "\n";
    // A record without a folder says nothing; a folder without a record would be of unknown origin.
    Origin::check_place(&path)?;
    partial::write(&partial::fresh(dir, name, repo), &Origin::path_of(&path), &text)?;
    if is_there(&path)? {
        return Err(io(&path)(std::io::Error::other(
            "another program created a directory there in the meantime",
        )));
    }
    let unfinished = &contents.folder;
    let templates = unfinished.join(TEMPLATES);
    for folder in [Some(&templates).filter(|folder| folder.is_dir()), Some(unfinished)].into_iter().flatten()
    {
        files::sync_folder(folder).map_err(io(folder))?;
    }
    fs::rename(unfinished, &path).map_err(io(&path))?;
    files::sync_folder(dir).map_err(io(dir))?;
    contents.forget()?;
    let files: Vec<Pulled> =
        files.into_iter().zip(paths).map(|(f, name)| Pulled { path: path.join(name), ..f }).collect();
    // The folder's own record has what is in those of its files.
    for file in &files {
        let _ = fs::remove_file(Origin::path_of(&file.path));
    }
    Ok(PulledFolder { path, revision: listing.sha, files, fresh: true })
}

/// The path of a file in its folder, as the repository has it.
fn path_in(folder: &Path, file: &Pulled) -> String {
    let path = file.path.strip_prefix(folder).unwrap_or(&file.path);
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    parts.join("/")
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
        return Err(FetchError::Unrecorded { path: path.to_owned(), asked });
    };
    let bad = |what: String| FetchError::Record { path: at.clone(), what };
    let record: Record = serde_json::from_str(&text)
        .map_err(|e| bad(format!("expected the record of a pulled folder: {e}")))?;
    if record.source != asked {
        return Err(FetchError::Taken { path: path.to_owned(), found: record.source, asked });
    }
    let mut files = Vec::new();
    for file in &record.files {
        if !source::is_path(&file.name) {
            return Err(bad(format!("expected names of files, found '{}'", file.name.escape_debug())));
        }
        let path = path.join(&file.name);
        let found = fs::metadata(&path).map_err(io(&path))?.len();
        if found != file.bytes {
            return Err(FetchError::Size { path, expected: file.bytes, found });
        }
        let source = repo.file(&file.name);
        let part = Part { name: &file.name, control };
        let show = |p: &Progress<'_>| part.report(p);
        let control = control.with_progress(&show);
        files.push(check(&Request::new(&source), &path, Some(&file.sha256), false, &control)?);
    }
    Ok(PulledFolder { path: path.to_owned(), revision: record.revision, files, fresh: false })
}

/// Progress of one of several files.
struct Part<'a> {
    name: &'a str,
    control: &'a Control<'a>,
}
impl Part<'_> {
    fn report(&self, p: &Progress<'_>) {
        self.control.report(format_args!("{}: {}", self.name, p.what), p.done, p.total);
    }
}

/// Asks the hub which commit is the newest, and which files it has.
fn list(hub: &Hub, repo: &Repo, dir: &Path, control: &Control<'_>) -> Result<Listing> {
    let body = transfer::listing(hub, repo, dir, MAX_LISTING, control)?;
    let remote = |what: String| FetchError::Remote { from: repo.to_string(), what };
    let listing: Listing = serde_json::from_slice(&body)
        .map_err(|e| remote(format!("expected a list of files, found something else: {e}")))?;
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
    contents: &mut Contents,
    control: &Control<'_>,
) -> Result<Vec<Pulled>> {
    let no_model = |what: String| FetchError::NoModel { from: repo.to_string(), what };
    // Nothing that lies in a folder of the repository, but for templates, or has a name that could be a path, is looked at.
    let all: Vec<&Sibling> = listing.siblings.iter().filter(|s| source::is_path(&s.rfilename)).collect();
    let names = || all.iter().map(|s| s.rfilename.as_str());
    let has = |end: &str| names().any(|n| n.ends_with(end));
    if !names().any(|n| n == "config.json") || !has(".safetensors") {
        let mut what = "expected config.json and weights in safetensors".to_owned();
        let gguf: Vec<String> =
            names().filter(|n| n.ends_with(".gguf")).map(|n| format!("{repo}/{n}")).collect();
        if !gguf.is_empty() {
            what = format!("{what}; it has GGUF files, of which one can be pulled: {}", gguf.join(" "));
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
    contents.add(small.iter().map(|s| s.rfilename.as_str()))?;
    let folder = contents.folder.clone();
    let folder = folder.as_path();
    if n_templates > 0 {
        partial::make_folder(&folder.join(TEMPLATES), false)?;
    }
    let mut files = each(hub, repo, &listing.sha, &small, folder, control)?;
    let weights = ropewalk_import::weights(folder, names()).map_err(|e| {
        // The folder has a name that says nothing to the user.
        no_model(
            e.to_string()
                .replace(&format!("{}: ", folder.display()), "")
                .replace(&format!("{}{}", folder.display(), std::path::MAIN_SEPARATOR), ""),
        )
    })?;
    let weights: BTreeSet<&str> = weights.iter().map(String::as_str).collect();
    let weights: Vec<&Sibling> =
        all.iter().copied().filter(|s| weights.contains(s.rfilename.as_str())).collect();
    contents.add(weights.iter().map(|s| s.rfilename.as_str()))?;
    let missing = |s: &&Sibling| !folder.join(&s.rfilename).exists();
    let needed = weights.iter().copied().filter(missing).filter_map(|s| s.size).fold(0, u64::saturating_add);
    let here = partial::bytes(folder);
    transfer::check_space(folder, needed.saturating_sub(here))?;
    files.extend(each(hub, repo, &listing.sha, &weights, folder, control)?);
    Ok(files)
}

/// Fetches files of one commit, or finds that they are here from an earlier call.
fn each(
    hub: &Hub,
    repo: &Repo,
    revision: &str,
    wanted: &[&Sibling],
    folder: &Path,
    control: &Control<'_>,
) -> Result<Vec<Pulled>> {
    let mut files = Vec::new();
    for sibling in wanted {
        let source = repo.file(&sibling.rfilename);
        let sha256 = sibling.lfs.as_ref().and_then(|l| l.sha256.as_deref()).filter(|s| is_sha256(s));
        let request =
            Request { sha256, bytes: sibling.size, revision: Some(revision), ..Request::new(&source) };
        let path = folder.join(&sibling.rfilename);
        let folder = path.parent().unwrap_or(folder);
        let part = Part { name: &sibling.rfilename, control };
        let show = |p: &Progress<'_>| part.report(p);
        let control = control.with_progress(&show);
        if path.exists() {
            let same = |o: &Origin| match sha256 {
                Some(sha256) => o.sha256 == sha256,
                None => o.revision.as_deref() == Some(revision),
            };
            // Damaged, or of another commit.
            let kept = Origin::read(&path).ok().flatten().filter(same);
            match kept.map(|_| pull(hub, &request, folder, &control)) {
                Some(Ok(pulled)) => {
                    files.push(pulled);
                    continue;
                }
                None | Some(Err(FetchError::Checksum { .. } | FetchError::Size { .. })) => {}
                Some(Err(e)) => return Err(e),
            }
            control.note(format_args!("{source}: the copy here does not match: downloading it again"));
            partial::remove(&path)?;
            partial::remove(&Origin::path_of(&path))?;
        }
        files.push(pull(hub, &request, folder, &control)?);
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
    let _lock = Lock::take(dir, &name, repo, control)?;
    let origin = Origin { source, revision: Some(revision.to_owned()), bytes, sha256 };
    origin.write(path, &partial::fresh(dir, &name, repo))
}
