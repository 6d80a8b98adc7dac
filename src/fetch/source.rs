//! Sources that can be fetched: files of a model hub.

use std::str::FromStr;

use crate::origin::{is_file_name, other, Error, Result};

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
    type Err = Error;
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
    type Err = Error;
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

/// Returns true if a text is a SHA-256 as this module writes it: 64 lower-case hexadecimal digits.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && is_hex(text)
}

pub(super) fn is_hex(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}
