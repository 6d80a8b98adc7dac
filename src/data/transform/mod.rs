//! Transforms of samples. Each is a file and a line of [`METHODS`].

mod cip;
mod pieces;
mod pose;
mod spec;
mod utk;

use std::fmt::Debug;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use ropewalk_core::tokenizer::{Token, Tokenizer};

use crate::error::{invalid, Result};
use crate::sample::Sample;
use spec::Args;

/// A change to training samples, such as Untie the Knots. It works on packed samples.
pub trait Transform: Send + Sync + Debug {
    /// The changed sample, of `n_ctx` inputs. `rng` is seeded by the epoch and the sample's index, so that a
    /// sample is the same each time it is asked for.
    ///
    /// # Errors
    /// A label that the vocabulary cannot express.
    fn apply(&self, sample: Sample, rng: &mut ChaCha8Rng) -> Result<Sample>;

    /// Inputs of the sample that it is given, for samples of `n_ctx` inputs.
    fn n_read(&self, n_ctx: usize) -> usize {
        n_ctx
    }

    /// Returns true if a sample is read from one document, from its first token on, and not from joined texts.
    /// Documents too short for a sample are skipped.
    fn in_one_document(&self) -> bool {
        false
    }

    /// Tokens that a document needs to be changed at all.
    fn shortest(&self) -> usize {
        1
    }

    /// The context that positions stay below, where that is not the number of inputs.
    fn n_positions(&self) -> Option<usize> {
        None
    }

    /// Returns true if documents are mixed, so that attention cannot be kept within them.
    fn mixes(&self) -> bool {
        false
    }

    /// Returns true if inputs that end a document have no loss ([`Sample::weights`]).
    fn masks_ends(&self) -> bool {
        false
    }

    /// All that its samples depend on, in words: a run that is resumed must find the same.
    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// The vocabulary and the context that a method is made for.
pub(crate) struct Setup {
    pub(crate) n_ctx: usize,
    pub(crate) tokenizer: Arc<dyn Tokenizer>,
}

/// A way to change samples, by name.
pub struct Method {
    /// Name of the method, as typed.
    pub name: &'static str,
    /// Effect and source of the method, in a sentence.
    pub about: &'static str,
    /// Parameters of the method, each with its description.
    pub params: &'static [(&'static str, &'static str)],
    pub(crate) make: fn(&Args<'_>, &Setup) -> Result<Box<dyn Transform>>,
}

/// All methods.
pub static METHODS: &[Method] = &[utk::UTK_80, utk::UTK_30, utk::UTK, cip::CIP, pose::POSE];

/// The transform that a spec such as `utk:share=0.8,order=false` names, for samples of `n_ctx` inputs.
///
/// # Errors
/// A name or a parameter that is not known, a value that makes no sense, a token that is not one token.
pub fn parse(text: &str, n_ctx: usize, tokenizer: Arc<dyn Tokenizer>) -> Result<Box<dyn Transform>> {
    let (method, args) = Args::parse(text)?;
    (method.make)(&args, &Setup { n_ctx, tokenizer })
}

/// The token of a text, or of a number after `#`.
fn token(tokenizer: &dyn Tokenizer, what: &str, text: &str) -> Result<Token> {
    if let Some(id) = text.strip_prefix('#').and_then(|id| id.parse::<usize>().ok()) {
        let n = tokenizer.n_tokens();
        return Token::try_from(id)
            .ok()
            .filter(|_| id < n)
            .ok_or_else(|| invalid(format!("{what} '{text}': expected a token below #{n}, found #{id}")));
    }
    match tokenizer.tokenize(text, true).map_err(|e| invalid(format!("{what} '{text}': {e}")))?[..] {
        [token] => Ok(token),
        ref found => Err(invalid(format!(
            "{what} '{text}': expected one token of the vocabulary, found {}",
            found.len()
        ))),
    }
}
