//! Kinds of files, told by this program's mark in them: an output replaces nothing but an earlier output of its kind,
//! unless the user asks for it.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::iter::successors;
use std::path::{Path, PathBuf};

use crate::{foreign, refused, Error, Result};

/// Bytes of a file that the marks of [`Kind::new`] are looked for in.
pub const HEAD: u64 = 64 << 10;

/// Names of what this process was started with.
const STREAMS: [&str; 5] = ["/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd", "/proc"];

/// A kind of file that a program writes, and the mark that it recognizes one by.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    name: &'static str,
    mark: Mark,
}

#[derive(Debug, Clone, Copy)]
enum Mark {
    Header,
    Head(fn(&[u8]) -> bool),
    File(fn(&Path) -> bool),
}

/// Where an output goes. A path alone is an output that replaces only files of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    path: PathBuf,
    force: bool,
}

impl Output {
    /// An output that, if `force` is true, may replace any regular file.
    pub fn new(path: impl AsRef<Path>, force: bool) -> Output {
        Output { path: path.as_ref().to_owned(), force }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if any regular file may be replaced.
    pub fn is_forced(&self) -> bool {
        self.force
    }

    /// The output of this name in the folder at the path, which may replace as much.
    pub fn join(&self, name: impl AsRef<Path>) -> Output {
        Output::new(self.path.join(name), self.force)
    }
}

impl<P: AsRef<Path>> From<P> for Output {
    fn from(path: P) -> Output {
        Output::new(path, false)
    }
}

/// Why an output cannot be written: a file without the mark of its kind is there.
#[derive(Debug, thiserror::Error)]
#[error("exists and is not {0}; use another name")]
pub struct Exists(&'static str);

impl Exists {
    /// Returns true if an error, or a cause of it, is this one.
    pub fn causes(e: &(dyn std::error::Error + 'static)) -> bool {
        successors(Some(e), |e| e.source())
            .filter_map(|e| e.downcast_ref::<io::Error>())
            .any(|e| e.get_ref().is_some_and(|e| e.is::<Exists>()))
    }
}

impl Kind {
    /// A kind with a name as it goes into a sentence (`a token cache`), and whether the first bytes of a file, up to
    /// [`HEAD`] of them, have its mark.
    pub const fn new(name: &'static str, is: fn(&[u8]) -> bool) -> Kind {
        Kind { name, mark: Mark::Head(is) }
    }

    /// A kind of text whose mark is its first line, [`Kind::header`].
    pub const fn record(name: &'static str) -> Kind {
        Kind { name, mark: Mark::Header }
    }

    /// A kind whose mark is found by reading the file.
    pub const fn parsed(name: &'static str, is: fn(&Path) -> bool) -> Kind {
        Kind { name, mark: Mark::File(is) }
    }

    /// The first line of files of a kind made by [`Kind::record`].
    pub fn header(&self) -> String {
        format!("{{\"ropewalk\":\"{}\",\"version\":1}}\n", self.name)
    }

    /// Returns true if a regular file has the mark of this kind.
    ///
    /// # Errors
    /// With `path`: no regular file, or one that cannot be read.
    pub fn marks(&self, path: &Path) -> Result<bool> {
        let mut head = Vec::new();
        let file = foreign::open_file(path)?;
        file.take(HEAD).read_to_end(&mut head).map_err(|e| Error::new(path, e))?;
        Ok(match self.mark {
            Mark::Header => head.starts_with(self.header().as_bytes()),
            Mark::Head(is) => is(&head),
            Mark::File(is) => is(path),
        })
    }

    /// Checks that an output may take the place of what is at its path: nothing, an empty file, a file with the mark of
    /// this kind or, if it is forced, any regular file. A symbolic link counts as the file that it leads to; a stream of this
    /// process (`/dev/stdout`) is none, for its name would be replaced.
    ///
    /// # Errors
    /// With the path: anything else is there, also a link that leads nowhere; a file that cannot be read.
    pub fn claim(&self, output: impl Into<Output>) -> Result<()> {
        let output = output.into();
        let path = output.path();
        let refuse = |what: &str| Err(Error::new(path, refused(what)));
        match fs::symlink_metadata(path) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::new(path, e)),
        }
        let is_empty = match fs::metadata(path) {
            Ok(found) if found.is_file() && !STREAMS.iter().any(|at| path.starts_with(at)) => {
                found.len() == 0
            }
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::new(path, e)),
            // Renaming over a device or a pipe would remove it.
            Ok(_) => return refuse("exists and is not a regular file; use another name"),
            Err(_) => {
                return refuse("exists and is a link that leads nowhere; use another name or remove it")
            }
        };
        if is_empty || output.is_forced() || self.marks(path)? {
            return Ok(());
        }
        Err(Error::new(path, io::Error::new(ErrorKind::AlreadyExists, Exists(self.name))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: Kind = Kind::new("a note", |head| head.starts_with(b"note: "));

    fn write(output: impl Into<Output>) -> Result<()> {
        crate::replace(output, &NOTE, |out| out.write_all(b"note: new").map_err(|e| Error::new("", e)))
    }

    #[test]
    fn only_its_own_kind_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("empty"), "").unwrap();
        fs::write(at("old"), "note: old").unwrap();
        for name in ["none", "empty", "old"] {
            write(at(name)).unwrap();
            assert_eq!(fs::read(at(name)).unwrap(), b"note: new", "{name}");
        }
        fs::write(at("thesis"), "My thesis").unwrap();
        fs::write(at("cut"), "note").unwrap();
        fs::create_dir(at("folder")).unwrap();
        for (name, why) in [
            ("thesis", "exists and is not a note; use another name"),
            ("cut", "is not a note"),
            ("folder", "is not a regular file"),
        ] {
            let e = write(at(name)).unwrap_err();
            assert_eq!(Exists::causes(&e), name != "folder", "{e}");
            let said = e.to_string();
            assert!(said.contains(why) && said.starts_with(&at(name).display().to_string()), "{said}");
        }
        assert_eq!(fs::read(at("thesis")).unwrap(), b"My thesis");
        assert_eq!(fs::read(at("cut")).unwrap(), b"note");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 6, "nothing is left over");
    }

    #[test]
    fn force_replaces_any_regular_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a"), "My thesis").unwrap();
        fs::create_dir(at("folder")).unwrap();
        let forced = |name: &str| Output::new(at(name), true);
        NOTE.claim(forced("a")).unwrap();
        assert!(NOTE.claim(at("a")).is_err());
        assert_eq!(fs::read(at("a")).unwrap(), b"My thesis");
        write(forced("a")).unwrap();
        assert_eq!(fs::read(at("a")).unwrap(), b"note: new");
        assert!(NOTE.claim(forced("folder")).is_err());
        NOTE.claim(forced("none")).unwrap();
    }

    #[test]
    fn a_record_begins_with_its_header() {
        const RECORD: Kind = Kind::record("a record");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let header = RECORD.header();
        assert_eq!(header, "{\"ropewalk\":\"a record\",\"version\":1}\n");
        for (text, is) in [
            (header.clone() + "{\"step\":1}\n", true),
            (header.clone() + "{\"st", true),
            (header.trim_end().to_owned(), false),
            (format!("{{}}\n{header}"), false),
            (Kind::record("a log").header(), false),
        ] {
            fs::write(&path, &text).unwrap();
            assert_eq!(RECORD.marks(&path).unwrap(), is, "{text}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_count_as_what_they_lead_to() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("thesis"), "My thesis").unwrap();
        fs::write(at("note"), "note: old").unwrap();
        symlink(at("thesis"), at("to-thesis")).unwrap();
        symlink(at("note"), at("to-note")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        symlink("/dev/zero", at("device")).unwrap();
        NOTE.claim(at("to-note")).unwrap();
        for (name, why) in
            [("to-thesis", "not a note"), ("dangling", "leads nowhere"), ("device", "not a regular file")]
        {
            let said = NOTE.claim(at(name)).unwrap_err().to_string();
            assert!(said.contains(why), "{name}: {said}");
            assert_eq!(NOTE.claim(Output::new(at(name), true)).is_ok(), name == "to-thesis");
        }
    }

    #[cfg(unix)]
    #[test]
    fn streams_of_this_process_are_no_files() {
        use std::os::fd::AsRawFd;
        let file = tempfile::tempfile().unwrap();
        let at = format!("/dev/fd/{}", file.as_raw_fd());
        assert!(fs::metadata(&at).is_ok());
        let said = NOTE.claim(Output::new(&at, true)).unwrap_err().to_string();
        assert!(said.contains("not a regular file"), "{said}");
    }

    #[test]
    fn what_another_program_puts_there_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let done = crate::replace(&path, &NOTE, |out| {
            fs::write(&path, "My thesis").unwrap();
            out.write_all(b"note: new").map_err(|e| Error::new(&path, e))
        });
        assert!(done.unwrap_err().to_string().contains("is not a note"));
        assert_eq!(fs::read(&path).unwrap(), b"My thesis");
    }
}
