//! Locks on files and folders between processes, and files that killed processes have left.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::names::{folder_of, is_ours, short_name, LOCK};
use crate::own::{made, no_follow, open_own, open_unlinked};
use crate::{Error, Result};

/// The right to write a file, or in a folder, held by one process at a time. Dropping it gives it back; when a
/// process dies the system takes it back.
///
/// A file next to the one it is for (`.NAME.ropewalk-lock`), or in the folder (`.ropewalk-lock`), is locked
/// with the system's advisory lock and says who holds it. Where the file system knows no locks, everybody
/// gets one.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// Closing it gives the lock back.
    _file: File,
}

impl Lock {
    /// The lock of the file at `path`, which need not exist.
    ///
    /// # Errors
    /// Returns an error of kind [`ErrorKind::WouldBlock`] that names the process if another one holds it, or an error
    /// of the disk.
    pub fn file(path: &Path) -> Result<Lock> {
        let name = short_name(path, LOCK.len());
        Lock::take(path, path.with_file_name(format!(".{name}{LOCK}")), |at| open_unlinked(at, &mut made()))
    }

    /// The lock of [`Lock::file`] in a folder that others may have filled: what has its name must be this user's own.
    pub fn own(path: &Path) -> Result<Lock> {
        let name = short_name(path, LOCK.len());
        Lock::take(path, path.with_file_name(format!(".{name}{LOCK}")), open_own)
    }

    /// The lock of a folder, which must exist.
    pub fn folder(path: &Path) -> Result<Lock> {
        Lock::take(path, path.join(LOCK), |at| open_unlinked(at, &mut made()))
    }

    fn take(of: &Path, path: PathBuf, open: impl Fn(&Path) -> io::Result<File>) -> Result<Lock> {
        let failed = |e| Error::new(of, e);
        let folder = folder_of(&path);
        if !folder.is_dir() {
            let what = format!("the directory {} does not exist", folder.display());
            return Err(failed(io::Error::new(ErrorKind::NotFound, what)));
        }
        let mut held = String::new();
        // More than once: its holder may be giving it back, or not have written yet who it is; a process that
        // removes leftovers of other processes also holds it for a moment.
        for _ in 0..20 {
            let mut file = open(&path).map_err(|e| match e.kind() {
                // What is there is no lock: it is named itself.
                ErrorKind::InvalidInput => Error::new(&path, e),
                _ => failed(e),
            })?;
            match file.try_lock() {
                Ok(()) if is_at(&file, &path) => {}
                // Removed by the one who held it.
                Ok(()) => continue,
                Err(TryLockError::WouldBlock) => {
                    held.clear();
                    // Where locks keep others from reading, its holder has no name.
                    let _ = (&file).take(500).read_to_string(&mut held);
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                // A file system without locks.
                Err(TryLockError::Error(_)) => return Ok(Lock { path, _file: file }),
            }
            let written = file.set_len(0).and_then(|()| writeln!(file, "{}", holder()));
            let lock = Lock { path: path.clone(), _file: file };
            return written.map(|()| lock).map_err(failed);
        }
        Err(in_use(of, &held))
    }
}

fn in_use(path: &Path, held: &str) -> Error {
    let by = if held.trim().is_empty() { "another process" } else { held.trim() };
    Error::new(path, io::Error::new(ErrorKind::WouldBlock, format!("in use by {by}")))
}

/// The right to read a folder while nobody holds its [`Lock`]. Nothing is written there, so the folder may be somebody
/// else's, or on a medium that cannot be written. Where nobody has left the file of a lock there is none to take:
/// a process that takes it later is not seen, and whoever reads must bear files that change.
#[derive(Debug)]
pub struct ReadLock {
    _file: Option<File>,
}

impl ReadLock {
    /// Waits for nobody.
    ///
    /// # Errors
    /// Returns an error of kind [`ErrorKind::WouldBlock`] that names the process if one holds the directory, and an
    /// error if the lock's place has something other than a regular file, or if the disk fails.
    pub fn folder(folder: &crate::foreign::Folder) -> Result<ReadLock> {
        let Some(file) = folder.file(Path::new(LOCK))? else { return Ok(ReadLock { _file: None }) };
        let mut held = String::new();
        for _ in 0..20 {
            match file.try_lock_shared() {
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
                // Taken, or a file system without locks.
                Ok(()) | Err(TryLockError::Error(_)) => return Ok(ReadLock { _file: Some(file) }),
            }
        }
        let _ = (&file).take(500).read_to_string(&mut held);
        Err(in_use(folder.path(), &held))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still locked, so that it is nobody else's. One that stays is no lock.
        let _ = fs::remove_file(&self.path);
    }
}

/// This process, for another one's error message.
fn holder() -> String {
    let host = gethostname::gethostname();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("process {} on {} since {}", std::process::id(), host.to_string_lossy(), utc(now))
}

/// Seconds since 1970 as a date and a time of day.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's civil_from_days: years begin in March, 400 of them have 146097 days.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (d, m) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let y = year + era * 400 + u64::from(m <= 2);
    format!("{y}-{m:02}-{d:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

/// Removes what killed processes of ours have left in a folder: temporary files of [`replace`](crate::replace)
/// and files of [`Lock`]s that nobody holds. Other files, and those of processes that live, stay; so does what
/// cannot be removed.
pub fn remove_orphans(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(is_ours);
        if !is_ours || !entry.file_type().is_ok_and(|t| t.is_file()) {
            continue;
        }
        let path = entry.path();
        // Locks of network file systems need a file open for writing; an orphan may be read-only.
        let open = |write: bool| {
            let mut how = OpenOptions::new();
            no_follow(how.read(true).write(write));
            how.open(&path)
        };
        let file = open(true).or_else(|_| open(false));
        let Ok(file) = file else { continue };
        if file.try_lock().is_ok() && is_at(&file, &path) {
            // It is litter, and whatever it is in the way of will say so.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Returns true if an open file is the one at `path`, and not a removed file or the target of a link.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(a), Ok(b)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Returns true if an open file is the one at `path`, as far as this system can tell.
#[cfg(not(unix))]
pub(crate) fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_827_696, "2000-02-29 12:34:56 UTC"),
            (1_735_689_599, "2024-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }

    #[test]
    fn one_process_holds_a_lock_and_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.gguf");
        let lock = Lock::file(&path).unwrap();
        let e = Lock::file(&path).unwrap_err();
        let said = e.to_string();
        assert_eq!((e.path, e.source.kind()), (path.clone(), ErrorKind::WouldBlock));
        let start = format!("{}: in use by process {} on ", path.display(), std::process::id());
        assert!(said.starts_with(&start) && said.ends_with(" UTC"), "{said}");
        drop(lock);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // What a dead process has left is no lock.
        fs::write(folder.path().join(LOCK), "process 1 on moon since 1969").unwrap();
        let lock = Lock::folder(folder.path()).unwrap();
        assert!(Lock::folder(folder.path())
            .unwrap_err()
            .to_string()
            .contains(&std::process::id().to_string()));
        drop(lock);
    }

    #[test]
    fn many_threads_have_it_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let inside = std::sync::atomic::AtomicUsize::new(0);
        let held = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..50 {
                        let Ok(_lock) = Lock::file(&path) else { continue };
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        remove_orphans(folder.path());
                        held.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(held.into_inner() > 20);
    }

    #[cfg(unix)]
    #[test]
    fn what_is_planted_in_its_place_is_left_alone() {
        use std::os::unix::fs::symlink;
        type Plant = fn(&Path, &Path) -> io::Result<()>;
        let plants: [(Plant, &str); 5] = [
            (|victim, at| symlink(victim, at), "symbolic link"),
            (|victim, at| symlink(victim.with_file_name("new"), at), "symbolic link"),
            (|victim, at| fs::hard_link(victim, at), "hard link"),
            (|_, at| fs::create_dir(at), "not a regular file"),
            (|_, at| pipe(at), "not a regular file"),
        ];
        for (plant, why) in plants {
            let folder = tempfile::tempdir().unwrap();
            let (path, victim) = (folder.path().join("a"), folder.path().join("victim"));
            let at = folder.path().join(".a.ropewalk-lock");
            fs::write(&victim, "dear diary").unwrap();
            plant(&victim, &at).unwrap();
            let e = Lock::file(&path).unwrap_err().to_string();
            assert!(e.contains(why) && e.contains(".a.ropewalk-lock"), "{e}");
            assert_eq!(fs::read(&victim).unwrap(), b"dear diary");
            assert!(fs::symlink_metadata(&at).is_ok() && !folder.path().join("new").exists());
        }
    }

    #[cfg(unix)]
    fn pipe(at: &Path) -> io::Result<()> {
        use rustix::fs::{mknodat, FileType, Mode, CWD};
        Ok(mknodat(CWD, at, FileType::Fifo, Mode::from_bits_truncate(0o600), 0)?)
    }

    #[test]
    fn a_folder_is_read_while_nobody_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let foreign = crate::foreign::Folder::open(folder.path()).unwrap();
        let lock = Lock::folder(folder.path()).unwrap();
        let e = ReadLock::folder(&foreign).unwrap_err();
        assert!(
            e.source.kind() == ErrorKind::WouldBlock && e.to_string().contains("in use by process"),
            "{e}"
        );
        drop(lock);
        let none = ReadLock::folder(&foreign).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is made");
        drop(none);
        // What a dead process has left, twice.
        fs::write(folder.path().join(LOCK), "process 1").unwrap();
        let held = [ReadLock::folder(&foreign).unwrap(), ReadLock::folder(&foreign).unwrap()];
        assert_eq!(Lock::folder(folder.path()).unwrap_err().source.kind(), ErrorKind::WouldBlock);
        drop(held);
        Lock::folder(folder.path()).unwrap();
    }
}
