//! JSON Lines: files with a JSON object on each line, one field of which is a text.

use std::io::{BufRead, Read};
use std::path::Path;

use serde_json::Value;

use crate::model::{Error, Result};

/// Bytes of one text, unpacked. A gzip file of a megabyte can hold a gigabyte.
pub const MAX_TEXT: u64 = 1 << 30;

/// Whether a file is JSON Lines by its name: `.jsonl` or `.ndjson`, packed (`.gz`) or not, in letters of
/// either case.
pub fn is_jsonl(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.ends_with(".jsonl") || name.ends_with(".ndjson")
}

/// The texts of a file, each with the number of its line, counted from 1. Blank lines are passed over; an
/// error ends it.
#[derive(Debug)]
pub struct Texts<'a, R> {
    path: &'a Path,
    input: R,
    field: &'a str,
    replace_invalid: bool,
    line: u32,
    offset: u64,
    replaced: u64,
    failed: bool,
}

impl<'a, R: BufRead> Texts<'a, R> {
    /// Reads field `field` of each line of `input`; `path` only names it in errors. Bytes that are not UTF-8
    /// become U+FFFD under `replace_invalid`, and are an error otherwise.
    pub fn new(path: &'a Path, input: R, field: &'a str, replace_invalid: bool) -> Self {
        Texts { path, input, field, replace_invalid, line: 0, offset: 0, replaced: 0, failed: false }
    }

    /// Lines so far in which bytes were replaced.
    pub fn n_replaced(&self) -> u64 {
        self.replaced
    }

    fn next_text(&mut self) -> Result<Option<(u32, String)>> {
        loop {
            let mut bytes = Vec::new();
            let read = (&mut self.input).take(MAX_TEXT + 1).read_until(b'\n', &mut bytes);
            let n = read.map_err(|e| Error::Ggml(ggml::Error::io(self.path, e)))?;
            if n == 0 {
                return Ok(None);
            }
            self.line = self.line.checked_add(1).ok_or_else(|| {
                invalid(format!("{}: expected at most {} lines, found more", self.path.display(), u32::MAX))
            })?;
            let name = format!("{}:{}", self.path.display(), self.line);
            let text = utf8(&name, bytes, self.offset, self.replace_invalid, &mut self.replaced)?;
            self.offset += n as u64;
            if !text.trim().is_empty() {
                return Ok(Some((self.line, field(&name, &text, self.field)?)));
            }
        }
    }
}

impl<R: BufRead> Iterator for Texts<'_, R> {
    type Item = Result<(u32, String)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.next_text();
        self.failed = next.is_err();
        next.transpose()
    }
}

/// Bytes at `offset` of a file to text; `replaced` counts texts in which bytes were replaced. A byte-order
/// mark at the start of a file is no part of its text.
///
/// # Errors
/// More than [`MAX_TEXT`] bytes; unless `replace_invalid`, bytes that are not UTF-8: the offset of the first
/// is named.
pub(crate) fn utf8(
    name: &str,
    mut bytes: Vec<u8>,
    offset: u64,
    replace_invalid: bool,
    replaced: &mut u64,
) -> Result<String> {
    if bytes.len() as u64 > MAX_TEXT {
        return Err(invalid(format!("{name}: a text of more than {MAX_TEXT} bytes; break it")));
    }
    let mark = if offset == 0 && bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    bytes.drain(..mark);
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(e) if replace_invalid => {
            *replaced += 1;
            Ok(String::from_utf8_lossy(e.as_bytes()).into_owned())
        }
        Err(e) => {
            let at = offset + (mark + e.utf8_error().valid_up_to()) as u64;
            Err(invalid(format!("{name}: not UTF-8: bad byte at offset {at}")))
        }
    }
}

/// The text in a field of the object that a line holds.
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

fn invalid(what: String) -> Error {
    Error::Invalid(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8], replace: bool) -> Vec<Result<(u32, String), String>> {
        let texts = Texts::new(Path::new("a.jsonl"), bytes, "text", replace);
        texts.map(|t| t.map_err(|e| e.to_string())).collect()
    }

    #[test]
    fn names_say_what_is_json_lines() {
        for name in ["a.jsonl", "b/A.JSONL", "a.ndjson", "a.jsonl.gz", "a.ndjson.GZ"] {
            assert!(is_jsonl(Path::new(name)), "{name}");
        }
        for name in ["a.json", "jsonl", "a.jsonl/b.txt", "a.gz", ""] {
            assert!(!is_jsonl(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn lines_are_counted_and_blank_ones_passed_over() {
        let found = texts(b"\xef\xbb\xbf{\"text\":\"a\"}\r\n\n  \n{\"id\":1,\"text\":\"b\"}", false);
        assert_eq!(found, [Ok((1, "a".to_owned())), Ok((4, "b".to_owned()))]);
    }

    #[test]
    fn an_error_names_its_line_and_ends_the_texts() {
        let found = texts(b"{\"text\":\"a\"}\n{\"text\":\"\xff\"}\n{\"text\":\"b\"}\n", false);
        let bad = "a.jsonl:2: not UTF-8: bad byte at offset 22".to_owned();
        assert_eq!(found, [Ok((1, "a".to_owned())), Err(bad)]);
        let replaced = texts(b"{\"text\":\"\xff\"}", true);
        assert_eq!(replaced, [Ok((1, "\u{fffd}".to_owned()))]);
    }
}
