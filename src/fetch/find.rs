//! Finds the files of earlier pulls.

use std::path::{Path, PathBuf};

use super::error::{io, other, Result};
use super::{sha256_of, Entry, FetchError, Manifest, Origin, Repo, Source};
use crate::control::Control;

/// A file that a pull brought, or that was made of what it brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file.
    pub path: PathBuf,
    /// True if only the record next to it says what it is. A model of the manifest is known by its checksum.
    pub by_record: bool,
    /// Records of other files that cannot be read: a line on each.
    pub skipped: Vec<String>,
}

/// Finds a model in folders that pulls put files into. `model` is a name of the manifest, a source, or a repository whose
/// folder was converted there.
///
/// # Errors
/// [`FetchError::Missing`]; a name that the manifest does not have; several files of one repository.
pub fn find(model: &str, dirs: &[PathBuf]) -> Result<Found> {
    if let Ok(repo) = model.parse::<Repo>() {
        return made_of(&repo, dirs);
    }
    let manifest = Manifest::builtin()?;
    let entry = manifest.get(model);
    let source: Source = entry.map_or(model, |e| &e.source).parse().map_err(|_| {
        let known: Vec<&str> = manifest.models.iter().map(|m| m.name.as_str()).collect();
        let what = match looks_like_a_path(model) {
            true => "no such file".to_owned(),
            false => format!("no such file, and no model of that name (known: {})", known.join(", ")),
        };
        other(model, what)
    })?;
    let mut others = Vec::new();
    for path in dirs.iter().map(|dir| dir.join(source.file_name())).filter(|path| path.is_file()) {
        match stranger(&path, &source, entry)? {
            None => return Ok(Found { path, by_record: entry.is_none(), skipped: Vec::new() }),
            Some(what) => others.push(what),
        }
    }
    Err(FetchError::Missing { model: model.to_owned(), is_repo: false, others })
}

/// The file that was made of a repository's folder, as its record says. Damaged records of other files are left out.
fn made_of(repo: &Repo, dirs: &[PathBuf]) -> Result<Found> {
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for dir in dirs {
        let mut names: Vec<PathBuf> =
            std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        names.retain(|path| path.extension().is_some_and(|e| e == "gguf") && path.is_file());
        names.sort();
        for path in names {
            match Origin::read(&path) {
                Ok(Some(origin)) if origin.source == repo.to_string() => found.push(path),
                Ok(_) => {}
                Err(e) => skipped.push(format!("{} is skipped: {e}", path.display())),
            }
        }
    }
    let model = repo.to_string();
    match &found[..] {
        [one] => Ok(Found { path: one.clone(), by_record: true, skipped }),
        [] => Err(FetchError::Missing { model, is_repo: true, others: skipped }),
        several => {
            let several: Vec<String> = several.iter().map(|path| path.display().to_string()).collect();
            let what =
                format!("several files were made from it; name one by its path: {}", several.join(" "));
            Err(other(model, what))
        }
    }
}

/// Says what else a file of the right name is, if it is not what a pull would have put there. Of a model of the manifest
/// the checksum decides, whatever a record says; of others the record, for nothing else is known of them.
fn stranger(path: &Path, source: &Source, entry: Option<&Entry>) -> Result<Option<String>> {
    let shown = path.display();
    Ok(match (Origin::read(path), entry) {
        (Ok(Some(origin)), _) if origin.source != source.to_string() => {
            Some(format!("{shown} is {}", origin.source))
        }
        (_, Some(entry)) => {
            let found = path.metadata().map_err(io(path))?.len();
            if found != entry.bytes {
                return Ok(Some(format!("{shown} is {found} bytes instead of {}", entry.bytes)));
            }
            let (sum, _) = sha256_of(path, &Control::default())?;
            let other = format!("{shown} is another file: expected sha256 {}, found {sum}", entry.sha256);
            (sum != entry.sha256).then_some(other)
        }
        (Ok(Some(_)), None) => None,
        (Ok(None), None) => Some(format!("{shown} has an unknown origin: name it by its path")),
        (Err(e), None) => Some(format!("{shown} is skipped: {e}")),
    })
}

fn looks_like_a_path(model: &str) -> bool {
    model.contains(['/', '\\']) || Path::new(model).extension().is_some_and(|e| e == "gguf")
}
