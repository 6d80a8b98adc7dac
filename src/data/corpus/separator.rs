//! The tokens between two documents.

use std::fmt::{self, Display};
use std::str::FromStr;

use ropewalk_core::tokenizer::{Token, Tokenizer};

use crate::error::{invalid, Error, Result};

/// The tokens that end a document. Under every choice BOS stands in front of each document if the model's
/// flag (`tokenizer.ggml.add_bos_token`) asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Separator {
    /// EOS; in a vocabulary without EOS, the end-of-turn token; without that, BOS in front if the flag asks
    /// for it; without any of these, an empty line.
    #[default]
    Auto,
    /// EOS only if the model's flag (`tokenizer.ggml.add_eos_token`) asks for it.
    Flags,
    /// EOS.
    Eos,
    /// The end-of-turn token.
    Eot,
    /// BOS in front, whatever its flag says, and EOS as its flag says.
    Bos,
    /// BOS before and EOS after, whatever the flags say.
    Both,
    /// The token of this text, such as `<|endoftext|>`.
    Token(String),
}

/// All but the text of a token, as they are typed.
static NAMES: [(Separator, &str); 6] = [
    (Separator::Auto, "auto"),
    (Separator::Flags, "flags"),
    (Separator::Eos, "eos"),
    (Separator::Eot, "eot"),
    (Separator::Bos, "bos"),
    (Separator::Both, "bos+eos"),
];

impl Display for Separator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Separator::Token(text) => f.write_str(text),
            _ => f.write_str(NAMES.iter().find(|(of, _)| of == self).map_or("", |(_, name)| *name)),
        }
    }
}

impl FromStr for Separator {
    type Err = Error;

    /// `auto`, `flags`, `eos`, `eot`, `bos`, `bos+eos`, or else the text of a token.
    fn from_str(text: &str) -> Result<Self> {
        if text.is_empty() {
            let what = "separator: expected auto, flags, eos, eot, bos, bos+eos or a token's text";
            return Err(invalid(what));
        }
        let named = NAMES.iter().find(|(_, name)| *name == text).map(|(separator, _)| separator.clone());
        Ok(named.unwrap_or_else(|| Separator::Token(text.to_owned())))
    }
}

/// Tokens around each document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ends {
    pub before: Vec<Token>,
    pub after: Vec<Token>,
}

impl Separator {
    /// The tokens before and after each document.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the vocabulary lacks the token asked for, or when under [`Separator::Flags`]
    /// nothing would stand between documents.
    pub(super) fn ends(&self, vocab: &dyn Tokenizer) -> Result<Ends> {
        let need = |token: Option<Token>, what: &str| {
            token.ok_or_else(|| invalid(format!("the vocabulary has no {what}; choose another separator")))
        };
        let tokens = |text: &str, special| {
            vocab.tokenize(text, special).map_err(|e| invalid(format!("separator '{text}': {e}")))
        };
        let mut before = Vec::new();
        if vocab.add_bos() || matches!(self, Separator::Bos | Separator::Both) {
            before.push(need(vocab.bos(), "beginning-of-text token")?);
        }
        let eos = || need(vocab.eos(), "end-of-text token").map(|t| vec![t]);
        let after = match self {
            Separator::Auto => match vocab.eos().or_else(|| vocab.eot()) {
                Some(end) => vec![end],
                None if before.is_empty() => tokens("\n\n", false)?,
                None => Vec::new(),
            },
            Separator::Flags | Separator::Bos if !vocab.add_eos() => Vec::new(),
            Separator::Flags | Separator::Bos | Separator::Eos | Separator::Both => eos()?,
            Separator::Eot => vec![need(vocab.eot(), "end-of-turn token")?],
            Separator::Token(text) => match tokens(text, true)?[..] {
                [token] => vec![token],
                ref found => {
                    return Err(invalid(format!(
                        "separator '{text}': expected one token of the vocabulary, found {}",
                        found.len()
                    )))
                }
            },
        };
        // A BOS that follows the same token as EOS would be a second separator.
        if before == after && *self != Separator::Both {
            before.clear();
        }
        if before.is_empty() && after.is_empty() {
            return Err(invalid(
                "by the model's flags nothing stands between two documents; choose another separator",
            ));
        }
        Ok(Ends { before, after })
    }
}
