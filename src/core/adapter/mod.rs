//! Adapter files: llama.cpp's LoRA files with some metadata keys and tensors of our own. [`AdapterReader`]
//! reads them, [`write()`] writes them.

mod clex;
mod file;
mod fingerprint;
mod meta;
mod write;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use gguf::Error;

pub use clex::ClexInfo;
pub use file::{open_all, target, AdapterReader, ModuleInfo, PairInfo};
pub use fingerprint::{fingerprint, metadata_fingerprint};
pub use meta::{AdapterMeta, Ancestor, DataEnd};
pub use write::{write, AdapterFile, NewPair, NewTensor};

crate::setters! {
    /// An adapter that a user asks for.
    #[derive(Debug, Clone, PartialEq)]
    pub struct AdapterSpec {
        /// The file.
        pub path: PathBuf,
        /// Factor on all that the adapter changes: 1 as it was trained, 0 nothing.
        pub scale: f32,
        /// Take it although it was trained on another model with the same tensors, or under another rope spec.
        pub force: bool,
    }
}

impl AdapterSpec {
    /// An adapter at a scale, where it fits.
    pub fn new(path: impl Into<PathBuf>, scale: f32) -> AdapterSpec {
        AdapterSpec { path: path.into(), scale, force: false }
    }
}

impl FromStr for AdapterSpec {
    type Err = String;
    /// Parses `FILE`, `FILE:SCALE`, `FILE:force` or `FILE:SCALE:force`. If a file has the whole text for its name, that
    /// file is meant, at scale 1.
    fn from_str(text: &str) -> Result<AdapterSpec, String> {
        let unscaled = AdapterSpec::new(text, 1.0);
        let Some((path, last)) = text.rsplit_once(':') else { return Ok(unscaled) };
        if Path::new(text).exists() {
            return Ok(unscaled);
        }
        if last == "force" {
            return Ok(AdapterSpec { force: true, ..path.parse()? });
        }
        match last.parse::<f32>() {
            Ok(scale) if scale.is_finite() && !path.is_empty() => Ok(AdapterSpec::new(path, scale)),
            Ok(_) => Err(format!("'{text}': expected a finite scale after FILE:, found {last}")),
            Err(_) => Ok(unscaled),
        }
    }
}

/// `FILE:SCALE`.
impl std::fmt::Display for AdapterSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.scale)
    }
}

/// An error that names file, key, and the expected and found values.
fn refuse(
    file: &gguf::File,
    key: &str,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> Error {
    file.error(key, format!("expected {expected}, found {found}"))
}
