//! Reads the documents of one file: a text file is one document, a JSONL file has one on each line. Gzip is
//! unpacked.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use serde_json::Value;

use super::{invalid, io, TextOptions};
use crate::model::Result;

/// Largest size of one document in bytes, unpacked: a gzip file of a megabyte can hold a gigabyte.
pub const MAX_TEXT: u64 = 1 << 30;

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
    let endings = [".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"];
    if has_ending(path, &endings) {
        let (mut line, mut offset) = (0u32, 0u64);
        loop {
            let mut bytes = Vec::new();
            let n = (&mut input).take(MAX_TEXT + 1).read_until(b'\n', &mut bytes).map_err(|e| io(path, e))?;
            if n == 0 {
                break;
            }
            line = line
                .checked_add(1)
                .ok_or_else(|| invalid(format!("{}: more than {} lines", path.display(), u32::MAX)))?;
            let name = format!("{}:{line}", path.display());
            let text = utf8(&name, bytes, offset, options, &mut replaced)?;
            offset += n as u64;
            if !text.trim().is_empty() {
                give(Document { line, text: field(&name, &text, &options.text_field)? }, each)?;
            }
        }
    } else {
        let mut bytes = Vec::new();
        (&mut input).take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(|e| io(path, e))?;
        let text = utf8(&path.display().to_string(), bytes, 0, options, &mut replaced)?;
        give(Document { line: 0, text }, each)?;
    }
    if replaced > 0 {
        notes.push(format!("{}: {replaced} texts had bytes that are not UTF-8, replaced", path.display()));
    }
    Ok(())
}

fn give(document: Document, each: &mut dyn FnMut(Document) -> Result<()>) -> Result<()> {
    if document.text.trim().is_empty() {
        return Ok(());
    }
    each(document)
}

/// Converts bytes at `offset` of a file to text. A byte-order mark at the start of the file is left out.
fn utf8(
    name: &str,
    mut bytes: Vec<u8>,
    offset: u64,
    options: &TextOptions,
    replaced: &mut u64,
) -> Result<String> {
    if bytes.len() as u64 > MAX_TEXT {
        return Err(invalid(format!("{name}: a text of more than {MAX_TEXT} bytes; break it")));
    }
    let mark = if offset == 0 && bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    bytes.drain(..mark);
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(e) if options.replace_invalid => {
            *replaced += 1;
            Ok(String::from_utf8_lossy(e.as_bytes()).into_owned())
        }
        Err(e) => {
            let at = offset + (mark + e.utf8_error().valid_up_to()) as u64;
            Err(invalid(format!("{name}: not UTF-8: bad byte at offset {at}")))
        }
    }
}

/// The text in `field` of a JSONL line.
fn field(name: &str, line: &str, field: &str) -> Result<String> {
    let value: Value = serde_json::from_str(line).map_err(|e| invalid(format!("{name}: not JSON: {e}")))?;
    let Value::Object(mut object) = value else {
        return Err(invalid(format!("{name}: expected a JSON object, found {}", kind(&value))));
    };
    match object.remove(field) {
        Some(Value::String(text)) => Ok(text),
        Some(other) => {
            Err(invalid(format!("{name}: \"{field}\": expected a string, found {}", kind(&other))))
        }
        None => Err(invalid(format!("{name}: no \"{field}\" field"))),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
