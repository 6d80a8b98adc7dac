//! Measurements. A task never sees a model: it works through [`Lm`], which a session implements.
//!
//! A task is one module: parameters in, `run(source, model, ..., control) -> report` out. Reports serialise to the
//! JSON the command line promises and format themselves as text; nothing here prints or opens files.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::model::{Error, Result};
use crate::Token;

mod document;
pub mod passkey;
pub mod perplexity;
pub mod protocol;
pub mod stats;
mod table;

pub use document::{documents, Document};

/// A language model at one context length, as evaluations see it.
pub trait Lm {
    /// Tokens that fit.
    fn n_ctx(&self) -> usize;
    /// The rope spec in force, with defaults filled in, and notes for the reader.
    fn rope(&self) -> String;
    /// Text to tokens; `add_special` puts BOS/EOS as the model's flags say.
    fn tokenize(&self, text: &str, add_special: bool) -> Result<Vec<Token>>;
    /// Tokens to text.
    fn detokenize(&self, tokens: &[Token]) -> Result<String>;
    /// BOS, when the vocabulary has one.
    fn bos(&self) -> Option<Token>;
    /// Whether the model's flags ask for BOS.
    fn add_bos(&self) -> bool;
    /// In a fresh context: `-ln p(tokens[i] | tokens[..i])` for each `i` in `from.max(1)..tokens.len()`.
    /// Keys shared with the previous call's tokens may be reused: the result is the same.
    fn nll(&mut self, tokens: &[Token], from: usize) -> Result<Vec<f32>>;
    /// Greedy continuation of a prompt in a fresh context, at most `n` tokens, ended early by an end-of-generation token (not returned).
    fn generate(&mut self, prompt: &[Token], n: usize) -> Result<Vec<Token>>;
}

/// Opens an [`Lm`] at a context length: methods whose frequencies depend on the length are worked out anew for each.
pub trait LmSource {
    /// An `Lm` that takes `n_ctx` tokens.
    fn open(&self, n_ctx: usize) -> Result<Box<dyn Lm + '_>>;
}

/// How far a task is.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Context length being measured, in tokens.
    pub n_ctx: usize,
    /// Cases (windows, samples) done at this length.
    pub done: usize,
    /// Cases at this length.
    pub total: usize,
    /// Tokens fed so far, over all lengths of the run.
    pub tokens_done: usize,
    /// Tokens the whole run will feed; for passkey an upper estimate. With `tokens_per_s`, the time left.
    pub tokens_total: usize,
    /// The measure so far at this length: perplexity, accuracy.
    pub value: f64,
    /// Tokens fed per second at this length.
    pub tokens_per_s: f64,
}

/// How the caller watches and stops a task.
#[derive(Default)]
pub struct Control<'a> {
    /// Checked between cases: when set, the task returns what is done, marked interrupted.
    pub cancel: Option<&'a AtomicBool>,
    /// Called after every case.
    pub progress: Option<&'a mut dyn FnMut(&Progress)>,
}

impl std::fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").field("cancel", &self.cancel).finish_non_exhaustive()
    }
}

impl Control<'_> {
    fn cancelled(&self) -> bool {
        self.cancel.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
    fn report(&mut self, progress: Progress) {
        if let Some(f) = self.progress.as_mut() {
            f(&progress);
        }
    }
}

/// Opens a length and holds the source to its word.
fn open(source: &dyn LmSource, n_ctx: usize) -> Result<Box<dyn Lm + '_>> {
    let lm = source.open(n_ctx)?;
    if lm.n_ctx() < n_ctx {
        return Err(invalid(format!("context opened for {n_ctx} tokens takes only {}", lm.n_ctx())));
    }
    Ok(lm)
}

/// `Some` unless the call was interrupted.
fn uninterrupted<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::Interrupted) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Tokens of a text behind BOS, if `bos`; never EOS, which would end a prompt before its answer.
fn tokenize(lm: &dyn Lm, text: &str, bos: bool) -> Result<Vec<Token>> {
    let mut tokens = lm.tokenize(text, false)?;
    if bos {
        let bos = lm.bos().ok_or_else(|| invalid("BOS is asked for, but the vocabulary has none"))?;
        tokens.insert(0, bos);
    }
    Ok(tokens)
}

fn invalid(message: impl Into<String>) -> Error {
    Error::Invalid(message.into())
}

fn per_second(n: usize, seconds: f64) -> f64 {
    if seconds > 0.0 {
        n as f64 / seconds
    } else {
        0.0
    }
}
