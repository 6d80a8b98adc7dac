//! A tokenizer for tests: a token for each byte, special tokens after them.

use std::ops::Range;

use ropewalk_core::control::Stop;
use ropewalk_core::tokenizer::{Failure, Token, Tokenizer};

/// Bytes are tokens 0 to 255; `<0>` to `<9>` are tokens 256 to 265 where special tokens are read, and unused.
#[derive(Debug, Clone)]
pub(crate) struct Bytes {
    pub(crate) unused: bool,
    /// Requested by the first long text; a second one is a failure of the test.
    pub(crate) stop: Option<Stop>,
}

impl Default for Bytes {
    fn default() -> Self {
        Bytes { unused: true, stop: None }
    }
}

pub(crate) const EOS: Token = 266;
pub(crate) const BOS: Token = 267;
pub(crate) const N_VOCAB: usize = 268;

impl Tokenizer for Bytes {
    fn tokenize(&self, text: &str, special: bool) -> Result<Vec<Token>, Failure> {
        if let Some(stop) = self.stop.as_ref().filter(|_| text.len() > 1 << 16) {
            assert!(!stop.requested(), "a long text after the request to stop");
            stop.request();
        }
        let (mut out, mut rest) = (Vec::new(), text.as_bytes());
        while let Some(&byte) = rest.first() {
            match rest {
                [b'<', digit @ b'0'..=b'9', b'>', after @ ..] if special => {
                    out.push(256 + Token::from(digit - b'0'));
                    rest = after;
                }
                _ => {
                    out.push(Token::from(byte));
                    rest = &rest[1..];
                }
            }
        }
        Ok(out)
    }
    fn places(&self, text: &str, tokens: &[Token]) -> Result<Vec<Range<usize>>, Failure> {
        let mut at = 0;
        let place = |&t: &Token| {
            let start = at;
            // The name of a special token has three bytes.
            at += if t < 256 { 1 } else { 3 };
            (at <= text.len()).then_some(start..at).ok_or_else(|| "another text".into())
        };
        tokens.iter().map(place).collect()
    }
    fn n_tokens(&self) -> usize {
        N_VOCAB
    }
    fn fingerprint(&self) -> [u8; 32] {
        [7; 32]
    }
    fn bos(&self) -> Option<Token> {
        Some(BOS)
    }
    fn eos(&self) -> Option<Token> {
        Some(EOS)
    }
    fn eot(&self) -> Option<Token> {
        None
    }
    fn add_bos(&self) -> bool {
        false
    }
    fn add_eos(&self) -> bool {
        false
    }
    fn unused(&self) -> Vec<Token> {
        (256..266).filter(|_| self.unused).collect()
    }
}
