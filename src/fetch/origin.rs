//! Where a file came from: a record beside it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::{other, said};
use super::partial::{self, Lock};
use super::Result;

/// The end of a record's name, after the file's.
pub(super) const SUFFIX: &str = ".source.json";

/// Where a file came from, as written beside it in `FILE.source.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The source, `hf:ORG/REPO/FILE`.
    pub source: String,
    /// The commit, as the hub named it.
    pub revision: Option<String>,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}
impl Origin {
    /// The record of a file.
    pub fn path_of(file: &Path) -> PathBuf {
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(SUFFIX);
        file.with_file_name(name)
    }

    /// Reads the record of a file; `None` when there is none.
    ///
    /// # Errors
    /// A record that cannot be read, or is none.
    pub fn read(file: &Path) -> Result<Option<Origin>> {
        let path = Origin::path_of(file);
        let Some(text) = partial::read(&path, partial::MAX_RECORD)? else { return Ok(None) };
        let what = |e: serde_json::Error| format!("expected the record of a pull: {}", said(&e.to_string()));
        serde_json::from_str(&text).map(Some).map_err(|e| other(path.display(), what(e)))
    }

    /// Writes the record of a file whose name is locked.
    pub(super) fn write(&self, file: &Path, lock: &Lock) -> Result<()> {
        let text = serde_json::to_string_pretty(self).unwrap_or_default() + "\n";
        Origin::check_place(file)?;
        lock.write(&Origin::path_of(file), &text)
    }

    /// Checks that the record of a file or folder may be written: nothing has its name but an earlier record, which says
    /// nothing once its file is gone. A link is none.
    ///
    /// # Errors
    /// Anything else is there.
    pub fn check_place(of: &Path) -> Result<()> {
        let path = Origin::path_of(of);
        let link = path.symlink_metadata().is_ok_and(|m| m.is_symlink());
        let what = match RECORD.claim(&path) {
            Ok(()) if !link => return Ok(()),
            Ok(()) => "is a symbolic link, expected the record of a pull".to_owned(),
            Err(e) => e.source.to_string(),
        };
        Err(other(path.display(), what))
    }
}

/// A record of a file or of a folder.
const RECORD: files::Kind = files::Kind::new("the record of a pull", |head| {
    let start: Vec<u8> = head.iter().copied().filter(|b| !b.is_ascii_whitespace()).take(64).collect();
    start.starts_with(b"{\"source\":\"hf:")
});
