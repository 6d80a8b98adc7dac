//! Kinds of files, told by their first bytes: an output replaces nothing but an earlier output of its kind.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::{foreign, Error, Result};

/// Bytes of a file that a [`Kind`] is told by.
pub const HEAD: u64 = 64 << 10;

/// A kind of file that a program writes, and how it recognizes one.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    name: &'static str,
    is: fn(&[u8]) -> bool,
}

impl Kind {
    /// A kind with a name as it goes into a sentence (`a token cache`), and whether the first bytes of a file, up to
    /// [`HEAD`] of them, are those of such a file.
    pub const fn new(name: &'static str, is: fn(&[u8]) -> bool) -> Kind {
        Kind { name, is }
    }

    /// The name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Checks that a new file may take the place of what is at `path`: nothing, an empty file, or a file of this kind.
    /// A symbolic link counts as the file that it leads to.
    ///
    /// # Errors
    /// With `path`: anything else is there, also a link that leads nowhere; a file that cannot be read.
    pub fn check(&self, path: &Path) -> Result<()> {
        let refuse = |what: String| Err(Error::new(path, io::Error::new(ErrorKind::InvalidInput, what)));
        match fs::symlink_metadata(path) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::new(path, e)),
        }
        match fs::metadata(path) {
            Ok(found) if found.is_file() => {}
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::new(path, e)),
            // Renaming over a device or a pipe would remove it.
            Ok(_) => {
                return refuse("is there already and is not a regular file; choose another name".to_owned());
            }
            Err(_) => {
                let what =
                    "is there already and is a link that leads nowhere; choose another name or remove it";
                return refuse(what.to_owned());
            }
        }
        let mut head = Vec::new();
        let file = foreign::open_file(path)?;
        file.take(HEAD).read_to_end(&mut head).map_err(|e| Error::new(path, e))?;
        if head.is_empty() || (self.is)(&head) {
            return Ok(());
        }
        refuse(format!("is there already and is not {}; choose another name or remove it", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTE: Kind = Kind::new("a note", |head| head.starts_with(b"note: "));

    #[test]
    fn only_its_own_kind_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let write = |name: &str| {
            crate::replace(&at(name), &NOTE, |out| {
                out.write_all(b"note: new").map_err(|e| Error::new(at(name), e))
            })
        };
        fs::write(at("empty"), "").unwrap();
        fs::write(at("old"), "note: old").unwrap();
        for name in ["none", "empty", "old"] {
            write(name).unwrap();
            assert_eq!(fs::read(at(name)).unwrap(), b"note: new", "{name}");
        }
        fs::write(at("thesis"), "My thesis").unwrap();
        fs::write(at("cut"), "note").unwrap();
        fs::create_dir(at("folder")).unwrap();
        for (name, why) in [
            ("thesis", "is there already and is not a note; choose another name or remove it"),
            ("cut", "is not a note"),
            ("folder", "is not a regular file"),
        ] {
            let said = write(name).unwrap_err().to_string();
            assert!(said.contains(why) && said.starts_with(&at(name).display().to_string()), "{said}");
        }
        assert_eq!(fs::read(at("thesis")).unwrap(), b"My thesis");
        assert_eq!(fs::read(at("cut")).unwrap(), b"note");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 6, "nothing is left over");
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
        NOTE.check(&at("to-note")).unwrap();
        for (name, why) in
            [("to-thesis", "not a note"), ("dangling", "leads nowhere"), ("device", "not a regular file")]
        {
            let said = NOTE.check(&at(name)).unwrap_err().to_string();
            assert!(said.contains(why), "{name}: {said}");
        }
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
