//! Components of tokenizer.json as the file has them, read with errors that name their place.

use std::path::Path;

use serde_json::Value;

use crate::json::kind;
use crate::{Error, Result};

/// Most components of a file, sequences included; of those known the most have a dozen.
const MAX_COMPONENTS: usize = 64;
/// Sequences in each other.
const MAX_DEPTH: usize = 8;

/// A value of the file and its place there, such as `normalizer.normalizers[3].type`.
#[derive(Debug, Clone)]
pub(super) struct Part<'a> {
    pub(super) file: &'a Path,
    pub(super) place: String,
    value: &'a Value,
}

impl<'a> Part<'a> {
    pub(super) fn new(file: &'a Path, place: &str, value: &'a Value) -> Part<'a> {
        Part { file, place: place.to_owned(), value }
    }
    pub(super) fn error(&self, what: impl std::fmt::Display) -> Error {
        Error::at(self.file, &self.place, what)
    }
    /// The error of a value of another kind.
    pub(super) fn wrong(&self, expected: impl std::fmt::Display) -> Error {
        self.error(format!("found {}, expected {expected}", kind(self.value)))
    }
    fn at(&self, key: &str, value: &'a Value) -> Part<'a> {
        Part { file: self.file, place: format!("{}.{key}", self.place), value }
    }
    /// The value of a key of this object; `null` is none.
    pub(super) fn get(&self, key: &str) -> Result<Option<Part<'a>>> {
        let map = self.value.as_object().ok_or_else(|| self.wrong("an object"))?;
        Ok(map.get(key).filter(|v| !v.is_null()).map(|v| self.at(key, v)))
    }
    pub(super) fn needs(&self, key: &str, expected: &str) -> Result<Part<'a>> {
        let none = || {
            Error::at(self.file, &format!("{}.{key}", self.place), format!("found none, expected {expected}"))
        };
        self.get(key)?.ok_or_else(none)
    }
    /// The entries of an object, at most so many.
    pub(super) fn entries(&self, most: usize) -> Result<Vec<(&'a str, Part<'a>)>> {
        let map = self.value.as_object().filter(|m| m.len() <= most);
        let map = map.ok_or_else(|| self.wrong(format!("an object of at most {most} entries")))?;
        Ok(map.iter().map(|(key, v)| (key.as_str(), self.at(key, v))).collect())
    }
    /// The parts of an array, at most so many.
    pub(super) fn items(&self, most: usize) -> Result<Vec<Part<'a>>> {
        let list = self.value.as_array().filter(|l| l.len() <= most);
        let list = list.ok_or_else(|| self.wrong(format!("an array of at most {most}")))?;
        let item = |(i, value)| Part { file: self.file, place: format!("{}[{i}]", self.place), value };
        Ok(list.iter().enumerate().map(item).collect())
    }
    pub(super) fn text(&self) -> Result<&'a str> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }
    /// A string of at most so many bytes that is not empty.
    pub(super) fn short(&self, most: usize) -> Result<&'a str> {
        let text = self.text()?;
        match text.len() {
            0 => Err(self.error("found an empty string, expected a longer one")),
            n if n > most => Err(self.error(format!("found {n} bytes, expected at most {most}"))),
            _ => Ok(text),
        }
    }
    pub(super) fn flag(&self) -> Result<bool> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }
    /// A whole number of at most so much.
    pub(super) fn number(&self, most: u64) -> Result<u64> {
        let n = self.value.as_u64().filter(|&n| n <= most);
        n.ok_or_else(|| self.wrong(format!("a whole number of at most {most}")))
    }
    pub(super) fn character(&self) -> Result<char> {
        let mut chars = self.text()?.chars();
        match (chars.next(), chars.next()) {
            (Some(c), None) => Ok(c),
            _ => Err(self.wrong("one character")),
        }
    }
    /// The type of a component.
    pub(super) fn kind(&self) -> Result<&'a str> {
        self.needs("type", "the name of a component")?.text()
    }
    /// The error of a component whose type is none of those that are known.
    pub(super) fn unknown(&self, known: &[&str]) -> Error {
        match self.needs("type", "the name of a component") {
            Ok(part) => part.wrong(format!("one of {}", known.join(" "))),
            Err(e) => e,
        }
    }
}

/// Limits on all components of a file together.
#[derive(Debug, Default)]
pub(super) struct Budget {
    components: usize,
}

impl Budget {
    /// Takes the component apart if it is a sequence, whose list is called `key`: components in order, none of them a
    /// sequence.
    pub(super) fn flat<'a>(&mut self, part: Part<'a>, key: &str) -> Result<Vec<Part<'a>>> {
        let mut out = Vec::new();
        self.flatten(part, key, 0, &mut out)?;
        Ok(out)
    }

    fn flatten<'a>(
        &mut self,
        part: Part<'a>,
        key: &str,
        depth: usize,
        out: &mut Vec<Part<'a>>,
    ) -> Result<()> {
        self.components += 1;
        if self.components > MAX_COMPONENTS {
            return Err(part.error(format!("found more than {MAX_COMPONENTS} components, expected fewer")));
        }
        if part.kind()? != "Sequence" {
            out.push(part);
            return Ok(());
        }
        if depth == MAX_DEPTH {
            return Err(
                part.error(format!("found more than {MAX_DEPTH} sequences in each other, expected fewer"))
            );
        }
        let list = part.needs(key, "an array")?.items(MAX_COMPONENTS)?;
        list.into_iter().try_for_each(|part| self.flatten(part, key, depth + 1, out))
    }
}
