//! JSON Lines: files with a JSON object on each line, one field of which is a text. Only that field is kept
//! while a line is parsed.

use std::fmt;
use std::io::{BufRead, Read};
use std::path::Path;

use ropewalk_core::text::{decode_line, unix_lines, Invalid};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{invalid, io, Error, Result};

/// Bytes of one text, unpacked. A gzip file of a megabyte can hold a gigabyte.
pub const MAX_TEXT: u64 = 1 << 30;

/// Bytes of one line of JSON Lines, unpacked.
pub const MAX_LINE: u64 = 64 << 20;

/// Returns true if a file is JSON Lines by its name: `.jsonl` or `.ndjson`, compressed (`.gz`) or not, in letters of
/// either case.
pub fn is_jsonl(path: &Path) -> bool {
    has_ending(path, &[".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"])
}

/// Returns true if the name of a file has one of these endings, in letters of either case.
pub(crate) fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
    endings.iter().any(|e| name.ends_with(e))
}

/// The texts of a file, each with the number of its line, counted from 1. Blank lines are passed over; an
/// error ends it.
#[derive(Debug)]
pub struct Texts<'a, R> {
    path: &'a Path,
    input: R,
    /// `None` for whole lines.
    field: Option<&'a str>,
    invalid: Invalid,
    line: u32,
    offset: u64,
    /// Lines so far in which bytes were replaced.
    pub(crate) n_replaced: u64,
    failed: bool,
}

impl<'a, R: BufRead> Texts<'a, R> {
    /// Reads field `field` of each line of `input`; `path` only names it in errors. Bytes that are not UTF-8 become
    /// U+FFFD under `replace_invalid`, and are an error otherwise.
    pub fn new(path: &'a Path, input: R, field: &'a str, replace_invalid: bool) -> Self {
        Texts { field: Some(field), ..Texts::lines(path, input, replace_invalid) }
    }

    /// Whole lines in place of texts.
    pub(crate) fn lines(path: &'a Path, input: R, replace_invalid: bool) -> Self {
        let invalid = if replace_invalid { Invalid::Replace } else { Invalid::Refuse };
        Texts { path, input, field: None, invalid, line: 0, offset: 0, n_replaced: 0, failed: false }
    }

    /// The name of a line in errors: `pages.jsonl:12`.
    pub(crate) fn name(&self, line: u32) -> String {
        format!("{}:{line}", self.path.display())
    }

    fn next_line(&mut self) -> Result<Option<(u32, String)>> {
        loop {
            let mut bytes = Vec::new();
            let read = (&mut self.input).take(MAX_LINE + 1).read_until(b'\n', &mut bytes);
            let n = read.map_err(|e| io(self.path, e))?;
            if n == 0 {
                return Ok(None);
            }
            self.line = self.line.checked_add(1).ok_or_else(|| {
                invalid(format!("{}: expected at most {} lines, found more", self.path.display(), u32::MAX))
            })?;
            let name = self.name(self.line);
            if n as u64 > MAX_LINE {
                return Err(invalid(format!(
                    "{name}: expected a line of at most {MAX_LINE} bytes, found more"
                )));
            }
            let decoded =
                decode_line(bytes, self.offset, self.invalid).map_err(|e| invalid(format!("{name}: {e}")))?;
            self.n_replaced += u64::from(decoded.replaced);
            let text = decoded.text;
            self.offset += n as u64;
            if !text.trim().is_empty() {
                return Ok(Some((self.line, text)));
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
        let next = self.next_line().and_then(|next| match (next, self.field) {
            (Some((line, text)), Some(key)) => Ok(Some((line, field(&self.name(line), &text, key)?))),
            (next, _) => Ok(next),
        });
        self.failed = next.is_err();
        next.transpose()
    }
}

/// The text in a field of the object that a line holds.
fn field(name: &str, line: &str, field: &str) -> Result<String> {
    let not_json = |e: serde_json::Error| invalid(format!("{name}: not JSON: {e}"));
    let value = match pick(line, field) {
        Ok(Some(value)) => value,
        Ok(None) => {
            // Read once more for a better error.
            let of_chat = |key: &&&str| matches!(pick(line, key), Ok(Some(_)));
            let found = ["messages", "completion", "conversations"].iter().find(of_chat);
            return Err(match found {
                Some(key) => Error::Chat(format!(
                    "{name}: no \"{field}\" field; it has {key:?}: training on chats takes \"messages\", or \"prompt\" \
                     and \"completion\""
                )),
                None => invalid(format!("{name}: no \"{field}\" field")),
            });
        }
        Err(e) => {
            return Err(match serde_json::from_str::<&RawValue>(line) {
                Ok(value) if !value.get().starts_with('{') => {
                    invalid(format!("{name}: expected a JSON object, found {}", kind(value)))
                }
                _ => not_json(e),
            });
        }
    };
    if !value.get().starts_with('"') {
        return Err(invalid(format!("{name}: \"{field}\": expected a string, found {}", kind(value))));
    }
    Ok(unix_lines(serde_json::from_str(value.get()).map_err(not_json)?))
}

/// The field of this name in a JSON object, as it is written; the last of several.
fn pick<'l>(line: &'l str, field: &str) -> serde_json::Result<Option<&'l RawValue>> {
    let mut json = serde_json::Deserializer::from_str(line);
    let found = json.deserialize_map(Pick(field))?;
    json.end()?;
    Ok(found)
}

fn kind(value: &RawValue) -> &'static str {
    match value.get().as_bytes().first() {
        Some(b'"') => "a string",
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'n') => "null",
        Some(b't' | b'f') => "a boolean",
        _ => "a number",
    }
}

/// Keeps one field of an object. A map of all of them would take as much memory as the line has keys.
struct Pick<'a>(&'a str);

impl<'de> Visitor<'de> for Pick<'_> {
    type Value = Option<&'de RawValue>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some((key, value)) = fields.next_entry::<String, &RawValue>()? {
            if key == self.0 {
                found = Some(value);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

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

    /// An array of empty arrays takes 32 times its bytes as a value: here it is only passed over.
    #[test]
    fn fields_that_are_not_wanted_are_passed_over() {
        let line = format!(
            "{{\"a\":[{}0],\"text\":\"x\",\"b\":{{\"text\":1}},\"c\":{}1{}}}",
            "[],".repeat(9),
            "[".repeat(500),
            "]".repeat(500)
        );
        assert_eq!(texts(line.as_bytes(), false), [Ok((1, "x".to_owned()))]);
        // Line ends of a text are those of text files.
        let unix = texts(b"{\"text\":\"a\\r\\nb\\rc\"}\r\n", false);
        assert_eq!(unix, [Ok((1, "a\nb\nc".to_owned()))]);
        let twice = texts(b"{\"text\":1,\"text\":\"last\"}", false);
        assert_eq!(twice, [Ok((1, "last".to_owned()))]);
        for (line, why) in [
            ("{\"text\":[1]}", "a.jsonl:1: \"text\": expected a string, found an array"),
            ("{\"text\":{\"text\":\"x\"}}", "a.jsonl:1: \"text\": expected a string, found an object"),
            ("{\"text\":null}", "a.jsonl:1: \"text\": expected a string, found null"),
            ("{\"id\":1}", "a.jsonl:1: no \"text\" field"),
            (
                "{\"id\":1,\"messages\":[]}",
                "a.jsonl:1: no \"text\" field; it has \"messages\": training on chats takes \"messages\", or \"prompt\" \
                 and \"completion\"",
            ),
            ("\"text\"", "a.jsonl:1: expected a JSON object, found a string"),
            ("-1.5", "a.jsonl:1: expected a JSON object, found a number"),
        ] {
            assert_eq!(texts(line.as_bytes(), false), [Err(why.to_owned())]);
        }
        for line in ["{\"text\":\"x\"} x", "{\"text\":\"x\"", "{\"a\":[}", "{1:2}"] {
            let e = texts(line.as_bytes(), false).remove(0).unwrap_err();
            assert!(e.starts_with("a.jsonl:1: not JSON"), "{e}");
        }
    }

    #[test]
    fn endless_lines_are_refused() {
        let mut endless =
            Texts::new(Path::new("a.jsonl"), BufReader::new(std::io::repeat(b'[')), "text", false);
        let e = endless.next().unwrap().unwrap_err().to_string();
        assert_eq!(e, "a.jsonl:1: expected a line of at most 67108864 bytes, found more");
        assert!(endless.next().is_none());
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
