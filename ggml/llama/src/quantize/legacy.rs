//! Importance matrices in the format that llama-imatrix wrote before GGUF (`imatrix.dat`), read as `common_imatrix_load`
//! and llama-quantize read it.
//!
//! Little endian: the number of entries (i32); for each the length of its name (i32), the name, the number of calls
//! (i32), the number of values (i32) and the values (f32 each), which are mean squares times the number of calls. Then,
//! since early 2024, the number of chunks (i32), and the length (i32) and bytes of the text's name.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::io::{BufReader, Read};
use std::path::Path;

use files::foreign::open_file;

use super::imatrix::{Found, MAX_VALUE};
use crate::{Error, Result};

/// The fewest bytes of an entry: a name of one byte, and one value.
const MIN_ENTRY: u64 = 4 + 1 + 4 + 4 + 4;
/// Values read at a time.
const RUN: usize = 1 << 14;

/// Returns true if a file's first bytes are those of GGUF, which cannot be a number of entries.
pub(super) fn is_gguf(path: &Path) -> Result<bool> {
    let mut head = Vec::new();
    open_file(path)?.take(4).read_to_end(&mut head).map_err(|e| Error::io(path, e))?;
    Ok(head == b"GGUF")
}

pub(super) fn open(path: &Path) -> Result<Found> {
    let file = open_file(path)?;
    let n_bytes = file.metadata().map_err(|e| Error::io(path, e))?.len();
    read(path, BufReader::new(file), n_bytes)
}

fn error(path: &Path, what: impl std::fmt::Display) -> Error {
    Error::Argument(format!("{}: {what}", path.display()))
}

/// Bytes, and how many there are left of them: a length in the file is believed as far as they go.
struct Input<'a, R> {
    path: &'a Path,
    bytes: R,
    left: u64,
}

impl<R: Read> Input<'_, R> {
    fn error(&self, what: impl std::fmt::Display) -> Error {
        error(self.path, format_args!("neither GGUF nor an older importance matrix (.dat): {what}"))
    }

    fn fill(&mut self, bytes: &mut [u8], what: &str) -> Result<()> {
        let read = self.bytes.read_exact(bytes);
        read.map_err(|e| self.error(format_args!("{what}: {e}")))?;
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Ok(())
    }

    fn number(&mut self, what: &str) -> Result<i32> {
        let mut bytes = [0; 4];
        if self.left < 4 {
            return Err(self.error(format_args!("{what}: the file ends before it")));
        }
        self.fill(&mut bytes, what)?;
        Ok(i32::from_le_bytes(bytes))
    }

    /// A number of things of so many bytes, of which there is at least one.
    fn count(&mut self, what: &str, each: u64) -> Result<usize> {
        let found = self.number(what)?;
        let most = self.left / each;
        match u64::try_from(found).ok().filter(|n| (1..=most).contains(n)) {
            Some(n) => Ok(n as usize),
            None => Err(self.error(format_args!("{what}: expected 1 to {most}, found {found}"))),
        }
    }

    fn text(&mut self, what: &str) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.count(&format!("length of {what}"), 1)?];
        self.fill(&mut bytes, what)?;
        // A C string there.
        bytes.truncate(bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len()));
        Ok(bytes)
    }

    fn floats(&mut self, n: usize, what: &str) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        values.try_reserve_exact(n).map_err(|e| self.error(format_args!("{what}: {e}")))?;
        let mut bytes = vec![0; 4 * n.min(RUN)];
        while values.len() < n {
            let bytes = &mut bytes[..4 * (n - values.len()).min(RUN)];
            self.fill(bytes, what)?;
            values.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        }
        Ok(values)
    }

    fn entry(&mut self, i: usize) -> Result<(String, Vec<f32>)> {
        let name = self.text(&format!("name of entry {i}"))?;
        let name = String::from_utf8(name).ok().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| self.error(format_args!("name of entry {i}: expected a text")))?;
        let quoted = name.escape_debug().to_string();
        let n_calls = self.number(&format!("{quoted}: calls"))?;
        let n = self.count(&format!("{quoted}: values"), 4)?;
        let mut values = self.floats(n, &quoted)?;
        // Without calls the values stay as they are, as in llama-quantize.
        if n_calls > 0 {
            values.iter_mut().for_each(|v| *v /= n_calls as f32);
        }
        match values.iter().find(|v| !(0.0..=MAX_VALUE).contains(*v)) {
            Some(bad) => Err(error(
                self.path,
                format_args!("{quoted}: expected numbers from 0 to {MAX_VALUE:e}, found {bad}"),
            )),
            None => Ok((name, values)),
        }
    }

    /// The number of chunks and the name of the text, as far as the file has them whole.
    fn tail(&mut self) -> (u32, Option<String>) {
        let n_chunks = self.number("chunks").ok().and_then(|n| u32::try_from(n).ok());
        let dataset = n_chunks.and_then(|_| self.text("name of the text").ok());
        (n_chunks.unwrap_or(0), dataset.map(|name| String::from_utf8_lossy(&name).into_owned()))
    }
}

fn read(path: &Path, bytes: impl Read, n_bytes: u64) -> Result<Found> {
    let mut input = Input { path, bytes, left: n_bytes };
    let n = input.count("number of entries", MIN_ENTRY)?;
    let (mut entries, mut places) = (Vec::<(String, Vec<f32>)>::new(), HashMap::new());
    for i in 1..=n {
        let (name, values) = input.entry(i)?;
        // The last of several counts, as in llama-quantize.
        match places.get(&name) {
            Some(&place) => entries[place as usize].1 = values,
            None => {
                places.insert(name.clone(), entries.len() as u32);
                entries.push((name, values));
            }
        }
    }
    let (n_chunks, dataset) = input.tail();
    Ok(Found { entries, dataset, n_chunks })
}
