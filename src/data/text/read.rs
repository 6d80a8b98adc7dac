//! Reads the documents of one file: a text file is one document, a JSONL file has one on each line, a file of
//! token ids those between separators. Gzip is unpacked.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;
use ropewalk_core::text::{decode, Invalid};
use ropewalk_core::tokenizer::Token;

use super::sources::Kind;
use super::{chat, ChatTemplate, Content, Document, Records, SourceFile, TextOptions};
use crate::error::{invalid, io, Result};
use crate::jsonl::{has_ending, Texts, MAX_TEXT};

/// Counts the bytes read of the files so far, before unpacking.
pub(crate) type Counter = Rc<Cell<u64>>;

struct Counting {
    file: File,
    read: Option<Counter>,
}

impl Read for Counting {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read(buffer)?;
        if let Some(read) = &self.read {
            read.set(read.get() + n as u64);
        }
        Ok(n)
    }
}

/// Opens a file, unpacking it if its name ends in `.gz`. `read` counts its bytes.
pub(super) fn unpacked(path: &Path, read: Option<Counter>) -> Result<Box<dyn BufRead>> {
    let file = Counting { file: files::foreign::open_file(path)?, read };
    let file = BufReader::with_capacity(1 << 16, file);
    if has_ending(path, &[".gz"]) {
        return Ok(Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(file))));
    }
    Ok(Box::new(file))
}

/// How documents are read, in addition to the options.
pub(crate) struct Reading<'a> {
    pub options: &'a TextOptions,
    pub template: Option<&'a dyn ChatTemplate>,
    /// Tokens before and after each document, which say where one ends in a file of token ids.
    pub before: &'a [Token],
    pub after: &'a [Token],
    /// Tokens of the vocabulary.
    pub n_vocab: usize,
    pub counter: Counter,
}

/// Passes the documents of a file to `each`, one at a time. Blank texts are left out. `notes` gets a line
/// when bytes that are not UTF-8 were replaced.
///
/// # Errors
/// A file that cannot be read, a text that is too long or not UTF-8, a JSONL line without what it should
/// hold, a token id that is not in the vocabulary; those of `each`.
pub(crate) fn documents(
    file: &SourceFile,
    reading: &Reading<'_>,
    notes: &mut Vec<String>,
    each: &mut dyn FnMut(Document) -> Result<()>,
) -> Result<()> {
    let (path, options) = (file.path.as_path(), reading.options);
    let mut input = unpacked(path, Some(Rc::clone(&reading.counter)))?;
    let mut replaced = 0u64;
    match (file.kind, &options.records) {
        (Kind::Tokens, _) => token_ids(path, input, reading, each)?,
        (Kind::Lines, Records::Text(field)) => {
            let mut texts = Texts::new(path, input, field, options.replace_invalid);
            for text in texts.by_ref() {
                let (line, text) = text?;
                give(line, text, each)?;
            }
            replaced = texts.n_replaced;
        }
        (Kind::Lines, Records::Chat { answers_only }) => {
            let mut lines = Texts::lines(path, input, options.replace_invalid);
            let (mut apart, mut first_apart) = (0usize, None);
            while let Some(next) = lines.next() {
                let (line, text) = next?;
                let mut n = 0;
                chat::record(&lines.name(line), &text, *answers_only, reading.template, &mut |record| {
                    n += usize::from(record.whole.is_some());
                    each(Document { line, content: Content::Record(record) })
                })?;
                if n > 0 {
                    first_apart.get_or_insert_with(|| lines.name(line));
                    apart += 1;
                }
            }
            if let Some(first) = first_apart {
                notes.push(format!(
                    "{first}: the chat template renders earlier answers otherwise than the last one, so each answer is a \
                     sequence with what stands before it ({apart} records)"
                ));
            }
            replaced = lines.n_replaced;
        }
        (Kind::Text, Records::Chat { .. }) => {
            let end = path.extension().map_or("no ending".into(), |end| format!(".{}", end.display()));
            return Err(invalid(format!(
                "{}: expected JSON Lines (.jsonl), a record on each line; found {end}, which would be one text",
                path.display()
            )));
        }
        (Kind::Text, _) => {
            let mut bytes = Vec::new();
            let (name, most) = (path.display().to_string(), options.max_text);
            (&mut input).take(most + 1).read_to_end(&mut bytes).map_err(|e| io(path, e))?;
            check_length(&name, bytes.len() as u64, most)?;
            let how = if options.replace_invalid { Invalid::Replace } else { Invalid::Refuse };
            let decoded = decode(bytes, how).map_err(|e| invalid(format!("{name}: {e}")))?;
            replaced = u64::from(decoded.replaced);
            give(0, decoded.text, each)?;
        }
    }
    if replaced > 0 {
        notes.push(format!("{}: {replaced} texts had bytes that are not UTF-8, replaced", path.display()));
    }
    Ok(())
}

fn check_length(name: &str, n_bytes: u64, most: u64) -> Result<()> {
    if n_bytes <= most {
        return Ok(());
    }
    let free = if most < MAX_TEXT { ", for which memory is free" } else { "" };
    Err(invalid(format!("{name}: a text of more than {most} bytes{free}; break it")))
}

fn give(line: u32, text: String, each: &mut dyn FnMut(Document) -> Result<()>) -> Result<()> {
    if text.trim().is_empty() {
        return Ok(());
    }
    each(Document { line, content: Content::Text(text) })
}

/// Documents of a stream of token ids. One ends after the token that ends documents, or, where none does,
/// before the token that begins them.
fn token_ids(
    path: &Path,
    mut input: Box<dyn BufRead>,
    reading: &Reading<'_>,
    each: &mut dyn FnMut(Document) -> Result<()>,
) -> Result<()> {
    let (width, most) = (reading.options.token_bytes, reading.options.max_text);
    let (ends, begins) = match reading.after.last() {
        Some(&end) => (Some(end), None),
        None => (None, reading.before.first().copied()),
    };
    let (mut tokens, mut line, mut offset) = (Vec::new(), 0u32, 0u64);
    let mut give = |tokens: Vec<Token>| {
        line =
            line.checked_add(1).ok_or_else(|| invalid(format!("{}: too many documents", path.display())))?;
        each(Document { line, content: Content::Tokens(tokens) })
    };
    let mut id = [0u8; 4];
    while let Some(n) = read_id(path, &mut input, &mut id[..width])? {
        if n < width {
            return Err(invalid(format!(
                "{}: expected token ids of {width} bytes, found {n} at offset {offset}",
                path.display()
            )));
        }
        let found = u32::from_le_bytes(id);
        let token =
            Token::try_from(found).ok().filter(|&t| (t as usize) < reading.n_vocab).ok_or_else(|| {
                invalid(format!(
                    "{}: expected token ids below {}, found {found} at offset {offset}",
                    path.display(),
                    reading.n_vocab
                ))
            })?;
        offset += width as u64;
        if begins == Some(token) && !tokens.is_empty() {
            give(std::mem::take(&mut tokens))?;
        }
        tokens.push(token);
        if ends == Some(token) {
            give(std::mem::take(&mut tokens))?;
        }
        if tokens.len() as u64 > most / 4 {
            return check_length(&path.display().to_string(), u64::MAX, most);
        }
    }
    if !tokens.is_empty() {
        give(tokens)?;
    }
    Ok(())
}

/// Reads one id; `None` at the end of the file, and fewer bytes than asked for where it ends in an id.
fn read_id(path: &Path, input: &mut dyn BufRead, id: &mut [u8]) -> Result<Option<usize>> {
    let mut n = 0;
    while n < id.len() {
        match input.read(&mut id[n..]) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(io(path, e)),
        }
    }
    Ok((n > 0).then_some(n))
}
