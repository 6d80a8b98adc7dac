//! Shards put together. They are from other machines and other people: everything is read and checked before anything
//! is written, and nothing is written into a shard.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use files::{foreign, Output};

use super::kinds::SAMPLES;
use super::records::Planned;
use super::{cell_file, samples_file, Folder};
use crate::cell::Key;
use crate::outcome::{Record, State};
use crate::plan::Names;
use crate::{Error, Plan, Result};

/// Bytes of the samples of a cell, at most.
const MAX_SAMPLES: u64 = 1 << 30;

/// The folder of a shard, which is only read: it may be on a medium that cannot be written.
struct Shard {
    folder: foreign::Folder,
    plan: Plan,
    _lock: files::ReadLock,
}

impl Shard {
    fn open(path: &Path, names: &dyn Names) -> Result<Shard> {
        let folder = foreign::Folder::open(path)?;
        let lock = files::ReadLock::folder(&folder).map_err(|e| Error::lock(path, e))?;
        Ok(Shard { plan: Plan::read_in(&folder, names)?, folder, _lock: lock })
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

/// Puts the results of shards into one folder, which may be new, and gives it and its plan. Where several have
/// a cell, a result counts more than a failure, and an earlier folder more than a later one. Samples are
/// copied too; adapters and `old/` are not.
///
/// Shards are not trusted. Only their regular files are read, up to stated sizes; every result of every shard must be
/// of a cell of the plan, with figures that are possible. Nothing is written before that is known.
///
/// # Errors
/// A folder that is no study's, of another plan, or in use; a file in it that is not what it is to be; two results of
/// one cell under different states of the model, an adapter or a text; the disk.
pub fn merge(dirs: &[PathBuf], out: impl Into<Output>, names: &dyn Names) -> Result<(Folder, Plan)> {
    let out = out.into();
    let Some(first) = dirs.first() else {
        return Err(Error::Invalid("expected folders of shards, found none".into()));
    };
    // One of them may be the folder that they are put into.
    let plan = Plan::read_in(&foreign::Folder::open(first)?, names)?;
    let planned = Planned::new(&plan);
    let mut shards: Vec<Shard> = Vec::new();
    let mut found: HashMap<Key, (usize, Record)> = HashMap::new();
    for dir in dirs {
        if files::same_file(dir, out.path())? {
            continue;
        }
        let shard = Shard::open(dir, names)?;
        if let Some(key) = plan.same_study(&shard.plan) {
            let what = format!("expected the plan of {}, found another one (another {key})", first.display());
            return Err(Error::folder(dir, what));
        }
        for record in planned.by_cell(&shard.folder)?.into_values() {
            let known = found
                .get(&record.cell)
                .map(|(shard, known)| (shards[*shard].folder.path().join(cell_file(&known.hash)), known));
            if is_better(&record, known, dir)? {
                found.insert(record.cell.clone(), (shards.len(), record));
            }
        }
        shards.push(shard);
    }
    let mut found: Vec<(usize, Record)> = found.into_values().collect();
    found.sort_by(|(_, a), (_, b)| a.cell.cmp(&b.cell));
    for (shard, record) in &found {
        shards[*shard].samples(&record.hash, &mut io::sink())?;
    }
    let merged = Folder::open(out, &plan, names)?;
    let all = merged.records()?;
    let mut better = Vec::new();
    for (shard, record) in found {
        let known = all.get(&record.cell);
        let of_merged = known.map(|known| (merged.cell(&known.hash), known));
        if is_better(&record, of_merged, shards[shard].folder.path())? {
            let failed = known.filter(|known| known.hash != record.hash);
            better.push((&shards[shard], failed, record));
        }
    }
    for (shard, failed, record) in better {
        if shard.folder.file(&samples_file(&record.hash))?.is_some() {
            let to = merged.samples(&record.hash);
            files::replace(to, &SAMPLES, |out| shard.samples(&record.hash, out))?;
        }
        merged.put(&record)?;
        // Last, so that the cell has an outcome whatever happens.
        if let Some(failed) = failed {
            let path = merged.cell(&failed.hash);
            fs::remove_file(&path).map_err(|e| Error::io(&path, e))?;
        }
    }
    Ok((merged, plan))
}

/// Returns true if a record of a directory replaces the known result of its cell, and the file that has it.
///
/// # Errors
/// Both are results, of different states of the model, an adapter or a text.
fn is_better(record: &Record, known: Option<(PathBuf, &Record)>, dir: &Path) -> Result<bool> {
    let Some((other, known)) = known else { return Ok(true) };
    if known.result().is_some() && record.result().is_some() && known.hash != record.hash {
        let what = format!(
            "{}: measured under another state of model, adapter or texts than in {}",
            record.cell,
            other.display()
        );
        return Err(Error::folder(&dir.join(cell_file(&record.hash)), what));
    }
    Ok(matches!((&known.state, &record.state), (State::Failed(_), State::Done(_))))
}
