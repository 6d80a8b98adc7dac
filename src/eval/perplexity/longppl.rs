//! LongPPL: perplexity of the tokens that need a long context (Fang et al., arXiv 2410.23771), as computed by their
//! package `longppl` 0.3.0.
//!
//! A key token is one that the model predicts well from everything before it, and much worse from a short context
//! alone. The package can use one model to find these tokens and another to be measured on them. Here, one model does
//! both, with the method as it is active at the measured length, also for short contexts.
//!
//! To find key tokens, the package adds BOS if the tokenizer asks for it, and shows it to the first short context
//! only. To measure, it uses no BOS. Both rules are followed here. Key tokens are passed from the first step to the
//! second as spans of text, so all tokens of a character are key tokens if one of them is.

mod stretches;

use std::ops::Range;

use serde::Serialize;

use self::stretches::{inside, joined};
use super::super::protocol::Protocol;
use super::super::stats::{Mean, Perplexity};
use super::super::{invalid, uninterrupted, Lm};
use crate::model::{Error, Result};
use crate::Token;

/// The protocol that LongPPL is defined on: one window from the start of each document.
pub const PROTOCOL: &str = "window";

ropewalk_core::setters! {
    /// Criteria of a key token; the names are the package's.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct Params {
        /// Minimum size of a short context, in tokens: the first token that it scores sees this many.
        pub trunc_len: usize,
        /// Tokens that share a short context.
        pub sliding_window: usize,
        /// A key token loses more than this in a short context, in nats (long-short difference, LSD).
        pub alpha: f64,
        /// A key token has more than this log-likelihood in the long context, in nats (LCL).
        pub beta: f64,
    }
}

impl Default for Params {
    fn default() -> Params {
        Params { trunc_len: 4096, sliding_window: 1024, alpha: 2.0, beta: -2.0 }
    }
}

impl Params {
    /// Checks that these bounds are valid, and that the protocol is [`PROTOCOL`].
    ///
    /// # Errors
    /// Returns an error that names the problem and the expected value.
    pub fn check(&self, protocol: &Protocol) -> Result<()> {
        if protocol.name != PROTOCOL {
            return Err(Error::argument("longppl", format_args!("protocol {PROTOCOL}"), protocol.name));
        }
        for (name, value) in [("trunc-len", self.trunc_len), ("sliding-window", self.sliding_window)] {
            if value == 0 {
                return Err(Error::argument(name, "at least 1", 0));
            }
        }
        for (name, value) in [("alpha", self.alpha), ("beta", self.beta)] {
            if !value.is_finite() {
                return Err(Error::argument(name, "a finite number", value));
            }
        }
        Ok(())
    }

    /// The short contexts of `n` tokens, and how many of their first tokens are not scored. The one at the
    /// very start is left out: what it would score sees the same tokens in the long context.
    fn short_contexts(&self, n: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let last = n.saturating_sub(self.trunc_len);
        (self.sliding_window..last).step_by(self.sliding_window).map(move |start| {
            start..start.saturating_add(self.trunc_len).saturating_add(self.sliding_window).min(n)
        })
    }

    /// Returns true if a token with these negative log-likelihoods is a key token.
    fn is_key(&self, short: f32, full: f32) -> bool {
        f64::from(short) - f64::from(full) > self.alpha && f64::from(full) < -self.beta
    }

    /// Tokens that a window of `n_fed` feeds again.
    pub(super) fn n_more(&self, n_fed: usize, bos: bool) -> usize {
        let again = if bos { n_fed - 1 } else { 0 };
        again + self.short_contexts(n_fed).map(|range| range.len()).sum::<usize>()
    }
}

/// LongPPL over all documents at one length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LongPpl {
    /// exp of the mean negative log-likelihood of all key tokens; `null` if there are none.
    pub longppl: Option<f64>,
    /// The mean negative log-likelihood of key tokens, in nats per token.
    pub nll: Option<f64>,
    /// Standard error of `longppl` to first order, for fixed key tokens.
    pub longppl_stderr: Option<f64>,
    /// Standard error of `nll`.
    pub nll_stderr: Option<f64>,
    /// Number of key tokens.
    pub key_tokens: usize,
    /// Number of documents with key tokens.
    pub documents: usize,
    /// Perplexity of all tokens that LongPPL chooses from, without BOS; `null` if there are none.
    pub ppl: Option<f64>,
    /// Number of those tokens.
    pub tokens: usize,
}

/// Key tokens and others of the documents done so far.
pub(super) struct Sums {
    params: Params,
    key: Mean,
    all: Mean,
    documents: usize,
}

impl Sums {
    pub(super) fn new(params: Params) -> Sums {
        Sums { params, key: Mean::default(), all: Mean::default(), documents: 0 }
    }

    /// Takes in a document: the tokens fed, with BOS in front if `bos`, and the log-likelihoods of all but
    /// the first. `fed` is told of every further pass, and says whether to go on; `false` when stopped.
    pub(super) fn document(
        &mut self,
        lm: &mut dyn Lm,
        tokens: &[Token],
        bos: bool,
        full: &[f32],
        fed: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool> {
        let mut is_key = vec![false; tokens.len()];
        for range in self.params.short_contexts(tokens.len()) {
            let from = self.params.trunc_len;
            let part = &tokens[range.clone()];
            let Some(short) = pass(lm, part, from, "a short context", range.start)? else { return Ok(false) };
            for (i, &short) in (range.start + from..).zip(&short) {
                is_key[i] = self.params.is_key(short, full[i - 1]);
            }
            if !fed(part.len()) {
                return Ok(false);
            }
        }
        let text = &tokens[usize::from(bos)..];
        let without_bos;
        let measured = if bos {
            let Some(nll) = pass(lm, text, 1, "the text without BOS", 0)? else { return Ok(false) };
            fed(text.len());
            without_bos = nll;
            &without_bos[..]
        } else {
            full
        };
        let offsets = offsets(lm, text)?;
        let found: Vec<Range<usize>> = is_key[usize::from(bos)..]
            .iter()
            .zip(&offsets)
            .filter(|(&key, _)| key)
            .map(|(_, offset)| offset.clone())
            .collect();
        let mut any = false;
        for i in inside(&offsets, &joined(&found)) {
            // Nothing predicts the first token.
            let Some(&x) = i.checked_sub(1).and_then(|i| measured.get(i)) else { continue };
            self.key.push(f64::from(x));
            any = true;
        }
        self.documents += usize::from(any);
        measured.iter().for_each(|&x| self.all.push(f64::from(x)));
        Ok(true)
    }

    pub(super) fn result(&self) -> Result<LongPpl> {
        let of = |mean: &Mean| (mean.n() > 0).then(|| Perplexity::new(mean, std::f64::consts::E)).transpose();
        let key = of(&self.key)?;
        Ok(LongPpl {
            longppl: key.map(|key| key.ppl),
            nll: key.map(|key| key.nll),
            longppl_stderr: key.and_then(|key| key.ppl_stderr),
            nll_stderr: key.and_then(|key| key.nll_stderr),
            key_tokens: self.key.n(),
            documents: self.documents,
            ppl: of(&self.all)?.map(|all| all.ppl),
            tokens: self.all.n(),
        })
    }
}

/// Log-likelihoods of a pass from `from` on, all finite; `None` when interrupted.
fn pass(
    lm: &mut dyn Lm,
    tokens: &[Token],
    from: usize,
    what: &str,
    start: usize,
) -> Result<Option<Vec<f32>>> {
    let Some(nll) = uninterrupted(lm.nll(tokens, from, &mut |_| {}))? else { return Ok(None) };
    let expected = tokens.len().saturating_sub(from);
    if nll.len() != expected {
        let found = nll.len();
        return Err(invalid(format!("longppl: expected {expected} log-likelihoods, found {found}")));
    }
    match nll.iter().position(|x| !x.is_finite()) {
        None => Ok(Some(nll)),
        Some(i) => Err(invalid(format!(
            "longppl: {what}: token {}: negative log-likelihood is {}",
            start + from + i,
            nll[i]
        ))),
    }
}

/// The characters of the text that each token has a part in.
fn offsets(lm: &dyn Lm, tokens: &[Token]) -> Result<Vec<Range<usize>>> {
    // Characters begun so far.
    let mut begun = 0usize;
    let mut offset = |&token: &Token| {
        let bytes = lm.piece(token)?;
        let begins = |byte: &u8| byte & 0xc0 != 0x80;
        let start = match bytes.first() {
            Some(byte) if !begins(byte) => begun.saturating_sub(1),
            _ => begun,
        };
        begun += bytes.iter().filter(|byte| begins(byte)).count();
        Ok(start..begun.max(start))
    };
    tokens.iter().map(&mut offset).collect()
}
