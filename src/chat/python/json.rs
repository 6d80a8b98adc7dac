//! The filter `tojson` of transformers: Python's `json.dumps`, which escapes nothing for HTML.

use std::fmt::Write;

use minijinja::value::{Rest, Value};
use minijinja::{Error, ErrorKind};

use super::args::Args;
use super::{compare, print, values};

/// Blanks of a level of indentation, at most.
const MAX_INDENT: usize = 64;
/// Values within values, at most.
const MAX_DEPTH: usize = 100;

struct Style {
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sorted: bool,
}

pub(super) fn tojson(value: &Value, args: Rest<Value>) -> Result<Value, Error> {
    let mut args = Args::of(args.0)?;
    let ascii = args.take::<Value>("ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent: Option<Value> = args.take("indent")?;
    let separators: Option<Value> = args.take("separators")?;
    let sorted = args.take::<Value>("sort_keys")?.is_some_and(|v| v.is_true());
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
    let style = Style { ascii, indent, item, key, sorted };
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(Value::from(out))
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(wrong("tojson: a value is nested too deep".to_owned()));
        }
        match values::name(value) {
            "dict" => {
                let mut entries = Vec::new();
                for key in values::items(value)? {
                    let of = value.get_item(&key)?;
                    let name = match values::name(&key) {
                        "str" | "Markup" => print::str(&key)?,
                        "int" | "float" | "bool" | "NoneType" => scalar(&key)?,
                        name => return Err(wrong(format!("tojson: a key of type {name}"))),
                    };
                    entries.push((key, name, of));
                }
                if self.sorted {
                    let mut failed = None;
                    entries.sort_by(|a, b| {
                        let order = compare::order(&a.0, "<", &b.0, 0).unwrap_or_else(|e| {
                            failed = Some(e);
                            None
                        });
                        order.unwrap_or(std::cmp::Ordering::Equal)
                    });
                    failed.map_or(Ok(()), Err)?;
                }
                self.list("{}", entries.into_iter(), depth, out, |(_, name, of), out| {
                    self.string(&name, out);
                    out.push_str(&self.key);
                    self.write(&of, depth + 1, out)
                })
            }
            "list" | "tuple" => {
                self.list("[]", values::items(value)?.into_iter(), depth, out, |item, out| {
                    self.write(&item, depth + 1, out)
                })
            }
            "str" | "Markup" => {
                self.string(value.as_str().unwrap_or_default(), out);
                Ok(())
            }
            _ => {
                out.push_str(&scalar(value)?);
                Ok(())
            }
        }
    }

    fn list<T>(
        &self,
        brackets: &str,
        items: impl ExactSizeIterator<Item = T>,
        depth: usize,
        out: &mut String,
        each: impl Fn(T, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
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
            each(item, out)?;
        }
        if !empty {
            line(depth, out);
        }
        out.push_str(&brackets[1..]);
        Ok(())
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
                c if c < ' ' || self.ascii && !matches!(c, ' '..='~') => {
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

fn scalar(value: &Value) -> Result<String, Error> {
    Ok(match values::name(value) {
        "NoneType" => "null".to_owned(),
        "bool" => value.to_string().to_lowercase(),
        "int" => value.to_string(),
        "float" => match f64::try_from(value.clone())? {
            x if x.is_nan() => "NaN".to_owned(),
            x if x.is_infinite() => if x > 0.0 { "Infinity" } else { "-Infinity" }.to_owned(),
            x => print::float(x),
        },
        name => return Err(wrong(format!("tojson of a value of type {name}"))),
    })
}
