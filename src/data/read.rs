//! Reads the documents of one file: a text file is one document, a JSONL file has one on each line. Gzip is
//! unpacked.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use super::{invalid, io, TextOptions};
use crate::jsonl::{self, Texts, MAX_TEXT};
use crate::model::Result;

/// A text to train on.
pub(super) struct Document {
    /// Line of the JSONL file, counted from 1; 0 for a file that is one text.
    pub line: u32,
    pub text: String,
}

/// Counts the bytes read of the files so far, before unpacking.
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

/// Opens a file, unpacking it if its name ends in `.gz`. `read` counts its bytes.
pub(super) fn unpacked(path: &Path, read: Option<Counter>) -> Result<Box<dyn BufRead>> {
    let file = Counting { file: File::open(path).map_err(|e| io(path, e))?, read };
    let file = BufReader::with_capacity(1 << 16, file);
    if has_ending(path, &[".gz"]) {
        return Ok(Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}

/// Passes the documents of a file to `each`, one at a time. Blank texts are left out. `notes` gets a line
/// when bytes that are not UTF-8 were replaced.
///
/// # Errors
/// A file that cannot be read, a text that is too long or not UTF-8, a JSONL line without the text field;
/// those of `each`.
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
        let (name, most) = (path.display().to_string(), most_bytes());
        (&mut input).take(most + 1).read_to_end(&mut bytes).map_err(|e| io(path, e))?;
        if bytes.len() as u64 > most {
            let free = if most < MAX_TEXT { ", for which memory is free" } else { "" };
            return Err(invalid(format!("{name}: a text of more than {most} bytes{free}; break it")));
        }
        let text = jsonl::utf8(&name, bytes, 0, options.replace_invalid, &mut replaced)?;
        give(Document { line: 0, text }, each)?;
    }
    if replaced > 0 {
        notes.push(format!("{}: {replaced} texts had bytes that are not UTF-8, replaced", path.display()));
    }
    Ok(())
}

/// Most bytes of a text that is read as a whole. With its tokens, of four bytes and at most one a byte, and
/// what the tokenizer holds, it must fit into the memory that is free: packed, it may be a thousandth as long.
fn most_bytes() -> u64 {
    ggml::machine::memory_available().map_or(MAX_TEXT, |free| MAX_TEXT.min(free / 8))
}

fn give(document: Document, each: &mut dyn FnMut(Document) -> Result<()>) -> Result<()> {
    if document.text.trim().is_empty() {
        return Ok(());
    }
    each(document)
}
