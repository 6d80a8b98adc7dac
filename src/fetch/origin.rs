//! Where a file came from: a record beside it.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{other, said, Result};

/// The end of a record's name, after the file's.
pub(super) const SUFFIX: &str = ".source.json";
/// A record in bytes: that of a folder has some two hundred for each file.
const MAX_RECORD: u64 = 1 << 20;
/// A record of a file or of a folder.
const RECORD: files::Kind = files::Kind::new("the record of a pull", |head| {
    let start: Vec<u8> = head.iter().copied().filter(|b| !b.is_ascii_whitespace()).take(64).collect();
    start.starts_with(b"{\"source\":\"hf:")
});

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
        read(file, "a pull")
    }

    /// Checks that the record of a file or folder may be written: nothing has its name but an earlier record, which says
    /// nothing once its file is gone. A link is none.
    ///
    /// # Errors
    /// Anything else is there.
    pub(super) fn check_place(of: &Path) -> Result<()> {
        let path = Origin::path_of(of);
        if path.is_symlink() {
            return Err(other(path.display(), "is a symbolic link, expected the record of a pull"));
        }
        RECORD.claim(&path).map_err(other_of)
    }
}

/// Reads the record of a file or folder that is there; a link is not followed. `of` goes into the error.
pub(super) fn read<T: DeserializeOwned>(file: &Path, of: &str) -> Result<Option<T>> {
    let path = Origin::path_of(file);
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = Path::new(path.file_name().unwrap_or_default());
    let Some(bytes) = files::foreign::Folder::open(folder)?.read(name, MAX_RECORD)? else { return Ok(None) };
    let bad = |e: serde_json::Error| format!("expected the record of {of}: {}", said(&e.to_string()));
    serde_json::from_slice(&bytes).map(Some).map_err(|e| other(path.display(), bad(e)))
}

/// Writes the record of a file or folder.
pub(super) fn write(of: &Path, record: &impl Serialize) -> Result<()> {
    Origin::check_place(of)?;
    let path = Origin::path_of(of);
    let text = serde_json::to_string_pretty(record).unwrap_or_default() + "\n";
    files::replace(&path, &RECORD, |out| {
        out.write_all(text.as_bytes()).map_err(|e| files::Error::new(&path, e))
    })
    .map_err(other_of)
}

/// Without its cause: the program would offer to replace what is there.
fn other_of(e: files::Error) -> super::FetchError {
    other(e.path.display(), e.source)
}
