//! Texts to measure on: one document per file, or one per line of a JSON Lines file.

use std::path::Path;

use super::invalid;
use crate::jsonl;
use crate::model::Result;

/// A text to measure on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its source, a file or `file:line`, which errors name.
    pub name: String,
    /// The text.
    pub text: String,
}

/// The documents of a file's bytes: the whole text, or, when `name` says that the file is JSON Lines
/// ([`jsonl::is_jsonl`]), the `text` field of each line that is not blank.
///
/// # Errors
/// Bytes that are not UTF-8 (naming the first bad byte's offset), an empty file, a line that is no JSON
/// object with a string `text`, an empty text.
pub fn documents(name: &str, bytes: Vec<u8>) -> Result<Vec<Document>> {
    let documents = if jsonl::is_jsonl(Path::new(name)) {
        jsonl::Texts::new(Path::new(name), bytes.as_slice(), "text", false)
            .map(|text| text.map(|(line, text)| Document { name: format!("{name}:{line}"), text }))
            .collect::<Result<_>>()?
    } else {
        let text = String::from_utf8(bytes).map_err(|e| {
            invalid(format!("{name}: not UTF-8: bad byte at offset {}", e.utf8_error().valid_up_to()))
        })?;
        vec![Document { name: name.into(), text }]
    };
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
