//! Files of published data that tasks read, out of a folder of the user's.

use std::io::Read;
use std::path::{Path, PathBuf};

use files::foreign::{open_file, read_file, texts};

use ropewalk_core::text::{decode, unix_lines, Invalid};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{Error, Result};

mod jsonl;

pub(crate) use jsonl::{check_answer, Records};

/// Bytes of one file of data, at most: the largest published one is a tenth of it.
const MAX_BYTES: u64 = 1 << 30;

/// A file that a task reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataFile {
    /// Name within the folder of data, with `/`.
    pub name: &'static str,
    /// SHA-256 of the one published file, in hexadecimal; `None` where several are in use.
    pub sha256: Option<&'static str>,
    /// Where it is published, for people: the package, the dataset, or the repository that it is part of.
    pub from: &'static str,
}

/// The published files of a folder, and where they are from: of each its name and its SHA-256.
macro_rules! data_files {
    ($folder:literal, $from:expr; $($(#[$doc:meta])* $id:ident $name:literal $sha:literal)*) => { $(
        $(#[$doc])*
        static $id: $crate::DataFile =
            $crate::DataFile { name: concat!($folder, "/", $name), sha256: Some($sha), from: $from };
    )* };
}

pub(crate) use data_files;

impl DataFile {
    /// Where the file is in a folder of data.
    ///
    /// # Errors
    /// It is not there; the message says how to get it.
    pub fn path(&self, folder: &Path) -> Result<PathBuf> {
        let path = folder.join(self.name);
        match path.try_exists() {
            Ok(true) => Ok(path),
            Ok(false) => Err(Error::Missing { path, name: self.name, published: self.from }),
            Err(e) => Err(Error::file(path, e)),
        }
    }

    /// The bytes of the file in a folder of data.
    ///
    /// # Errors
    /// It is missing, larger than a gibibyte, not the published one, or cannot be read.
    pub fn read(&self, folder: &Path) -> Result<Vec<u8>> {
        let path = self.path(folder)?;
        let bytes = read_file(&path, MAX_BYTES)?;
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
    /// Returns the errors of [`DataFile::read`], and an error if bytes are not UTF-8.
    pub fn read_text(&self, folder: &Path) -> Result<String> {
        String::from_utf8(self.read(folder)?).map_err(|e| Error::file(folder.join(self.name), e))
    }
}

/// A line of a file of documents.
#[derive(Deserialize)]
struct Document {
    text: String,
}

/// The documents of a user: a text file, a JSONL file with a `text` on each line, or those below a folder. Line ends become
/// `\n`, as Python reads text.
///
/// Reading stops after about `enough` bytes, so that a large collection costs no more than what is used of it.
pub fn read_documents(path: &Path, mut enough: u64) -> Result<Vec<String>> {
    let mut documents = Vec::new();
    for file in texts(path)? {
        if enough == 0 {
            break;
        }
        // Reading may stop in a last line, which is then cut.
        let (text, is_cut) = read_start(&file, enough)?;
        enough = enough.saturating_sub(text.len() as u64);
        if file.extension().is_none_or(|e| e != "jsonl" && e != "ndjson") {
            documents.push(text);
            continue;
        }
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            match serde_json::from_str::<Document>(line) {
                Ok(document) => documents.push(unix_lines(document.text)),
                Err(e) if e.is_eof() && !documents.is_empty() && is_cut => break,
                Err(e) => return Err(Error::file(&file, format!("line {}: {e}", i + 1))),
            }
        }
    }
    documents.retain(|text| !text.trim().is_empty());
    if documents.is_empty() {
        let what = "expected text (.txt, .md, or .jsonl with a \"text\" on each line), found none";
        return Err(Error::file(path, what));
    }
    Ok(documents)
}

/// The first `enough` bytes of a text file, less what is cut of the last character, and whether there are more.
fn read_start(path: &Path, enough: u64) -> Result<(String, bool)> {
    let mut bytes = Vec::new();
    let mut input = open_file(path)?.take(enough.min(MAX_BYTES));
    input.read_to_end(&mut bytes).map_err(|e| Error::file(path, e))?;
    let is_cut = bytes.len() as u64 >= enough;
    if let Err(e) = std::str::from_utf8(&bytes) {
        if e.error_len().is_none() && is_cut {
            bytes.truncate(e.valid_up_to());
        }
    }
    Ok((decode(bytes, Invalid::Refuse).map_err(|e| Error::file(path, e))?.text, is_cut))
}
