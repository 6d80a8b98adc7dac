//! Models split over several files: names and keys as llama.cpp's `gguf-split` writes them and its
//! `llama-model-loader.cpp` reads them.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use super::error::Defect;
use super::{FromValue, Value};

/// Most parts of one model: `split.count` is a u16.
pub const MAX_PARTS: u64 = u16::MAX as u64;

/// The keys of the first part that describe the others.
pub(super) struct Split {
    /// Number of parts, this one included.
    pub(super) count: u64,
    /// Tensors in all parts together.
    pub(super) n_tensors: u64,
    first: PathBuf,
    prefix: String,
}

impl Split {
    /// Where part `no`, counted from 0, is: next to the first.
    pub(super) fn part(&self, no: u64) -> PathBuf {
        self.first.with_file_name(format!("{}{}", self.prefix, suffix(no, self.count)))
    }
}

/// Reads the split keys of the file given to `open`; `None` when it is a whole model.
pub(super) fn of<'v>(
    path: &Path,
    value: impl Fn(&str) -> Option<&'v Value>,
) -> Result<Option<Split>, Defect> {
    if value("split.count").is_none() {
        return Ok(None);
    }
    let count = number("split.count", &value, |_| true, format!("an integer from 0 to {MAX_PARTS}"))?;
    if count <= 1 {
        return Ok(None);
    }
    number("split.count", &value, |n| n <= MAX_PARTS, format!("at most {MAX_PARTS}"))?;
    let no = number("split.no", &value, |n| n < count, format!("an integer below {count}"))?;
    let file_name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let suffix = suffix(no, count);
    let Some(prefix) = file_name.strip_suffix(&suffix).filter(|p| !p.is_empty()) else {
        return Err(match no {
            0 => Defect::PartName { count, expected: suffix },
            _ => Defect::PartKey {
                key: "split.no",
                found: no.to_string(),
                expected: format!("0: open the first of the {count} parts"),
            },
        });
    };
    let mut split = Split { count, n_tensors: 0, first: path.to_owned(), prefix: prefix.to_owned() };
    if no != 0 {
        return Err(Defect::NotFirstPart { found: no + 1, count, first: split.part(0) });
    }
    split.n_tensors = number("split.tensors.count", &value, |_| true, "an integer".to_owned())?;
    Ok(Some(split))
}

/// Checks the split keys of part `no` (counted from 0): which also refuses a part that is another one again.
pub(super) fn check_part<'v>(
    no: u64,
    count: u64,
    value: impl Fn(&str) -> Option<&'v Value>,
) -> Result<(), Defect> {
    number("split.no", &value, |n| n == no, no.to_string())?;
    // llama.cpp does not look at this key in later parts, so they may lack it, but not contradict the first.
    if value("split.count").is_some() {
        number("split.count", &value, |n| n == count, count.to_string())?;
    }
    Ok(())
}

/// The paths of all parts of a split model, by the name of one: three for `NAME-00002-of-00003.gguf`. For any other name, the
/// path itself. Nothing is opened, and no file need be there.
pub fn parts(path: &Path) -> Vec<PathBuf> {
    let all = || {
        let name = path.file_name()?.to_str()?;
        let (stem, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, no) = stem.rsplit_once('-')?;
        let count = count.parse::<u64>().ok().filter(|n| *n <= MAX_PARTS)?;
        let no = no.parse::<u64>().ok().filter(|n| (1..=count).contains(n))?;
        let part = |no| format!("{prefix}{}", suffix(no, count));
        (part(no - 1) == name).then(|| (0..count).map(|no| path.with_file_name(part(no))).collect())
    };
    all().unwrap_or_else(|| vec![path.to_owned()])
}

/// `no` counts from 0, as the key does; the name counts from 1.
fn suffix(no: u64, count: u64) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

fn number<'v>(
    key: &'static str,
    value: impl Fn(&str) -> Option<&'v Value>,
    fits: impl Fn(u64) -> bool,
    expected: String,
) -> Result<u64, Defect> {
    let value = value(key);
    let found = match value.and_then(u64::from_value) {
        Some(n) if fits(n) => return Ok(n),
        Some(n) => n.to_string(),
        None => value.map_or_else(|| "none".to_owned(), Value::describe),
    };
    Err(Defect::PartKey { key, found, expected })
}
