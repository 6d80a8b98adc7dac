//! Scores of the tokens of a text. They stay with it, so that a later request is told them without reading the text again.

use std::sync::Arc;

use crate::session::Scored;
use crate::Token;

/// Scores that texts with the same beginning share as one.
const BLOCK: usize = 64;

/// The score of one token: 12 bytes, where a cell of a cache takes kilobytes.
#[derive(Debug, Clone, Copy)]
struct Score {
    logprob: f32,
    best: Token,
    best_logprob: f32,
}

/// The scores of a text's tokens, from the second one on.
#[derive(Debug, Clone, Default)]
pub(super) struct Scores {
    blocks: Vec<Arc<[Score]>>,
    rest: Vec<Score>,
}

impl Scores {
    pub(super) fn len(&self) -> usize {
        self.blocks.len() * BLOCK + self.rest.len()
    }

    /// Adds the score of the next token, which has the most likely one with it.
    pub(super) fn push(&mut self, scored: &Scored) {
        let own = (scored.token, scored.logprob);
        let (best, best_logprob) = scored.top.first().copied().unwrap_or(own);
        self.rest.push(Score { logprob: scored.logprob, best, best_logprob });
        if self.rest.len() == BLOCK {
            self.blocks.push(Arc::from(std::mem::take(&mut self.rest)));
        }
    }

    /// Forgets all but the first `n`.
    pub(super) fn truncate(&mut self, n: usize) {
        let (blocks, rest) = (n / BLOCK, n % BLOCK);
        if blocks < self.blocks.len() {
            self.rest = self.blocks[blocks][..rest].to_vec();
            self.blocks.truncate(blocks);
        } else if blocks == self.blocks.len() {
            self.rest.truncate(rest);
        }
    }

    /// The scores from number `from` on, which are of `tokens`, with at most one token each.
    pub(super) fn of(&self, tokens: &[Token], from: usize, n_top: usize) -> Vec<Scored> {
        let scores = self.blocks.iter().flat_map(|block| block.iter()).chain(&self.rest).skip(from);
        let scored = |(score, &token): (&Score, &Token)| Scored {
            token,
            logprob: score.logprob,
            top: if n_top == 0 { Vec::new() } else { vec![(score.best, score.best_logprob)] },
        };
        scores.zip(tokens).map(scored).collect()
    }

    /// Bytes of the scores. Those that several texts share count as parts, so that the sum of all is what they take.
    pub(super) fn n_bytes(&self) -> usize {
        let of_block = |block: &Arc<[Score]>| size_of_val(&block[..]) / Arc::strong_count(block);
        self.blocks.iter().map(of_block).sum::<usize>() + size_of_val(&self.rest[..])
    }
}
