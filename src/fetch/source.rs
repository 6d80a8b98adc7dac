//! Sources that can be fetched: files of a model hub, and the manifest of models known by name.

use std::str::FromStr;

use ropewalk_core::terminal::one_line;
use serde::{Deserialize, Serialize};

use super::error::other;
use super::{FetchError, Result};

/// Returns true if a text can be the name of a fetched file: not hidden, and not the name of a record.
pub(super) fn is_file_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-+=,@".contains(c);
    let record = text.to_ascii_lowercase().ends_with(super::origin::SUFFIX);
    !text.is_empty() && !text.starts_with('.') && text.chars().all(plain) && !record
}

/// Returns true if a path in a repository can be that of a file in a fetched directory: a name, or that of a chat
/// template, short enough to be shown and to be a name with others around it.
pub(super) fn is_path(text: &str) -> bool {
    text.len() <= 200 && is_file_name(ropewalk_import::template(text).unwrap_or(text))
}

const FORMS: &str = "expected hf:ORG/REPO or hf:ORG/REPO/FILE";

/// A file of a model hub: `hf:ORG/REPO/FILE`, where FILE may lie in folders of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// `ORG/REPO`.
    pub repo: String,
    /// Path in the repository.
    pub file: String,
}
impl FromStr for Source {
    type Err = FetchError;
    fn from_str(text: &str) -> Result<Self> {
        match parts(text)[..] {
            [org, repo, ref file @ ..] if !file.is_empty() => {
                Ok(Source { repo: format!("{org}/{repo}"), file: file.join("/") })
            }
            _ => Err(other(format_args!("source '{text}'"), FORMS)),
        }
    }
}
impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hf:{}/{}", self.repo, self.file)
    }
}
impl Source {
    /// The name of the file in the target folder.
    pub fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or(&self.file)
    }

    /// All parts of a split model when this is its first part (`NAME-00001-of-0000N.gguf`), else this source
    /// alone.
    pub fn parts(&self) -> Vec<Source> {
        let split = self.file.strip_suffix(".gguf").and_then(|name| name.rsplit_once("-00001-of-"));
        match split.map(|(stem, total)| (stem, total, total.parse::<u32>())) {
            Some((stem, total, Ok(n))) if total.len() == 5 && n > 0 => {
                let file = |i: u32| format!("{stem}-{i:05}-of-{n:05}.gguf");
                (1..=n).map(|i| Source { repo: self.repo.clone(), file: file(i) }).collect()
            }
            _ => vec![self.clone()],
        }
    }
}

/// A repository of a model hub: `hf:ORG/REPO`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repo(String);

impl FromStr for Repo {
    type Err = FetchError;
    fn from_str(text: &str) -> Result<Self> {
        match parts(text)[..] {
            [org, name] => Ok(Repo(format!("{org}/{name}"))),
            _ => Err(other(format_args!("source '{text}'"), FORMS)),
        }
    }
}
impl std::fmt::Display for Repo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "hf:{}", self.0)
    }
}
impl Repo {
    /// `ORG/REPO`.
    pub fn id(&self) -> &str {
        &self.0
    }
    /// Name of the repository without the organization.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }
}

/// Parts of what follows `hf:` in a text; none if one of them cannot be a name.
fn parts(text: &str) -> Vec<&str> {
    let parts: Vec<&str> = text.strip_prefix("hf:").unwrap_or_default().split('/').collect();
    if parts.iter().all(|part| is_file_name(part)) {
        parts
    } else {
        Vec::new()
    }
}

/// A model of the manifest.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name that a user types.
    pub name: String,
    /// Other names for it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The source, `hf:ORG/REPO/FILE`.
    pub source: String,
    /// SHA-256 of the file, in lower-case hexadecimal.
    pub sha256: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// SPDX identifier or name of the license.
    pub licence: String,
    /// Notes for a reader of the list.
    #[serde(default)]
    pub notes: String,
}
/// The list of known models.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The models, in the order of the file.
    #[serde(default, rename = "model")]
    pub models: Vec<Entry>,
}
impl Manifest {
    /// The manifest compiled into the program, `models/manifest.toml`.
    pub fn builtin() -> Result<Manifest> {
        Manifest::parse(include_str!("../../models/manifest.toml"), "models/manifest.toml")
    }

    /// Reads and checks a manifest; `origin` names it in errors.
    ///
    /// # Errors
    /// A text that is not TOML, an unknown or missing key, a bad source or checksum, or a name that is there twice.
    pub fn parse(text: &str, origin: &str) -> Result<Manifest> {
        let fail = |what: String| other(format_args!("manifest {origin}"), what);
        let manifest: Manifest = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(0, |s| text[..s.start].matches('\n').count() + 1);
            fail(format!("line {line}: {}", one_line(e.message())))
        })?;
        let mut seen = std::collections::HashSet::new();
        for entry in &manifest.models {
            entry.source.parse::<Source>().map_err(|e| fail(format!("{}: {e}", entry.name)))?;
            if !is_sha256(&entry.sha256) {
                let what = "sha256: expected 64 lower-case hexadecimal digits, found";
                return Err(fail(format!("{}: {what} '{}'", entry.name, entry.sha256)));
            }
            for name in std::iter::once(&entry.name).chain(&entry.aliases) {
                if name.is_empty() || !seen.insert(name) {
                    return Err(fail(format!("name '{name}': empty or duplicate")));
                }
            }
        }
        Ok(manifest)
    }

    /// The entry with this name, alias or source.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.models.iter().find(|m| m.name == name || m.source == name || m.aliases.iter().any(|a| a == name))
    }
}

/// Returns true if a text is a SHA-256 as this module writes it: 64 lower-case hexadecimal digits.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && is_hex(text)
}

pub(super) fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
