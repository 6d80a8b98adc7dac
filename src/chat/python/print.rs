//! Values as Python prints them, and as its `json.dumps` writes them.

use std::fmt::Write;

use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use ropewalk_tasks::metrics::python;

use super::args::{args, flag};
use super::ops::wrong;
use super::{sequences, values};

/// Values within values, at most.
const MAX_DEPTH: usize = 100;
/// Blanks of a level of indentation, at most.
const MAX_INDENT: usize = 64;

/// How a value is written.
struct Style<'a> {
    json: bool,
    ascii: bool,
    sorted: bool,
    indent: Option<&'a str>,
    /// After an item, and after a key.
    between: [&'a str; 2],
}

const REPR: Style<'static> =
    Style { json: false, ascii: false, sorted: false, indent: None, between: [", ", ": "] };

/// `str(value)`; nothing for what is undefined.
pub(super) fn str(value: &Value) -> Result<String, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(String::new()),
        ValueKind::String => Ok(value.as_str().unwrap_or_default().to_owned()),
        _ => repr(value),
    }
}

pub(super) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    REPR.write(value, 0, &mut out)?;
    Ok(out)
}

/// The filter `tojson` of transformers, which escapes nothing for HTML.
pub(super) fn tojson(value: &Value, given: Rest<Value>) -> Result<String, Error> {
    let [ascii, indent, separators, sorted] =
        args(&given, ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent.filter(|v| !v.is_none()) {
        Some(blanks) => Some(match blanks.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(blanks)?.min(MAX_INDENT + 1)),
        }),
        None => None,
    };
    if indent.as_ref().is_some_and(|i| i.len() > MAX_INDENT) {
        return Err(wrong(format!("tojson: indent: at most {MAX_INDENT} blanks")));
    }
    let between: Vec<String> = match separators.filter(|v| !v.is_none()) {
        Some(both) => both.try_iter()?.map(|part| part.to_string()).collect(),
        None => vec![if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()],
    };
    let [item, key] = &between[..] else { return Err(wrong("tojson: separators: expected two")) };
    let (ascii, sorted) = (flag(ascii), flag(sorted));
    let style = Style { json: true, ascii, sorted, indent: indent.as_deref(), between: [item, key] };
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

impl Style<'_> {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(wrong("a value is nested too deep to be printed"));
        }
        let of = values::name(value);
        let (open, close) = match of {
            "dict" => ("{", "}"),
            "list" => ("[", "]"),
            "tuple" if self.json => ("[", "]"),
            "tuple" => ("(", if value.len() == Some(1) { ",)" } else { ")" }),
            "dict_keys" | "dict_values" | "dict_items" if !self.json => {
                out.push_str(of);
                ("([", "])")
            }
            _ => return self.scalar(value, of, out),
        };
        let mut items = values::items(value)?;
        if self.sorted && of == "dict" {
            items = sequences::in_order(items)?;
        }
        out.push_str(open);
        for (i, item) in items.iter().enumerate() {
            out.push_str(if i > 0 { self.between[0] } else { "" });
            self.line(depth + 1, out);
            if of == "dict" {
                self.key(item, depth + 1, out)?;
                out.push_str(self.between[1]);
                self.write(&value.get_item(item)?, depth + 1, out)?;
            } else {
                self.write(item, depth + 1, out)?;
            }
        }
        if !items.is_empty() {
            self.line(depth, out);
        }
        out.push_str(close);
        Ok(())
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn key(&self, key: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        match values::name(key) {
            of @ ("int" | "float" | "bool" | "NoneType") if self.json => {
                out.push('"');
                self.scalar(key, of, out)?;
                out.push('"');
                Ok(())
            }
            of if self.json && !matches!(of, "str" | "Markup") => {
                Err(wrong(format!("tojson: a key of type {of}")))
            }
            _ => self.write(key, depth, out),
        }
    }

    fn scalar(&self, value: &Value, of: &str, out: &mut String) -> Result<(), Error> {
        let text = value.as_str().unwrap_or_default();
        match (of, self.json) {
            ("NoneType", json) => out.push_str(if json { "null" } else { "None" }),
            ("bool", true) => out.push_str(if value.is_true() { "true" } else { "false" }),
            ("bool", false) => out.push_str(if value.is_true() { "True" } else { "False" }),
            ("int", _) => write!(out, "{value}").map_err(|_| Error::from(ErrorKind::WriteFailure))?,
            ("float", json) => out.push_str(&float(f64::try_from(value.clone())?, json)),
            ("str" | "Markup", true) => self.string(text, out),
            ("str", false) => python::repr(text, out),
            ("Markup", false) => {
                out.push_str("Markup(");
                python::repr(text, out);
                out.push(')');
            }
            ("Undefined", false) => out.push_str("Undefined"),
            ("range", false) => {
                out.push_str(
                    value.downcast_object_ref::<values::Items>().map_or("", |range| range.text.as_str()),
                );
            }
            (_, true) => return Err(wrong(format!("tojson of a value of type {of}"))),
            (_, false) => return Err(wrong(format!("printing a value of type {of} is not supported"))),
        }
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        for c in serde_json::Value::from(text).to_string().chars() {
            match c {
                c if self.ascii && !matches!(c, ' '..='~') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
    }
}

/// `repr` of a float: the shortest digits that give it back, with an exponent where it is below -4 or above 15.
fn float(x: f64, json: bool) -> String {
    match (x.is_finite(), x > 0.0, x < 0.0) {
        (true, ..) => {}
        (_, true, _) => return if json { "Infinity" } else { "inf" }.to_owned(),
        (_, _, true) => return if json { "-Infinity" } else { "-inf" }.to_owned(),
        _ => return if json { "NaN" } else { "nan" }.to_owned(),
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        return format!("{x:?}");
    }
    format!("{digits}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}
