//! Tokens to decode.

use super::SeqId;
use crate::Token;

/// Tokens to decode: each with its sequence, at that sequence's next position.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(super) items: Vec<Item>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Item {
    pub(super) token: Token,
    pub(super) seq: SeqId,
    pub(super) logits: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Batch::default()
    }

    /// Appends a token to a sequence; `logits` requests its row of logits.
    pub fn push(&mut self, token: Token, seq: SeqId, logits: bool) {
        self.items.push(Item { token, seq, logits });
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns true if the batch has no tokens.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
}
