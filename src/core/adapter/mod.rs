//! Adapter files: llama.cpp's LoRA files with a few keys and tensors more. [`Opened`] reads them, [`write()`] makes them.

mod file;
mod fingerprint;
mod write;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use gguf::Error;

pub use file::{open_all, target, Keys, Opened, PairInfo, WholeInfo};
pub use fingerprint::fingerprint;
pub use write::{write, AdapterFile, NewPair, NewTensor};

/// An adapter a user asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct AdapterSpec {
    /// The file.
    pub path: PathBuf,
    /// Factor on what it adds: 1 as trained, 0 nothing.
    pub strength: f32,
}

impl FromStr for AdapterSpec {
    type Err = String;
    /// `FILE` or `FILE:STRENGTH`. Where a file has the whole text for its name, that is it.
    fn from_str(text: &str) -> Result<AdapterSpec, String> {
        let whole = AdapterSpec { path: text.into(), strength: 1.0 };
        let Some((path, number)) = text.rsplit_once(':') else { return Ok(whole) };
        if Path::new(text).exists() {
            return Ok(whole);
        }
        match number.parse::<f32>() {
            Ok(strength) if strength.is_finite() && !path.is_empty() => {
                Ok(AdapterSpec { path: path.into(), strength })
            }
            Ok(_) => Err(format!("'{text}': expected a finite strength after FILE:, found {number}")),
            Err(_) => Ok(whole),
        }
    }
}

/// As it was written.
impl std::fmt::Display for AdapterSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.strength)
    }
}

/// An error of an adapter's file.
fn refuse(
    file: &gguf::File,
    key: &str,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> Error {
    file.error(key, format!("expected {expected}, found {found}"))
}
