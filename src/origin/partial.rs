//! The folder of unfinished files, and the lock that keeps other pulls away.
//!
//! Unfinished files are in the folder `.partial` of the target folder, under the target's name. No file there says
//! anything of another: an unfinished file counts for its bytes, whose checksum is compared with the source's before they
//! are put in place.
//!
//! Others know these names as well, and an archive or another user may have put something there. The folder has to be
//! this user's and no link; what is opened in it is a regular file of this user under one name, and only such files
//! are written, renamed or removed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{io, other, Error, Result};

/// The folder of unfinished files. No file with a record has such a name.
pub(super) const FOLDER: &str = ".partial";

/// A lock on a name in the target folder: one pull at a time writes there. Dropping it removes its file, and
/// the folder of unfinished files when that is empty.
#[derive(Debug)]
pub(super) struct Lock {
    lock: Option<files::Lock>,
    folder: PathBuf,
}
impl Lock {
    /// Locks `name` in the folder `dir`.
    pub(super) fn take(dir: &Path, name: &str) -> Result<Lock> {
        let folder = dir.join(FOLDER);
        loop {
            let own = || files::Lock::own(&folder.join(name)).map_err(Error::from);
            match make_folder(&folder, 0o700).and_then(|()| own()) {
                Ok(lock) => return Ok(Lock { lock: Some(lock), folder }),
                // A pull that just ended removed the folder.
                Err(Error::Io(e)) if e.source.kind() == ErrorKind::NotFound && dir.is_dir() => {}
                Err(Error::Io(e)) if e.source.kind() == ErrorKind::WouldBlock => {
                    let path = dir.join(name);
                    return Err(other(path.display(), format_args!("is already being pulled: {}", e.source)));
                }
                Err(e) => return Err(e),
            }
        }
    }
}
impl Drop for Lock {
    fn drop(&mut self) {
        self.lock = None;
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Makes a folder with this mode, or finds that it is there as this user's own.
pub(crate) fn make_folder(path: &Path, mode: u32) -> Result<()> {
    let mut how = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut how, mode);
    #[cfg(not(unix))]
    let _ = (mode, &mut how);
    let made = match how.create(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => files::own_folder(path),
        made => made,
    };
    made.map_err(io(path))
}

/// Removes this user's own regular file, if it is there.
pub(crate) fn remove(path: &Path) -> Result<()> {
    if files::own_file(path).map_err(io(path))? {
        fs::remove_file(path).map_err(io(path))?;
    }
    Ok(())
}
