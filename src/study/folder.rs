//! The folder of a study: a copy of its plan, and a file for each cell.

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use crate::cell::Key;
use crate::outcome::{Record, State};
use crate::plan::Known;
use crate::{Error, Plan, Result};

/// Bytes of a file of results, at most.
const MAX_RECORD: u64 = 64 << 20;
/// Files of results that are read, at most: every cell of the largest plan, and as many that are stale.
const MAX_FILES: usize = 2 * crate::MAX_CELLS;

/// The folder of a study, held by this process alone.
///
/// `plan.toml` is a copy of the plan, `cells/HASH.json` what became of a cell, `samples/HASH.jsonl` its
/// samples, `adapters/` what was trained, `old/` results under another state of the model or the texts.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _lock: files::Lock,
}

impl Folder {
    /// Opens the folder of a plan, which is made when there is none.
    ///
    /// # Errors
    /// Another process has it open; it holds another plan; the disk.
    pub fn open(
        path: &Path,
        plan: &Plan,
        find: &dyn Fn(&str) -> Result<Vec<Known>, String>,
    ) -> Result<Folder> {
        let make = |p: &Path| fs::create_dir_all(p).map_err(|e| Error::io(p, e));
        make(path)?;
        let folder = Folder::lock(path)?;
        let copy = path.join("plan.toml");
        match fs::symlink_metadata(&copy) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                files::replace(&copy, |out| {
                    out.write_all(plan.text.as_bytes()).map_err(|e| Error::io(&copy, e))
                })?;
            }
            Err(e) => return Err(Error::io(&copy, e)),
            Ok(_) => {
                let there = Plan::read(&copy, find)?;
                if let Some(key) = plan.same_study(&there) {
                    let what = format!(
                        "expected the study of {}, found another plan in {} (another {key}); use another \
                         folder",
                        plan.path.display(),
                        copy.display()
                    );
                    return Err(Error::folder(path, what));
                }
            }
        }
        for name in ["cells", "samples", "adapters"] {
            make(&path.join(name))?;
        }
        files::remove_orphans(&path.join("cells"));
        Ok(folder)
    }

    /// A folder that is there.
    fn lock(path: &Path) -> Result<Folder> {
        let lock = files::Lock::folder(path).map_err(|e| match e.source.kind() {
            ErrorKind::WouldBlock => Error::folder(path, format!("another study runs here: {}", e.source)),
            _ => Error::File(e),
        })?;
        Ok(Folder { path: path.into(), _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file for the samples of a cell.
    pub fn samples(&self, hash: &str) -> PathBuf {
        self.path.join("samples").join(format!("{hash}.jsonl"))
    }

    /// The file for the adapter that a recipe gives, by a hash of all that determines it.
    pub fn adapter(&self, hash: &str) -> PathBuf {
        self.path.join("adapters").join(format!("{hash}.gguf"))
    }

    fn cell(&self, hash: &str) -> PathBuf {
        self.path.join("cells").join(format!("{hash}.json"))
    }

    /// The result of a cell, if there is one.
    ///
    /// # Errors
    /// A file that is no result; the disk.
    pub fn get(&self, hash: &str) -> Result<Option<Record>> {
        let path = self.cell(hash);
        match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(&path, e)),
            Ok(_) => read(&path).map(Some),
        }
    }

    /// Keeps the result of a cell, at once or not at all.
    ///
    /// # Errors
    /// The disk.
    pub fn put(&self, record: &Record) -> Result<()> {
        let path = self.cell(&record.hash);
        files::replace(&path, |out| {
            serde_json::to_writer_pretty(&mut *out, record)
                .map_err(std::io::Error::from)
                .and_then(|()| out.write_all(b"\n"))
                .map_err(|e| Error::io(&path, e))
        })
    }

    /// Every result, by what its cell is called.
    ///
    /// # Errors
    /// A file that is no result, two results of one cell, the disk.
    pub fn records(&self) -> Result<HashMap<Key, Record>> {
        let mut out: HashMap<Key, Record> = HashMap::new();
        for path in self.files()? {
            let record = read(&path)?;
            if let Some(other) = out.get(&record.cell) {
                // A failure may be from before the model could be read: its hash says nothing.
                if record.result().is_none() {
                    continue;
                }
                if other.result().is_none() {
                    out.insert(record.cell.clone(), record);
                    continue;
                }
                let what = format!(
                    "two results for {}, of different states of model, adapter or texts: {}.json and {}.json; \
                     delete the one that is out of date",
                    record.cell, other.hash, record.hash
                );
                return Err(Error::folder(&self.path.join("cells"), what));
            }
            out.insert(record.cell.clone(), record);
        }
        Ok(out)
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
        let old = self.path.join("old");
        let before = hashes.len();
        for stale in hashes.iter().filter(|h| *h != hash) {
            fs::create_dir_all(&old).map_err(|e| Error::io(&old, e))?;
            let (from, to) = (self.cell(stale), old.join(format!("{stale}.json")));
            fs::rename(&from, &to).map_err(|e| Error::io(&from, e))?;
        }
        hashes.retain(|h| h == hash);
        Ok(before - hashes.len())
    }

    /// The hashes of the results of every cell.
    ///
    /// # Errors
    /// As of [`Folder::records`].
    pub(crate) fn hashes(&self) -> Result<HashMap<Key, Vec<String>>> {
        let mut out: HashMap<Key, Vec<String>> = HashMap::new();
        for path in self.files()? {
            let record = read(&path)?;
            out.entry(record.cell).or_default().push(record.hash);
        }
        Ok(out)
    }

    /// Files of results, sorted.
    fn files(&self) -> Result<Vec<PathBuf>> {
        let cells = self.path.join("cells");
        let io = |e| Error::io(&cells, e);
        let mut out = Vec::new();
        let entries = match fs::read_dir(&cells) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(out),
            entries => entries.map_err(io)?,
        };
        for entry in entries {
            let path = entry.map_err(io)?.path();
            let hidden = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
            if path.extension().is_some_and(|e| e == "json") && !hidden {
                out.push(path);
            }
            if out.len() > MAX_FILES {
                return Err(Error::folder(
                    &cells,
                    format!("expected at most {MAX_FILES} results, found more"),
                ));
            }
        }
        out.sort();
        Ok(out)
    }
}

fn read(path: &Path) -> Result<Record> {
    let io = |e| Error::io(path, e);
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(io)?.take(MAX_RECORD + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_RECORD {
        return Err(Error::folder(path, format!("expected at most {MAX_RECORD} bytes, found more")));
    }
    let expected = |e: String| Error::folder(path, format!("expected the result of a cell: {e}; delete it"));
    let record: Record = serde_json::from_slice(&bytes).map_err(|e| expected(e.to_string()))?;
    let name = path.file_stem().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if name != record.hash {
        return Err(expected(format!("the file is named {name}, its hash is {}", record.hash)));
    }
    if let Some(fault) = record.result().and_then(|r| r.fault()) {
        return Err(expected(fault));
    }
    Ok(record)
}

/// Puts the results of shards into one folder, which may be new, and gives it and its plan. Where several have
/// a cell, a result counts more than a failure, and an earlier folder more than a later one. Samples are
/// copied too; adapters and `old/` are not.
///
/// # Errors
/// A folder that is no study's, of another plan, or in use; two results of one cell under different states of
/// the model, an adapter or a text; the disk.
pub fn merge(
    dirs: &[PathBuf],
    out: &Path,
    find: &dyn Fn(&str) -> Result<Vec<Known>, String>,
) -> Result<(Folder, Plan)> {
    let Some(first) = dirs.first() else {
        return Err(Error::Invalid("expected folders of shards, found none".into()));
    };
    let plan = Plan::read(&first.join("plan.toml"), find)?;
    let merged = Folder::open(out, &plan, find)?;
    let mut all = merged.records()?;
    let same = |dir: &Path| files::same_file(dir, out).map_err(Error::File);
    for dir in dirs {
        if same(dir)? {
            continue;
        }
        let other = Plan::read(&dir.join("plan.toml"), find)?;
        if let Some(key) = plan.same_study(&other) {
            let what = format!("expected the plan of {}, found another one (another {key})", first.display());
            return Err(Error::folder(dir, what));
        }
        let shard = Folder::lock(dir)?;
        let mut records: Vec<Record> = shard.records()?.into_values().collect();
        records.sort_by(|a, b| a.cell.cmp(&b.cell));
        for record in records {
            let known = all.get(&record.cell);
            let both = known.is_some_and(|k| k.result().is_some()) && record.result().is_some();
            if both && known.is_some_and(|k| k.hash != record.hash) {
                let what = format!(
                    "{}: measured under another state of model, adapter or texts than in an earlier folder",
                    record.cell
                );
                return Err(Error::folder(dir, what));
            }
            let better = match known.map(|k| &k.state) {
                None => true,
                Some(State::Failed(_)) => matches!(record.state, State::Done(_)),
                Some(State::Done(_)) => false,
            };
            if better {
                if let Some(failed) = known.filter(|k| k.hash != record.hash) {
                    let path = merged.cell(&failed.hash);
                    fs::remove_file(&path).map_err(|e| Error::io(&path, e))?;
                }
                copy_samples(&shard.samples(&record.hash), &merged.samples(&record.hash))?;
                merged.put(&record)?;
                all.insert(record.cell.clone(), record);
            }
        }
    }
    Ok((merged, plan))
}

fn copy_samples(from: &Path, to: &Path) -> Result<()> {
    let mut source = match fs::File::open(from) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        source => source.map_err(|e| Error::io(from, e))?,
    };
    files::replace(to, |out| std::io::copy(&mut source, out).map(drop).map_err(|e| Error::io(to, e)))
}
