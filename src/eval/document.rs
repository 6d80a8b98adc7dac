//! Texts to measure on: one document per file, one per line of a JSON Lines file, or a stream of token ids.

use std::path::Path;

use super::invalid;
use crate::jsonl;
use crate::model::Result;

/// A text to measure on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Its source, a file or `file:line`, which errors name.
    pub name: String,
    /// What it holds.
    pub content: Content,
}

/// What a document holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Text.
    Text(String),
    /// Token ids of the model's own vocabulary. BOS among them begins a document, so that one stream may hold
    /// several.
    Ids(Vec<u16>),
}

impl Document {
    /// A document of text.
    pub fn text(name: impl Into<String>, text: impl Into<String>) -> Document {
        Document { name: name.into(), content: Content::Text(text.into()) }
    }
}

/// The documents of a file's bytes. `name` says what they are: in JSON Lines ([`jsonl::is_jsonl`]) the `text`
/// field of each line that is not blank is one, in `.bin` files two bytes are a token id, the lower byte
/// first, as in the files of LongLoRA and LCEG (`eval.py`, `np.uint16`), and other files are text.
///
/// # Errors
/// Bytes that are not UTF-8 (naming the first bad byte's offset), an empty file, a line that is no JSON
/// object with a string `text`, an empty text, half a token id.
pub fn documents(name: &str, bytes: Vec<u8>) -> Result<Vec<Document>> {
    if Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("bin")) {
        return Ok(vec![Document { name: name.into(), content: Content::Ids(ids(name, &bytes)?) }]);
    }
    let documents = if jsonl::is_jsonl(Path::new(name)) {
        jsonl::Texts::new(Path::new(name), bytes.as_slice(), "text", false)
            .map(|text| text.map(|(line, text)| Document::text(format!("{name}:{line}"), text)))
            .collect::<Result<_>>()?
    } else {
        let text = String::from_utf8(bytes).map_err(|e| {
            invalid(format!("{name}: not UTF-8: bad byte at offset {}", e.utf8_error().valid_up_to()))
        })?;
        vec![Document::text(name, text)]
    };
    if documents.is_empty() {
        return Err(invalid(format!(
            "{name}: no documents: expected a JSON object with \"text\" on each line, found nothing"
        )));
    }
    match documents.iter().find(|d| d.content == Content::Text(String::new())) {
        Some(d) => Err(invalid(format!("{}: the text is empty", d.name))),
        None => Ok(documents),
    }
}

fn ids(name: &str, bytes: &[u8]) -> Result<Vec<u16>> {
    if bytes.is_empty() {
        return Err(invalid(format!("{name}: no token ids: the file is empty")));
    }
    let pairs = bytes.chunks_exact(2);
    if let [_] = pairs.remainder() {
        let n = bytes.len();
        return Err(invalid(format!(
            "{name}: offset {}: expected two bytes for a token id, found one (the file has {n} bytes)",
            n - 1
        )));
    }
    Ok(pairs.map(|pair| u16::from_le_bytes([pair[0], pair[1]])).collect())
}
