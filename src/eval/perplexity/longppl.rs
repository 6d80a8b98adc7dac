//! LongPPL: perplexity of the tokens that need a long context (Fang et al., arXiv 2410.23771), as computed by their
//! package `longppl` 0.3.0.
//!
//! [`Params`] are the criteria of a key token. The package can use one model to find these tokens and another to be
//! measured on them. Here, one model does both, with the method as it is active at the measured length, also for short
//! contexts.
//!
//! To find key tokens, the package adds BOS if the tokenizer asks for it, and shows it to the first short context
//! only. To measure, it uses no BOS. Both rules are followed here.

pub use ropewalk_core::longppl::Params;

use ropewalk_core::longppl::key_tokens;
use serde::Serialize;

use super::super::protocol::Protocol;
use super::super::stats::{Mean, Perplexity};
use super::super::{invalid, uninterrupted, Lm};
use crate::model::{Error, Result};
use crate::Token;

/// The protocol that LongPPL is defined on: one window from the start of each document.
pub const PROTOCOL: &str = "window";

/// Checks that the bounds of key tokens are valid, and that the protocol is [`PROTOCOL`].
///
/// # Errors
/// Returns an error that names the problem and the expected value.
pub fn check(params: &Params, protocol: &Protocol) -> Result<()> {
    if protocol.name != PROTOCOL {
        return Err(Error::argument("longppl", format_args!("protocol {PROTOCOL}"), protocol.name));
    }
    for (name, value) in [("trunc-len", params.trunc_len), ("sliding-window", params.sliding_window)] {
        if value == 0 {
            return Err(Error::argument(name, "at least 1", 0));
        }
    }
    for (name, value) in [("alpha", params.alpha), ("beta", params.beta)] {
        if !value.is_finite() {
            return Err(Error::argument(name, "a finite number", value));
        }
    }
    Ok(())
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
                is_key[i] = self.params.is_key(f64::from(short), f64::from(full[i - 1]));
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
        let pieces = text.iter().map(|&token| lm.piece(token));
        let mut any = false;
        for i in key_tokens(&is_key[usize::from(bos)..], pieces)? {
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
