//! Files and folders at names that others can foresee, in folders that others may have filled.
//!
//! Whoever knows the name of a lock or of an unfinished file can put something there first: a symbolic or a hard link
//! to a file of the victim's, a pipe that nobody writes to, a device. Nothing here follows, opens or waits for these.
#![forbid(unsafe_code)]

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use crate::names::folder_of;
use crate::{refused, Error, Result};

/// Returns true if this user's own regular file is at `path`, and false if nothing is.
///
/// # Errors
/// Anything else is there: a link, a file with another name too (a hard link), one of another user than the folder's.
pub fn own_file(path: &Path) -> io::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
        Ok(found) => {
            check_file(&found)?;
            check_owner(&found, path)?;
            Ok(true)
        }
    }
}

/// Opens the file of [`own_file`] for reading and writing; makes an empty one where there is none.
///
/// # Errors
/// Returns the errors of [`own_file`], and those of the disk.
pub fn open_own(path: &Path) -> io::Result<File> {
    own_file(path)?;
    let file = open_unlinked(path, &mut made())?;
    check_owner(&file.metadata()?, path)?;
    Ok(file)
}

/// Checks that at `path` is a folder, no link to one, owned by the user who owns the files made next to it.
///
/// # Errors
/// Another thing is there, or nothing.
pub fn own_folder(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    if found.is_symlink() {
        return Err(refused("is a symbolic link, expected a folder"));
    }
    if !found.is_dir() {
        return Err(refused("is not a folder"));
    }
    check_user(&found, path)
}

/// Opens the regular file at `path` for reading and for changing it where it is; `None` where nothing is.
///
/// # Errors
/// With `path`: a link, a file that has a second name and would change there; something other than a regular file; the
/// disk.
pub fn open_in_place(path: &Path) -> Result<Option<File>> {
    match open_unlinked(path, OpenOptions::new().read(true).write(true)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        done => done.map(Some).map_err(|e| Error::new(path, e)),
    }
}

/// For reading and writing; makes an empty file where there is none.
pub(crate) fn made() -> OpenOptions {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    how
}

/// Opens a regular file that has one name only, follows no link and waits for nobody. Whose file it is does not matter.
pub(crate) fn open_unlinked(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    // Before it is opened: opening some devices does something.
    match fs::symlink_metadata(path) {
        Ok(found) => check_file(&found)?,
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    no_follow(how);
    let file = how.open(path)?;
    check_file(&file.metadata()?)?;
    Ok(file)
}

/// Has a file opened only where its name is no link, and without waiting.
pub(crate) fn no_follow(how: &mut OpenOptions) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        how.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }
    #[cfg(not(unix))]
    let _ = how;
}

fn check_file(found: &Metadata) -> io::Result<()> {
    if found.is_symlink() {
        return Err(refused("is a symbolic link, expected a regular file"));
    }
    if !found.is_file() {
        return Err(refused("is not a regular file"));
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        // None: somebody has just removed it.
        if found.nlink() > 1 {
            return Err(refused("is a file with another name, too (a hard link), expected one name"));
        }
    }
    Ok(())
}

#[cfg(unix)]
fn check_owner(found: &Metadata, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let folder = fs::symlink_metadata(folder_of(path))?;
    if found.uid() != folder.uid() {
        return Err(refused(&format!(
            "belongs to user {}, expected user {}, whose folder this is",
            found.uid(),
            folder.uid()
        )));
    }
    Ok(())
}

#[cfg(unix)]
fn check_user(found: &Metadata, path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let me = rustix::process::geteuid().as_raw();
    // Some file systems give all files to one user, whoever makes them: a file that is made now tells.
    let made = || tempfile::tempfile_in(folder_of(path)).and_then(|f| f.metadata()).map(|m| m.uid());
    if found.uid() != me && !made().is_ok_and(|uid| uid == found.uid()) {
        return Err(refused(&format!("belongs to user {}, and this is user {me}", found.uid())));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_owner(_: &Metadata, _: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
fn check_user(_: &Metadata, _: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn pipe(path: &Path) {
        use rustix::fs::{mknodat, FileType, Mode, CWD};
        mknodat(CWD, path, FileType::Fifo, Mode::from_bits_truncate(0o600), 0).unwrap();
    }

    #[test]
    fn what_is_planted_is_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("victim"), "dear diary").unwrap();
        symlink(at("victim"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        symlink("/dev/null", at("device")).unwrap();
        fs::hard_link(at("victim"), at("hard")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        pipe(&at("pipe"));
        let mut cases = vec![
            ("link", "symbolic link"),
            ("dangling", "symbolic link"),
            ("device", "symbolic link"),
            ("hard", "hard link"),
            ("folder", "not a regular file"),
            ("pipe", "not a regular file"),
        ];
        // Only root can give files away.
        if rustix::process::geteuid().is_root() {
            fs::write(at("other"), "x").unwrap();
            chown(at("other"), Some(4321), None).unwrap();
            cases.push(("other", "belongs to user 4321"));
        }
        for (name, why) in cases {
            for said in [own_file(&at(name)).unwrap_err(), open_own(&at(name)).unwrap_err()] {
                assert!(said.to_string().contains(why), "{name}: {said}");
            }
            if name != "other" {
                let said = open_in_place(&at(name)).unwrap_err().to_string();
                assert!(said.contains(why) && said.contains(name), "{name}: {said}");
                let said = crate::append(&at(name), b"more").unwrap_err().to_string();
                assert!(said.contains(why) && said.contains(name), "{name}: {said}");
            }
        }
        assert!(!at("nowhere").exists());
        assert_eq!(fs::read(at("victim")).unwrap(), b"dear diary");
        assert!(!own_file(&at("new")).unwrap() && open_in_place(&at("new")).unwrap().is_none());
        open_own(&at("new")).unwrap();
        assert!(own_file(&at("new")).unwrap());
    }

    #[test]
    fn a_folder_is_no_link_and_nobody_elses() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("folder")).unwrap();
        own_folder(&at("folder")).unwrap();
        symlink(at("folder"), at("link")).unwrap();
        fs::write(at("file"), "").unwrap();
        for (name, why) in [("link", "symbolic link"), ("file", "not a folder")] {
            let said = own_folder(&at(name)).unwrap_err().to_string();
            assert!(said.contains(why), "{name}: {said}");
        }
        assert_eq!(own_folder(&at("none")).unwrap_err().kind(), ErrorKind::NotFound);
        if rustix::process::geteuid().is_root() {
            chown(at("folder"), Some(4321), None).unwrap();
            let said = own_folder(&at("folder")).unwrap_err().to_string();
            assert!(said.contains("belongs to user 4321, and this is user 0"), "{said}");
        }
    }
}
