//! A sample of training data.

use ropewalk_core::tokenizer::Token;
use serde::Serialize;

use crate::error::{invalid, Result};

/// The tokens of one forward and backward pass.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// One token more than inputs: the inputs are all but the last, the target of input `i` is token `i + 1`.
    /// There are `n_ctx` inputs, or fewer where a sample is one document or one record.
    pub tokens: Vec<Token>,
    /// Positions in `tokens` at which a document starts, ascending; attention that keeps documents apart
    /// starts again there (`cu_seqlens` without its first and last entry). A sample that begins inside a
    /// document has no 0 here. The last possible one, the number of inputs, is a document of which the sample
    /// holds only the first token, as a target. Empty where a transform has taken documents apart.
    pub segment_starts: Vec<u32>,
    /// Weight of each target in the loss; 1 unless the data or a transform sets another.
    pub weights: Vec<f32>,
    /// Position of each input that it is rotated by, ascending; empty for 0, 1, 2 and so on. Attention stays
    /// causal by the order of tokens.
    pub positions: Vec<u32>,
    /// Where the tokens are from: spans that follow each other from the first token to the last.
    pub spans: Vec<Span>,
}

/// Tokens in a row that are from one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first token's position in the sample; it ends where the next span starts.
    pub start: u32,
    /// The kind of the tokens.
    pub kind: SpanKind,
    /// Number of the document within the sample before any transform; for tokens that a transform put in, of
    /// the document they belong to.
    pub document: u32,
    /// Position of the first token in the sample before any transform; 0 for tokens that a transform put in.
    pub from: u32,
    /// True if the last token ends its document.
    pub ends: bool,
}

/// The kind of the tokens of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SpanKind {
    /// Text of a document.
    Text,
    /// A token at a side of a cut, and the number of a chunk.
    Knot,
    /// A mark around a label.
    Mark,
    /// A label of a chunk.
    Label,
}

impl std::fmt::Display for SpanKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

impl Sample {
    /// A sample in which every target has weight 1; documents start where `segment_starts` says.
    pub fn new(tokens: Vec<Token>, segment_starts: Vec<u32>) -> Self {
        let weights = vec![1.0; tokens.len().saturating_sub(1)];
        let n = tokens.len() as u32;
        let inner = segment_starts.iter().copied().filter(|&s| s > 0 && s < n);
        let starts: Vec<u32> = std::iter::once(0).chain(inner).take(tokens.len()).collect();
        let spans = starts.iter().enumerate().map(|(i, &start)| Span {
            start,
            kind: SpanKind::Text,
            document: i as u32,
            from: start,
            ends: i + 1 < starts.len(),
        });
        let spans = spans.collect();
        Sample { tokens, segment_starts, weights, positions: Vec::new(), spans }
    }

    /// The token each input is to predict: all tokens but the first.
    pub fn targets(&self) -> &[Token] {
        self.tokens.get(1..).unwrap_or_default()
    }

    /// All tokens but the last.
    pub fn inputs(&self) -> &[Token] {
        self.tokens.split_last().map_or(&[], |(_, inputs)| inputs)
    }

    /// The spans, each with the position after its last token.
    pub fn ranges(&self) -> impl Iterator<Item = (Span, std::ops::Range<usize>)> + '_ {
        let ends = self.spans.iter().skip(1).map(|s| s.start as usize).chain([self.tokens.len()]);
        self.spans.iter().zip(ends).map(|(span, end)| (*span, span.start as usize..end))
    }

    /// Returns true if the loss of predicting this token counts. The first token is not a target.
    pub fn is_trained(&self, token: usize) -> bool {
        token.checked_sub(1).is_none_or(|input| self.weights[input] > 0.0)
    }

    /// Takes the loss of no input that ends a document: Megatron's `eod_mask_loss`. What follows it is of
    /// another document, and a guess.
    pub(crate) fn mask_ends(&mut self) {
        let ends: Vec<usize> = self.ranges().filter(|(s, _)| s.ends).map(|(_, range)| range.end).collect();
        for end in ends {
            // The last token of a sample is no input.
            if let Some(weight) = end.checked_sub(1).and_then(|i| self.weights.get_mut(i)) {
                *weight = 0.0;
            }
        }
    }

    /// Checks what a trainer relies on: lengths, tokens below `n_vocab`, ascending starts and positions, weights
    /// from 0 on, spans that are in order.
    pub(crate) fn check(&self, n_ctx: usize, n_vocab: usize) -> Result<()> {
        let n = self.tokens.len();
        let lengths = (2..=n_ctx + 1).contains(&n) && self.weights.len() == n - 1;
        let known = self.tokens.iter().all(|&t| usize::try_from(t).is_ok_and(|t| t < n_vocab));
        let ascending = |list: &[u32]| list.windows(2).all(|w| w[0] < w[1]);
        let inside = self.segment_starts.last().is_none_or(|&last| (last as usize) < n);
        let weighed = self.weights.iter().all(|w| w.is_finite() && *w >= 0.0);
        let placed = self.positions.is_empty() || self.positions.len() == n - 1;
        let ordered = ascending(&self.segment_starts) && ascending(&self.positions);
        let spans = self.spans.first().is_some_and(|s| s.start == 0)
            && self.spans.windows(2).all(|w| w[0].start < w[1].start)
            && self.spans.last().is_some_and(|s| (s.start as usize) < n);
        if lengths && known && ordered && inside && weighed && placed && spans {
            return Ok(());
        }
        Err(invalid(format!(
            "a transform made a sample of {n} tokens and {} weights that does not do for context {n_ctx}",
            self.weights.len()
        )))
    }
}
