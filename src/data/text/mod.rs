//! Texts to train on: which files there are, and the documents in them.

mod chat;
mod read;
mod sources;

use std::ops::Range;
use std::sync::Arc;

use ropewalk_core::tokenizer::Token;

use crate::jsonl::MAX_TEXT;

pub use chat::ChatTemplate;
pub(crate) use read::{documents, Reading};
pub use sources::{Group, Kind, Source, SourceFile, Sources};

ropewalk_core::setters! {
    /// The way bytes of files become texts.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct TextOptions {
        /// The form of a line of JSON Lines.
        pub records: Records,
        /// True if bytes that are not UTF-8 become U+FFFD, with a note; otherwise they are an error.
        pub replace_invalid: bool,
        /// Bytes of a token in a file of token ids: 2 or 4, the lowest first.
        pub token_bytes: usize,
        /// Most bytes of a text that is read as a whole, at most [`MAX_TEXT`]. With its tokens, of four bytes and
        /// at most one a byte, and what the tokenizer holds, it must fit into the memory that is free: an eighth
        /// of that.
        pub max_text: u64,
    }
}

impl Default for TextOptions {
    /// Field `text`; bytes that are not UTF-8 are an error; tokens of two bytes; texts of a gigabyte.
    fn default() -> Self {
        let records = Records::Text("text".into());
        TextOptions { records, replace_invalid: false, token_bytes: 2, max_text: MAX_TEXT }
    }
}

/// The content of a line of JSON Lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Records {
    /// A text, in the field of this name.
    Text(String),
    /// A conversation, in the field `messages`, rendered by the model's chat template; or a `prompt` and its
    /// `completion`, joined as they are.
    Chat {
        /// True if the loss covers only the assistant's turns, or the completion: the tokens that lie completely in
        /// them. If the template renders earlier answers differently from the last one, each answer is a document with
        /// the text before it.
        answers_only: bool,
    },
}

pub(crate) struct Document {
    /// Line of the JSONL file, counted from 1; number of the document in a file of token ids, counted from
    /// 1; 0 for a file that is one text.
    pub line: u32,
    pub content: Content,
}

pub(crate) enum Content {
    /// One text, between the separator's tokens.
    Text(String),
    /// A conversation, or a question and its answer.
    Record(Record),
    /// Tokens, separators among them.
    Tokens(Vec<Token>),
}

/// A conversation, or a question and its answer, as one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub text: String,
    /// True if names of special tokens in the text are those tokens.
    pub special: bool,
    /// The bytes of the answers, ascending, if the loss is taken over these alone.
    pub answers: Option<Vec<Range<usize>>>,
    /// The conversation of which this is what stands up to one answer. Texts of one conversation are held out together.
    pub whole: Option<Arc<str>>,
}

impl Record {
    /// Returns true if the token at this place has a loss. A token that is only partly an answer has none; the space
    /// that a vocabulary puts before an answer has no bytes, and is the answer's first token.
    pub(crate) fn trains(&self, place: &Range<usize>) -> bool {
        let inside = |a: &Range<usize>| a.start <= place.start && place.end <= a.end && place.start < a.end;
        self.answers.as_ref().is_none_or(|answers| answers.iter().any(inside))
    }
}

impl Document {
    pub(crate) fn n_bytes(&self) -> usize {
        match &self.content {
            Content::Text(text) => text.len(),
            Content::Record(record) => record.text.len(),
            Content::Tokens(tokens) => 4 * tokens.len(),
        }
    }
}
