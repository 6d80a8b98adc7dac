//! LongCE (Fang et al. 2024, "What is wrong with perplexity for long-context language modeling?"): tokens that
//! the long context makes likelier count more.

use super::{Sequence, Trainer};
use crate::model::{Error, Result};

/// Settings of LongCE. The weight of a token is how many times likelier it is after all tokens before it than
/// after the last few, at most `gamma`; tokens without more context than that have weight 1. No gradient goes
/// through the weights. (`loss_weight` of the released `finetune.py`.)
///
/// Each sample is run forwards once more as a whole and once more in windows of `short + stride` tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LongCe {
    /// Fewest tokens of the short context.
    pub short: usize,
    /// Tokens that share a short context.
    pub stride: usize,
    /// Largest weight.
    pub gamma: f64,
}

impl Default for LongCe {
    /// 4,096 tokens, a stride of 1,024, weights up to 5.
    fn default() -> Self {
        LongCe { short: 4096, stride: 1024, gamma: 5.0 }
    }
}

impl std::str::FromStr for LongCe {
    type Err = Error;

    /// `longce`, or `longce:short=4096,stride=1024,gamma=5`.
    fn from_str(text: &str) -> Result<Self> {
        let bad = |what: String| Error::Invalid(format!("loss {text}: {what}"));
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        if name != "longce" {
            return Err(bad(format!("expected longce, found '{name}'")));
        }
        let mut out = LongCe::default();
        for pair in rest.into_iter().flat_map(|r| r.split(',')) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let count = value.parse::<usize>().ok().filter(|n| (1..=u32::MAX as usize).contains(n));
            match (key, count, value.parse::<f64>().ok().filter(|g| (1.0..=1e6).contains(g))) {
                ("short", Some(n), _) => out.short = n,
                ("stride", Some(n), _) => out.stride = n,
                ("gamma", _, Some(gamma)) => out.gamma = gamma,
                _ => {
                    return Err(bad(format!(
                        "expected short=TOKENS, stride=TOKENS or gamma=1.., found '{pair}'"
                    )))
                }
            }
        }
        Ok(out)
    }
}

impl LongCe {
    /// The weight of each target of a sequence. Weights that the sequence has already are not in it.
    pub(super) fn weights(&self, trainer: &mut Trainer<'_>, sequence: Sequence<'_>) -> Result<Vec<f32>> {
        let n = sequence.tokens.len();
        let long = trainer.losses(Sequence { weights: &[], ..sequence })?;
        let mut weights = vec![1.0; long.len()];
        for start in (0..n.saturating_sub(self.short)).step_by(self.stride) {
            let end = n.min(start + self.short + self.stride);
            let starts =
                sequence.segment_starts.iter().map(|&s| s as usize).filter(|s| (start..end).contains(s));
            let segment_starts: Vec<u32> = starts.map(|s| (s - start) as u32).collect();
            let tokens = &sequence.tokens[start..end];
            let short = Sequence { segment_starts: &segment_starts, ..Sequence::new(tokens) };
            let short = trainer.losses(short)?;
            // Loss i of a sequence is that of its token i + 1.
            for (i, short) in short.iter().enumerate().skip(self.short - 1) {
                let target = start + i;
                weights[target] = (short - long[target]).exp().min(self.gamma) as f32;
            }
        }
        Ok(weights)
    }
}
