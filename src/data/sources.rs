//! Finds the files to train on: those named, and those in the folders named.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use sha2::{Digest, Sha256};
use walkdir::WalkDir;

use super::{invalid, io, read};
use crate::model::Result;

/// The way bytes of files become texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextOptions {
    /// The field of a JSONL line that holds its text.
    pub text_field: String,
    /// Whether bytes that are not UTF-8 become U+FFFD, with a note; otherwise they are an error.
    pub replace_invalid: bool,
}

impl Default for TextOptions {
    /// Field `text`; bytes that are not UTF-8 are an error.
    fn default() -> Self {
        TextOptions { text_field: "text".into(), replace_invalid: false }
    }
}

/// A file of texts, as it was when it was hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The path by which it was found.
    pub path: PathBuf,
    /// Its length in bytes.
    pub n_bytes: u64,
    /// SHA-256 of its bytes before unpacking.
    pub sha256: [u8; 32],
}

/// Files of texts in a fixed order: as named, and within a folder depth first in byte order of their names.
#[derive(Debug, Clone)]
pub struct Sources {
    files: Vec<SourceFile>,
    notes: Vec<String>,
    options: TextOptions,
}

impl Sources {
    /// Finds and hashes the files. A folder stands for all files below it except hidden ones (`.name`) and
    /// binary ones; notes tell which binary files were left out. Any file name is a text's, `.jsonl` and
    /// `.ndjson` have one text on each line, and `.gz` is unpacked.
    ///
    /// # Errors
    /// A path that is not there or cannot be read; a file named by itself that is binary (has a zero byte in
    /// its first 64 KiB); no file at all.
    pub fn find(paths: &[PathBuf], options: &TextOptions) -> Result<Sources> {
        let mut walk = Walk::default();
        for path in paths {
            let about = std::fs::metadata(path).map_err(|e| io(path, e))?;
            if about.is_dir() {
                walk.folder(path)?;
            } else if about.is_file() {
                walk.file(path, true)?;
            } else {
                return Err(invalid(format!("{}: is neither a file nor a folder", path.display())));
            }
        }
        let Walk { found, mut notes, .. } = walk;
        let looked: Vec<Result<(Option<u64>, SourceFile)>> =
            found.par_iter().map(|(path, _)| look(path)).collect();
        let mut files = Vec::new();
        for ((path, named), looked) in found.iter().zip(looked) {
            match looked? {
                (None, file) => files.push(file),
                (Some(at), _) if *named => {
                    return Err(invalid(format!(
                        "{}: binary (a zero byte at offset {at}): expected text",
                        path.display()
                    )))
                }
                (Some(at), _) => {
                    notes.push(format!("{}: skipped: binary (a zero byte at offset {at})", path.display()))
                }
            }
        }
        if files.is_empty() {
            let where_: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
            return Err(invalid(format!(
                "no text to train on in {}: {} files skipped",
                if where_.is_empty() { "no path".into() } else { where_.join(", ") },
                notes.len()
            )));
        }
        Ok(Sources { files, notes, options: options.clone() })
    }

    /// The files.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Files and folders that were left out, and why, a line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The way they are read.
    pub fn options(&self) -> &TextOptions {
        &self.options
    }

    /// Length of all files in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.files.iter().map(|f| f.n_bytes).sum()
    }
}

#[derive(Default)]
struct Walk {
    /// Paths, and whether each was named by itself.
    found: Vec<(PathBuf, bool)>,
    notes: Vec<String>,
    /// Files and folders met so far, links resolved: no text is trained on twice because two paths lead to
    /// it.
    seen: HashSet<PathBuf>,
}

impl Walk {
    fn skip(&mut self, path: &Path, why: &str) {
        self.notes.push(format!("{}: skipped: {why}", path.display()));
    }

    fn is_new(&mut self, path: &Path) -> Result<bool> {
        let real = std::fs::canonicalize(path).map_err(|e| io(path, e))?;
        let new = self.seen.insert(real);
        if !new {
            self.skip(path, "met before");
        }
        Ok(new)
    }

    fn file(&mut self, path: &Path, named: bool) -> Result<()> {
        if self.is_new(path)? {
            self.found.push((path.to_owned(), named));
        }
        Ok(())
    }

    fn folder(&mut self, folder: &Path) -> Result<()> {
        let mut entries = WalkDir::new(folder).follow_links(true).sort_by_file_name().into_iter();
        while let Some(entry) = entries.next() {
            let path = entry.as_ref().map_or_else(|e| e.path().unwrap_or(folder), |e| e.path()).to_owned();
            let hidden =
                path != folder && path.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
            match entry {
                Ok(entry) if entry.file_type().is_dir() => {
                    if hidden || !self.is_new(&path)? {
                        entries.skip_current_dir();
                    }
                }
                _ if hidden => {}
                Ok(entry) if entry.file_type().is_file() => self.file(&path, false)?,
                Ok(_) => self.skip(&path, "neither a file nor a folder"),
                Err(e) => match e.into_io_error() {
                    Some(e) => return Err(io(&path, e)),
                    // A link to a folder that it lies in.
                    None => self.skip(&path, "met before"),
                },
            }
        }
        Ok(())
    }
}

/// A file's length and hash, and the offset of the first zero byte in the first 64 KiB of its text, if there
/// is one.
fn look(path: &Path) -> Result<(Option<u64>, SourceFile)> {
    let failed = |e| io(path, e);
    let mut head = Vec::new();
    read::unpacked(path, None)?.take(1 << 16).read_to_end(&mut head).map_err(failed)?;
    let zero = head.iter().position(|&b| b == 0).map(|at| at as u64);
    let mut hash = Sha256::new();
    let mut n_bytes = 0u64;
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut buffer = vec![0u8; 1 << 18];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => {
                hash.update(&buffer[..n]);
                n_bytes += n as u64;
            }
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(failed(e)),
        }
    }
    let sha256 = hash.finalize().into();
    Ok((zero, SourceFile { path: path.to_owned(), n_bytes, sha256 }))
}
