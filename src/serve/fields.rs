//! A request's body as fields, taken one by one with their types and ranges checked.

use std::fmt;
use std::ops::RangeInclusive;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::backend::{Fault, FaultKind};
use crate::error::line;

/// The fields of an object that nobody took yet. A field that is `null` is as good as none.
pub(crate) struct Fields(Map<String, Value>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Map::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format_args!("two fields `{}`", short(&name))));
                    }
                    fields.insert(name, value);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

impl Fields {
    /// Reads a body.
    pub(crate) fn parse(body: &[u8]) -> Result<Fields, Fault> {
        serde_json::from_slice(body)
            .map_err(|e| Fault::new(FaultKind::Invalid, format_args!("body: expected a JSON object: {e}")))
    }

    /// Reads a path's query. Values that are whole numbers become these.
    pub(crate) fn query(text: &str) -> Result<Fields, Fault> {
        let wrong = |part: &str| {
            let found = short(part);
            Fault::new(FaultKind::Invalid, format_args!("query: expected one NAME=VALUE each, found {found}"))
        };
        let mut fields = Map::new();
        for part in text.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (Some(name), Some(value)) = (decoded(name), decoded(value)) else { return Err(wrong(part)) };
            let value = value.parse::<i64>().map_or_else(|_| value.into(), Value::from);
            if fields.insert(name, value).is_some() {
                return Err(wrong(part));
            }
        }
        Ok(Fields(fields))
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// A field's value, which stays; null if there is none.
    pub(crate) fn peek(&self, name: &str) -> Value {
        self.0.get(name).cloned().unwrap_or_default()
    }

    /// Sets a field to what another one says.
    pub(crate) fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// The first of several names of one field.
    pub(crate) fn first(&mut self, names: &[&'static str]) -> Option<(&'static str, Value)> {
        let mut found = None;
        for name in names {
            let value = self.take(name);
            found = found.or(value.map(|value| (*name, value)));
        }
        found
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, Fault> {
        self.typed(name, "true or false", |value| value.as_bool())
    }

    pub(crate) fn int(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>, Fault> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        self.typed(name, &expected, |value| whole(value).filter(|n| range.contains(n)))
    }

    /// A count, as `int`.
    pub(crate) fn count(&mut self, name: &str, max: u32) -> Result<Option<usize>, Fault> {
        Ok(self.int(name, 0..=i64::from(max))?.map(|n| n as usize))
    }

    pub(crate) fn float(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, Fault> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.typed(name, &expected, |value| value.as_f64().filter(|x| range.contains(x)).map(|x| x as f32))
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        self.typed(name, "a text", |value| value.as_str().map(str::to_owned))
    }

    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Map<String, Value>>, Fault> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(other) => Err(wrong(name, "an object", &other)),
        }
    }

    /// Takes a field that is known but not served. Values that ask for nothing are accepted; they are given as JSON.
    pub(crate) fn refuse(&mut self, name: &str, neutral: &[&str]) -> Result<(), Fault> {
        match self.take(name) {
            Some(value) if !neutral.contains(&value.to_string().as_str()) => {
                Err(Fault::invalid(name, format_args!("{name}: not supported yet")))
            }
            _ => Ok(()),
        }
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, Fault> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong(name, expected, &value))
    }
}

/// A part of a query without its percent signs. A plus sign stays: names of plans have some, and none has a blank.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

/// A field that is not what it is to be.
pub(crate) fn wrong(name: &str, expected: &str, found: &Value) -> Fault {
    let found = match found {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => found.to_string(),
        Value::String(text) => format!("\"{}\"", short(text)),
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
    };
    Fault::invalid(name, format_args!("{name}: expected {expected}, found {found}"))
}

/// A whole number, also one that is written as `1.0`.
fn whole(value: &Value) -> Option<i64> {
    let exact = |x: &f64| x.fract() == 0.0 && x.abs() < 9e15;
    value.as_i64().or_else(|| value.as_f64().filter(exact).map(|x| x as i64))
}

/// A token's number.
pub(crate) fn token(value: &Value) -> Option<i32> {
    whole(value).and_then(|n| i32::try_from(n).ok()).filter(|n| *n >= 0)
}

/// The beginning of a client's text, for messages.
pub(crate) fn short(text: &str) -> String {
    line(&text.chars().take(60).collect::<String>())
}
