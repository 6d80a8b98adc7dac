//! Qwen 3 Coder and Qwen 3.5: `<tool_call><function=NAME>`, then `<parameter=KEY>VALUE</parameter>` for each argument. Values
//! are texts; what they are, the function's schema says. So calls are read when they are complete: half a value has no type.

use serde_json::{json, Map, Value};

use super::{After, At, Format, Found, Said};

const BEGIN: &str = "<tool_call>";
const END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";

pub(super) const FORMAT: Format = Format {
    fits: |template| template.contains(BEGIN) && template.contains(FUNCTION),
    begins: &[BEGIN],
    whole: false,
    texts: true,
    marks: &[BEGIN, END],
    read,
    behind: |_, _| After::Other(0),
    series: None,
};

fn read(text: &str, at: At) -> Found {
    match call(text[BEGIN.len()..].trim_start()) {
        Ok((call, rest)) => match rest.trim_start().strip_prefix(END) {
            Some(after) => Found::Call(call, text.len() - after.len(), false),
            None if !END.starts_with(rest.trim_start()) => Found::Text,
            None if at.last => Found::Call(call, text.len(), false),
            None => Found::Open,
        },
        Err(found) => found,
    }
}

/// A call, and what follows it.
fn call(text: &str) -> Result<(Said, &str), Found> {
    let (name, mut rest) = tag(text, FUNCTION, ">")?;
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix("</function>") {
            return Ok((Said { name: name.to_owned(), arguments: arguments.into() }, after));
        }
        if "</function>".starts_with(rest) {
            return Err(Found::Open);
        }
        let (key, after) = tag(rest, PARAMETER, ">")?;
        let (value, after) = after.split_once("</parameter>").ok_or(Found::Open)?;
        let value = value.strip_prefix('\n').unwrap_or(value);
        arguments.insert(key.to_owned(), value.strip_suffix('\n').unwrap_or(value).into());
        rest = after;
    }
}

/// The text between these, and what follows.
fn tag<'a>(text: &'a str, begin: &str, end: &str) -> Result<(&'a str, &'a str), Found> {
    match text.strip_prefix(begin) {
        Some(rest) => rest.split_once(end).ok_or(Found::Open),
        None if begin.starts_with(text) => Err(Found::Open),
        None => Err(Found::Text),
    }
}

/// Turns a text into the value it stands for, if the schema does not ask for a text. Templates print some values as Python
/// does.
pub(super) fn typed(schema: &Value, value: &mut Value) {
    let kind = &schema["type"];
    let is_text = |kind: &Value| kind == "string";
    if is_text(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(is_text)) {
        return;
    }
    let found = match value.as_str() {
        Some("True") => Some(json!(true)),
        Some("False") => Some(json!(false)),
        Some("None") => Some(Value::Null),
        Some(text) => serde_json::from_str(text).ok(),
        None => None,
    };
    if let Some(found) = found {
        *value = found;
    }
}
