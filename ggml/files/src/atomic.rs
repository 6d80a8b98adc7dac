//! Atomic replacement of a file: readers find the old contents or the new, never a part.
#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use crate::faults::{step, Step};
use crate::kind::{Kind, Output};
use crate::lock::{is_at, remove_orphans};
use crate::names::{folder_of, prefix, N_RANDOM};
use crate::own::open_unlinked;
use crate::{refused, Error, Result};

/// Lets `body` write a temporary file next to `path`, syncs it, renames it to `path` and syncs the folder. For
/// files of any format; the error is the caller's.
///
/// Replaces an existing file only if it is of this `kind`, or if the output is forced; this is checked before `body` is
/// called and again before the renaming. A symbolic link at `path` is replaced, not followed. On an error `path` is
/// unchanged and the temporary file is gone; the one exception is a failing sync of the directory, reported although the
/// new file is already in place.
///
/// The temporary file is named after `path` (`.NAME.writing-` and eight letters or digits) and locked while it
/// is written. A process that is killed leaves it behind; the next `replace` into the folder removes it, as
/// [`remove_orphans`] does. So processes that share a folder must see each other's locks, as they do on local
/// disks and, unless that is switched off, on network file systems.
///
/// # Errors
/// Returns the errors of `body`, and [`Error`] with `path`, also if something of another kind is there.
pub fn replace<T, E: From<Error>>(
    path: impl Into<Output>,
    kind: &Kind,
    body: impl FnOnce(&mut dyn Write) -> Result<T, E>,
) -> Result<T, E> {
    let mut temporary = Scratch::beside(path, kind)?;
    let done = temporary.write(body)?;
    temporary.place()?;
    Ok(done)
}

/// A temporary file next to its target: named, locked, and cleaned up like those of [`replace`], and removed
/// when it is dropped unless [`Scratch::place`] has made it the file it is for.
#[derive(Debug)]
pub struct Scratch {
    temporary: NamedTempFile,
    of: Output,
    kind: Kind,
}

impl Scratch {
    /// Makes an empty one in the folder of `path`, if nothing is at `path`, a file of this `kind`, or, for a forced output,
    /// any file.
    ///
    /// # Errors
    /// With `path`: something of another kind is there, or the disk.
    pub fn beside(path: impl Into<Output>, kind: &Kind) -> Result<Scratch> {
        let of = path.into();
        let path = of.path();
        let refuse = |why: &str| Err(Error::new(path, refused(why)));
        if path.file_name().is_none() {
            return refuse("is not the name of a file");
        }
        kind.claim(of.clone())?;
        let folder = folder_of(path);
        // Said here, because the error below would name the temporary file.
        if !folder.is_dir() {
            return refuse(&format!("the directory {} does not exist", folder.display()));
        }
        // First, since it may make the room that this file needs.
        remove_orphans(folder);
        let temporary = create(path, folder).map_err(|e| Error::new(path, e))?;
        Ok(Scratch { temporary, of, kind: *kind })
    }

    /// Where it is, for what writes to a path.
    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Lets `body` write to it, from where the last write ended.
    ///
    /// # Errors
    /// Returns the errors of `body`, and those of the disk.
    pub fn write<T, E: From<Error>>(
        &mut self,
        body: impl FnOnce(&mut dyn Write) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut out = BufWriter::with_capacity(1 << 16, Steps(self.temporary.as_file_mut()));
        let done = body(&mut out)?;
        out.flush().map_err(|e| Error::new(self.of.path(), e))?;
        Ok(done)
    }

    /// Syncs it, renames it to the path it is for and syncs the folder. Permissions of a file there are kept.
    ///
    /// # Errors
    /// Something of another kind is there by now, or the disk: see [`replace`].
    pub fn place(self) -> Result<()> {
        let Scratch { temporary, of: output, kind } = self;
        let of = output.path();
        let io = |e| Error::new(of, e);
        if let Some(before) = fs::symlink_metadata(of).ok().filter(fs::Metadata::is_file) {
            let set = || temporary.as_file().set_permissions(before.permissions());
            step(Step::Permissions).and_then(|()| set()).map_err(io)?;
        }
        step(Step::Sync).and_then(|()| temporary.as_file().sync_all()).map_err(io)?;
        // Another program may have put a file there meanwhile.
        kind.claim(output.clone())?;
        step(Step::Rename).and_then(|()| temporary.persist(of).map_err(|e| e.error)).map_err(io)?;
        step(Step::SyncFolder).and_then(|()| sync_folder(folder_of(of))).map_err(io)
    }
}

/// Makes the temporary file of `path` and locks it, so that nobody takes it for one of a dead process.
fn create(path: &Path, folder: &Path) -> io::Result<NamedTempFile> {
    let prefix = prefix(path);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).rand_bytes(N_RANDOM);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As for any new file, less the umask; tempfile's own choice is for the owner alone.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    loop {
        step(Step::Create)?;
        let temporary = builder.tempfile_in(folder)?;
        match temporary.as_file().try_lock() {
            // Before it was locked somebody may have cleared it away.
            Ok(()) if !is_at(temporary.as_file(), temporary.path()) => {}
            Err(TryLockError::WouldBlock) => {}
            // Where there are no locks nobody clears anything away.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(temporary),
        }
    }
}

/// A file whose writes are steps that a test can make fail.
struct Steps<'a>(&'a mut File);

impl Write for Steps<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(e) = step(Step::Write) {
            self.0.write_all(&bytes[..bytes.len() / 2])?;
            return Err(e);
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Appends `bytes` to the file at `path`, which is made when there is none: all of them or, on an error, none.
/// A process that is killed meanwhile may leave a part. Nothing is synced.
///
/// # Errors
/// With `path`: a link is there, a file that has a second name, or something other than a regular file; or the disk.
pub fn append(path: &Path, bytes: &[u8]) -> Result<()> {
    let io = |source| Error::new(path, source);
    let mut how = OpenOptions::new();
    how.append(true).create(true);
    let mut file = step(Step::Create).and_then(|()| open_unlinked(path, &mut how)).map_err(io)?;
    let before = file.metadata().map_err(io)?.len();
    let written = Steps(&mut file).write_all(bytes);
    if written.is_err() {
        // What cannot be cut off stays, and the error is the same.
        let _ = file.set_len(before);
    }
    written.map_err(io)
}

/// Renames a file or folder to a name that nothing has. What another program puts there at that moment stays, but for an
/// empty folder, and on file systems that know neither this nor hard links.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if something has the name; or the disk.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let mut path = TempPath::try_from_path(from)?;
    // It is no temporary file: on an error it stays.
    path.disable_cleanup(true);
    match path.persist_noclobber(to) {
        Ok(()) => Ok(()),
        Err(e) if e.error.kind() == ErrorKind::AlreadyExists => Err(e.error),
        Err(_) if fs::symlink_metadata(to).is_ok() => Err(ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
    }
}

/// Syncs a folder, so that files renamed into it are there after a power cut.
///
/// # Errors
/// Returns the errors of the disk. A file system that cannot sync directories is not an error.
#[cfg(unix)]
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    match fs::File::open(folder)?.sync_all() {
        // Some file systems cannot sync a folder, and need not.
        Err(e) if matches!(e.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Ok(()),
        other => other,
    }
}

/// Does nothing where folders cannot be synced.
#[cfg(not(unix))]
pub fn sync_folder(_: &Path) -> io::Result<()> {
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

/// The path with its links resolved; if nothing is there, with those of its folder. Two outputs of one real path would
/// replace each other.
pub fn real_path(path: &Path) -> PathBuf {
    let in_folder = || Some(fs::canonicalize(folder_of(path)).ok()?.join(path.file_name()?));
    fs::canonicalize(path).ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
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
    use crate::faults::{failing_at, walk};

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
        fs::create_dir(folder.path().join("c")).unwrap();
        let round = |name: &str| real_path(&folder.path().join("c/..").join(name));
        assert_eq!((round("a"), round("new")), (real_path(&a), real_path(&folder.path().join("new"))));
        assert_ne!(real_path(&a), real_path(&b));
    }

    #[test]
    fn a_new_name_is_one_that_nothing_has() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("a"), "a").unwrap();
        fs::write(at("thesis"), "My thesis").unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("folder/b"), "b").unwrap();
        for (from, to) in [("a", "thesis"), ("folder", "thesis"), ("a", "folder"), ("a", "a")] {
            let e = rename_new(&at(from), &at(to)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::AlreadyExists, "{from} {to}: {e}");
        }
        assert_eq!(fs::read(at("a")).unwrap(), b"a");
        assert_eq!(fs::read(at("thesis")).unwrap(), b"My thesis");
        rename_new(&at("a"), &at("new")).unwrap();
        rename_new(&at("folder"), &at("other")).unwrap();
        assert_eq!(rename_new(&at("a"), &at("b")).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(names(folder.path()), ["new", "other", "thesis"]);
        assert_eq!(fs::read(at("other/b")).unwrap(), b"b");
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Any file at all.
    const ANY: Kind = Kind::new("a file", |_| true);

    fn write(path: &Path, pieces: &[&[u8]]) -> Result<()> {
        replace(path, &ANY, |out| {
            pieces
                .iter()
                .try_for_each(|p| out.write_all(p).and_then(|()| out.flush()))
                .map_err(|e| Error::new(path, e))
        })
    }

    #[test]
    fn any_step_that_fails_leaves_the_old_file_or_the_new_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let new = |found: &[u8]| found == b"onetwo";
        let steps =
            walk(&path, b"before", new, || write(&path, &[b"one", b"two"]).map_err(|e| e.to_string()));
        use Step::{Create, Permissions, Rename, Sync, SyncFolder, Write};
        assert_eq!(steps, [Create, Write, Write, Permissions, Sync, Rename, SyncFolder]);
    }

    #[test]
    fn what_is_appended_is_there_as_a_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        append(&path, b"one\n").unwrap();
        for n in [0, 1] {
            let (done, step) = failing_at(n, || append(&path, b"two\n"));
            assert!(done.unwrap_err().to_string().starts_with(&path.display().to_string()), "{step:?}");
            assert_eq!(fs::read(&path).unwrap(), b"one\n", "{step:?}");
        }
        append(&path, b"two\n").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one\ntwo\n");
    }

    #[test]
    fn what_nobody_holds_is_cleared_away() {
        let folder = tempfile::tempdir().unwrap();
        let place = |name: &str| folder.path().join(name);
        for name in
            [".a.writing-deadbeef", ".b.writing-deadbeef", ".c.ropewalk-lock", ".a.writing-deadbee", "a.tmp"]
        {
            fs::write(place(name), "x").unwrap();
        }
        let mut read_only = fs::metadata(place(".a.writing-deadbeef")).unwrap().permissions();
        read_only.set_readonly(true);
        fs::set_permissions(place(".a.writing-deadbeef"), read_only).unwrap();
        fs::create_dir(place(".d.writing-deadbeef")).unwrap();
        let alive = File::open(place(".b.writing-deadbeef")).unwrap();
        alive.lock().unwrap();
        let lock = crate::Lock::file(&place("e")).unwrap();
        let stays =
            [".a.writing-deadbee", ".b.writing-deadbeef", ".d.writing-deadbeef", ".e.ropewalk-lock", "a.tmp"];
        write(&place("new"), &[b"x"]).unwrap();
        assert_eq!(names(folder.path()), [&stays[..], &["new"]].concat());
        drop((alive, lock));
        // Two writers at once leave each other alone.
        replace(place("one"), &ANY, |out| {
            write(&place("two"), &[b"2"])?;
            out.write_all(b"1").map_err(|e| Error::new("one", e))
        })
        .unwrap();
        assert_eq!(
            names(folder.path()),
            [".a.writing-deadbee", ".d.writing-deadbeef", "a.tmp", "new", "one", "two"]
        );
    }

    #[test]
    fn long_names_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("n".repeat(250));
        write(&path, &[b"x"]).unwrap();
        let _lock = crate::Lock::file(&path).unwrap();
        assert_eq!(names(folder.path()).len(), 2);
    }
}
