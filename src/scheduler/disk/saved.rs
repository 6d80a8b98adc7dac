//! Texts that callers save under names of their own. They stay in the directory until they are replaced or somebody removes
//! the files, and have half of its bytes at most. Each owner has an equal part of that, so that no owner learns how much
//! another one saves.

use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use files::foreign::Folder;
use ropewalk_core::text::bytes;

use super::store::hashed;
use super::{open_file, Disk};
use crate::model::{Error, Result};
use crate::session::{Packed, SavedSession};

/// How the names of files begin; digits of a hash of the owner and the name follow.
const SAVED: &str = "saved-";
const DIGITS: usize = 16;
const MAX_NAME: usize = 64;
/// Most saved texts.
const MAX_SAVED: usize = 1000;

/// A name of the directory's files that a caller has chosen.
pub(in crate::scheduler) struct Name {
    file: String,
    name: String,
}

impl Name {
    /// # Errors
    /// The name has other characters than it may have.
    pub(in crate::scheduler) fn new(owner: &[u8], name: &str) -> Result<Name> {
        let known = |c: u8| matches!(c, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
        let begins = name.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric());
        if !begins || name.len() > MAX_NAME || !name.bytes().all(known) {
            let expected = "a-z, 0-9, '.', '_', and '-', the first a letter or a digit";
            let found: String = name.chars().take(MAX_NAME).collect();
            let expected = format!("1 to {MAX_NAME} of {expected}");
            return Err(Error::argument("filename", expected, format_args!("{found:?}")));
        }
        Ok(Name { file: format!("{SAVED}{}-{name}", &hashed(owner)[..DIGITS]), name: name.to_owned() })
    }
}

/// Bytes of a saved text; `None` for other files.
pub(super) fn found(folder: &Folder, name: &str) -> Result<Option<u64>> {
    if !name.starts_with(SAVED) {
        return Ok(None);
    }
    let path = folder.path().join(name);
    let file = folder.file(Path::new(name))?;
    file.map(|file| file.metadata().map(|about| about.len()).map_err(|e| Error::io(path, e))).transpose()
}

impl Disk {
    /// Writes a text; returns the bytes of its file.
    ///
    /// # Errors
    /// There is no room for it, or something else is in its place; the disk.
    pub(in crate::scheduler) fn save(&self, name: &Name, packed: &Packed, attachment: &[u8]) -> Result<u64> {
        let refused = |why: String| Err(Error::Invalid(format!("{}: not saved: {why}", name.name)));
        let (n_bytes, n_owners) = (packed.n_bytes(attachment), self.params.n_owners.max(1));
        let (most, most_texts) = (self.params.n_bytes / 2 / n_owners as u64, MAX_SAVED.div_ceil(n_owners));
        let owner = &name.file[..SAVED.len() + DIGITS];
        // One at a time.
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let old = saved.get(&name.file).copied();
        let others = saved.iter().filter(|(file, _)| file.starts_with(owner) && **file != name.file);
        let (n_texts, others) = others.fold((0usize, 0u64), |(n, sum), (_, n_bytes)| (n + 1, sum + n_bytes));
        if n_bytes.saturating_add(others) > most {
            let (most, others, own) = (bytes(most), bytes(others), bytes(n_bytes));
            return refused(format!(
                "expected at most {most} of saved texts, found {others} and these {own}"
            ));
        }
        if n_texts >= most_texts {
            return refused(format!("expected at most {most_texts} saved texts, found more"));
        }
        if !self.make_room(n_bytes, |_| false) {
            return refused(format!("expected room for {}, found less", bytes(n_bytes)));
        }
        let written = packed.write(&self.params.dir.join(&name.file), attachment);
        if written.is_ok() {
            saved.insert(name.file.clone(), n_bytes);
        }
        drop(saved);
        self.lock().free(if written.is_ok() { old.unwrap_or(0) } else { n_bytes });
        written.map(|()| n_bytes).map_err(|e| self.shown(name, e))
    }

    /// Reads a text, its attachment, and the bytes of its file, which is verified.
    ///
    /// # Errors
    /// There is none of this name, or it is damaged, or needs more memory than is free; the disk.
    pub(in crate::scheduler) fn load(&self, name: &Name) -> Result<(Packed, Vec<u8>, u64)> {
        let load = |saved: SavedSession| -> Result<(Packed, Vec<u8>, u64)> {
            let (n_bytes, attachment) = (saved.about_file()?.0, saved.attachment().to_vec());
            Ok((saved.packed()?, attachment, n_bytes))
        };
        open_file(&self.folder, &name.file).and_then(load).map_err(|e| self.shown(name, e))
    }

    /// An error as those see it who chose the name: they have no need of paths of this machine.
    fn shown(&self, name: &Name, e: Error) -> Error {
        match e {
            Error::Io { source, .. } => Error::Io { path: PathBuf::from(&name.name), source },
            e => {
                let path = self.params.dir.join(&name.file).display().to_string();
                Error::Invalid(e.to_string().replace(&path, &name.name))
            }
        }
    }
}
