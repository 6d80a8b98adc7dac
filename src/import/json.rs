//! JSON objects from files, with errors that name file, key, found and expected.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::shown;
use crate::{Error, Result};

/// Bytes of a small file such as config.json.
pub(crate) const SMALL: u64 = 16 << 20;
/// Bytes of tokenizer.json; the largest known has 33 million.
pub(crate) const LARGE: u64 = 256 << 20;

/// A JSON object and the file it is from.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) path: PathBuf,
    pub(crate) map: Map<String, Value>,
}

/// The bytes of a regular file of at most `limit` bytes; `None` where there is none.
pub(crate) fn bytes(path: &Path, limit: u64) -> Result<Option<Vec<u8>>> {
    match files::foreign::read_file(path, limit) {
        Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        done => Ok(Some(done?)),
    }
}

/// A text file; `None` where there is none.
pub(crate) fn text(path: &Path) -> Result<Option<String>> {
    let Some(bytes) = bytes(path, SMALL)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| Error::of(path, "is not UTF-8"))
}

impl Object {
    /// Reads a file; `None` where there is none.
    pub(crate) fn read(path: &Path, limit: u64) -> Result<Option<Object>> {
        bytes(path, limit)?.map(|bytes| Object::parse(path, &bytes)).transpose()
    }
    /// Parses the bytes of a file.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Object> {
        let value =
            serde_json::from_slice(bytes).map_err(|e| Error::of(path, format!("is not JSON: {e}")))?;
        match value {
            Value::Object(map) => Ok(Object { path: path.to_owned(), map }),
            other => Err(Error::of(path, format!("found {}, expected an object", kind(&other)))),
        }
    }
    /// An object inside this one, for errors of the same file.
    pub(crate) fn inside(&self, map: Map<String, Value>) -> Object {
        Object { path: self.path.clone(), map }
    }
    /// The value of a key; `null` is none.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }
    pub(crate) fn error(&self, key: &str, what: impl std::fmt::Display) -> Error {
        Error::at(&self.path, key, what)
    }
    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let wrong = || self.error(key, format!("found {}, expected {wanted}", kind(value)));
        read(value).map(Some).ok_or_else(wrong)
    }
    fn needed<T>(&self, key: &str, wanted: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.error(key, format!("found none, expected {wanted}")))
    }
    pub(crate) fn string(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", Value::as_str)
    }
    pub(crate) fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }
    pub(crate) fn object(&self, key: &str) -> Result<Option<&Map<String, Value>>> {
        self.typed(key, "an object", Value::as_object)
    }
    pub(crate) fn array(&self, key: &str) -> Result<Option<&Vec<Value>>> {
        self.typed(key, "an array", Value::as_array)
    }
    /// A number from 0 to 2^31 - 1.
    pub(crate) fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "a whole number from 0 to 2147483647", whole)
    }
    /// A finite number.
    pub(crate) fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number that an f32 holds", number)
    }
    /// Finite numbers, at most `limit` of them.
    pub(crate) fn f64s(&self, key: &str, limit: usize) -> Result<Option<Vec<f64>>> {
        let wanted = format!("an array of at most {limit} finite numbers");
        self.typed(key, &wanted, |v| {
            let array = v.as_array().filter(|a| a.len() <= limit)?;
            array.iter().map(number).collect()
        })
    }
    pub(crate) fn needs_u32(&self, key: &str) -> Result<u32> {
        self.needed(key, "a whole number", self.u32(key)?)
    }
    pub(crate) fn needs_f64(&self, key: &str) -> Result<f64> {
        self.needed(key, "a number", self.f64(key)?)
    }
}

fn whole(value: &Value) -> Option<u32> {
    // transformers writes some whole numbers as floats.
    let n = value
        .as_u64()
        .or_else(|| value.as_f64().filter(|f| f.fract() == 0.0 && *f >= 0.0).map(|f| f as u64))?;
    u32::try_from(n).ok().filter(|&n| n <= i32::MAX as u32)
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|f| (*f as f32).is_finite())
}

/// The kind of a value, for messages.
pub(crate) fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(v) => v.to_string(),
        Value::Number(v) => v.to_string(),
        Value::String(v) => format!("\"{}\"", shown(v)),
        Value::Array(v) => format!("an array of {}", v.len()),
        Value::Object(_) => "an object".into(),
    }
}
