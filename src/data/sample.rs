//! A sample of training data, and transforms of samples.

use rand_chacha::ChaCha8Rng;

use super::invalid;
use crate::model::Result;
use crate::Token;

/// The tokens of one forward and backward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// `n_ctx + 1` tokens: the inputs are all but the last, the target of input `i` is token `i + 1`.
    pub tokens: Vec<Token>,
    /// Positions in `tokens` at which a document starts, ascending; attention that keeps documents apart
    /// starts anew there (`cu_seqlens` without its first and last entry). A sample that begins inside a
    /// document has no 0 here. The last possible one, `n_ctx`, is a document of which the sample holds only
    /// the first token, as a target.
    pub segment_starts: Vec<u32>,
    /// Weight of each of the `n_ctx` targets in the loss; 1 unless a [`Transform`] sets another.
    pub weights: Vec<f32>,
}

impl Sample {
    /// A sample in which every target has weight 1.
    pub fn new(tokens: Vec<Token>, segment_starts: Vec<u32>) -> Self {
        let weights = vec![1.0; tokens.len().saturating_sub(1)];
        Sample { tokens, segment_starts, weights }
    }

    /// The token each input is to predict: all tokens but the first.
    pub fn targets(&self) -> &[Token] {
        self.tokens.get(1..).unwrap_or_default()
    }

    /// All tokens but the last.
    pub fn inputs(&self) -> &[Token] {
        self.tokens.split_last().map_or(&[], |(_, inputs)| inputs)
    }

    /// Checks what a trainer relies on: lengths, tokens below `n_vocab`, ascending starts, weights from 0 on.
    pub(super) fn check(&self, n_ctx: usize, n_vocab: usize) -> Result<()> {
        let lengths = self.tokens.len() == n_ctx + 1 && self.weights.len() == n_ctx;
        let known = self.tokens.iter().all(|&t| usize::try_from(t).is_ok_and(|t| t < n_vocab));
        let ordered = self.segment_starts.windows(2).all(|w| w[0] < w[1]);
        let inside = self.segment_starts.last().is_none_or(|&last| last as usize <= n_ctx);
        let weighed = self.weights.iter().all(|w| w.is_finite() && *w >= 0.0);
        if lengths && known && ordered && inside && weighed {
            return Ok(());
        }
        Err(invalid(format!(
            "a transform made a sample of {} tokens and {} weights that does not do for context {n_ctx}",
            self.tokens.len(),
            self.weights.len()
        )))
    }
}

/// A change to training samples, such as Untie the Knots. It works on packed samples and keeps their length.
pub trait Transform: Send + Sync + std::fmt::Debug {
    /// The changed sample. `rng` is seeded by the epoch and the sample's index, so that a sample is the same
    /// each time it is asked for.
    fn apply(&self, sample: Sample, rng: &mut ChaCha8Rng) -> Sample;
}
