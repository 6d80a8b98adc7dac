//! Finds the files to train on: those named, and those in the folders named.

use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use files::foreign::{self, Walk};
use rayon::prelude::*;
use ropewalk_core::text::other_encoding;
use sha2::{Digest, Sha256};

use super::{read, ChatTemplate, TextOptions};
use crate::error::{invalid, io, Error, Result};
use crate::jsonl::{has_ending, is_jsonl};

/// How a file is read, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One text.
    Text,
    /// JSON Lines: a document on each line.
    Lines,
    /// `.bin`: token ids.
    Tokens,
}

/// A path to read, and its place in the mixture: `web=crawl/:0.7`.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// The name of the group of texts it belongs to; empty where none was given.
    pub name: String,
    /// A file or a folder.
    pub path: PathBuf,
    /// The group's share of the tokens that are trained on.
    pub share: Option<f64>,
}

impl From<PathBuf> for Source {
    fn from(path: PathBuf) -> Self {
        Source { name: String::new(), path, share: None }
    }
}

impl FromStr for Source {
    type Err = Error;

    /// `NAME=PATH:SHARE`, `NAME=PATH`, or a path. What is the path of a file as it stands is taken as that.
    fn from_str(text: &str) -> Result<Self> {
        let named = text.split_once('=').filter(|(name, path)| {
            !name.is_empty()
                && !path.is_empty()
                && !name.contains(['/', '\\', '.'])
                && !Path::new(text).exists()
        });
        let Some((name, rest)) = named else { return Ok(PathBuf::from(text).into()) };
        let share = rest.rsplit_once(':').filter(|_| !Path::new(rest).exists());
        let (path, share) =
            match share.and_then(|(path, share)| Some((path, share.trim().parse::<f64>().ok()?))) {
                Some((path, share)) => (path, Some(share)),
                None => (rest, None),
            };
        if let Some(share) = share.filter(|s| !(*s > 0.0 && *s <= 1.0)) {
            return Err(invalid(format!("{text}: expected a share above 0 and up to 1, found {share}")));
        }
        Ok(Source { name: name.to_owned(), path: path.into(), share })
    }
}

/// Files of one name in the mixture.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    /// Name of the group; empty if none was given.
    pub name: String,
    /// Share of the group in the training tokens; `None` if none was given.
    pub share: Option<f64>,
}

/// A file of texts, as it was when it was hashed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The path by which it was found.
    pub path: PathBuf,
    /// Length in bytes.
    pub n_bytes: u64,
    /// SHA-256 of its bytes before unpacking.
    pub sha256: [u8; 32],
    /// How it is read.
    pub kind: Kind,
    /// Index in [`Sources::groups`].
    pub group: usize,
}

/// Files of texts in a fixed order: as named, and within a folder depth first in byte order of their names.
#[derive(Debug, Clone)]
pub struct Sources {
    files: Vec<SourceFile>,
    groups: Vec<Group>,
    notes: Vec<String>,
    options: TextOptions,
    template: Option<Arc<dyn ChatTemplate>>,
}

impl Sources {
    /// Finds and hashes the files. A directory stands for what a [`Walk`] finds in it, except binary files; notes tell which
    /// were left out. Any file name is a text's, `.jsonl` and `.ndjson` have one record on each line, and `.gz` is unpacked. A
    /// `.bin` file that is named by itself holds token ids.
    ///
    /// # Errors
    /// A path that is not there or cannot be read; a file named by itself that is binary (has a zero byte in
    /// its first 64 KiB) or in UTF-16; no file at all.
    pub fn find(paths: &[PathBuf], options: &TextOptions) -> Result<Sources> {
        let sources: Vec<Source> = paths.iter().cloned().map(Source::from).collect();
        Sources::mixed(&sources, options)
    }

    /// [`Sources::find`] with groups and their shares.
    ///
    /// # Errors
    /// Returns the errors of [`Sources::find`], and an error if shares do not add up to 1, if only some groups have
    /// one, if one group has two, or if only some sources have names.
    pub fn mixed(sources: &[Source], options: &TextOptions) -> Result<Sources> {
        let groups = groups(sources)?;
        let (mut walk, mut about) = (Walk::default(), Vec::new());
        for Source { name, path, .. } in sources {
            let group = groups.iter().position(|g| g.name == *name).unwrap_or_default();
            let found = std::fs::metadata(path).map_err(|e| io(path, e))?;
            if !found.is_dir() && !found.is_file() {
                return Err(invalid(format!("{}: is neither a file nor a directory", path.display())));
            }
            walk.add(path)?;
            about.resize(walk.files.len(), (found.is_file(), group));
        }
        let mut notes: Vec<String> =
            walk.skipped.iter().map(|(path, why)| format!("{}: skipped: {why}", path.display())).collect();
        let looked: Vec<Result<std::result::Result<SourceFile, String>>> = walk
            .files
            .par_iter()
            .zip(&about)
            .map(|(path, (named, group))| look(path, *named, *group))
            .collect();
        let mut files = Vec::new();
        for ((path, (named, _)), looked) in walk.files.iter().zip(&about).zip(looked) {
            match looked? {
                Ok(file) => files.push(file),
                Err(why) if *named => {
                    return Err(invalid(format!("{}: {why}: expected text", path.display())))
                }
                Err(why) => notes.push(format!("{}: skipped: {why}", path.display())),
            }
        }
        if files.is_empty() {
            let where_: Vec<String> = sources.iter().map(|s| s.path.display().to_string()).collect();
            return Err(invalid(format!(
                "no text to train on in {}: {} files skipped",
                if where_.is_empty() { "no path".into() } else { where_.join(", ") },
                notes.len()
            )));
        }
        Ok(Sources { files, groups, notes, options: options.clone(), template: None })
    }

    /// Renders conversations by this template.
    pub fn with_template(self, template: Arc<dyn ChatTemplate>) -> Self {
        Sources { template: Some(template), ..self }
    }

    pub(crate) fn template(&self) -> Option<&dyn ChatTemplate> {
        self.template.as_deref()
    }

    /// The files.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// The groups, in the order they were named; one without a name where no source has one.
    pub fn groups(&self) -> &[Group] {
        &self.groups
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

/// The groups of sources, and their shares checked.
fn groups(sources: &[Source]) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for Source { name, share, .. } in sources {
        match groups.iter_mut().find(|g| g.name == *name) {
            Some(group) if share.is_some() && group.share.is_some() => {
                return Err(invalid(format!("{name}: two shares; give one, at any of its paths")))
            }
            Some(group) => group.share = group.share.or(*share),
            None => groups.push(Group { name: name.clone(), share: *share }),
        }
    }
    if groups.len() > 1 && groups.iter().any(|g| g.name.is_empty()) {
        return Err(invalid("some texts have a name (NAME=PATH) and some have none: name all or none"));
    }
    let shares: Vec<f64> = groups.iter().filter_map(|g| g.share).collect();
    let list = || {
        let one = |g: &Group| g.share.map_or(format!("{} none", g.name), |s| format!("{} {s}", g.name));
        groups.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    if !shares.is_empty() && shares.len() < groups.len() {
        return Err(invalid(format!("shares: expected one for each name or none at all, found {}", list())));
    }
    let sum: f64 = shares.iter().sum();
    if !shares.is_empty() && (sum - 1.0).abs() >= 1e-3 {
        let sum = (sum * 1e6).round() / 1e6;
        return Err(invalid(format!("shares: expected a sum of 1, found {sum} ({})", list())));
    }
    Ok(groups)
}

/// A file's length and hash, or why it is no text, going by its byte-order mark and by zero bytes in its first
/// 64 KiB. Token ids have such bytes.
fn look(path: &Path, named: bool, group: usize) -> Result<std::result::Result<SourceFile, String>> {
    let failed = |e| io(path, e);
    let kind = if named && has_ending(path, &[".bin", ".bin.gz"]) {
        Kind::Tokens
    } else if is_jsonl(path) {
        Kind::Lines
    } else {
        Kind::Text
    };
    let mut head = Vec::new();
    read::unpacked(path, None)?.take(1 << 16).read_to_end(&mut head).map_err(failed)?;
    let zero = head.iter().position(|&b| b == 0);
    let why = match (kind, other_encoding(&head), zero) {
        (Kind::Tokens, ..) | (_, None, None) => None,
        (_, Some(name), _) => Some(format!("{name} by its byte-order mark, not UTF-8")),
        (_, None, Some(at)) => Some(format!("binary (a zero byte at offset {at})")),
    };
    // Not read to its end, which may be far away.
    if let Some(why) = why {
        return Ok(Err(why));
    }
    let mut hash = Sha256::new();
    let mut file = BufReader::with_capacity(1 << 18, foreign::open_file(path)?);
    let n_bytes = std::io::copy(&mut file, &mut hash).map_err(failed)?;
    let sha256 = hash.finalize().into();
    Ok(Ok(SourceFile { path: path.to_owned(), n_bytes, sha256, kind, group }))
}
