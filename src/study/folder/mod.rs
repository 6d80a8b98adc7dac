//! The folder of a study: a copy of its plan, and a file for each cell.
//!
//! Folders are handed around: a part comes from another machine, a study from somebody else. What is read here goes
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
use self::records::{Planned, MAX_FILES};
use crate::cell::Key;
use crate::outcome::Record;
use crate::plan::{Names, COPY};
use crate::units::Unit;
use crate::{Error, Plan, Result};

/// The folder of a study that has the folders of its units, each of the name of its ID.
const PARTS: &str = "parts";

/// The folder of a study, held by this process alone.
///
/// `plan.toml` is a copy of the plan, `cells/HASH.json` what became of a cell, `samples/HASH.jsonl` its
/// samples, `adapters/` what was trained, `old/` results under another state of the model or the texts.
///
/// The folder of a unit is `parts/ID` in that of its study. It has the same form, and is merged into a study's.
#[derive(Debug)]
pub struct Folder {
    output: Output,
    results: Results,
    /// The unit that it is for, and the results of the study if it has some.
    unit: Option<(Unit, Option<Results>)>,
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
    /// Opens the results of a plan; `None` if there is no folder, or no study and no unit of one in it.
    ///
    /// # Errors
    /// It holds another plan; a link or something else stands for a part of it; the disk.
    pub fn open(path: &Path, plan: &Plan, names: &dyn Names) -> Result<Option<Results>> {
        let contents = match foreign::Folder::open(path) {
            Err(e) if e.source.kind() == ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        let found = is_of(&contents, plan, names)? || contents.path().join(PARTS).is_dir();
        Ok(found.then(|| Results { contents, planned: Planned::new(plan) }))
    }

    /// The result of a cell, if there is one.
    ///
    /// # Errors
    /// A file that is no result of the plan's cells; the disk.
    pub fn get(&self, hash: &str) -> Result<Option<Record>> {
        self.planned.read(&self.contents, &cell_file(hash), hash)
    }

    /// Returns true if a cell has been measured.
    ///
    /// # Errors
    /// Returns the errors of [`Results::get`].
    pub fn has(&self, hash: &str) -> Result<bool> {
        Ok(self.get(hash)?.is_some_and(|record| record.result().is_some()))
    }

    /// Checks that the folders of units have this plan. A merge refuses others, but only after the work.
    ///
    /// # Errors
    /// One has another plan, or one that cannot be read; something else than a folder is there; the disk.
    pub fn check_units(&self, plan: &Plan, names: &dyn Names) -> Result<()> {
        for name in self.contents.names(Path::new(PARTS), MAX_FILES)? {
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let part = Path::new(PARTS).join(name);
            let copy = self.contents.read(&part.join(COPY), Plan::MAX_BYTES)?;
            // Most are copies to the last byte.
            if copy.is_some_and(|text| text != plan.text.as_bytes()) {
                is_of(&foreign::Folder::open(&self.contents.path().join(part))?, plan, names)?;
            }
        }
        Ok(())
    }

    /// Returns true if a cell has been measured in the folder of a unit.
    pub(crate) fn has_in_unit(&self, id: &str, hash: &str) -> Result<bool> {
        let at = Path::new(PARTS).join(id).join(cell_file(hash));
        let record = self.planned.read(&self.contents, &at, hash)?;
        Ok(record.is_some_and(|record| record.result().is_some()))
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
        let results = Results { contents, planned: Planned::new(plan) };
        Ok(Folder { output, results, unit: None, _lock: lock })
    }

    /// Opens the folder of a unit in that of its study, at `path`. What is measured there is not measured again.
    ///
    /// # Errors
    /// Returns the errors of [`Folder::open`] about either folder; but other units may run.
    pub fn open_unit(path: impl Into<Output>, plan: &Plan, unit: Unit, names: &dyn Names) -> Result<Folder> {
        let study = path.into();
        fs::create_dir_all(study.path()).map_err(|e| Error::io(study.path(), e))?;
        let results = Results::open(study.path(), plan, names)?;
        let parts = study.join(PARTS);
        let part = parts.join(&unit.id);
        for folder in [&parts, &part] {
            make(folder.path())?;
        }
        Ok(Folder { unit: Some((unit, results)), ..Folder::open(part, plan, names)? })
    }

    /// The unit that it is for; `None` in the folder of a study.
    pub fn unit(&self) -> Option<&Unit> {
        self.unit.as_ref().map(|(unit, _)| unit)
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

    /// Returns true if a cell has been measured, here or in the folder of the study that has this one.
    pub(crate) fn is_measured(&self, hash: &str) -> Result<bool> {
        let of_study = self.unit.as_ref().and_then(|(_, results)| results.as_ref());
        Ok(self.results.has(hash)? || of_study.map_or(Ok(false), |results| results.has(hash))?)
    }

    /// Returns true if one of these hashes is that of a measured cell.
    pub(crate) fn any_measured(&self, hashes: Option<&Vec<String>>) -> Result<bool> {
        for hash in hashes.into_iter().flatten() {
            if self.is_measured(hash)? {
                return Ok(true);
            }
        }
        Ok(false)
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
    match fs::create_dir(path) {
        // Maybe by another unit, at this moment.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        done => return done.map_err(|e| Error::io(path, e)),
    }
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Error::folder(path, "expected a folder, found a link or a file")),
        Err(e) => Err(Error::io(path, e)),
    }
}
