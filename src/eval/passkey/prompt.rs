//! The landmark-attention passkey prompt: a number hidden in repeated sentences, reproducible from a seed.
//!
//! The five lines and the rule for cutting the garbage are those of epfml/landmark-attention
//! `llama/run_test.py` (Copyright 2023 Amirkeivan Mohtashami, Martin Jaggi; Apache-2.0), which YaRN's
//! `eval/passkey.py` and LongLoRA's `passkey_retrivial.py` repeat word for word.

use std::fmt;
use std::str::FromStr;

use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::eval::{below, invalid};
use crate::model::{Error, Result};

const TASK: &str = "There is an important info hidden inside a lot of irrelevant text. Find it and memorize \
    them. I will quiz you about the important information there.";
/// Repeated with a space between, cut by characters; it is ASCII, so by bytes as well.
const GARBAGE: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
/// The last line, which the answer continues.
pub const QUESTION: &str = "What is the pass key? The pass key is";

/// The place of the key in the filler text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Depth {
    /// Anywhere: `randint(0, n)` of the `n` characters of garbage before it, as in the source.
    Random,
    /// Right behind the task's description (SBA's "near the start").
    Start,
    /// Behind this fraction, 0 to 1, of the garbage.
    At(f64),
}

impl fmt::Display for Depth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Depth::Random => f.write_str("random"),
            Depth::Start => f.write_str("start"),
            Depth::At(x) => write!(f, "{x}"),
        }
    }
}

impl FromStr for Depth {
    type Err = Error;
    fn from_str(s: &str) -> Result<Depth> {
        match s {
            "random" => Ok(Depth::Random),
            "start" => Ok(Depth::Start),
            _ => match s.parse::<f64>() {
                // Adding 0 turns -0 into 0, which prints as users write it.
                Ok(x) if (0.0..=1.0).contains(&x) => Ok(Depth::At(x + 0.0)),
                _ => Err(invalid(format!(
                    "depth: expected random, start or a number from 0 to 1, found {s:?}"
                ))),
            },
        }
    }
}

/// The range that keys are drawn from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRange {
    /// `randint(1, 50000)`: one to five digits, as in the source.
    Landmark,
    /// 10000 to 99999, as in SBA.
    FiveDigit,
}

/// `KeyRange` by name.
pub const KEY_RANGES: &[(&str, KeyRange)] =
    &[("landmark", KeyRange::Landmark), ("five-digit", KeyRange::FiveDigit)];

/// The random choices of one sample, the same however much garbage there will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// The key.
    pub key: u32,
    /// Place of the key in the garbage, as a fraction of 2^64.
    place: u64,
}

impl Draw {
    /// The choices of sample `sample` at a length and depth. Each depends on nothing but these arguments:
    /// runs over other lengths, in other orders, or stopped and repeated, meet the same prompts.
    pub fn new(seed: u64, length: usize, depth: Depth, sample: usize, keys: KeyRange) -> Draw {
        let digest = Sha256::digest(format!("passkey/{seed}/{length}/{depth}/{sample}"));
        let mut rng = ChaCha8Rng::from_seed(digest.into());
        let place = rng.next_u64();
        let (low, high): (u32, u32) = match keys {
            KeyRange::Landmark => (1, 50_000),
            KeyRange::FiveDigit => (10_000, 99_999),
        };
        Draw { key: low + below(rng.next_u64(), u64::from(high - low) + 1) as u32, place }
    }

    /// The longest key, in the middle of the garbage. Prompts are sized with it.
    pub(super) const PROBE: Draw = Draw { key: 50_000, place: 1 << 63 };

    /// The prompt with `n` characters of garbage in all. Both pieces start at the garbage's beginning, as in
    /// the source.
    pub fn prompt(&self, n: usize, depth: Depth) -> Prompt {
        let n_prefix = match depth {
            Depth::Random => below(self.place, n as u64 + 1) as usize,
            Depth::Start => 0,
            Depth::At(x) => ((n as f64 * x) as usize).min(n),
        };
        let (key, prefix, suffix) = (self.key, garbage(n_prefix), garbage(n - n_prefix));
        let information = format!("The pass key is {key}. Remember it. {key} is the pass key.");
        Prompt { text: [TASK, &prefix, &information, &suffix, QUESTION].join("\n"), key, n_prefix }
    }
}

fn garbage(n: usize) -> String {
    GARBAGE.chars().cycle().take(n).collect()
}

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// All five lines; the answer follows after a space.
    pub text: String,
    /// The answer.
    pub key: u32,
    /// Characters of garbage before the key.
    pub n_prefix: usize,
}

/// The first run of ASCII digits of a continuation as a number, the answer YaRN's script reads (there `\d+`).
pub fn first_number(text: &str) -> Option<u64> {
    let digits = &text[text.find(|c: char| c.is_ascii_digit())?..];
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// How much garbage YaRN's script puts in: `n` grows by 128 characters while the prompt has at most `budget`
/// tokens, and the last such `n` is used. Found by doubling and bisection, which is the same `n` wherever
/// more garbage never means fewer tokens. `None` when not even `n = 0` fits.
///
/// # Errors
/// Those of `count`, the tokens of the prompt with `n` characters; a tokenizer to which garbage costs
/// nothing.
pub fn largest_fitting(
    budget: usize,
    count: &mut dyn FnMut(usize) -> Result<usize>,
) -> Result<Option<usize>> {
    /// Characters a token may stand for; real vocabularies have few words this long, and none of them here.
    const MAX_CHARS_PER_TOKEN: usize = 64;
    if count(0)? > budget {
        return Ok(None);
    }
    let (mut fits, mut fails) = (0, 1);
    while count(fails * STEP)? <= budget {
        if fails * STEP > budget.saturating_mul(MAX_CHARS_PER_TOKEN) {
            return Err(invalid(format!(
                "{} characters take at most {budget} tokens: cannot size a prompt",
                fails * STEP
            )));
        }
        (fits, fails) = (fails, fails * 2);
    }
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        if count(middle * STEP)? <= budget {
            fits = middle;
        } else {
            fails = middle;
        }
    }
    Ok(Some(fits * STEP))
}

/// Characters by which YaRN's script grows the garbage (`--length-step`).
pub(super) const STEP: usize = 128;
