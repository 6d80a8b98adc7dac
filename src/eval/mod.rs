//! Measurements of language models: perplexity by named [`protocol`]s, published benchmarks.
//!
//! A task is one module: parameters in, `run(source, model, ..., control) -> report` out. It works through
//! the traits [`Lm`] and [`LmSource`], which [`SessionSource`] implements for sessions of a model. Reports
//! serialise to the JSON that the command line promises and format themselves as text; nothing here prints, and
//! only [`suite::FileStore`] and [`search`] open files. [`suite`] runs the benchmarks of the crate `ropewalk-tasks`.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("model.gguf");
//! # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
//! use ropewalk::control::Control;
//! use ropewalk::eval::{perplexity, protocol::protocol, Document, SessionSource};
//! use ropewalk::model::{Model, ModelParams};
//! use ropewalk::session::SessionParams;
//!
//! let model = Model::load(&path, &ModelParams::cpu())?;
//! let mut how = SessionParams::new(0); // the task opens a context for each length
//! how.rope = Some("yarn:factor=2".parse()?);
//! # how.n_threads = 1;
//! let source = SessionSource::new(&model, how);
//!
//! let text = "To be, or not to be, that is the question. ".repeat(20);
//! let documents = [Document::text("a soliloquy", text)];
//! let params = perplexity::Params::new(protocol("window")?, vec![128, 256]);
//! let report = perplexity::run(&source, "model.gguf", &documents, &params, &Control::default())?;
//! assert_eq!(report.results.len(), 2);
//! assert!(report.results[1].headline.ppl > 1.0);
//! println!("{}", report.text());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use crate::control::Control;
use crate::model::{Error, Result};
use crate::session::{Ending, Greedy};
use crate::Token;

pub mod advise;
pub mod attention;
pub mod divergence;
mod document;
pub mod imatrix;
pub mod perplexity;
pub mod protocol;
pub mod search;
mod session;
pub mod stats;
pub mod suite;
mod table;

pub use document::{documents, Content, Document};
pub use session::SessionSource;

/// A language model at one context length, as evaluations see it.
pub trait Lm {
    /// Tokens that fit into the context.
    fn n_ctx(&self) -> usize;
    /// The rope spec in force, with defaults filled in.
    fn rope(&self) -> String;
    /// Text to tokens; `add_special` puts BOS and EOS where the model's flags ask for them.
    fn tokenize(&self, text: &str, add_special: bool) -> Result<Vec<Token>>;
    /// The bytes of one token's text, which may be a part of a character; none for special tokens.
    fn piece(&self, token: Token) -> Result<Vec<u8>>;
    /// Token ids are below this.
    fn n_vocab(&self) -> usize;
    /// BOS, when the vocabulary has one.
    fn bos(&self) -> Option<Token>;
    /// Whether the model's flags ask for BOS.
    fn add_bos(&self) -> bool;
    /// In a fresh context: `-ln p(tokens[i] | tokens[..i])` in nats for each `i` in
    /// `from.max(1)..tokens.len()`. The keys of a beginning shared with the previous call's tokens may be
    /// used again: the result is the same.
    fn nll(&mut self, tokens: &[Token], from: usize) -> Result<Vec<f32>>;
    /// Prompts that [`Lm::answers`] takes at once.
    fn n_seq(&self) -> usize {
        1
    }
    /// Greedy continuations of up to [`Lm::n_seq`] prompts, each in a fresh context.
    fn answers(&mut self, prompts: &[Vec<Token>], how: &Greedy) -> Result<Vec<Vec<Token>>>;
    /// The log-likelihoods of several endings of one text. The context must hold the text and all of them.
    fn endings(&mut self, text: &[Token], endings: &[Vec<Token>]) -> Result<Vec<Ending>>;
    /// A flag that makes a running call return [`Error::Interrupted`] when it is set; `None` where calls run
    /// to their end.
    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        None
    }
}

/// Opens an [`Lm`] at a context length: methods whose frequencies depend on the length are worked out anew
/// for each.
pub trait LmSource {
    /// An `Lm` that takes `n_ctx` tokens.
    fn open(&self, n_ctx: usize) -> Result<Box<dyn Lm + '_>>;
    /// An `Lm` that takes up to `n_seq` prompts of `n_ctx` tokens at once, as many as memory allows.
    fn open_many(&self, n_ctx: usize, n_seq: usize) -> Result<Box<dyn Lm + '_>> {
        let _ = n_seq;
        self.open(n_ctx)
    }
    /// The rope spec that an `Lm` of this context has.
    fn rope_at(&self, n_ctx: usize) -> Result<String> {
        Ok(self.open(n_ctx)?.rope())
    }
    /// Text to tokens without BOS and EOS; names of special tokens become those tokens.
    fn encode(&self, text: &str) -> Result<Vec<Token>>;
    /// Tokens to text, special tokens left out.
    fn decode(&self, tokens: &[Token]) -> Result<String>;
    /// BOS, if the model's flags ask for it before a text.
    fn bos_first(&self) -> Option<Token>;
}

/// Opens a context that `control` can stop; an error if it is smaller than was asked for.
fn open<'s>(source: &'s dyn LmSource, n_ctx: usize, control: &Control<'_>) -> Result<Box<dyn Lm + 's>> {
    open_many(source, n_ctx, 1, control)
}

/// [`open`] for several prompts at once.
fn open_many<'s>(
    source: &'s dyn LmSource,
    n_ctx: usize,
    n_seq: usize,
    control: &Control<'_>,
) -> Result<Box<dyn Lm + 's>> {
    let lm = if n_seq == 1 { source.open(n_ctx)? } else { source.open_many(n_ctx, n_seq)? };
    if lm.n_ctx() < n_ctx {
        return Err(invalid(format!("context opened for {n_ctx} tokens takes only {}", lm.n_ctx())));
    }
    if let Some(flag) = lm.cancel_flag() {
        control.bind(&flag);
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

fn invalid(message: impl Into<String>) -> Error {
    Error::Invalid(message.into())
}

/// `x` as a fraction of 2^64, scaled to `0..n`.
fn below(x: u64, n: u64) -> u64 {
    ((u128::from(x) * u128::from(n)) >> 64) as u64
}

fn per_second(n: usize, seconds: f64) -> f64 {
    if seconds > 0.0 {
        n as f64 / seconds
    } else {
        0.0
    }
}
