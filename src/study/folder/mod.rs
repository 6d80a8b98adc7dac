//! The folder of a study: a copy of its plan, and a file for each cell.
//!
//! Folders are handed around: a shard comes from another machine, a study from somebody else. What is read here goes
//! through [`files::foreign`], what is written goes into folders that are no links, and a result counts only if it is
//! one of the plan's and its figures are possible.

mod kinds;
mod merge;
mod records;

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use files::{foreign, Output};

pub use self::kinds::SAMPLES;
use self::kinds::{CELL, PLAN};
pub(crate) use self::kinds::{MARK, REPORTS};
pub use self::merge::merge;
use self::records::Planned;
use crate::cell::Key;
use crate::outcome::Record;
use crate::plan::{Names, COPY};
use crate::{Error, Plan, Result};

/// The folder of a study, held by this process alone.
///
/// `plan.toml` is a copy of the plan, `cells/HASH.json` what became of a cell, `samples/HASH.jsonl` its
/// samples, `adapters/` what was trained, `old/` results under another state of the model or the texts.
#[derive(Debug)]
pub struct Folder {
    output: Output,
    results: Results,
    _lock: files::Lock,
}

/// The results in the folder of a study, of which nothing is changed. A study may run there meanwhile, for it replaces each
/// result at once.
#[derive(Debug)]
pub struct Results {
    contents: foreign::Folder,
    planned: Planned,
}

impl Results {
    /// Opens the results of a plan; `None` if there is no folder, or no study in it.
    ///
    /// # Errors
    /// It holds another plan; a link or something else stands for a part of it; the disk.
    pub fn open(path: &Path, plan: &Plan, names: &dyn Names) -> Result<Option<Results>> {
        let contents = match foreign::Folder::open(path) {
            Err(e) if e.source.kind() == ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        let found = is_of(&contents, plan, names)?;
        Ok(found.then(|| Results { contents, planned: Planned::new(plan) }))
    }

    /// The result of a cell, if there is one.
    ///
    /// # Errors
    /// A file that is no result of the plan's cells; the disk.
    pub fn get(&self, hash: &str) -> Result<Option<Record>> {
        self.planned.read(&self.contents, hash)
    }
}

/// Returns true if the folder is that of the plan, and false if it has no plan yet.
///
/// # Errors
/// It has another plan, or one that cannot be read.
fn is_of(contents: &foreign::Folder, plan: &Plan, names: &dyn Names) -> Result<bool> {
    let copy = contents.path().join(COPY);
    match fs::symlink_metadata(&copy) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(Error::io(&copy, e)),
        Ok(_) => {}
    }
    let Some(key) = plan.same_study(&Plan::read_in(contents, names)?) else { return Ok(true) };
    let what = format!(
        "expected the study of {}, found another plan in {} (another {key}); use another folder",
        plan.path.display(),
        copy.display()
    );
    Err(Error::folder(contents.path(), what))
}

impl Folder {
    /// Opens the folder of a plan, which is made when there is none. If it is forced, reports in it, new samples and the
    /// outputs of trainings replace any regular file; nothing else does.
    ///
    /// # Errors
    /// Another process has it open; it holds another plan; a link or something else stands for a part of it; the disk.
    pub fn open(path: impl Into<Output>, plan: &Plan, names: &dyn Names) -> Result<Folder> {
        let output = path.into();
        let path = output.path();
        fs::create_dir_all(path).map_err(|e| Error::io(path, e))?;
        let lock = files::Lock::folder(path).map_err(|e| Error::lock(path, e))?;
        let contents = foreign::Folder::open(path)?;
        // Said before the work.
        for (name, kind) in &REPORTS {
            kind.claim(output.join(name))?;
        }
        if !is_of(&contents, plan, names)? {
            let copy = path.join(COPY);
            files::replace(&copy, &PLAN, |out| {
                out.write_all(plan.text.as_bytes()).map_err(|e| Error::io(&copy, e))
            })?;
        }
        for name in ["cells", "samples", "adapters"] {
            make(&path.join(name))?;
        }
        files::remove_orphans(&path.join("cells"));
        Ok(Folder { output, results: Results { contents, planned: Planned::new(plan) }, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.output.path()
    }

    pub(crate) fn report(&self, name: &str) -> Output {
        self.output.join(name)
    }

    /// The file for the samples of a cell. It is forced, if the folder is, only where something else than samples is: those
    /// of a stopped run stay.
    pub fn samples(&self, hash: &str) -> Output {
        let output = self.output.join(samples_file(hash));
        let is_ours = SAMPLES.marks(output.path()).unwrap_or(false);
        Output::new(output.path(), output.is_forced() && !is_ours)
    }

    /// The file for the adapter that a recipe gives, by a hash of all that determines it.
    pub fn adapter(&self, hash: &str) -> Output {
        self.output.join("adapters").join(format!("{hash}.gguf"))
    }

    fn cell(&self, hash: &str) -> PathBuf {
        self.path().join(cell_file(hash))
    }

    /// Returns true if a regular file is at a path of the directory.
    ///
    /// # Errors
    /// A link or something else is there: what is written there would be elsewhere.
    pub(crate) fn holds(&self, path: &Path) -> Result<bool> {
        let relative = path.strip_prefix(self.path()).unwrap_or(path);
        Ok(self.results.contents.file(relative)?.is_some())
    }

    /// The result of a cell, if there is one.
    ///
    /// # Errors
    /// Returns the errors of [`Results::get`].
    pub fn get(&self, hash: &str) -> Result<Option<Record>> {
        self.results.get(hash)
    }

    /// Keeps the result of a cell, at once or not at all.
    ///
    /// # Errors
    /// The disk.
    pub fn put(&self, record: &Record) -> Result<()> {
        let path = self.cell(&record.hash);
        files::replace(&path, &CELL, |out| {
            serde_json::to_writer_pretty(&mut *out, record)
                .map_err(std::io::Error::from)
                .and_then(|()| out.write_all(b"\n"))
                .map_err(|e| Error::io(&path, e))
        })
    }

    /// Every result, by what its cell is called.
    ///
    /// # Errors
    /// A file that is no result of the plan's cells, two results of one cell, the disk.
    pub fn records(&self) -> Result<HashMap<Key, Record>> {
        self.results.planned.by_cell(&self.results.contents)
    }

    /// Puts results aside whose cell now has another hash: the model, an adapter or a text has changed.
    ///
    /// # Errors
    /// The disk.
    pub(crate) fn put_aside(
        &self,
        key: &Key,
        hash: &str,
        all: &mut HashMap<Key, Vec<String>>,
    ) -> Result<usize> {
        let Some(hashes) = all.get_mut(key) else { return Ok(0) };
        let old = self.path().join("old");
        let before = hashes.len();
        for stale in hashes.iter().filter(|h| *h != hash) {
            make(&old)?;
            let (from, to) = (self.cell(stale), old.join(format!("{stale}.json")));
            fs::rename(&from, &to).map_err(|e| Error::io(&from, e))?;
        }
        hashes.retain(|h| h == hash);
        Ok(before - hashes.len())
    }

    /// The hashes of the results of every cell.
    ///
    /// # Errors
    /// Returns the errors of [`Folder::records`].
    pub(crate) fn hashes(&self) -> Result<HashMap<Key, Vec<String>>> {
        let mut out: HashMap<Key, Vec<String>> = HashMap::new();
        for record in self.results.planned.all(&self.results.contents)? {
            let record = record?;
            out.entry(record.cell).or_default().push(record.hash);
        }
        Ok(out)
    }
}

/// The file of a cell's result in the folder of a study.
fn cell_file(hash: &str) -> PathBuf {
    Path::new("cells").join(format!("{hash}.json"))
}

/// The file of a cell's samples.
fn samples_file(hash: &str) -> PathBuf {
    Path::new("samples").join(format!("{hash}.jsonl"))
}

/// Makes a folder, which may be there, but not as a link: results would be written to where it leads.
fn make(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Error::folder(path, "expected a folder, found a link or a file")),
        Err(e) if e.kind() == ErrorKind::NotFound => fs::create_dir(path).map_err(|e| Error::io(path, e)),
        Err(e) => Err(Error::io(path, e)),
    }
}
