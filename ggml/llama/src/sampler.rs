//! Sampling of the next token, through libllama's sampler chain.
//!
//! The order is llama.cpp's default: penalties, DRY, top-k, typical, top-p, min-p, temperature, and a draw.

mod steps;

use std::ffi::c_char;

use crate::{sys, vocab::Vocab, Error, Result, Token};
use ggml::logging;
use steps::Steps;

/// Logits above this are no model's output; below its negative they count as minus infinity. It keeps
/// libllama's bucket sort, which turns logits into an i32, within range.
const MAX_LOGIT: f32 = 1e6;
/// Below the largest logit by more than this a probability is 0 in f32, on which libllama's typical step
/// divides.
const UNDERFLOW: f32 = 80.0;
/// Most tokens that a penalty may look at: libllama allocates memory for all of them at once.
const MAX_LAST_N: i32 = 1 << 22;
/// Sequence breakers of DRY, across which it sees no repetition: llama.cpp's defaults.
const DRY_BREAKERS: [&std::ffi::CStr; 4] = [c"\n", c":", c"\"", c"*"];

ropewalk_core::setters! {
    /// The settings of a sampler chain. A neutral value switches its step off.
    #[derive(Debug, Clone, PartialEq)]
    pub struct SamplerParams {
        /// Temperature, at least 1e-4. With 0 or less the most likely token is taken: penalties and DRY still
        /// apply, the steps that only remove unlikely tokens do not.
        pub temp: f32,
        /// Number of most likely tokens kept; 0 keeps all.
        pub top_k: i32,
        /// The most likely tokens are kept until their probabilities sum to this; 1 keeps all.
        pub top_p: f32,
        /// Tokens are kept whose probability is at least this times the largest; 0 keeps all.
        pub min_p: f32,
        /// Mass of locally typical tokens kept (Meister et al. 2022); 1 keeps all.
        pub typical_p: f32,
        /// Number of last tokens that penalties look at; 0 is off, -1 is the context.
        pub penalty_last_n: i32,
        /// Divisor of the positive logits (factor on the negative ones) of repeated tokens, 0.01 to 10; 1 is off.
        pub penalty_repeat: f32,
        /// Taken from a token's logit for each time it occurred, -10 to 10; 0 is off.
        pub penalty_freq: f32,
        /// Taken from a token's logit if it occurred at all, -10 to 10; 0 is off.
        pub penalty_present: f32,
        /// Strength of DRY, the penalty on repeated sequences, up to 100; 0 is off.
        pub dry_multiplier: f32,
        /// Base of the exponential by which DRY grows with the length of a repeated sequence, 1 to 100.
        pub dry_base: f32,
        /// Length in tokens up to which DRY does not penalize a repeated sequence.
        pub dry_allowed_length: i32,
        /// Number of last tokens that DRY looks at; 0 is off, -1 is the context.
        pub dry_penalty_last_n: i32,
        /// Seed of every random choice. The largest u32, which libllama takes as "from the clock", means the one
        /// below it.
        pub seed: u32,
    }
}

impl SamplerParams {
    /// Settings that always take the most likely token.
    pub fn greedy() -> Self {
        SamplerParams {
            temp: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            penalty_last_n: 0,
            penalty_repeat: 1.0,
            penalty_freq: 0.0,
            penalty_present: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            seed: 0,
        }
    }
}

/// A sampler chain with its state. `Send`.
#[derive(Debug)]
pub struct Sampler {
    /// Steps that remember tokens: penalties and DRY.
    memory: Option<Steps>,
    /// Steps that choose; none when greedy.
    choice: Option<Steps>,
    typical: bool,
    /// Tokens of the vocabulary; 0 when it does not say.
    n_vocab: usize,
    candidates: Vec<sys::llama_token_data>,
}

// SAFETY: libllama's samplers hold plain memory of their own (DRY reads the vocabulary only while it is
// made); all use of them takes `&mut self`.
unsafe impl Send for Sampler {}

impl Sampler {
    /// Builds the chain; out-of-range values are errors that name the parameter. `n_ctx` is how far back `-1` looks.
    pub fn new(params: &SamplerParams, vocab: &Vocab, n_ctx: usize) -> Result<Sampler> {
        logging::install();
        params.check()?;
        let greedy = params.temp <= 0.0;
        Ok(Sampler {
            memory: params.memory(vocab, n_ctx)?,
            choice: if greedy { None } else { Some(params.choice()?) },
            typical: !greedy && params.typical_p < 1.0,
            n_vocab: vocab.n_tokens(),
            candidates: Vec::new(),
        })
    }

    /// Picks a token from one row of logits, and remembers it. Logits past the vocabulary (padded output
    /// matrices) are ignored. Errors: fewer logits than tokens, NaN or infinite ones, none above minus
    /// infinity.
    pub fn sample(&mut self, logits: &[f32]) -> Result<Token> {
        if logits.len() < self.n_vocab {
            let (found, n_vocab) = (logits.len(), self.n_vocab);
            return Err(Error::Argument(format!("{found} logits for a vocabulary of {n_vocab} tokens")));
        }
        let logits = if self.n_vocab > 0 { &logits[..self.n_vocab] } else { logits };
        let token =
            if self.memory.is_none() && self.choice.is_none() { argmax(logits)? } else { self.pick(logits)? };
        self.accept(token);
        Ok(token)
    }

    fn pick(&mut self, logits: &[f32]) -> Result<Token> {
        let candidates = &mut self.candidates;
        candidates.clear();
        candidates.reserve(logits.len());
        for (id, &logit) in logits.iter().enumerate() {
            check_logit(id, logit)?;
            if logit >= -MAX_LOGIT {
                candidates.push(sys::llama_token_data { id: id as Token, logit, p: 0.0 });
            }
        }
        if candidates.is_empty() {
            return Err(no_logits());
        }
        if let Some(memory) = &mut self.memory {
            memory.apply(candidates);
        }
        let Some(choice) = &mut self.choice else {
            let best = candidates.iter().reduce(|a, b| if b.logit > a.logit { b } else { a });
            return best.map(|c| c.id).ok_or_else(no_logits);
        };
        if self.memory.is_some() || self.typical {
            let max = candidates.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit));
            // DRY may have pushed logits to minus infinity, and all of them if the vocabulary is tiny.
            if max < -MAX_LOGIT * 100.0 {
                return Err(no_logits());
            }
            let floor = if self.typical { max - UNDERFLOW } else { -MAX_LOGIT * 100.0 };
            candidates.retain(|c| c.logit >= floor);
        }
        let drawn = choice.apply(candidates).map(|i| candidates[i].id);
        drawn.ok_or_else(|| Error::Backend("libllama: the samplers left no token".into()))
    }

    /// Adds a token that the chain did not pick (one of the prompt) to the history that penalties look at.
    pub fn accept(&mut self, token: Token) {
        if let Some(memory) = &mut self.memory {
            // SAFETY: the chain is valid; penalties and DRY store the number and never index by it.
            unsafe { sys::llama_sampler_accept(memory.0.as_ptr(), token) };
        }
    }
}

impl SamplerParams {
    /// An error that names the first value out of its range.
    pub fn check(&self) -> Result<()> {
        fn within(name: &str, x: f32, min: f32, max: f32) -> Result<()> {
            if (min..=max).contains(&x) {
                return Ok(());
            }
            Err(Error::Argument(format!("{name}: expected {min} to {max}, found {x}")))
        }
        if !self.temp.is_finite() || (self.temp > 0.0 && self.temp < 1e-4) {
            let what = format!("temp: expected 0 or less (greedy) or at least 0.0001, found {}", self.temp);
            return Err(Error::Argument(what));
        }
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("typical_p", self.typical_p, 0.0, 1.0)?;
        within("penalty_repeat", self.penalty_repeat, 0.01, 10.0)?;
        within("penalty_freq", self.penalty_freq, -10.0, 10.0)?;
        within("penalty_present", self.penalty_present, -10.0, 10.0)?;
        within("dry_multiplier", self.dry_multiplier, 0.0, 100.0)?;
        within("dry_base", self.dry_base, 1.0, 100.0)?;
        let whole = [
            ("top_k", self.top_k, 0, i32::MAX),
            ("penalty_last_n", self.penalty_last_n, -1, MAX_LAST_N),
            ("dry_penalty_last_n", self.dry_penalty_last_n, -1, MAX_LAST_N),
            ("dry_allowed_length", self.dry_allowed_length, 0, MAX_LAST_N),
        ];
        match whole.iter().find(|(_, x, min, max)| !(min..=max).contains(&x)) {
            Some((name, x, min, max)) => {
                Err(Error::Argument(format!("{name}: expected {min} to {max}, found {x}")))
            }
            None => Ok(()),
        }
    }

    /// Penalties and DRY; `None` when both are off.
    fn memory(&self, vocab: &Vocab, n_ctx: usize) -> Result<Option<Steps>> {
        let look_back = |n: i32| match n {
            -1 => i32::try_from(n_ctx).unwrap_or(MAX_LAST_N).min(MAX_LAST_N),
            n => n,
        };
        let (last_n, dry_last_n) = (look_back(self.penalty_last_n), look_back(self.dry_penalty_last_n));
        let penalties = self.penalty_repeat != 1.0 || self.penalty_freq != 0.0 || self.penalty_present != 0.0;
        let penalties = penalties && last_n > 0;
        let dry = self.dry_multiplier > 0.0 && dry_last_n > 0;
        if !penalties && !dry {
            return Ok(None);
        }
        let mut steps = Vec::new();
        if penalties {
            let n_vocab = vocab.n_tokens() as i32;
            let (repeat, freq, present) = (self.penalty_repeat, self.penalty_freq, self.penalty_present);
            // SAFETY: plain numbers, checked; `last_n` bounds what is allocated.
            let step = unsafe { sys::llama_sampler_init_penalties(n_vocab, last_n, repeat, freq, present) };
            steps.push(Steps::new(step));
        }
        if dry {
            let vocab = vocab.handle()?;
            let mut breakers = DRY_BREAKERS.map(|b| b.as_ptr() as *const c_char);
            // SAFETY: the vocabulary is valid for the call, which does not keep it; the breakers are
            // NUL-terminated and copied. Each is one byte, so libllama finds it within tokens and never
            // tokenizes a rest of it.
            let step = unsafe {
                sys::llama_sampler_init_dry(
                    vocab.raw(),
                    self.dry_multiplier,
                    self.dry_base,
                    self.dry_allowed_length,
                    dry_last_n,
                    breakers.as_mut_ptr(),
                    breakers.len(),
                )
            };
            steps.push(Steps::new(step));
        }
        Steps::chain(steps).map(Some)
    }

    fn choice(&self) -> Result<Steps> {
        // LLAMA_DEFAULT_SEED, 0xFFFFFFFF, asks libllama for a seed from the clock.
        let seed = self.seed.min(u32::MAX - 1);
        // Neutral steps are left out; libllama would walk past them as empty ones.
        // SAFETY: plain numbers, checked.
        let steps = unsafe {
            [
                (self.top_k > 0).then(|| sys::llama_sampler_init_top_k(self.top_k)),
                (self.typical_p < 1.0).then(|| sys::llama_sampler_init_typical(self.typical_p, 1)),
                (self.top_p < 1.0).then(|| sys::llama_sampler_init_top_p(self.top_p, 1)),
                (self.min_p > 0.0).then(|| sys::llama_sampler_init_min_p(self.min_p, 1)),
                (self.temp != 1.0).then(|| sys::llama_sampler_init_temp(self.temp)),
                Some(sys::llama_sampler_init_dist(seed)),
            ]
        };
        Steps::chain(steps.map(|step| step.map(Steps::new)).into_iter().flatten())
    }
}

fn check_logit(id: usize, logit: f32) -> Result<()> {
    // The negation catches NaN.
    #[allow(clippy::neg_cmp_op_on_partial_ord)]
    if !(logit <= MAX_LOGIT) {
        return Err(Error::Argument(format!("the logit of token {id} is {logit}")));
    }
    Ok(())
}

fn no_logits() -> Error {
    Error::Argument("no token has a logit above minus infinity".into())
}

/// Index of the largest logit, the first of equal ones.
fn argmax(logits: &[f32]) -> Result<Token> {
    let (mut best, mut max) = (None, -MAX_LOGIT);
    for (id, &logit) in logits.iter().enumerate() {
        check_logit(id, logit)?;
        if logit > max || (best.is_none() && logit == max) {
            (best, max) = (Some(id as Token), logit);
        }
    }
    best.ok_or_else(no_logits)
}
