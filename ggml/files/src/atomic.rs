//! Atomic replacement of a file: readers find the old contents or the new, never a part.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use crate::{Error, Result};

/// How the names of the temporary files of [`replace`] begin. A process that is killed leaves its file
/// behind.
pub const PREFIX: &str = ".writing-";

/// Lets `body` write a temporary file beside `path`, syncs it, renames it to `path` and syncs the folder. For
/// files of any format; the error is the caller's.
///
/// A symbolic link at `path` is replaced, not followed. On an error `path` is as it was and the temporary
/// file is gone; the one exception is a failing sync of the folder, reported although the new file is already
/// in place.
///
/// # Errors
/// Those of `body`, and [`Error`] with `path`, also when something other than a regular file is there.
pub fn replace<T, E: From<Error>>(
    path: &Path,
    body: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    replace_with(path, |temporary| {
        let mut out = BufWriter::with_capacity(1 << 16, temporary.as_file_mut());
        let done = body(&mut out)?;
        out.flush().map_err(|e| E::from(Error::new(path, e)))?;
        Ok(done)
    })
}

/// As [`replace`], for a `body` that opens the temporary file by its path.
///
/// # Errors
/// Those of [`replace`].
pub fn replace_by_path<T, E: From<Error>>(
    path: &Path,
    body: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    replace_with(path, |temporary| body(temporary.path()))
}

fn replace_with<T, E: From<Error>>(
    path: &Path,
    body: impl FnOnce(&mut tempfile::NamedTempFile) -> Result<T, E>,
) -> Result<T, E> {
    let io = |source| E::from(Error::new(path, source));
    let refuse = |why: &str| io(io::Error::new(ErrorKind::InvalidInput, why));
    if path.file_name().is_none() {
        return Err(refuse("is not the name of a file"));
    }
    let before = match fs::symlink_metadata(path) {
        Ok(m) if m.is_file() || m.is_symlink() => Some(m),
        // Renaming over a device or a pipe would remove it.
        Ok(_) => return Err(refuse("is there already and is not a regular file")),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(io(e)),
    };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Said here, because the error below would name the temporary file.
    if !folder.is_dir() {
        return Err(refuse(&format!("there is no folder {}", folder.display())));
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As for any new file, less the umask; tempfile's own choice is for the owner alone.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut temporary = builder.tempfile_in(folder).map_err(io)?;
    let done = body(&mut temporary)?;
    if let Some(before) = before.filter(|m| m.is_file()) {
        temporary.as_file().set_permissions(before.permissions()).map_err(io)?;
    }
    temporary.as_file().sync_all().map_err(io)?;
    temporary.persist(path).map_err(|e| io(e.error))?;
    sync_folder(folder).map_err(io)?;
    Ok(done)
}

#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    match fs::File::open(folder)?.sync_all() {
        // Some file systems cannot sync a folder, and need not.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

/// True when both paths lead to the same existing file, through links too. A path without a file is no
/// other's.
///
/// # Errors
/// When the system does not let one of them be looked at.
pub fn same_file(a: &Path, b: &Path) -> Result<bool> {
    match (identity(a)?, identity(b)?) {
        (Some(a), Some(b)) => Ok(a == b),
        _ => Ok(false),
    }
}

fn existing<T>(path: &Path, found: io::Result<T>) -> Result<Option<T>> {
    match found {
        Ok(v) => Ok(Some(v)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::new(path, e)),
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> Result<Option<(u64, u64)>> {
    use std::os::unix::fs::MetadataExt;
    Ok(existing(path, fs::metadata(path))?.map(|m| (m.dev(), m.ino())))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Result<Option<std::path::PathBuf>> {
    existing(path, fs::canonicalize(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_file_by_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        fs::write(&a, "x").unwrap();
        assert!(same_file(&a, &folder.path().join(".").join("a")).unwrap());
        assert!(!same_file(&a, &b).unwrap());
        fs::write(&b, "x").unwrap();
        assert!(!same_file(&a, &b).unwrap());
        fs::remove_file(&b).unwrap();
        fs::hard_link(&a, &b).unwrap();
        assert!(same_file(&a, &b).unwrap());
    }
}
