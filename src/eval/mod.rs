//! Measurements of language models: perplexity by named [`protocol`]s, published benchmarks.
//!
//! A task is one module: it takes parameters, and `run(source, model, ..., control)` returns a report. It uses the
//! traits [`Lm`] and [`LmSource`], which [`SessionSource`] implements for sessions of a model. Reports serialize to
//! the JSON of the command line and format themselves as text. Nothing here prints, and only [`suite::FileStore`] and
//! [`search`] open files. [`suite`] runs the benchmarks of the crate `ropewalk-tasks`. [`mod@bench`] measures speed, of sessions
//! and of other engines.
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

use ropewalk_core::text::per_second;

use crate::control::Control;
use crate::model::{Error, Result};
use crate::session::{Ending, Greedy};
use crate::Token;

pub mod advise;
pub mod attention;
pub mod bench;
pub mod divergence;
mod document;
pub mod imatrix;
mod methods;
pub mod perplexity;
pub mod protocol;
pub mod search;
mod session;
pub mod stats;
pub mod suite;
mod table;

pub use document::{check_apart, documents, read_documents, Content, Document, MAX_DOCUMENTS};
pub use methods::{one_object, under_each, Sources};
pub(crate) use session::rounding;
pub use session::SessionSource;

/// A language model at one context length, as evaluations see it.
pub trait Lm {
    /// Tokens that fit into the context.
    fn n_ctx(&self) -> usize;
    /// The active method spec, with defaults filled in.
    fn rope(&self) -> String;
    /// Text to tokens; `add_special` adds BOS and EOS if the model's flags ask for them.
    fn tokenize(&self, text: &str, add_special: bool) -> Result<Vec<Token>>;
    /// The bytes of one token's text, which can be part of a character; empty for special tokens.
    fn piece(&self, token: Token) -> Result<Vec<u8>>;
    /// Token ids are below this.
    fn n_vocab(&self) -> usize;
    /// BOS, if the vocabulary has one.
    fn bos(&self) -> Option<Token>;
    /// Returns true if the model's flags ask for BOS.
    fn add_bos(&self) -> bool;
    /// Returns `-ln p(tokens[i] | tokens[..i])` in a fresh context, in nats, for each `i` in
    /// `from.max(1)..tokens.len()`. An implementation may reuse the keys of a prefix shared with the previous call;
    /// the result is the same. It may call `read` now and then with the number of tokens read.
    fn nll(&mut self, tokens: &[Token], from: usize, read: &mut dyn FnMut(usize)) -> Result<Vec<f32>>;
    /// Number of prompts that [`Lm::answers`] accepts at once.
    fn n_seq(&self) -> usize {
        1
    }
    /// Greedy continuations of up to [`Lm::n_seq`] prompts, each in a fresh context.
    fn answers(&mut self, prompts: &[Vec<Token>], how: &Greedy) -> Result<Vec<Vec<Token>>>;
    /// The log-likelihoods of several continuations of one text. The context must hold the text and all
    /// continuations.
    fn endings(&mut self, text: &[Token], endings: &[Vec<Token>]) -> Result<Vec<Ending>>;
    /// A flag that makes a running call return [`Error::Interrupted`] when set; `None` if calls cannot be
    /// interrupted.
    fn cancel_flag(&self) -> Option<Arc<AtomicBool>> {
        None
    }
}

/// Opens an [`Lm`] at a context length. Frequencies that depend on the length are recomputed for each length.
pub trait LmSource {
    /// Opens an `Lm` for up to `n_seq` prompts of `n_ctx` tokens at once, as many as memory allows.
    fn open(&self, n_ctx: usize, n_seq: usize) -> Result<Box<dyn Lm + '_>>;
    /// Checks whether an `Lm` with this context can be opened, as far as that is known without opening it.
    fn check(&self, _n_ctx: usize) -> Result<()> {
        Ok(())
    }
    /// The method spec of an `Lm` with this context.
    fn rope_at(&self, n_ctx: usize) -> Result<String> {
        Ok(self.open(n_ctx, 1)?.rope())
    }
    /// Text to tokens without BOS and EOS; names of special tokens become special tokens.
    fn encode(&self, text: &str) -> Result<Vec<Token>>;
    /// Tokens to text, without special tokens.
    fn decode(&self, tokens: &[Token]) -> Result<String>;
    /// BOS, if the model's flags ask for it at the start of a text.
    fn bos_first(&self) -> Option<Token>;
}

/// Opens a context that `control` can stop. Returns an error if the context is smaller than requested.
fn open<'s>(
    source: &'s dyn LmSource,
    n_ctx: usize,
    n_seq: usize,
    control: &Control<'_>,
) -> Result<Box<dyn Lm + 's>> {
    let lm = source.open(n_ctx, n_seq)?;
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

fn unsupported(message: impl Into<String>) -> Error {
    Error::Unsupported(message.into())
}

/// `x` as a fraction of 2^64, scaled to `0..n`.
fn below(x: u64, n: u64) -> u64 {
    ((u128::from(x) * u128::from(n)) >> 64) as u64
}
