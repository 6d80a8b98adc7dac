//! Parts put together. They are from other machines and other people: everything is read and checked before anything is
//! written, and nothing is written into a part.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use files::{foreign, Output};

use super::kinds::SAMPLES;
use super::records::{Planned, MAX_FILES};
use super::{cell_file, samples_file, Folder};
use crate::cell::Key;
use crate::outcome::{Record, State};
use crate::plan::{Names, COPY};
use crate::{Error, Plan, Result};

/// Bytes of the samples of a cell, at most.
const MAX_SAMPLES: u64 = 1 << 30;

/// The folder of a part, which is only read: it may be on a medium that cannot be written. It is closed before the next one
/// is opened, since a study can have more parts than a process may have open files.
struct Part {
    folder: foreign::Folder,
    _lock: files::ReadLock,
}

impl Part {
    fn open(path: &Path) -> Result<Part> {
        let folder = foreign::Folder::open(path)?;
        let lock = files::ReadLock::folder(&folder).map_err(|e| Error::lock(path, e))?;
        Ok(Part { folder, _lock: lock })
    }

    /// Copies the samples of a cell, if there are any. A run that resumes from them reads them line by line.
    fn samples(&self, hash: &str, out: &mut dyn Write) -> Result<()> {
        let at = samples_file(hash);
        self.folder.copy(&at, MAX_SAMPLES, out)?;
        let Some(file) = self.folder.file(&at)? else { return Ok(()) };
        let (header, mut head, path) = (SAMPLES.header(), Vec::new(), self.folder.path().join(&at));
        file.take(header.len() as u64).read_to_end(&mut head).map_err(|e| Error::io(&path, e))?;
        if head.is_empty() || head == header.as_bytes() {
            return Ok(());
        }
        let what = "expected samples that begin with the line";
        let way =
            "earlier builds wrote none: put it before the first line, or delete the file to merge without it";
        Err(Error::folder(&path, format_args!("{what} {}; {way}", header.trim_end())))
    }
}

/// The folders of parts: each that was named, or those in it if it has no plan. A folder in it without a plan and
/// without results is that of a unit that has begun.
fn parts(dirs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut parts = Vec::new();
    for dir in dirs {
        let folder = foreign::Folder::open(dir)?;
        if folder.file(Path::new(COPY))?.is_some() {
            parts.push(dir.clone());
            continue;
        }
        let n = parts.len();
        for name in folder.names(Path::new("."), MAX_FILES)? {
            let part = Path::new(&name);
            if name.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let results = folder.names(&part.join("cells"), MAX_FILES)?;
            if !results.is_empty() || folder.file(&part.join(COPY))?.is_some() {
                parts.push(dir.join(part));
            }
        }
        if parts.len() == n {
            let what = format!("expected {COPY} of a part, or a directory of parts, found neither");
            return Err(Error::folder(dir, what));
        }
    }
    Ok(parts)
}

/// Puts the results of parts into one folder, which may be new, and gives it and its plan. A part is the folder of a unit or
/// any other folder of the study; a directory of parts stands for all in it. Where several have a cell, a result counts more
/// than a failure. Samples are copied too; adapters and `old/` are not.
///
/// Parts are not trusted. Only their regular files are read, up to stated sizes; every result of every part must be
/// of a cell of the plan, with figures that are possible. Nothing is written before that is known.
///
/// # Errors
/// A folder that is no study's, of another plan, or in use; a file in it that is not what it is to be; two results of
/// one cell under different states of the model, an adapter or a text, or with different figures; the disk.
pub fn merge(dirs: &[PathBuf], out: impl Into<Output>, names: &dyn Names) -> Result<(Folder, Plan)> {
    let out = out.into();
    let dirs = parts(dirs)?;
    let none = || Error::Invalid("expected folders of parts, found none".into());
    let first = dirs.first().ok_or_else(none)?;
    // One of them may be the folder that they are put into.
    let plan = Plan::read_in(&foreign::Folder::open(first)?, names)?;
    let planned = Planned::new(&plan);
    let mut found: HashMap<Key, (&Path, Record)> = HashMap::new();
    for dir in dirs.iter().map(PathBuf::as_path) {
        if files::same_file(dir, out.path())? {
            continue;
        }
        let part = Part::open(dir)?;
        if let Some(key) = plan.same_study(&Plan::read_in(&part.folder, names)?) {
            let what = format!("expected the plan of {}, found another one (another {key})", first.display());
            return Err(Error::folder(dir, what));
        }
        for record in planned.by_cell(&part.folder)?.into_values() {
            let known = found.get(&record.cell).map(|(dir, known)| (dir.join(cell_file(&known.hash)), known));
            if is_better(&record, known, dir)? {
                found.insert(record.cell.clone(), (dir, record));
            }
        }
    }
    let mut found: Vec<(&Path, Record)> = found.into_values().collect();
    found.sort_by(|(dir, a), (other, b)| dir.cmp(other).then_with(|| a.cell.cmp(&b.cell)));
    for records in found.chunk_by(|(a, _), (b, _)| a == b) {
        let part = Part::open(records[0].0)?;
        for (_, record) in records {
            part.samples(&record.hash, &mut io::sink())?;
        }
    }
    let merged = Folder::open(out, &plan, names)?;
    let all = merged.records()?;
    let mut better = Vec::new();
    for (dir, record) in found {
        let known = all.get(&record.cell);
        let of_merged = known.map(|known| (merged.cell(&known.hash), known));
        if is_better(&record, of_merged, dir)? {
            let failed = known.filter(|known| known.hash != record.hash);
            better.push((dir, failed, record));
        }
    }
    for records in better.chunk_by(|(a, ..), (b, ..)| a == b) {
        let part = Part::open(records[0].0)?;
        for (_, failed, record) in records {
            if part.folder.file(&samples_file(&record.hash))?.is_some() {
                let to = merged.samples(&record.hash);
                files::replace(to, &SAMPLES, |out| part.samples(&record.hash, out))?;
            }
            merged.put(record)?;
            // Last, so that the cell has an outcome whatever happens.
            if let Some(failed) = failed {
                let path = merged.cell(&failed.hash);
                fs::remove_file(&path).map_err(|e| Error::io(&path, e))?;
            }
        }
    }
    Ok((merged, plan))
}

/// Returns true if a record of a directory replaces the known result of its cell, and the file that has it.
///
/// # Errors
/// Both are results, of different states of the model, an adapter or a text, or with different figures.
fn is_better(record: &Record, known: Option<(PathBuf, &Record)>, dir: &Path) -> Result<bool> {
    let Some((other, known)) = known else { return Ok(true) };
    if let (Some(own), Some(before)) = (record.result(), known.result()) {
        let (path, other) = (dir.join(cell_file(&record.hash)), other.display());
        if known.hash != record.hash {
            let what = "measured under another state of model, adapter or texts than in";
            return Err(Error::folder(&path, format_args!("{}: {what} {other}", record.cell)));
        }
        if let Some((key, expected, found)) = before.difference(own) {
            let what =
                format!("{key}: expected {expected}, as in {other}, found {found}; delete one of them");
            return Err(Error::folder(&path, format_args!("{}: {what}", record.cell)));
        }
    }
    Ok(matches!((&known.state, &record.state), (State::Failed(_), State::Done(_))))
}
