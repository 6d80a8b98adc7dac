//! Files of published data that tasks read, out of a folder of the user's.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::{Error, Result};

mod jsonl;

pub(crate) use jsonl::Records;

/// Bytes of one file of data, at most: the largest published one is a tenth of it.
const MAX_BYTES: u64 = 1 << 30;

/// A file that a task reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFile {
    /// Name within the folder of data, with `/`.
    pub name: &'static str,
    /// SHA-256 of the one published file, in hexadecimal; `None` where several are in use.
    pub sha256: Option<&'static str>,
    /// Where it is to be had, for people: a package, a dataset's name, a page.
    pub from: &'static str,
}

impl DataFile {
    /// Where the file is in a folder of data.
    ///
    /// # Errors
    /// It is not there; the message says where to get it.
    pub fn path(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(self.name);
        match path.try_exists() {
            Ok(true) => Ok(path),
            Ok(false) => Err(Error::file(path, format!("is missing; it comes from {}", self.from))),
            Err(e) => Err(Error::file(path, e)),
        }
    }

    /// The bytes of the file in a folder of data.
    ///
    /// # Errors
    /// It is missing, larger than a gibibyte, not the published one, or cannot be read.
    pub fn read(&self, folder: &Path) -> Result<Vec<u8>> {
        let path = self.path(folder)?;
        let io = |e: std::io::Error| Error::file(&path, e);
        let input = File::open(&path).map_err(io)?;
        let kind = input.metadata().map_err(io)?;
        if !kind.is_file() {
            return Err(Error::file(&path, "is not a regular file"));
        }
        if kind.len() > MAX_BYTES {
            return Err(Error::file(
                &path,
                format!("has {} bytes, expected at most {MAX_BYTES}", kind.len()),
            ));
        }
        let mut bytes = Vec::new();
        input.take(MAX_BYTES).read_to_end(&mut bytes).map_err(io)?;
        if let Some(expected) = self.sha256 {
            let found: String = Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect();
            if found != expected {
                return Err(Error::file(&path, format!("expected sha256 {expected}, found {found}")));
            }
        }
        Ok(bytes)
    }

    /// The text of the file.
    ///
    /// # Errors
    /// Those of [`DataFile::read`], and bytes that are not UTF-8.
    pub fn read_text(&self, folder: &Path) -> Result<String> {
        String::from_utf8(self.read(folder)?).map_err(|e| Error::file(folder.join(self.name), e))
    }
}
