//! How a document becomes tokens: its parts, and which of their tokens are trained on.

use ropewalk_core::tokenizer::{Failure, Token, Tokenizer};
use sha2::{Digest, Sha256};

use super::chunks;
use crate::text::{self, Content, Document};

/// A text that is tokenized by itself.
#[derive(Clone, Copy)]
pub(super) enum Piece<'t> {
    /// A part of a text, all of which is trained on.
    Text(&'t str),
    Record(&'t text::Record),
}

/// The parts of a document that are tokenized by themselves.
pub(super) fn pieces<'t>(vocab: &dyn Tokenizer, document: &'t Document) -> Result<Vec<Piece<'t>>, Failure> {
    Ok(match &document.content {
        Content::Text(text) => chunks::split(vocab, text)?.into_iter().map(Piece::Text).collect(),
        Content::Record(record) => vec![Piece::Record(record)],
        Content::Tokens(_) => Vec::new(),
    })
}

/// The tokens of a piece, in runs that are trained on or not.
pub(super) fn runs(vocab: &dyn Tokenizer, piece: Piece<'_>) -> Result<Vec<(Vec<Token>, bool)>, Failure> {
    let record = match piece {
        Piece::Text(text) => return Ok(vec![(vocab.tokenize(text, false)?, true)]),
        Piece::Record(record) => record,
    };
    let tokens = vocab.tokenize(&record.text, record.special)?;
    if record.answers.is_none() {
        return Ok(vec![(tokens, true)]);
    }
    let places = vocab.places(&record.text, &tokens)?;
    let marked: Vec<(Token, bool)> =
        tokens.into_iter().zip(places.iter().map(|p| record.trains(p))).collect();
    let run = |run: &[(Token, bool)]| (run.iter().map(|(token, _)| *token).collect(), run[0].1);
    Ok(marked.chunk_by(|a, b| a.1 == b.1).map(run).collect())
}

/// A hash of a document's text, or of the conversation that it is a part of.
pub(super) fn text_hash(document: &Document) -> u64 {
    let mut hash = Sha256::new();
    match &document.content {
        Content::Text(text) => hash.update(text),
        Content::Record(record) => hash.update(record.whole.as_deref().unwrap_or(&record.text)),
        Content::Tokens(tokens) => tokens.iter().for_each(|t| hash.update(t.to_le_bytes())),
    }
    hash.finalize().iter().take(8).fold(0, |n, &b| n << 8 | u64::from(b))
}
