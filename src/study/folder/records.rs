//! Files of results in a folder that somebody else may have filled: each is checked against the plan.

use std::collections::HashMap;
use std::path::Path;

use files::foreign;
use ropewalk_core::terminal::one_line;

use crate::cell::Key;
use crate::outcome::Record;
use crate::{Error, Plan, Result};

/// Bytes of a file of results, at most: many times what a cell has. It bounds every list and text of a result.
pub(super) const MAX_RECORD: u64 = 4 << 20;
/// Files of results that are read, at most: every cell of the largest plan, and as many that are stale.
pub(super) const MAX_FILES: usize = 2 * crate::MAX_CELLS;

/// Cells of a plan by name, and whether their figure is a perplexity: what a result may be of.
#[derive(Debug)]
pub(super) struct Planned(HashMap<Key, bool>);

impl Planned {
    pub(super) fn new(plan: &Plan) -> Planned {
        Planned(plan.cells().map(|cell| (cell.key(), cell.task.is_perplexity())).collect())
    }

    /// The result of a hash that is kept in a file of the folder, if there is one.
    ///
    /// # Errors
    /// No regular file, or none that can be the result of a planned cell; the disk.
    pub(super) fn read(&self, folder: &foreign::Folder, at: &Path, hash: &str) -> Result<Option<Record>> {
        let Some(bytes) = folder.read(at, MAX_RECORD)? else { return Ok(None) };
        let expected = |e: String| {
            Error::folder(
                &folder.path().join(at),
                format!("expected the result of a cell of the plan: {e}; delete it"),
            )
        };
        let record: Record = serde_json::from_slice(&bytes).map_err(|e| expected(one_line(e)))?;
        if record.hash != hash {
            return Err(expected(format!("the file is named {hash}, its hash is {:?}", record.hash)));
        }
        let Some(is_perplexity) = self.0.get(&record.cell) else {
            return Err(expected(format!("no cell of the plan is {:?}", record.cell.to_string())));
        };
        match record.result().and_then(|result| result.fault(*is_perplexity)) {
            Some(fault) => Err(expected(fault)),
            None => Ok(Some(record)),
        }
    }

    /// Every result, in the order of their hashes.
    ///
    /// # Errors
    /// The folder cannot be listed; each result as of [`Planned::read`].
    pub(super) fn all<'a>(
        &'a self,
        folder: &'a foreign::Folder,
    ) -> Result<impl Iterator<Item = Result<Record>> + 'a> {
        let names = folder.names(Path::new("cells"), MAX_FILES)?;
        let hash = |name: std::ffi::OsString| {
            let hash =
                Path::new(&name).extension().filter(|e| *e == "json").and(Path::new(&name).file_stem())?;
            // Temporary files of a write are hidden.
            let hash = hash.to_string_lossy().into_owned();
            (!hash.starts_with('.')).then_some(hash)
        };
        // One that is gone since was put aside.
        Ok(names
            .into_iter()
            .filter_map(hash)
            .filter_map(|hash| self.read(folder, &super::cell_file(&hash), &hash).transpose()))
    }

    /// Every result, by what its cell is called.
    ///
    /// # Errors
    /// Returns the errors of [`Planned::all`], and an error if a cell has two results.
    pub(super) fn by_cell(&self, folder: &foreign::Folder) -> Result<HashMap<Key, Record>> {
        let mut out: HashMap<Key, Record> = HashMap::new();
        for record in self.all(folder)? {
            let record = record?;
            if let Some(other) = out.get(&record.cell) {
                // A failure may be from before the model could be read: its hash says nothing.
                if record.result().is_none() {
                    continue;
                }
                if other.result().is_some() {
                    let what = format!(
                        "two results for {}, of different states of model, adapter or texts: {}.json and {}.json; \
                         delete the one that is out of date",
                        record.cell, other.hash, record.hash
                    );
                    return Err(Error::folder(&folder.path().join("cells"), what));
                }
            }
            out.insert(record.cell.clone(), record);
        }
        Ok(out)
    }
}
