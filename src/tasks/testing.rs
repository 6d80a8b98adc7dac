//! Helpers for tests of several families: the tokenizer that their reference scripts use, and setups with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use ropewalk_core::control::Control;
use sha2::{Digest, Sha256};

use crate::{Encoder, Result, Setup, Template, Token};

/// Tokens are the matches of `[A-Za-z]+|[0-9]|[^A-Za-z0-9 ]| +`; decoding joins them.
#[derive(Default)]
pub(crate) struct Simple {
    n_bos: usize,
    frame: String,
    ids: RefCell<HashMap<String, Token>>,
    texts: RefCell<Vec<String>>,
}

impl Simple {
    /// With so many tokens before each text, and a chat template that puts `frame` before each message.
    pub(crate) fn framed(n_bos: usize, frame: &str) -> Simple {
        Simple { n_bos, frame: frame.into(), ..Simple::default() }
    }
}

impl Encoder for Simple {
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let same = |c: char| match first {
                ' ' => c == ' ',
                _ => c.is_ascii_alphabetic(),
            };
            let end = if first == ' ' || first.is_ascii_alphabetic() {
                rest.find(|c| !same(c)).unwrap_or(rest.len())
            } else {
                first.len_utf8()
            };
            let (token, behind) = rest.split_at(end);
            rest = behind;
            let mut ids = self.ids.borrow_mut();
            let known = ids.get(token).copied();
            tokens.push(known.unwrap_or_else(|| {
                let mut texts = self.texts.borrow_mut();
                let id = Token::try_from(texts.len()).expect("few tokens");
                texts.push(token.into());
                ids.insert(token.into(), id);
                id
            }));
        }
        Ok(tokens)
    }

    fn decode(&self, tokens: &[Token]) -> Result<String> {
        let texts = self.texts.borrow();
        Ok(tokens.iter().map(|&t| texts[usize::try_from(t).expect("a token of ours")].as_str()).collect())
    }

    fn frame(&self, message: &str) -> Result<String> {
        Ok(format!("{}{message}", self.frame))
    }

    fn n_bos(&self) -> usize {
        self.n_bos
    }
}

/// A setup with a length and options.
pub(crate) fn setup<'a>(
    encoder: &'a dyn Encoder,
    data: &'a Path,
    length: usize,
    options: &[(&str, &str)],
) -> Setup<'a> {
    Setup {
        length: Some(length),
        samples: None,
        seed: None,
        template: Template::Base,
        options: options.iter().map(|&(k, v)| (k.to_string(), v.to_string())).collect(),
        data,
        encoder,
        control: Control::default(),
    }
}

pub(crate) fn sha256(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}
