//! A model's tokenizer, as crates use it that know nothing else of the model.

use std::ops::Range;

mod places;

pub use places::Places;

/// A token's number in the vocabulary.
pub type Token = i32;

/// Why a text has no tokens.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A vocabulary that turns text into tokens. It is shared between threads.
pub trait Tokenizer: Send + Sync + std::fmt::Debug {
    /// Text to tokens, without BOS or EOS. Under `special` names of special tokens in the text become those
    /// tokens; else they stay text.
    ///
    /// # Errors
    /// A text that the vocabulary cannot express.
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Failure>;
    /// The bytes of `text` that each of the tokens stands for, which [`Tokenizer::tokenize`] made of it. A token that is
    /// the blank which the vocabulary puts before a text stands for none.
    ///
    /// # Errors
    /// Tokens that are not those of the text byte by byte, in a vocabulary that changes texts.
    fn places(&self, text: &str, tokens: &[Token]) -> Result<Vec<Range<usize>>, Failure>;
    /// Number of tokens.
    fn n_tokens(&self) -> usize;
    /// A hash: vocabularies of the same one cut every text alike.
    fn fingerprint(&self) -> [u8; 32];
    /// The beginning-of-text token.
    fn bos(&self) -> Option<Token>;
    /// The end-of-text token.
    fn eos(&self) -> Option<Token>;
    /// The end-of-turn token.
    fn eot(&self) -> Option<Token>;
    /// Returns true if the model wants BOS before a text.
    fn add_bos(&self) -> bool;
    /// Returns true if the model wants EOS after a text.
    fn add_eos(&self) -> bool;
    /// Tokens that no text has and that the vocabulary reserves for uses of one's own, ascending.
    fn unused(&self) -> Vec<Token>;
}
