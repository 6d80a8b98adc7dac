//! Fetches a model folder: the files of a repository that an import reads, as a unit.
//!
//! Files are downloaded one by one to a folder in `.partial`, under their names. The folder gets its final name when
//! all files are there and checked, so a folder of that name is complete. All files are of one commit: the next call
//! keeps those with the checksum of the hub's newest listing, and downloads the others again. No other file can be in
//! the folder. If there is one, the error names it; it is kept, and nothing is downloaded next to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ropewalk_import::{is_read, TEMPLATES};
use serde::{Deserialize, Serialize};

use super::{check, is_sha256, source, taken, transfer, Hub, Pulled, Repo, Request, Source, ELSEWHERE};
use crate::control::{Control, Progress};
use crate::origin::{self, io, other, partial, put, said, Error, Origin, Result};

/// Chat templates of a repository, at most: as many as an import reads.
const MAX_TEMPLATES: usize = 64;

/// A folder that is in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledFolder {
    /// Path of the directory.
    pub path: PathBuf,
    /// The commit.
    pub revision: String,
    /// Files of the directory.
    pub files: Vec<Pulled>,
}

/// Where a folder came from, as written next to it in `FOLDER.source.json`.
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
    let path = dir.join(name);
    let folder = put(dir, name, "folder", |unfinished| {
        // Report what is in the way before asking for anything.
        contents(unfinished)?;
        let listing = list(hub, repo, control)?;
        let filled = fill(hub, repo, &listing, unfinished, &path, control);
        let templates = unfinished.join(TEMPLATES);
        let folders = [templates.as_path(), unfinished];
        // Those without files go.
        folders.iter().for_each(|folder| drop(fs::remove_dir(folder)));
        let filled = filled?;
        for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
            files::sync_folder(folder).map_err(io(folder))?;
        }
        let recorded = |(name, p): &(String, Pulled)| File {
            name: name.clone(),
            bytes: p.bytes,
            sha256: p.sha256.clone(),
        };
        let (source, revision) = (repo.to_string(), listing.sha.clone());
        let record = Record { source, revision, files: filled.iter().map(recorded).collect() };
        let files = filled.into_iter().map(|(_, pulled)| pulled).collect();
        Ok::<_, Error>((PulledFolder { path: path.clone(), revision: listing.sha, files }, record))
    })?;
    folder.map_or_else(|| check_present(repo, &path, control), Ok)
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
            found => found.map_err(io(folder))?,
        }
        for entry in fs::read_dir(folder).map_err(io(folder))? {
            let path = entry.map_err(io(folder))?.path();
            if path == templates {
                continue;
            }
            let name = format!("{before}{}", path.file_name().unwrap_or_default().to_string_lossy());
            if !(is_read(&name) || name.ends_with(".safetensors")) || !source::is_path(&name) {
                let what = "is in a folder of unfinished files, and no pull brings it: remove it";
                return Err(other(path.display(), what));
            }
            files::own_file(&path).map_err(io(&path))?;
            all.push(name);
        }
    }
    Ok(all)
}

/// Checks a folder that is there already against its record.
fn check_present(repo: &Repo, path: &Path, control: &Control<'_>) -> Result<PulledFolder> {
    let asked = repo.to_string();
    let Some(record) = origin::read::<Record>(path, "a pulled folder")? else {
        let what = "already exists, and no record says that it is";
        return Err(other(path.display(), format_args!("{what} {asked}: {ELSEWHERE}")));
    };
    if record.source != asked {
        return Err(taken(path, &record.source, &asked));
    }
    let mut files = Vec::new();
    for File { name, bytes, sha256 } in &record.files {
        if !source::is_path(name) {
            let what = format!("expected names of files, found '{}'", said(name));
            return Err(other(Origin::path_of(path).display(), what));
        }
        let show = |p: &Progress<'_>| control.report(format_args!("{name}: {}", p.what), p.done, p.total);
        files.push(check(&path.join(name), Some(*bytes), sha256, &control.with_progress(&show))?);
    }
    Ok(PulledFolder { path: path.to_owned(), revision: record.revision, files })
}

/// Asks the hub which commit is the newest, and which files it has.
fn list(hub: &Hub, repo: &Repo, control: &Control<'_>) -> Result<Listing> {
    let body = transfer::listing(hub, repo, control)?;
    let mut listing: Listing = serde_json::from_slice(&body).map_err(|e| {
        let e = said(&e.to_string());
        other(repo, format_args!("expected a list of files, found something else: {e}"))
    })?;
    if !(7..=64).contains(&listing.sha.len()) || !source::is_hex(&listing.sha) {
        return Err(other(repo, "its list of files names no commit"));
    }
    let mut seen = BTreeSet::new();
    listing.siblings.retain(|s| seen.insert(s.rfilename.clone()));
    Ok(listing)
}

/// Brings all files into the unfinished folder, and removes others: first the small ones, whose index says which the
/// others are. Returns their names, and what they will be at `path`.
fn fill(
    hub: &Hub,
    repo: &Repo,
    listing: &Listing,
    unfinished: &Path,
    path: &Path,
    control: &Control<'_>,
) -> Result<Vec<(String, Pulled)>> {
    // Nothing that lies in a folder of the repository, but for templates, or has a name that could be a path, is looked at.
    let all: Vec<&Sibling> = listing.siblings.iter().filter(|s| source::is_path(&s.rfilename)).collect();
    let names = || all.iter().map(|s| s.rfilename.as_str());
    if !names().any(|n| n == "config.json") || !names().any(|n| n.ends_with(".safetensors")) {
        let mut what = "expected config.json and weights in safetensors".to_owned();
        let gguf: Vec<String> =
            names().filter(|n| n.ends_with(".gguf")).map(|n| format!("{repo}/{n}")).collect();
        if !gguf.is_empty() {
            what += &format!("; it has GGUF files, of which one can be pulled: {}", said(&gguf.join(" ")));
        }
        return Err(other(repo, what));
    }
    let n_templates = names().filter(|n| ropewalk_import::template(n).is_some()).count();
    if n_templates > MAX_TEMPLATES {
        let what = format_args!("expected at most {MAX_TEMPLATES} chat templates, found {n_templates}");
        return Err(other(repo, what));
    }
    partial::make_folder(unfinished, 0o777)?;
    partial::make_folder(&unfinished.join(TEMPLATES), 0o777)?;
    // What is of a commit with other files is removed; an index would be read.
    let keep = |wanted: &dyn Fn(&str) -> bool| -> Result<()> {
        contents(unfinished)?
            .iter()
            .filter(|n| !wanted(n))
            .try_for_each(|n| partial::remove(&unfinished.join(n)))
    };
    keep(&|name: &str| names().any(|n| n == name))?;
    let mut filled = Vec::new();
    let mut each = |wanted: &dyn Fn(&str) -> bool| -> Result<()> {
        for sibling in all.iter().filter(|s| wanted(&s.rfilename)) {
            let name = &sibling.rfilename;
            let source = Source { repo: repo.id().to_owned(), file: name.clone() };
            let sha256 = sibling.lfs.as_ref().and_then(|l| l.sha256.as_deref()).filter(|s| is_sha256(s));
            let (bytes, revision) = (sibling.size, Some(&*listing.sha));
            let request = Request { sha256, bytes, revision, ..Request::new(&source) };
            let at = unfinished.join(name);
            if sha256.is_none() {
                // Of another commit, perhaps, and nothing would tell.
                partial::remove(&at)?;
            }
            let show = |p: &Progress<'_>| control.report(format_args!("{name}: {}", p.what), p.done, p.total);
            let control = control.with_progress(&show);
            let (pulled, _) = transfer::bring(hub, &request, &at, &path.join(name), &control)?;
            filled.push((name.clone(), pulled));
        }
        Ok(())
    };
    each(&is_read)?;
    let weights = ropewalk_import::weights(unfinished, names()).map_err(|e| {
        let what = e.to_string().replace(&unfinished.display().to_string(), "");
        other(repo, said(what.trim_start_matches([':', ' ', '/', '\\'])))
    })?;
    let weights: BTreeSet<String> = weights.into_iter().collect();
    keep(&|name: &str| is_read(name) || weights.contains(name))?;
    // All of them, before the first has filled the disk.
    let missing = |s: &Sibling| {
        let here = fs::metadata(unfinished.join(&s.rfilename)).map_or(0, |m| m.len());
        s.size.unwrap_or_default().saturating_sub(here)
    };
    let sizes = all.iter().copied().filter(|s| weights.contains(&s.rfilename));
    transfer::check_space(unfinished, sizes.map(missing).fold(0, u64::saturating_add))?;
    each(&|name: &str| weights.contains(name))?;
    Ok(filled)
}
