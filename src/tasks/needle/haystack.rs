//! Haystacks: text trimmed to a length in tokens, with a needle in it.

use std::path::PathBuf;

use super::{BUFFER, ESSAYS, HAYSTACK};
use crate::data::read_documents;
use crate::{Encoder, Error, Result, Setup, Token};

/// Bytes that surely hold as many tokens as a haystack wants; more is not read.
fn enough(length: usize) -> u64 {
    (1 << 20) + 32 * length as u64
}

/// The user's texts, or the essays; enough of them for so many haystacks of a length.
pub(super) fn documents(setup: &Setup, length: usize, haystacks: usize) -> Result<Vec<String>> {
    let path = match setup.option(&HAYSTACK)? {
        "" => ESSAYS.path(setup.data)?,
        path => PathBuf::from(path),
    };
    read_documents(&path, enough(length).saturating_mul(haystacks as u64))
}

/// Text of at least `length` tokens: the documents one after another, repeated until there are enough.
///
/// `read_context_files` of LCEG and gkamradt, with files in the order of their names.
pub(super) fn joined(encoder: &dyn Encoder, documents: &[String], length: usize) -> Result<String> {
    let text = documents.concat();
    let once = encoder.count(&text)?;
    if once >= length {
        return Ok(text);
    }
    if once == 0 {
        return Err(Error::invalid("expected a haystack with text, found one without tokens"));
    }
    let mut times = length.div_ceil(once);
    loop {
        // The last token of one copy and the first of the next may be one.
        let repeated = text.repeat(times);
        if encoder.count(&repeated)? >= length {
            return Ok(repeated);
        }
        if repeated.len() as u64 > 64 * enough(length) {
            return Err(Error::invalid(format!(
                "the haystack has fewer than {length} tokens however often it is repeated"
            )));
        }
        times += times.div_ceil(4);
    }
}

/// A haystack of a length, as tokens.
pub(super) struct Haystack {
    tokens: Vec<Token>,
    length: usize,
}

impl Haystack {
    /// The first `length` tokens of a text.
    pub(super) fn new(encoder: &dyn Encoder, text: &str, length: usize) -> Result<Haystack> {
        let mut tokens = encoder.encode(text)?;
        if tokens.len() > length {
            // Text again and back: what the published code inserts into are the tokens of the trimmed text.
            tokens.truncate(length);
            tokens = encoder.encode(&encoder.decode(&tokens)?)?;
        }
        Ok(Haystack { tokens, length })
    }

    /// The text with the needle at a depth in percent: after the last sentence that ends there or before, or at
    /// the very end for 100 (`insert_needle` of all three). `is_period` says whether a token ends a sentence.
    pub(super) fn with_needle(
        &self,
        encoder: &dyn Encoder,
        needle: &str,
        depth: u32,
        is_period: impl Fn(Token) -> Result<bool>,
    ) -> Result<String> {
        let needle_tokens = encoder.encode(needle)?;
        let least = BUFFER + needle_tokens.len();
        let Some(room) = self.length.checked_sub(least).filter(|&room| room > 0) else {
            return Err(Error::invalid(format!(
                "a length of {} tokens: expected more than {least}, which needle, question and answer take",
                self.length
            )));
        };
        let hay = &self.tokens[..self.tokens.len().min(room)];
        let mut at = hay.len();
        if depth != 100 {
            at = (hay.len() as f64 * (f64::from(depth) / 100.0)) as usize;
            while at > 0 && !is_period(hay[at - 1])? {
                at -= 1;
            }
        }
        let text = encoder.decode(&[&hay[..at], &needle_tokens, &hay[at..]].concat())?;
        let sentence = needle.trim();
        if !text.contains(sentence) {
            let back = encoder.decode(&needle_tokens)?;
            return Err(Error::invalid(format!(
                "the tokenizer does not give the needle back: expected {sentence:?}, found {:?}",
                back.trim()
            )));
        }
        Ok(text)
    }
}

/// Test for tokens that are the full stop, as the model's tokenizer writes it: the token of "." (as LWM and gkamradt look
/// it up) and those that decode to it; with `blank` also after a blank (LCEG names both tokens of Llama's vocabulary).
pub(super) fn period<'a>(
    encoder: &'a dyn Encoder,
    blank: bool,
) -> Result<impl Fn(Token) -> Result<bool> + 'a> {
    // Where "." gives two tokens, the first is a blank that the tokenizer puts before all text, not a full stop.
    let alone = match encoder.encode(".")?[..] {
        [token] => Some(token),
        _ => None,
    };
    Ok(move |token| {
        if alone == Some(token) {
            return Ok(true);
        }
        let text = encoder.decode(&[token])?;
        Ok(text == "." || blank && text == " .")
    })
}
