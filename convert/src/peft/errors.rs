//! Errors about keys of files.

use std::path::Path;

use crate::Error;

/// An error about a key of a file: `FILE: KEY: WHAT`.
pub(super) fn refuse(path: &Path, key: &str, what: impl std::fmt::Display) -> Error {
    Error::Invalid(format!("{}: {}: {what}", path.display(), key.escape_debug()))
}

/// Characters of a text from a file that an error shows.
const SHOWN: usize = 64;

/// The start of a text from a file, for errors.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN).flat_map(char::escape_debug).collect()
}
