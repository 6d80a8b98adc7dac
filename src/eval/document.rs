//! Texts to measure on: one document per file, or one per line of a JSONL file.

use serde_json::Value;

use super::invalid;
use crate::model::Result;

/// A text to measure on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Where it comes from: a file, or `file:line`. Errors name it.
    pub name: String,
    /// The text.
    pub text: String,
}

/// The documents of a file's bytes: the whole text, or, when `name` ends in `.jsonl`, the `text` field of each line that is not blank.
///
/// # Errors
/// Bytes that are not UTF-8 (naming the first bad byte's offset), an empty file, a line that is no JSON object with a
/// string `text`, an empty text.
pub fn documents(name: &str, bytes: Vec<u8>) -> Result<Vec<Document>> {
    let text = String::from_utf8(bytes).map_err(|e| {
        invalid(format!("{name}: not UTF-8: bad byte at offset {}", e.utf8_error().valid_up_to()))
    })?;
    let is_jsonl = name.rsplit_once('.').is_some_and(|(_, ext)| ext.eq_ignore_ascii_case("jsonl"));
    let documents =
        if is_jsonl { json_lines(name, &text)? } else { vec![Document { name: name.into(), text }] };
    if documents.is_empty() {
        return Err(invalid(format!(
            "{name}: no documents: expected a JSON object with \"text\" on each line, found nothing"
        )));
    }
    match documents.iter().find(|d| d.text.is_empty()) {
        Some(d) => Err(invalid(format!("{}: the text is empty", d.name))),
        None => Ok(documents),
    }
}

fn json_lines(name: &str, text: &str) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let name = format!("{name}:{}", i + 1);
        let value: Value =
            serde_json::from_str(line).map_err(|e| invalid(format!("{name}: not JSON: {e}")))?;
        let Value::Object(mut object) = value else {
            return Err(invalid(format!("{name}: expected a JSON object, found {}", kind(&value))));
        };
        match object.remove("text") {
            Some(Value::String(text)) => documents.push(Document { name, text }),
            Some(other) => {
                return Err(invalid(format!("{name}: \"text\": expected a string, found {}", kind(&other))))
            }
            None => return Err(invalid(format!("{name}: no \"text\" field"))),
        }
    }
    Ok(documents)
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
