//! Files that a user or another file names, and files of a folder that somebody else filled: a shard, an archive that
//! was unpacked, a shared models folder.
//!
//! Such a name can lead to a pipe that never ends, or to a device. Every file is opened here: only regular files, without
//! waiting for a writer, and a file that is read whole has a limit. In a folder that somebody else filled, a name can also be
//! a link to a private file: a [`Folder`] follows no link below itself.
#![forbid(unsafe_code)]

#[cfg(all(test, unix))]
mod tests;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Component, Path, PathBuf};

use crate::{refused, Error, Result, HEAD};

/// A folder whose contents are not trusted. The path to the folder itself may lead through links: the user named it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    #[cfg(unix)]
    fd: rustix::fd::OwnedFd,
}

impl Folder {
    /// Opens the folder.
    ///
    /// # Errors
    /// No folder at `path`, or one that cannot be read.
    pub fn open(path: &Path) -> Result<Folder> {
        #[cfg(unix)]
        {
            use rustix::fs::{open, Mode, OFlags};
            let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let fd = open(path, how, Mode::empty()).map_err(|e| Error::new(path, e.into()))?;
            Ok(Folder { path: path.to_owned(), fd })
        }
        #[cfg(not(unix))]
        {
            let found = fs::metadata(path).map_err(|e| Error::new(path, e))?;
            if !found.is_dir() {
                return Err(Error::new(path, refused("is not a folder")));
            }
            Ok(Folder { path: path.to_owned() })
        }
    }

    /// Path of the folder, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the regular file at a relative path; `None` where nothing has that name.
    ///
    /// # Errors
    /// A link at any step of the path, something other than a regular file, a path that leaves the folder, the disk.
    pub fn file(&self, relative: &Path) -> Result<Option<File>> {
        let at = self.path.join(relative);
        match self.open_at(relative) {
            Ok(file) if file.metadata().map_err(|e| Error::new(&at, e))?.is_file() => Ok(Some(file)),
            Ok(_) => Err(Error::new(&at, refused("is not a regular file"))),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::new(&at, e)),
        }
    }

    /// Contents of the regular file at a relative path, of at most `limit` bytes; `None` where nothing has that name.
    ///
    /// # Errors
    /// Returns the errors of [`Folder::file`], and an error if a file has more than `limit` bytes.
    pub fn read(&self, relative: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.file(relative)? else { return Ok(None) };
        read(file, limit).map(Some).map_err(|e| Error::new(self.path.join(relative), e))
    }

    /// Copies the regular file at a relative path to `out` and returns how many bytes it has; `None` where nothing
    /// has that name.
    ///
    /// # Errors
    /// Returns the errors of [`Folder::read`], and those of `out`. Bytes written before the error stay in `out`.
    pub fn copy(&self, relative: &Path, limit: u64, out: &mut dyn Write) -> Result<Option<u64>> {
        let Some(file) = self.file(relative)? else { return Ok(None) };
        let failed = |e| Error::new(self.path.join(relative), e);
        let found = file.metadata().map_err(failed)?.len();
        let n =
            if found > limit { found } else { io::copy(&mut file.take(limit + 1), out).map_err(failed)? };
        within(n, limit).map(|()| Some(n)).map_err(failed)
    }

    /// Names in a folder below this one, sorted; none where there is no such folder.
    ///
    /// # Errors
    /// A link at any step of the path, something other than a folder, more than `limit` names, the disk.
    pub fn names(&self, relative: &Path, limit: usize) -> Result<Vec<OsString>> {
        let at = self.path.join(relative);
        let failed = |e| Error::new(&at, e);
        let mut out = Vec::new();
        match self.list(relative, &mut |name| {
            out.push(name);
            out.len() <= limit
        }) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(out),
            done => done.map_err(failed)?,
        }
        if out.len() > limit {
            return Err(failed(refused(&format!("found more than {limit} files, expected at most these"))));
        }
        out.sort();
        Ok(out)
    }

    /// Removes the file or the link at a relative path; nothing where nothing has that name.
    ///
    /// # Errors
    /// A link on the way to it, a folder, a path that leaves the folder, the disk.
    pub fn remove(&self, relative: &Path) -> Result<()> {
        match self.remove_at(relative) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::new(self.path.join(relative), e)),
            _ => Ok(()),
        }
    }

    #[cfg(unix)]
    fn remove_at(&self, relative: &Path) -> io::Result<()> {
        let (folders, name) = steps(relative)?;
        let folder = self.walk(&folders)?;
        let folder = folder.as_ref().unwrap_or(&self.fd);
        Ok(rustix::fs::unlinkat(folder, &name, rustix::fs::AtFlags::empty())?)
    }

    #[cfg(not(unix))]
    fn remove_at(&self, relative: &Path) -> io::Result<()> {
        fs::remove_file(self.checked(relative)?)
    }

    #[cfg(unix)]
    fn open_at(&self, relative: &Path) -> io::Result<File> {
        use rustix::fs::OFlags;
        let (folders, name) = steps(relative)?;
        let folder = self.walk(&folders)?;
        // Without NONBLOCK a pipe is opened when somebody writes to it.
        let fd = openat(folder.as_ref().unwrap_or(&self.fd), &name, OFlags::NONBLOCK)?;
        Ok(File::from(fd))
    }

    #[cfg(unix)]
    fn walk(&self, folders: &[OsString]) -> io::Result<Option<rustix::fd::OwnedFd>> {
        let mut at = None;
        for name in folders {
            let from = at.as_ref().unwrap_or(&self.fd);
            at = Some(openat(from, name, rustix::fs::OFlags::DIRECTORY)?);
        }
        Ok(at)
    }

    #[cfg(unix)]
    fn list(&self, relative: &Path, take: &mut dyn FnMut(OsString) -> bool) -> io::Result<()> {
        use std::os::unix::ffi::OsStrExt;
        let mut folders = steps(relative).map(|(mut folders, name)| {
            folders.push(name);
            folders
        })?;
        folders.retain(|name| name != ".");
        let fd = match self.walk(&folders)? {
            Some(fd) => fd,
            None => openat(&self.fd, &OsString::from("."), rustix::fs::OFlags::DIRECTORY)?,
        };
        for entry in rustix::fs::Dir::new(fd)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." && !take(std::ffi::OsStr::from_bytes(name).to_owned()) {
                break;
            }
        }
        Ok(())
    }

    #[cfg(not(unix))]
    fn checked(&self, relative: &Path) -> io::Result<PathBuf> {
        let (mut names, last) = steps(relative)?;
        names.push(last);
        let mut at = self.path.clone();
        for name in names {
            at.push(name);
            if fs::symlink_metadata(&at)?.is_symlink() {
                return Err(refused(LINK));
            }
        }
        Ok(at)
    }

    #[cfg(not(unix))]
    fn open_at(&self, relative: &Path) -> io::Result<File> {
        let at = self.checked(relative)?;
        if !fs::metadata(&at)?.is_file() {
            return Err(refused("is not a regular file"));
        }
        File::open(at)
    }

    #[cfg(not(unix))]
    fn list(&self, relative: &Path, take: &mut dyn FnMut(OsString) -> bool) -> io::Result<()> {
        for entry in fs::read_dir(self.checked(relative)?)? {
            if !take(entry?.file_name()) {
                break;
            }
        }
        Ok(())
    }
}

/// Opens the regular file at a path that the user or another file named, through links if it leads through any.
///
/// # Errors
/// Something other than a regular file (said without waiting for a pipe's writer), the disk.
pub fn open_file(path: &Path) -> Result<File> {
    let failed = |e| Error::new(path, e);
    // Before it is opened: opening some devices does something.
    regular(&fs::metadata(path).map_err(failed)?).map_err(failed)?;
    let mut how = fs::OpenOptions::new();
    how.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        how.custom_flags(libc::O_NONBLOCK);
    }
    let file = how.open(path).map_err(failed)?;
    file.metadata().and_then(|found| regular(&found)).map_err(failed)?;
    Ok(file)
}

fn regular(found: &fs::Metadata) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let what = if found.is_dir() { "a directory" } else { "a pipe, a socket, or a device" };
    Err(refused(&format!("is not a regular file but {what}")))
}

/// Opens what [`open_file`] does, and the streams that this process was started with (`/dev/stdin`, `/dev/fd/N`): what is
/// in them somebody has sent to it. Such a stream may have no end.
pub fn open_input(path: &Path) -> Result<File> {
    if !["/dev/stdin", "/dev/fd", "/proc/self/fd"].iter().any(|streams| path.starts_with(streams)) {
        return open_file(path);
    }
    let file = File::open(path).map_err(|e| Error::new(path, e))?;
    match file.metadata() {
        Ok(found) if found.is_dir() => regular(&found).map(|()| file).map_err(|e| Error::new(path, e)),
        Ok(_) => Ok(file),
        Err(e) => Err(Error::new(path, e)),
    }
}

/// Contents of the regular file at a path that the user or another file named, of at most `limit` bytes.
///
/// # Errors
/// Returns the errors of [`open_file`], and an error if a file has more than `limit` bytes.
pub fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    read(open_file(path)?, limit).map_err(|e| Error::new(path, e))
}

/// The text of [`read_file`].
///
/// # Errors
/// Returns the errors of [`read_file`], and an error if the bytes are not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read_file(path, limit)?).map_err(|_| Error::new(path, refused("is not UTF-8")))
}

/// Files below directories: each once, however many links lead to it, in the order of their paths.
#[derive(Debug, Default)]
pub struct Walk {
    /// The files found.
    pub files: Vec<PathBuf>,
    /// The files left out, each with the reason.
    pub skipped: Vec<(PathBuf, &'static str)>,
    /// Real paths.
    seen: HashSet<PathBuf>,
}

impl Walk {
    /// Adds a file, or the files in a directory and below it. Links are followed. Hidden files and directories (`.name`) in a
    /// directory are left out.
    ///
    /// # Errors
    /// A path that leads nowhere; a directory that cannot be listed; more than a million files.
    pub fn add(&mut self, path: &Path) -> Result<()> {
        let mut left = vec![path.to_owned()];
        while let Some(path) = left.pop() {
            let failed = |e| Error::new(&path, e);
            let about = fs::metadata(&path).map_err(failed)?;
            let why = if !about.is_file() && !about.is_dir() {
                Some("neither a file nor a directory")
            } else if !self.seen.insert(fs::canonicalize(&path).map_err(failed)?) {
                Some("met before")
            } else {
                None
            };
            if let Some(why) = why {
                self.skipped.push((path, why));
            } else if about.is_file() {
                self.files.push(path);
            } else {
                let names = fs::read_dir(&path).map_err(failed)?.map(|entry| entry.map(|e| e.file_name()));
                let mut names = names.collect::<io::Result<Vec<_>>>().map_err(failed)?;
                names.retain(|name| !name.as_encoded_bytes().starts_with(b"."));
                names.sort_unstable();
                // The last is taken next.
                left.extend(names.iter().rev().map(|name| path.join(name)));
                if self.files.len() + left.len() > 1_000_000 {
                    return Err(failed(refused("has more than 1,000,000 files")));
                }
            }
        }
        Ok(())
    }
}

/// The files that a path of texts stands for: itself; for a directory, the text files that a [`Walk`] finds. A file is text
/// unless it is empty, compressed by gzip, or binary, which is a zero byte in its first 64 KiB.
///
/// # Errors
/// A directory without such files; the errors of [`Walk::add`] and [`open_file`].
pub fn texts(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut walk = Walk::default();
    walk.add(path)?;
    let mut found = Vec::new();
    for file in walk.files {
        let mut head = Vec::new();
        open_file(&file)?.take(HEAD).read_to_end(&mut head).map_err(|e| Error::new(&file, e))?;
        if !head.is_empty() && !head.starts_with(b"\x1f\x8b") && !head.contains(&0) {
            found.push(file);
        }
    }
    let none = || Error::new(path, refused("expected text files, found none"));
    (!found.is_empty()).then_some(found).ok_or_else(none)
}

/// Reads a file of at most `limit` bytes.
fn read(file: File, limit: u64) -> io::Result<Vec<u8>> {
    within(file.metadata()?.len(), limit)?;
    let mut out = Vec::new();
    file.take(limit + 1).read_to_end(&mut out)?;
    // Asked again: a file can grow.
    within(out.len() as u64, limit)?;
    Ok(out)
}

fn within(found: u64, limit: u64) -> io::Result<()> {
    match found > limit {
        true => Err(refused(&format!("found more than {limit} bytes, expected at most these"))),
        false => Ok(()),
    }
}

const LINK: &str = "is a symbolic link, expected a regular file or folder";

/// Folders on the way to a file, and its name.
fn steps(relative: &Path) -> io::Result<(Vec<OsString>, OsString)> {
    let mut names = Vec::new();
    for part in relative.components() {
        match part {
            Component::Normal(name) => names.push(name.to_owned()),
            Component::CurDir => {}
            _ => return Err(refused("leads out of the folder")),
        }
    }
    let last = names.pop().unwrap_or_else(|| OsString::from("."));
    Ok((names, last))
}

#[cfg(unix)]
fn openat(
    folder: &rustix::fd::OwnedFd,
    name: &OsString,
    flags: rustix::fs::OFlags,
) -> io::Result<rustix::fd::OwnedFd> {
    use rustix::fs::{AtFlags, FileType, Mode, OFlags};
    use rustix::io::Errno;
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | flags;
    rustix::fs::openat(folder, name, how, Mode::empty()).map_err(|e| {
        // Systems differ in what they answer: LOOP, MLINK or NOTDIR for a link, NXIO for a socket.
        let kind = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
            .map(|found| FileType::from_raw_mode(found.st_mode));
        match (e, kind) {
            (Errno::NOENT, _) => e.into(),
            (_, Ok(FileType::Symlink)) => refused(LINK),
            (Errno::NXIO, _) => refused("is not a regular file"),
            (Errno::NOTDIR, _) => refused("is not a folder"),
            _ => e.into(),
        }
    })
}
