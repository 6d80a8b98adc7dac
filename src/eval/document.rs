//! Texts to measure on: one document per file, one per line of a JSON Lines file, or a stream of token ids.

use std::ops::Range;
use std::path::{Path, PathBuf};

use ropewalk_core::text::{decode, Invalid};

use super::invalid;
use crate::model::{Error, Result};
use crate::{jsonl, Token};

/// A text to measure on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The source that errors name: a file or `file:line`.
    pub name: String,
    /// The text or the token ids.
    pub content: Content,
}

/// Content of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Text.
    Text(String),
    /// Token ids of the model's vocabulary. Each BOS starts a document, so one stream can hold several.
    Ids(Vec<u16>),
}

impl Document {
    /// A document of text.
    pub fn text(name: impl Into<String>, text: impl Into<String>) -> Document {
        Document { name: name.into(), content: Content::Text(text.into()) }
    }
}

/// Bytes of the files of one measurement, at most: they are held in memory.
pub const MAX_DOCUMENTS: u64 = 256 << 20;

/// Reads the documents in files, which have at most [`MAX_DOCUMENTS`] bytes in all. A directory stands for the text files in
/// it and below it, in the order of their paths: all that are not hidden, empty, compressed, or binary.
///
/// # Errors
/// Returns an error if a file is not a regular one or too large, if a directory has no text, and those of [`documents`].
pub fn read_documents(paths: &[PathBuf]) -> Result<Vec<Document>> {
    let (mut found, mut left) = (Vec::new(), MAX_DOCUMENTS);
    for path in paths {
        for file in files::foreign::texts(path)? {
            let bytes = files::foreign::read_file(&file, left)?;
            left -= bytes.len() as u64;
            found.extend(documents(&file.to_string_lossy(), bytes)?);
        }
    }
    Ok(found)
}

/// Checks that outputs are apart from the files that a run reads, which are all parts of a split model and all that is in a
/// directory, and from each other.
///
/// # Errors
/// Returns [`Error::Argument`] with the path of the output.
pub fn check_apart<I: AsRef<Path>, O: AsRef<Path>>(
    inputs: impl IntoIterator<Item = I>,
    outputs: impl IntoIterator<Item = O>,
) -> Result<()> {
    let refused = |output: &Path, of: &str, other: &Path| {
        let expected = format!("a path apart from {of}");
        Err(Error::argument(output.display().to_string(), expected, other.display()))
    };
    let outputs: Vec<O> = outputs.into_iter().collect();
    let mut known: Vec<(PathBuf, &Path)> = Vec::new();
    for output in outputs.iter().map(O::as_ref) {
        let real = files::real_path(output);
        if let Some(&(_, other)) = known.iter().find(|(known, _)| *known == real) {
            return refused(output, "the other output", other);
        }
        known.push((real, output));
    }
    for input in inputs.into_iter().filter(|_| !known.is_empty()) {
        let input = input.as_ref();
        // What cannot be listed fails when it is read.
        let texts = files::foreign::texts(input).unwrap_or_default();
        for read in gguf::parts(input).into_iter().chain(texts) {
            let real = files::real_path(&read);
            if let Some(&(_, output)) = known.iter().find(|(known, _)| known.starts_with(&real)) {
                return refused(output, "the files to read", &read);
            }
        }
    }
    Ok(())
}

/// Reads the documents in a file's bytes. The extension of `name` selects the format. In JSON Lines
/// ([`jsonl::is_jsonl`]), the `text` field of each line that is not blank is a document. `.bin` files hold 16-bit
/// little-endian token ids, as in the files of LongLoRA and LCEG (`eval.py`, `np.uint16`). Other files are text.
///
/// # Errors
/// Returns an error if bytes are not UTF-8 (with the offset of the first bad byte), if the file or a text is empty,
/// if a line is not a JSON object with a string `text`, or if the last token id is incomplete.
pub fn documents(name: &str, bytes: Vec<u8>) -> Result<Vec<Document>> {
    if Path::new(name).extension().is_some_and(|e| e.eq_ignore_ascii_case("bin")) {
        return Ok(vec![Document { name: name.into(), content: Content::Ids(ids(name, &bytes)?) }]);
    }
    let documents = if jsonl::is_jsonl(Path::new(name)) {
        jsonl::Texts::new(Path::new(name), bytes.as_slice(), "text", false)
            .map(|text| text.map(|(line, text)| Document::text(format!("{name}:{line}"), text)))
            .collect::<Result<_, _>>()?
    } else {
        let decoded = decode(bytes, Invalid::Refuse).map_err(|e| invalid(format!("{name}: {e}")))?;
        vec![Document::text(name, decoded.text)]
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

/// A document, or one of several in a stream of token ids.
pub(super) struct Piece<'a> {
    pub(super) name: String,
    content: PieceContent<'a>,
}

enum PieceContent<'a> {
    Text(&'a str),
    Ids(&'a [u16]),
}

impl Piece<'_> {
    /// Returns the tokens of the piece, without BOS.
    pub(super) fn tokens(&self, tokenize: impl FnOnce(&str) -> Result<Vec<Token>>) -> Result<Vec<Token>> {
        match self.content {
            PieceContent::Text(text) => tokenize(text),
            PieceContent::Ids(ids) => Ok(ids.iter().map(|&id| Token::from(id)).collect()),
        }
    }
}

/// The documents one by one, for a vocabulary of `n_vocab` tokens.
pub(super) fn pieces<'a>(
    documents: &'a [Document],
    n_vocab: usize,
    bos: Option<Token>,
    notes: &mut Vec<String>,
) -> Result<Vec<Piece<'a>>> {
    let mut pieces = Vec::new();
    for document in documents {
        match &document.content {
            Content::Text(text) => {
                pieces.push(Piece { name: document.name.clone(), content: PieceContent::Text(text) });
            }
            Content::Ids(ids) => {
                if let Some(i) = ids.iter().position(|&id| usize::from(id) >= n_vocab) {
                    return Err(invalid(format!(
                        "{}: offset {}: expected a token id below {n_vocab}, found {}",
                        document.name,
                        2 * i,
                        ids[i]
                    )));
                }
                let ranges = split(ids, bos);
                if let Some(bos) = bos.filter(|&bos| ids.iter().all(|&id| Token::from(id) != bos)) {
                    notes.push(format!(
                        "{} holds no BOS (id {bos}), so it is one document: are its ids this model's?",
                        document.name
                    ));
                }
                let several = ranges.len() > 1;
                pieces.extend(ranges.into_iter().enumerate().map(|(i, range)| Piece {
                    name: match several {
                        true => format!("{} document {}", document.name, i + 1),
                        false => document.name.clone(),
                    },
                    content: PieceContent::Ids(&ids[range]),
                }));
            }
        }
    }
    Ok(pieces)
}

/// The documents of a stream: the tokens after each BOS up to the next one, and the tokens before the first BOS.
fn split(ids: &[u16], bos: Option<Token>) -> Vec<Range<usize>> {
    let starts = ids.iter().enumerate().filter(|&(_, &id)| Some(Token::from(id)) == bos).map(|(i, _)| i);
    let (mut ranges, mut start, mut begun) = (Vec::new(), 0, false);
    for at in starts {
        if begun || at > 0 {
            ranges.push(start..at);
        }
        (start, begun) = (at + 1, true);
    }
    ranges.push(start..ids.len());
    ranges
}
