//! Fake models: tokenizers of bytes and of short words, log-likelihoods and answers given by a function.

use std::cell::RefCell;

use ropewalk::eval::{Document, Lm, LmSource};
use ropewalk::model::{Error, Result};
use ropewalk::session::{Ending, Greedy};
use ropewalk::Token;

pub(crate) const BOS: Token = -1;

#[derive(Clone, Copy)]
pub(crate) enum Tokenizer {
    Bytes,
    /// A full stop, or a word with the space before it, in pieces of at most four bytes, packed into the
    /// token.
    Words,
}

impl Tokenizer {
    pub(crate) fn encode(self, text: &str) -> Vec<Token> {
        match self {
            Tokenizer::Bytes => text.bytes().map(Token::from).collect(),
            Tokenizer::Words => {
                let mut tokens = Vec::new();
                let mut rest = text;
                while !rest.is_empty() {
                    let end = rest[1..].find([' ', '\n', '.']).map_or(rest.len(), |i| i + 1);
                    tokens.extend(rest.as_bytes()[..end].chunks(4).map(pack));
                    rest = &rest[end..];
                }
                tokens
            }
        }
    }
    pub(crate) fn decode(self, tokens: &[Token]) -> String {
        let bytes = tokens.iter().filter(|t| **t != BOS).flat_map(|t| match self {
            Tokenizer::Bytes => vec![*t as u8],
            Tokenizer::Words => (0..4).map(|i| (t >> (7 * i) & 0x7f) as u8).filter(|b| *b != 0).collect(),
        });
        String::from_utf8(bytes.collect()).unwrap()
    }
}

fn pack(bytes: &[u8]) -> Token {
    bytes.iter().rev().fold(0, |token, b| token << 7 | Token::from(*b))
}

/// Calls that a fake has seen.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) opened: Vec<usize>,
    /// Tokens and `from` of each `nll` call; of `answers` calls the prompt and the number of new tokens.
    pub(crate) calls: Vec<(Vec<Token>, usize)>,
}

pub(crate) struct Fake {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) bos: Token,
    pub(crate) n_vocab: usize,
    pub(crate) has_bos: bool,
    pub(crate) add_bos: bool,
    pub(crate) nll: fn(&[Token], usize) -> f32,
    /// Prompt to continuation.
    pub(crate) answer: fn(Tokenizer, &[Token]) -> String,
    /// The call (counted from 0) that is interrupted.
    pub(crate) interrupt_at: Option<usize>,
    pub(crate) log: RefCell<Log>,
}

impl Fake {
    pub(crate) fn new() -> Fake {
        Fake {
            tokenizer: Tokenizer::Bytes,
            bos: BOS,
            n_vocab: 256,
            has_bos: true,
            add_bos: false,
            nll: |_, _| 1.0,
            answer: |_, _| String::new(),
            interrupt_at: None,
            log: RefCell::default(),
        }
    }
    pub(crate) fn with_nll(nll: fn(&[Token], usize) -> f32) -> Fake {
        Fake { nll, ..Fake::new() }
    }
    pub(crate) fn with_answer(answer: fn(Tokenizer, &[Token]) -> String) -> Fake {
        Fake { answer, ..Fake::new() }
    }
    pub(crate) fn calls(&self) -> Vec<(Vec<Token>, usize)> {
        self.log.borrow().calls.clone()
    }
}

impl LmSource for Fake {
    fn open(&self, n_ctx: usize, _: usize) -> Result<Box<dyn Lm + '_>> {
        self.log.borrow_mut().opened.push(n_ctx);
        Ok(Box::new(Opened { fake: self, n_ctx }))
    }
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        Ok(self.tokenizer.encode(text))
    }
    fn decode(&self, tokens: &[Token]) -> Result<String> {
        Ok(self.tokenizer.decode(tokens))
    }
    fn bos_first(&self) -> Option<Token> {
        (self.has_bos && self.add_bos).then_some(BOS)
    }
}

struct Opened<'a> {
    fake: &'a Fake,
    n_ctx: usize,
}

impl Opened<'_> {
    fn log(&self, tokens: &[Token], n: usize) -> Result<()> {
        let mut log = self.fake.log.borrow_mut();
        if self.fake.interrupt_at == Some(log.calls.len()) {
            return Err(Error::Interrupted);
        }
        log.calls.push((tokens.to_vec(), n));
        Ok(())
    }
}

impl Lm for Opened<'_> {
    fn n_ctx(&self) -> usize {
        self.n_ctx
    }
    fn rope(&self) -> String {
        format!("fake at {}", self.n_ctx)
    }
    fn tokenize(&self, text: &str, add_special: bool) -> Result<Vec<Token>> {
        let bos = (add_special && self.fake.add_bos).then_some(self.fake.bos);
        Ok(bos.into_iter().chain(self.fake.tokenizer.encode(text)).collect())
    }
    fn piece(&self, token: Token) -> Result<Vec<u8>> {
        Ok(match self.fake.tokenizer {
            _ if token == self.fake.bos => Vec::new(),
            Tokenizer::Bytes => vec![token as u8],
            Tokenizer::Words => self.fake.tokenizer.decode(&[token]).into_bytes(),
        })
    }
    fn n_vocab(&self) -> usize {
        self.fake.n_vocab
    }
    fn bos(&self) -> Option<Token> {
        self.fake.has_bos.then_some(self.fake.bos)
    }
    fn add_bos(&self) -> bool {
        self.fake.add_bos
    }
    fn nll(&mut self, tokens: &[Token], from: usize, _: &mut dyn FnMut(usize)) -> Result<Vec<f32>> {
        assert!(tokens.len() <= self.n_ctx, "{} tokens in a context of {}", tokens.len(), self.n_ctx);
        self.log(tokens, from)?;
        Ok((from.max(1)..tokens.len()).map(|i| (self.fake.nll)(tokens, i)).collect())
    }
    fn answers(&mut self, prompts: &[Vec<Token>], how: &Greedy) -> Result<Vec<Vec<Token>>> {
        let mut answers = Vec::new();
        for prompt in prompts {
            let need = prompt.len() + how.n_predict;
            assert!(need <= self.n_ctx, "{need} tokens in a context of {}", self.n_ctx);
            self.log(prompt, how.n_predict)?;
            let mut out = self.fake.tokenizer.encode(&(self.fake.answer)(self.fake.tokenizer, prompt));
            out.truncate(how.n_predict);
            answers.push(out);
        }
        Ok(answers)
    }
    fn endings(&mut self, text: &[Token], endings: &[Vec<Token>]) -> Result<Vec<Ending>> {
        let mut one = |ending: &Vec<Token>| {
            let all = [text, ending].concat();
            let logprobs = self.nll(&all, text.len(), &mut |_| {})?.iter().map(|x| -x).collect();
            Ok(Ending { logprobs, greedy: false })
        };
        endings.iter().map(&mut one).collect()
    }
}

/// A document of `n` bytes `a`, `b`, ... in a cycle of 26.
pub(crate) fn letters(name: &str, n: usize) -> Document {
    Document::text(name, ('a'..='z').cycle().take(n).collect::<String>())
}
