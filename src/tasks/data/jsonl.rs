//! JSON Lines: files of one record a line, read a record at a time.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use ropewalk_core::control::Control;
use serde::de::DeserializeOwned;

use crate::{Error, Result};

/// Bytes of one line, at most: the longest published record, a quarter of a million words, has 2 MB.
const MAX_LINE: u64 = 64 << 20;

/// Bytes of an answer, at most: the longest published one, a summary, has some 20,000. Metrics compare each of its words
/// with each of the model's.
const MAX_ANSWER: usize = 1 << 16;

/// Checks the answer that a record has under this name.
pub(crate) fn check_answer(name: &str, answer: &str) -> Result<(), String> {
    match answer.len() {
        ..=MAX_ANSWER => Ok(()),
        n => Err(format!("expected `{name}` of at most {MAX_ANSWER} bytes, found one of {n}")),
    }
}

/// The records of a file. Each is looked at once when the file is opened, and read again when it is wanted, so
/// that only one is in memory at a time.
pub(crate) struct Records<T> {
    path: PathBuf,
    input: RefCell<BufReader<File>>,
    lines: Vec<Line>,
    kind: PhantomData<fn() -> T>,
}

struct Line {
    start: u64,
    number: usize,
}

impl<T: DeserializeOwned> Records<T> {
    /// Opens a file and looks at its records: `check` says what is wrong with one, expected and found. Lines of
    /// white space only are passed over.
    ///
    /// # Errors
    /// A file that cannot be read, a line over 64 MiB, one that is not such a record, one that `check` objects
    /// to, a file without records; the message names file and line.
    pub(crate) fn open(
        path: &Path,
        control: &Control<'_>,
        check: impl Fn(&T) -> Result<(), String>,
    ) -> Result<Records<T>> {
        let mut input = BufReader::with_capacity(1 << 16, files::foreign::open_file(path)?);
        let (mut lines, mut start, mut bytes) = (Vec::new(), 0, Vec::new());
        for number in 1.. {
            control.unless_stopped(Error::Interrupted)?;
            let n = read_line(&mut input, &mut bytes, path, number)?;
            if n == 0 {
                break;
            }
            if !bytes.trim_ascii().is_empty() {
                check(&parse(&bytes, path, number)?)
                    .map_err(|what| Error::file(path, format!("line {number}: {what}")))?;
                lines.push(Line { start, number });
            }
            start += n as u64;
        }
        if lines.is_empty() {
            return Err(Error::file(path, "expected records, one a line, found none"));
        }
        Ok(Records { path: path.to_owned(), input: RefCell::new(input), lines, kind: PhantomData })
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The record at a place below [`Records::len`].
    pub(crate) fn get(&self, i: usize) -> Result<T> {
        let line = &self.lines[i];
        let mut input = self.input.borrow_mut();
        input.seek(SeekFrom::Start(line.start)).map_err(|e| Error::file(&self.path, e))?;
        let mut bytes = Vec::new();
        read_line(&mut *input, &mut bytes, &self.path, line.number)?;
        parse(&bytes, &self.path, line.number)
    }
}

/// Reads a line with its end into `bytes`, and says how many bytes it has: none after the last line.
fn read_line(input: &mut impl BufRead, bytes: &mut Vec<u8>, path: &Path, number: usize) -> Result<usize> {
    bytes.clear();
    let n = input.take(MAX_LINE + 1).read_until(b'\n', bytes).map_err(|e| Error::file(path, e))?;
    if n as u64 > MAX_LINE {
        return Err(Error::file(
            path,
            format!("line {number}: expected a record of at most {MAX_LINE} bytes, found a longer line"),
        ));
    }
    Ok(n)
}

fn parse<T: DeserializeOwned>(bytes: &[u8], path: &Path, number: usize) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| {
        // The parser counts lines from the record's own beginning.
        let what = e.to_string();
        let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
        Error::file(path, format!("line {number}, byte {}: expected a record, found: {what}", e.column()))
    })
}
