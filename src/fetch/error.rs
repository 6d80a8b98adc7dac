//! The errors of fetching.

use std::path::{Path, PathBuf};

use ropewalk_core::terminal::inline;
use ropewalk_core::text::bytes;

/// An error of fetching a file, in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// A manifest is malformed.
    #[error("manifest {origin}: {what}")]
    Manifest {
        /// Name of the manifest.
        origin: String,
        /// The entry, its key, the value expected and the value found.
        what: String,
    },
    /// The text is not a source.
    #[error("source '{0}': expected hf:ORG/REPO or hf:ORG/REPO/FILE")]
    Source(String),
    /// The file system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The hub refused, or cannot be reached.
    #[error("{from}: {what}")]
    Remote {
        /// The source asked for.
        from: String,
        /// The hub's answer, or the error of the connection.
        what: String,
    },
    /// The file has another checksum than expected.
    #[error("{}: expected sha256 {expected}, found {found}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The checksum expected.
        expected: String,
        /// The checksum found.
        found: String,
    },
    /// The file has another size than expected.
    #[error("{}: expected {expected} bytes, found {found}", path.display())]
    Size {
        /// The file.
        path: PathBuf,
        /// The size expected, in bytes.
        expected: u64,
        /// The size found.
        found: u64,
    },
    /// There is less room than the file needs.
    #[error("{}: {} is needed, and {} is free", path.display(), bytes(*needed), bytes(*free))]
    Space {
        /// The folder.
        path: PathBuf,
        /// Bytes still to be written.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A name for the target that cannot be one.
    #[error("name '{0}': expected letters, digits and ._-+=,@, no leading dot, no .source.json ending")]
    Name(String),
    /// A file of another source has the name.
    #[error("{}: is {found}, not {asked}: choose another directory or name", path.display())]
    Taken {
        /// The file.
        path: PathBuf,
        /// The source in its record.
        found: String,
        /// The source asked for.
        asked: String,
    },
    /// A file has the name, and nothing says what it is.
    #[error(
        "{}: already exists, with unknown origin: pass the sha256 of {asked}, or choose another directory or \
         name",
        path.display()
    )]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The source asked for.
        asked: String,
    },
    /// A folder or file has the name, and no record says what it is.
    #[error(
        "{}: already exists, and no record says that it is {asked}: choose another directory or name",
        path.display()
    )]
    Unrecorded {
        /// The folder or file.
        path: PathBuf,
        /// The source asked for.
        asked: String,
    },
    /// Something lies where unfinished files do, and is none of this pull's.
    #[error("{}: {what}; pull does not touch it: remove it, or choose another directory", path.display())]
    Foreign {
        /// The file or folder.
        path: PathBuf,
        /// The reason why it is none.
        what: String,
    },
    /// The model was not downloaded.
    #[error("{model}: not downloaded{}", others.iter().map(|what| format!("; {what}")).collect::<String>())]
    Missing {
        /// The name, source, or repository.
        model: String,
        /// True for a repository, of which a file is made by converting it.
        is_repo: bool,
        /// Files in its place, and why they are not it.
        others: Vec<String>,
    },
    /// The text names no model, or several files.
    #[error("{model}: {what}")]
    Find {
        /// The text.
        model: String,
        /// The models that are known, or the files.
        what: String,
    },
    /// The repository is no model that can be imported.
    #[error("{from}: {what}")]
    NoModel {
        /// The repository.
        from: String,
        /// The part that is missing or wrong.
        what: String,
    },
    /// A record cannot be read.
    #[error("{}: {what}", path.display())]
    Record {
        /// The record.
        path: PathBuf,
        /// The fault: what was expected there.
        what: String,
    },
    /// Another pull writes this file.
    #[error("{}: is already being pulled, from {holder}", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
        /// The source of that pull, and its process.
        holder: String,
    },
    /// The caller asked to stop.
    #[error("{from}: stopped{}", super::transfer::kept(*kept))]
    Stopped {
        /// The source asked for.
        from: String,
        /// Bytes of it that are here.
        kept: u64,
    },
}
/// Results of this module.
pub(super) type Result<T, E = FetchError> = std::result::Result<T, E>;

/// Names the path that an operation of the file system failed on.
pub(super) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> FetchError + '_ {
    move |source| FetchError::Io { path: path.to_owned(), source }
}

/// Characters of a text of others that a message shows.
const SHOWN: usize = 200;

/// The beginning of a text of a server, or of a file that others can write, in one line: the only form in which a message
/// has such a text.
pub(super) fn said(text: &str) -> String {
    let head: String = text.chars().take(SHOWN + 1).collect();
    let line = inline(&head);
    if line.chars().count() <= SHOWN {
        return line.into_owned();
    }
    line.chars().take(SHOWN - 3).chain("...".chars()).collect()
}
