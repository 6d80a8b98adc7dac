//! How many tokens of prompts a step takes: as many as fit in the time aimed at.

use std::time::Duration;

/// Fewer are never taken: a step's constant time would be most of it.
const FLOOR: usize = 32;

#[derive(Debug)]
pub(super) struct Budget {
    fixed: Option<usize>,
    /// Tokens of a batch.
    most: usize,
    /// Tokens of a micro-batch: more at once are not read faster, and new requests would wait for them.
    whole: usize,
    tokens: usize,
}

impl Budget {
    pub(super) fn new(fixed: Option<usize>, most: usize, whole: usize) -> Budget {
        Budget { fixed, most, whole, tokens: FLOOR }
    }

    /// Tokens of prompts for the next step. `decoding`: whether others decode in it; `prompts`: what is left of each prompt.
    pub(super) fn next(&self, decoding: bool, prompts: &[usize]) -> usize {
        let short = self.tokens.clamp(FLOOR, self.most.max(FLOOR));
        // One that a short step reads to its end does not wait for more of the others.
        let ends = prompts.len() > 1 && prompts.iter().any(|&n| n <= short);
        let learned = match (decoding, ends) {
            (true, _) => short,
            (false, true) => short.min(self.whole),
            (false, false) => self.whole,
        };
        self.fixed.unwrap_or(learned).max(1)
    }

    /// Learns from a step of so many tokens of prompts that took some time, where `aim` would have been right.
    pub(super) fn learn(&mut self, n_prefill: usize, took: Duration, aim: Duration) {
        let right = n_prefill as f64 * aim.as_secs_f64() / took.as_secs_f64().max(1e-9);
        let now = self.tokens as f64;
        // A step of few tokens says little about one of many.
        if n_prefill > 0 && (n_prefill >= self.tokens / 2 || right < n_prefill as f64) {
            let next = right.min(now * 2.0).max(now / 2.0);
            self.tokens = (next as usize).clamp(FLOOR, self.most.max(FLOOR));
        }
    }
}
