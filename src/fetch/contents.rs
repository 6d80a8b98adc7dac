//! The contents of an unfinished folder: names that a record lists, written before the first of them is fetched.
//!
//! Nothing else may lie in the folder. What does is somebody else's: it is named and left alone, and nothing is
//! fetched next to it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ropewalk_import::{template, TEMPLATES};
use serde::{Deserialize, Serialize};

use super::origin::SUFFIX;
use super::partial::{self, foreign};
use super::{io, source, FetchError, Repo, Result};

/// Size limit of a record in bytes: that of the names of a listing.
const MAX_RECORD: u64 = 16 << 20;
/// Entries of a folder, at most: files of several commits, each with its record.
const MAX_ENTRIES: usize = 800_000;

/// The record of an unfinished folder, and the folder.
#[derive(Debug)]
pub(super) struct Contents {
    /// The folder, which need not be there.
    pub(super) folder: PathBuf,
    path: PathBuf,
    fresh: PathBuf,
    repo: Repo,
    names: BTreeSet<String>,
}

#[derive(Serialize, Deserialize)]
struct Record {
    /// The source, `hf:ORG/REPO`.
    source: String,
    /// Names of files that were, are or will be fetched into the folder.
    names: BTreeSet<String>,
}

impl Contents {
    /// Reads the record of the folder for `name` in `dir`, and checks what lies there. The lock must be held.
    ///
    /// # Errors
    /// Anything in the folder that the record does not list, or that is not what it lists: a link, a folder, a pipe,
    /// another user's file. A record that cannot be read.
    pub(super) fn open(dir: &Path, name: &str, repo: &Repo) -> Result<Contents> {
        let path = partial::listing(dir, name, repo);
        let fresh = partial::fresh(dir, name, repo);
        for path in [&path, &fresh] {
            files::own_file(path).map_err(foreign(path))?;
        }
        let mut names = BTreeSet::new();
        if let Some(text) = partial::read(&path, MAX_RECORD)? {
            let bad = |what: String| FetchError::Record { path: path.clone(), what };
            let record: Record = serde_json::from_str(&text)
                .map_err(|e| bad(format!("expected the names of an unfinished folder: {e}")))?;
            if record.source != repo.to_string() || !record.names.iter().all(|n| source::is_path(n)) {
                return Err(bad(format!("expected names of files of {repo}")));
            }
            names = record.names;
        }
        let folder = partial::folder(dir, name, repo);
        let contents = Contents { folder, path, fresh, repo: repo.clone(), names };
        match fs::symlink_metadata(&contents.folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(io(&contents.folder)(e)),
            Ok(_) => contents.check(&|name| contents.names.contains(name))?,
        }
        Ok(contents)
    }

    /// Makes the folder.
    pub(super) fn make(&self) -> Result<()> {
        partial::make_folder(&self.folder, false)
    }

    /// Adds names to the record, before any of these files is fetched.
    pub(super) fn add<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> Result<()> {
        let before = self.names.len();
        self.names.extend(names.map(str::to_owned));
        if self.names.len() == before {
            return Ok(());
        }
        let record = Record { source: self.repo.to_string(), names: self.names.clone() };
        let text = serde_json::to_string(&record).unwrap_or_default();
        partial::write(&self.fresh, &self.path, &text)
    }

    /// Removes what the record lists and `wanted` does not name: left by an earlier call, of a commit with other files.
    /// Nothing but the files of `wanted`, each with its record, is in the folder then.
    ///
    /// # Errors
    /// Anything else is there by now, or the disk.
    pub(super) fn keep_only(&self, wanted: &BTreeSet<&str>) -> Result<()> {
        self.check(&|name| self.names.contains(name))?;
        for path in &self.names {
            let (folder, name) = self.place(path);
            if fs::symlink_metadata(&folder).is_err() {
                continue;
            }
            partial::sweep(&folder, name, &self.repo.file(path))?;
            if !wanted.contains(path.as_str()) {
                partial::remove(&folder.join(name))?;
                partial::remove(&folder.join(format!("{name}{SUFFIX}")))?;
            }
            // With what a killed pull has left: locks that nobody holds.
            if partial::left(&folder) {
                let [.., lock] = partial::names(&folder, name, &self.repo.file(path));
                partial::remove(&lock)?;
            }
        }
        let templates = self.folder.join(TEMPLATES);
        for folder in [&templates, &self.folder] {
            if partial::left(folder) {
                let inner = folder.join(partial::FOLDER);
                fs::remove_dir(&inner).map_err(io(&inner))?;
            }
        }
        // Of a commit that had templates.
        if templates.is_dir() && !wanted.iter().any(|path| template(path).is_some()) {
            fs::remove_dir(&templates).map_err(io(&templates))?;
        }
        self.check(&|name| wanted.contains(name))
    }

    /// Removes the record: the folder is gone, or in place.
    pub(super) fn forget(&self) -> Result<()> {
        partial::remove(&self.path)
    }

    /// Checks that the folder is this user's, and holds nothing but listed files, their records, and unfinished ones.
    fn check(&self, is_listed: &dyn Fn(&str) -> bool) -> Result<()> {
        let templates = self.folder.join(TEMPLATES);
        let has_templates =
            fs::symlink_metadata(&templates).is_ok() && self.names.iter().any(|n| template(n).is_some());
        for folder in [Some(&self.folder), Some(&templates).filter(|_| has_templates)].into_iter().flatten() {
            files::own_folder(folder).map_err(foreign(folder))?;
            for (path, name) in entries(folder)? {
                if name == partial::FOLDER {
                    self.check_unfinished(&path)?;
                    continue;
                }
                if has_templates && path == templates {
                    continue;
                }
                let inside = if *folder == templates { format!("{TEMPLATES}/{name}") } else { name };
                let of = inside.strip_suffix(SUFFIX).unwrap_or(&inside);
                self.check_file(&path, is_listed(of) || is_listed(&inside))?;
            }
        }
        Ok(())
    }

    /// The folder of a listed file, and its name there.
    fn place<'n>(&self, path: &'n str) -> (PathBuf, &'n str) {
        match template(path) {
            Some(name) => (self.folder.join(TEMPLATES), name),
            None => (self.folder.clone(), path),
        }
    }

    fn check_unfinished(&self, inner: &Path) -> Result<()> {
        files::own_folder(inner).map_err(foreign(inner))?;
        let of = |path: &String| {
            let (folder, name) = self.place(path);
            partial::names(&folder, name, &self.repo.file(path))
        };
        let ours: BTreeSet<PathBuf> = self.names.iter().flat_map(of).collect();
        for (path, _) in entries(inner)? {
            self.check_file(&path, ours.contains(&path))?;
        }
        Ok(())
    }

    fn check_file(&self, path: &Path, listed: bool) -> Result<()> {
        if !listed {
            let what =
                format!("is in the folder of unfinished files of {}, and no record lists it", self.repo);
            return Err(FetchError::Foreign { path: path.to_owned(), what });
        }
        files::own_file(path).map(drop).map_err(foreign(path))
    }
}

/// Paths and names of the entries of a folder, the names with what is no text in them replaced.
fn entries(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(io(folder))? {
        let entry = entry.map_err(io(folder))?;
        all.push((entry.path(), entry.file_name().to_string_lossy().into_owned()));
        if all.len() > MAX_ENTRIES {
            let what = format!("has more than {} entries", MAX_ENTRIES);
            return Err(FetchError::Foreign { path: folder.to_owned(), what });
        }
    }
    all.sort();
    Ok(all)
}
