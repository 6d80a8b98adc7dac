//! LongCE (Fang et al. 2024, "What is wrong with perplexity for long-context language modeling?"): weights each token
//! by how much the long context improves its likelihood.

use ropewalk_core::settings::{self, Within};

use super::{Sequence, Trainer};
use crate::model::{Error, Result};

ropewalk_core::setters! {
    /// Settings of LongCE. The weight of a token is how many times likelier it is after all tokens before it than
    /// after the last few, at most `gamma`; tokens without more context than that have weight 1. No gradient goes
    /// through the weights. (`loss_weight` of the released `finetune.py`.)
    ///
    /// Each sample is run forwards once more as a whole and once more in windows of `short + stride` tokens. The first
    /// window is the beginning of the sample, so that weights differ from 1 only in samples of more tokens than that.
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct LongCe {
        /// Fewest tokens of the short context; 0: an eighth of the context, at most 4,096 ([`LongCe::at`]).
        pub short: usize,
        /// Tokens that share a short context; 0: a quarter of `short`, at most 1,024.
        pub stride: usize,
        /// Largest weight.
        pub gamma: f64,
    }
}

impl Default for LongCe {
    /// By the context: at 32,768 tokens and more the 4,096 tokens and the stride of 1,024 of the released code. Weights up to 5.
    fn default() -> Self {
        LongCe { short: 0, stride: 0, gamma: 5.0 }
    }
}

impl std::str::FromStr for LongCe {
    type Err = Error;

    /// `longce`, or `longce:short=4096,stride=1024,gamma=5`; what is left out goes by the context.
    fn from_str(text: &str) -> Result<Self> {
        let (name, rest) = settings::named(text);
        if name != "longce" {
            return Err(Error::argument(format!("loss {text}"), "longce", format_args!("'{name}'")));
        }
        let mut out = LongCe::default();
        let tokens = 1..=u32::MAX as usize;
        let short = &mut Within(&mut out.short, tokens.clone());
        let stride = &mut Within(&mut out.stride, tokens);
        let gamma = &mut Within(&mut out.gamma, 1.0..=1e6);
        settings::read("loss longce", rest, &mut [("short", short), ("stride", stride), ("gamma", gamma)])
            .map_err(Error::Invalid)?;
        Ok(out)
    }
}

impl std::fmt::Display for LongCe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("longce:")?;
        for (key, n) in [("short", self.short), ("stride", self.stride)].iter().filter(|(_, n)| *n > 0) {
            write!(f, "{key}={n},")?;
        }
        write!(f, "gamma={}", self.gamma)
    }
}

impl LongCe {
    /// The settings at a context of `n_ctx` tokens, with defaults for those that were not given.
    #[must_use]
    pub fn at(self, n_ctx: usize) -> LongCe {
        let or = |given: usize, own: usize| if given > 0 { given } else { own.max(1) };
        let short = or(self.short, (n_ctx / 8).min(4096));
        LongCe { short, stride: or(self.stride, (short / 4).min(1024)), ..self }
    }

    /// Refuses settings under which no token of a context is weighed. They are those of [`LongCe::at`].
    pub(super) fn check(self, n_ctx: usize) -> Result<()> {
        let LongCe { short, stride, .. } = self;
        if short.saturating_add(stride) <= n_ctx {
            return Ok(());
        }
        let expected = format!("short + stride of at most the context, {n_ctx} tokens");
        let found = format!("{short} and {stride}: all weights would be 1");
        Err(Error::argument("longce", expected, found))
    }

    /// The weight of each target of a sequence. Weights that the sequence has already are not in it.
    pub(super) fn weights(&self, trainer: &mut Trainer, sequence: Sequence<'_>) -> Result<Vec<f32>> {
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

#[derive(Debug, Default)]
pub(super) struct Weighed {
    samples: u64,
    /// Samples whose weights are all 1.
    alike: u64,
    /// Both of these before the step.
    before: (u64, u64),
    said: bool,
}

impl Weighed {
    /// Counts a sample with these weights.
    pub(super) fn count(&mut self, weights: &[f32]) {
        self.samples += 1;
        // The same context twice gives the same loss, but for rounding.
        self.alike += u64::from(weights.iter().all(|w| (w - 1.0).abs() < 1e-4));
    }

    /// A sentence at the first step whose weights are all 1, and at the last one on how many samples had no other.
    pub(super) fn note(&mut self, longce: LongCe, step: u64, n_steps: u64) -> Option<String> {
        let (samples, alike) = (self.samples - self.before.0, self.alike - self.before.1);
        self.before = (self.samples, self.alike);
        if step == n_steps && self.alike > 0 {
            let Weighed { samples, alike, .. } = self;
            return Some(format!(
                "in {alike} of {samples} sequences all weights of LongCE are 1, as in plain training"
            ));
        }
        if self.said || samples == 0 || alike < samples {
            return None;
        }
        self.said = true;
        let least = longce.short.saturating_add(longce.stride);
        Some(format!(
            "step {step}: all weights of LongCE are 1, as in plain training: none of its documents has more \
             than {least} tokens in a sequence, or the preceding text makes no difference"
        ))
    }
}
