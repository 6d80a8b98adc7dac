//! Names of the files that this crate makes next to the requested ones.

use std::path::Path;

/// Text between the name of a file and the random letters of its temporary file.
pub(crate) const MARK: &str = ".writing-";
pub(crate) const N_RANDOM: usize = 8;
/// How the names of lock files end.
pub(crate) const LOCK: &str = ".ropewalk-lock";
/// The longest name that file systems take, in bytes.
const LONGEST: usize = 255;

/// The folder that a file is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The last part of a path, cut so that a dot and `more` bytes go with it in one name.
pub(crate) fn short_name(path: &Path, more: usize) -> String {
    let mut name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    while name.len() > LONGEST - 1 - more {
        name.pop();
    }
    name
}

/// How the name of the temporary file of `path` begins; [`N_RANDOM`] letters and digits end it.
pub(crate) fn prefix(path: &Path) -> String {
    format!(".{}{MARK}", short_name(path, MARK.len() + N_RANDOM))
}

/// Returns true if a file of this name is a temporary file or a lock file of this crate.
pub(crate) fn is_ours(name: &str) -> bool {
    let Some(rest) = name.strip_prefix('.') else { return false };
    let temporary = rest.rsplit_once(MARK).is_some_and(|(target, random)| {
        !target.is_empty() && random.len() == N_RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric())
    });
    temporary || name.ends_with(LOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_names_are_ours() {
        for name in [
            ".a.gguf.writing-a1B2c3D4",
            ".a.writing-x.writing-00000000",
            ".ropewalk-lock",
            ".a.ropewalk-lock",
        ] {
            assert!(is_ours(name), "{name}");
        }
        for name in [
            "a.writing-a1B2c3D4",
            ".writing-a1B2c3D4",
            ".a.writing-a1B2c3D",
            ".a.writing-a1B2c3D45",
            ".a.writing-a1B2c3D_",
            "a.ropewalk-lock",
        ] {
            assert!(!is_ours(name), "{name}");
        }
        let long = "\u{fc}".repeat(127);
        assert_eq!(format!("{}12345678", prefix(Path::new(&long))).len(), 255 - 1);
        assert!(is_ours(&format!("{}12345678", prefix(Path::new(&long)))));
    }
}
