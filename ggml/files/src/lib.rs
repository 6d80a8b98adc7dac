//! Files replaced atomically, and only by their own kind; locks between processes; files mapped into memory; files of
//! folders that somebody else filled.

mod atomic;
#[cfg(feature = "faults")]
pub mod faults;
#[cfg(not(feature = "faults"))]
mod faults;
pub mod foreign;
mod kind;
mod lock;
mod map;
pub mod memory;
mod names;
mod own;
#[cfg(feature = "faults")]
pub mod scarce;
#[cfg(unix)]
mod vanished;

use std::path::PathBuf;

pub use atomic::{append, real_path, rename_new, replace, same_file, sync_folder, Scratch};
pub use kind::{Exists, Kind, Output, HEAD};
pub use lock::{remove_orphans, Lock, ReadLock};
pub use map::{Bytes, Map};
pub use memory::OutOfMemory;
pub use own::{open_in_place, open_own, own_file, own_folder};
#[cfg(unix)]
pub use vanished::explain_vanished_files;

/// On this system a truncated file is a separate error, and there is nothing to explain.
#[cfg(not(unix))]
pub fn explain_vanished_files() {}

/// Results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An operation of the file system that failed, and the path it was asked for. Shown as `PATH: REASON`.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct Error {
    /// The file or folder.
    pub path: PathBuf,
    /// The error the system gave.
    pub source: std::io::Error,
}

/// The error of something that is there, or was asked for, and cannot be used.
fn refused(why: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, why)
}

impl Error {
    /// Adds the path to an I/O error.
    pub fn new(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error { path: path.into(), source }
    }
}
