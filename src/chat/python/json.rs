//! The filter `tojson` of transformers: Python's `json.dumps`, which escapes nothing for HTML.

use std::fmt::Write;

use minijinja::value::{Rest, Value};
use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;

use super::args::Args;
use super::print;

/// Blanks of a level of indentation, at most.
const MAX_INDENT: usize = 64;

struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

pub(super) fn tojson(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let ascii: Option<bool> = args.take("ensure_ascii")?;
    let indent: Option<Value> = args.take("indent")?;
    let separators: Option<Value> = args.take("separators")?;
    let sorted: Option<bool> = args.take("sort_keys")?;
    args.end()?;
    let indent = match indent.filter(|v| !v.is_none()) {
        Some(blanks) => Some(match blanks.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(blanks)?),
        }),
        None => None,
    };
    if indent.as_ref().is_some_and(|i| i.len() > MAX_INDENT) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson: indent: at most {MAX_INDENT} blanks"),
        ));
    }
    let (item, key) = match separators.filter(|v| !v.is_none()) {
        Some(both) => {
            let both: Vec<String> = both.try_iter()?.map(|part| part.to_string()).collect();
            let [item, key] = <[String; 2]>::try_from(both)
                .map_err(|_| Error::new(ErrorKind::InvalidOperation, "tojson: separators: expected two"))?;
            (item, key)
        }
        None => ((if indent.is_some() { "," } else { ", " }).to_owned(), ": ".to_owned()),
    };
    let style = Style { ascii: ascii == Some(true), indent, item, key, sorted: sorted == Some(true) };
    let json = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("tojson: {e}")))?;
    let mut out = String::new();
    style.write(&json, 0, &mut out);
    Ok(Value::from_safe_string(out))
}

impl Style {
    fn write(&self, json: &Json, depth: usize, out: &mut String) {
        match json {
            Json::Null => out.push_str("null"),
            Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Json::Number(n) => match n.as_f64().filter(|_| n.is_f64()) {
                Some(x) => out.push_str(&print::float(x)),
                None => out.push_str(&n.to_string()),
            },
            Json::String(text) => self.string(text, out),
            Json::Array(items) => self.list("[]", items.iter(), depth, out, |item, out| {
                self.write(item, depth + 1, out);
            }),
            Json::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sorted {
                    entries.sort_by_key(|(key, _)| key.chars().collect::<Vec<_>>());
                }
                self.list("{}", entries.into_iter(), depth, out, |(key, value), out| {
                    self.string(key, out);
                    out.push_str(&self.key);
                    self.write(value, depth + 1, out);
                });
            }
        }
    }

    fn list<T>(
        &self,
        brackets: &str,
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        out: &mut String,
        each: impl Fn(T, &mut String),
    ) {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..depth).for_each(|_| out.push_str(indent));
            }
        };
        let empty = items.len() == 0;
        out.push_str(&brackets[..1]);
        for (i, item) in items.enumerate() {
            out.push_str(if i > 0 { &self.item } else { "" });
            line(depth + 1, out);
            each(item, out);
        }
        if !empty {
            line(depth, out);
        }
        out.push_str(&brackets[1..]);
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                c if c < ' ' || self.ascii && !matches!(c, ' '..='~' | '\x7f') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}
