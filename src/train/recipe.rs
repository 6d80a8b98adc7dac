//! Training recipes of the papers, under their names.

use super::optim::{AdamW, Decay, Schedule};

/// A recipe: what a paper or its code states, and nothing it does not.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// Its name.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// The highest learning rate.
    pub lr: f64,
    /// The rate at the end.
    pub lr_min: f64,
    /// Steps of warm-up.
    pub warmup: u64,
    /// What follows.
    pub decay: Decay,
    /// Steps, where the source says.
    pub steps: Option<u64>,
    /// Tokens in all, where the source counts those instead.
    pub tokens: Option<u64>,
    /// Sequences of a step.
    pub batch: Option<usize>,
    /// Tokens of a step, where the source counts those instead.
    pub batch_tokens: Option<u64>,
    /// Decay of the moving average of weights (0: none).
    pub ema: f64,
    /// Where the figures are from, and what they leave open.
    pub source: &'static str,
}

/// All recipes.
pub static RECIPES: &[Recipe] = &[
    Recipe {
        name: "sba",
        about: "SBA-RoPE: 1,250 steps of 8 sequences",
        lr: 2e-5,
        lr_min: 0.0,
        warmup: 60,
        decay: Decay::Constant,
        steps: Some(1250),
        tokens: None,
        batch: Some(8),
        batch_tokens: None,
        ema: 0.0,
        source: "paper, section 3.1; it names a linear warm-up and no decay after it",
    },
    Recipe {
        name: "lceg",
        about: "the controlled study: 1B tokens, 32 sequences a step",
        lr: 2e-5,
        lr_min: 0.0,
        warmup: 20,
        decay: Decay::Constant,
        steps: None,
        tokens: Some(1_000_000_000),
        batch: Some(32),
        batch_tokens: None,
        ema: 0.999,
        source: "paper, and the schedule of its fine-tuning script; the paper keeps an average of the weights with a constant \
                 decay that it does not state (0.999 here), its script keeps none, and takes 256 sequences a step",
    },
    Recipe {
        name: "harpe",
        about: "HARPE: one stage of 6B tokens",
        lr: 2e-5,
        lr_min: 0.0,
        warmup: 0,
        decay: Decay::Constant,
        steps: None,
        tokens: Some(6_000_000_000),
        batch: None,
        batch_tokens: Some(4_000_000),
        ema: 0.0,
        source: "paper, implementation details; it refers to Fu et al. 2024 for the rest, who take 4M tokens a step and a \
                 constant rate",
    },
    Recipe {
        name: "utk",
        about: "Untie the Knots: 20B tokens, 4M a step, cosine",
        lr: 1e-5,
        lr_min: 1e-6,
        warmup: 200,
        decay: Decay::Cosine,
        steps: None,
        tokens: Some(20_000_000_000),
        batch: None,
        batch_tokens: Some(4_000_000),
        ema: 0.0,
        source: "paper, section 4.1",
    },
];

impl Recipe {
    /// The recipe of this name.
    pub fn find(name: &str) -> Option<&'static Recipe> {
        RECIPES.iter().find(|r| r.name == name)
    }

    /// Sequences of a step at a context.
    pub fn batch(&self, n_ctx: usize) -> usize {
        let by_tokens = self.batch_tokens.map(|n| (n / n_ctx.max(1) as u64).max(1) as usize);
        self.batch.or(by_tokens).unwrap_or(1)
    }

    /// Steps at a context and batch.
    pub fn steps(&self, n_ctx: usize, batch: usize) -> u64 {
        let per_step = (n_ctx.max(1) as u64).saturating_mul(batch.max(1) as u64);
        let by_tokens = self.tokens.map(|n| n.div_ceil(per_step));
        self.steps.or(by_tokens).unwrap_or(1)
    }

    /// The optimiser all of them state.
    pub fn adamw(&self) -> AdamW {
        AdamW::default()
    }

    /// The learning rate over so many steps.
    pub fn schedule(&self, steps: u64) -> Schedule {
        Schedule {
            lr: self.lr,
            lr_min: self.lr_min,
            warmup: self.warmup.min(steps),
            steps,
            decay: self.decay,
        }
    }
}
