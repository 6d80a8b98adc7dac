//! The documents of one file: a text, or one text a line of a JSONL file; unpacked when it is gzip.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use super::{io, TextOptions};
use crate::jsonl::{self, Texts, MAX_TEXT};
use crate::model::Result;

/// A text to train on.
pub(super) struct Document {
    /// Line of the JSONL file it is from, counted from 1; 0 for a file that is one text.
    pub line: u32,
    pub text: String,
}

/// Bytes read of the files so far, whatever they unpack to.
pub(super) type Counter = Rc<Cell<u64>>;

struct Counting {
    file: File,
    read: Option<Counter>,
}

impl Read for Counting {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read(buffer)?;
        if let Some(read) = &self.read {
            read.set(read.get() + n as u64);
        }
        Ok(n)
    }
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    endings.iter().any(|e| name.ends_with(e))
}

/// The file's bytes, unpacked if its name ends in `.gz`.
pub(super) fn unpacked(path: &Path, read: Option<Counter>) -> Result<Box<dyn BufRead>> {
    let file = Counting { file: File::open(path).map_err(|e| io(path, e))?, read };
    let file = BufReader::with_capacity(1 << 16, file);
    Ok(match has_ending(path, &[".gz"]) {
        true => Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))),
        false => Box::new(file),
    })
}

/// Hands on the documents of a file, one at a time. Blank texts are passed over; `notes` takes what else was put right.
pub(super) fn documents(
    path: &Path,
    options: &TextOptions,
    counter: Counter,
    notes: &mut Vec<String>,
    each: &mut dyn FnMut(Document) -> Result<()>,
) -> Result<()> {
    let mut input = unpacked(path, Some(counter))?;
    let mut replaced = 0u64;
    if jsonl::is_jsonl(path) {
        let mut texts = Texts::new(path, input, &options.text_field, options.replace_invalid);
        for text in texts.by_ref() {
            let (line, text) = text?;
            give(Document { line, text }, each)?;
        }
        replaced = texts.n_replaced();
    } else {
        let mut bytes = Vec::new();
        (&mut input).take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(|e| io(path, e))?;
        let name = path.display().to_string();
        let text = jsonl::utf8(&name, bytes, 0, options.replace_invalid, &mut replaced)?;
        give(Document { line: 0, text }, each)?;
    }
    if replaced > 0 {
        notes.push(format!("{}: {replaced} texts had bytes that are not UTF-8, replaced", path.display()));
    }
    Ok(())
}

fn give(document: Document, each: &mut dyn FnMut(Document) -> Result<()>) -> Result<()> {
    match document.text.trim().is_empty() {
        true => Ok(()),
        false => each(document),
    }
}
