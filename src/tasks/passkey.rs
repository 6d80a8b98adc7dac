//! Passkey retrieval: a number hidden in repeated sentences, asked for at the end.
//!
//! The five lines of the prompt and the rule for cutting the filler text are those of epfml/landmark-attention
//! `llama/run_test.py` (Copyright 2023 Amirkeivan Mohtashami, Martin Jaggi; Apache-2.0), which YaRN's
//! `eval/passkey.py` and LongLoRA's `passkey_retrivial.py` repeat word for word.

use std::fmt;
use std::str::FromStr;

use rand_chacha::rand_core::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sha2::{Digest, Sha256};

use crate::{Answer, Ask, Encoder, Error, Info, Opt, Result, Sample, Samples, Setup, Task, Template};

pub(crate) static TASKS: &[&dyn Task] = &[&Passkey];

static DEPTH: Opt = Opt {
    name: "depth",
    values: &[],
    default: "random",
    about: "where the key is: random, start, or a fraction of the filler text from 0 to 1; several as \
            start/0.5/1, with as many samples at each",
};

static SIZING: Opt = Opt {
    name: "sizing",
    values: &["yarn", "longlora"],
    default: "yarn",
    about: "filler text for a length: as much as fits (yarn), or 3.75 characters a token, which can be more or fewer \
            tokens (longlora)",
};

static SCORING: Opt = Opt {
    name: "scoring",
    values: &["number", "tokens"],
    default: "number",
    about: "right answers: the first number is the key (number), or the first tokens spell it (tokens)",
};

static KEYS: Opt = Opt {
    name: "keys",
    values: &["landmark", "five-digit"],
    default: "landmark",
    about: "range of keys: 1 to 50000 (landmark), or 10000 to 99999 as in SBA",
};

static INFO: Info = Info {
    name: "passkey",
    about: "A number hidden in repeated sentences.",
    source: "landmark-attention llama/run_test.py, YaRN eval/passkey.py, LongLoRA passkey_retrivial.py",
    metrics: &["accuracy"],
    samples: Some(20),
    options: &[&DEPTH, &SIZING, &SCORING, &KEYS],
    groups: &["depth"],
    ..Info::OF_LENGTH
};

const TASK: &str = "There is an important info hidden inside a lot of irrelevant text. Find it and memorize \
    them. I will quiz you about the important information there.";
/// Repeated with a space between, cut by characters; it is ASCII, so by bytes as well.
const GARBAGE: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
/// The last line, which the answer continues.
const QUESTION: &str = "What is the pass key? The pass key is";
/// New tokens in which landmark-attention and YaRN look for the key.
const N_NEW: usize = 10;
/// Characters of garbage at most, since a prompt is held as text and as tokens.
const MAX_GARBAGE: usize = 1 << 26;
/// Characters by which YaRN's script grows the garbage (`--length-step`).
const STEP: usize = 128;

struct Passkey;

impl Task for Passkey {
    fn info(&self) -> &Info {
        &INFO
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let rules = Rules {
            encoder: setup.encoder,
            length: setup.length()?,
            seed: setup.seed.unwrap_or(0),
            by_tokens: setup.option(&SCORING)? == "tokens",
            five_digits: setup.option(&KEYS)? == "five-digit",
        };
        if rules.by_tokens && setup.template == Template::Chat {
            return Err(Error::invalid(
                "scoring tokens: the answer continues the question, which a chat template ends; use scoring number",
            ));
        }
        let depths: Vec<Depth> = setup.option(&DEPTH)?.split('/').map(str::parse).collect::<Result<_>>()?;
        let each = setup.samples.unwrap_or(20);
        let n = depths.len().saturating_mul(each);
        let longlora = setup.option(&SIZING)? == "longlora";
        let (garbage, limit) = if longlora {
            // In integers, `int(3.75 * tokens // 1024 * 1024)` as Python reads it.
            let garbage = (rules.length as u128 * 15 / 4 / 1024 * 1024) as usize;
            let mut need = rules.length;
            for i in 0..n {
                setup.check_stopped()?;
                let (depth, sample) = (depths[i / each], i % each);
                need = need.max(rules.draw(depth, sample).need(&rules, garbage, depth)?);
            }
            (garbage, need)
        } else {
            // No token has less than a character: seen before much text is made.
            check_length(rules.length)?;
            let need = |garbage| PROBE.need(&rules, garbage, Depth::Random);
            match largest_fitting(rules.length, &mut |garbage| need(garbage))? {
                Some(garbage) => (garbage, rules.length),
                None => return Err(too_short(rules.length, need(0)?)),
            }
        };
        let samples = Samples::new(setup, n, move |i| {
            let (depth, sample) = (depths[i / each], i % each);
            rules.sample(depth, sample, garbage, limit)
        });
        Ok(Samples { beyond: limit - rules.length, counts_bos: true, ..samples })
    }
}

/// Settings of a length.
#[derive(Clone, Copy)]
pub struct Rules<'a> {
    pub encoder: &'a dyn Encoder,
    pub length: usize,
    pub seed: u64,
    pub by_tokens: bool,
    pub five_digits: bool,
}

impl Rules<'_> {
    /// The choices of a sample. Each depends on nothing but seed, length, depth and its number: runs over other
    /// lengths, in other orders, or stopped and repeated, meet the same prompts.
    pub fn draw(&self, depth: Depth, sample: usize) -> Draw {
        let digest = Sha256::digest(format!("passkey/{}/{}/{depth}/{sample}", self.seed, self.length));
        let mut random = ChaCha8Rng::from_seed(digest.into());
        let place = random.next_u64();
        let (low, high): (u32, u32) = if self.five_digits { (10_000, 99_999) } else { (1, 50_000) };
        Draw { key: low + below(random.next_u64(), u64::from(high - low) + 1) as u32, place }
    }

    pub fn sample(&self, depth: Depth, sample: usize, mut garbage: usize, limit: usize) -> Result<Sample> {
        let draw = self.draw(depth, sample);
        // Prompts are sized with another key: where this one takes a few tokens more, the garbage is cut by steps.
        loop {
            let need = draw.need(self, garbage, depth)?;
            if need <= limit {
                break;
            }
            if garbage == 0 {
                return Err(too_short(limit, need));
            }
            garbage = garbage.saturating_sub(STEP);
        }
        let (key, by_tokens) = (draw.key, self.by_tokens);
        let expected =
            if by_tokens { self.encoder.decode(&draw.answer(self.encoder)?)? } else { format!(" {key}.") };
        let wanted = expected.clone();
        Ok(Sample {
            id: format!("depth-{depth}-{sample:03}"),
            prompt: self.encoder.frame(&draw.prompt(garbage, depth))?,
            ask: Ask::Generate { max_tokens: draw.n_new(self)?, min_tokens: 0, stop: Vec::new() },
            expected: Answer::Text(expected),
            tags: vec![("depth", depth.to_string())],
            judge: Box::new(move |answer| {
                let is_right = match by_tokens {
                    true => answer.text() == wanted,
                    false => first_number(answer.text()) == Some(u64::from(key)),
                };
                vec![f64::from(u8::from(is_right))]
            }),
        })
    }
}

fn too_short(length: usize, need: usize) -> Error {
    Error::invalid(format!(
        "expected a length of at least {need}, what prompt and answer take without filler text, found {length}"
    ))
}

/// The place of the key in the filler text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Depth {
    /// Anywhere: `randint(0, n)` of the `n` characters of garbage before it, as in the source.
    Random,
    /// Right after the task's description (SBA's "near the start").
    Start,
    /// After this fraction, 0 to 1, of the garbage.
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

    fn from_str(text: &str) -> Result<Depth> {
        match text {
            "random" => Ok(Depth::Random),
            "start" => Ok(Depth::Start),
            _ => match text.parse::<f64>() {
                // Adding 0 turns -0 into 0, which prints as users write it.
                Ok(x) if (0.0..=1.0).contains(&x) => Ok(Depth::At(x + 0.0)),
                _ => Err(Error::invalid(format!(
                    "depth: expected random, start or a number from 0 to 1, found {text:?}"
                ))),
            },
        }
    }
}

/// The random choices of one sample, the same however much garbage there will be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    pub key: u32,
    /// Place of the key in the garbage, as a fraction of 2^64.
    pub place: u64,
}

/// The longest key, in the middle of the garbage. Prompts are sized with it.
pub const PROBE: Draw = Draw { key: 50_000, place: 1 << 63 };

impl Draw {
    /// The prompt with `n` characters of garbage in all. Both pieces start at the garbage's beginning, as in the
    /// source.
    pub fn prompt(&self, n: usize, depth: Depth) -> String {
        let before = match depth {
            Depth::Random => below(self.place, n as u64 + 1) as usize,
            Depth::Start => 0,
            Depth::At(x) => ((n as f64 * x) as usize).min(n),
        };
        let garbage = |n| GARBAGE.chars().cycle().take(n).collect::<String>();
        let key = self.key;
        let information = format!("The pass key is {key}. Remember it. {key} is the pass key.");
        [TASK, &garbage(before), &information, &garbage(n - before), QUESTION].join("\n")
    }

    /// Tokens of prompt and answer.
    pub fn need(&self, rules: &Rules<'_>, n: usize, depth: Depth) -> Result<usize> {
        check_length(n)?;
        let encoder = rules.encoder;
        let prompt = encoder.frame(&self.prompt(n, depth))?;
        Ok(encoder.count(&prompt)? + encoder.n_bos() + self.n_new(rules)?)
    }

    /// Tokens of the answer.
    fn n_new(&self, rules: &Rules<'_>) -> Result<usize> {
        Ok(if rules.by_tokens { self.answer(rules.encoder)?.len() } else { N_NEW })
    }

    /// Tokens of the key as they follow the question with a space between; with Llama's tokenizer these are the ones
    /// that LongLoRA compares.
    fn answer(&self, encoder: &dyn Encoder) -> Result<Vec<crate::Token>> {
        let question = encoder.encode(QUESTION)?;
        let whole = encoder.encode(&format!("{QUESTION} {}", self.key))?;
        match whole.strip_prefix(question.as_slice()) {
            Some(answer) if !answer.is_empty() => Ok(answer.to_vec()),
            _ => Err(Error::invalid(
                "scoring tokens: this tokenizer joins the question's last word and the key; use scoring number",
            )),
        }
    }
}

fn check_length(n: usize) -> Result<()> {
    if n <= MAX_GARBAGE {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "expected a length of at most {MAX_GARBAGE} characters of filler text, found one of {n}"
    )))
}

/// `x` as a fraction of 2^64, scaled to `0..n`.
pub fn below(x: u64, n: u64) -> u64 {
    ((u128::from(x) * u128::from(n)) >> 64) as u64
}

/// The first run of ASCII digits of a continuation as a number, the answer YaRN's script reads (there `\d+`).
pub fn first_number(text: &str) -> Option<u64> {
    let digits = &text[text.find(|c: char| c.is_ascii_digit())?..];
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

/// How much garbage YaRN's script puts in: `n` grows by 128 characters while `need(n)` is at most `budget` tokens, and
/// the last such `n` is used. Found by doubling and bisection, which is the same `n` wherever more garbage never means
/// fewer tokens. `None` when not even `n = 0` fits.
pub fn largest_fitting(budget: usize, need: &mut dyn FnMut(usize) -> Result<usize>) -> Result<Option<usize>> {
    /// Characters a token may stand for; real vocabularies have few words this long, and none of them here.
    const MAX_CHARS_PER_TOKEN: usize = 64;
    if need(0)? > budget {
        return Ok(None);
    }
    let (mut fits, mut fails) = (0, 1);
    while need(fails * STEP)? <= budget {
        if fails * STEP > budget.saturating_mul(MAX_CHARS_PER_TOKEN) {
            return Err(Error::invalid(format!(
                "{} characters take at most {budget} tokens: cannot size a prompt",
                fails * STEP
            )));
        }
        (fits, fails) = (fails, fails * 2);
    }
    while fails - fits > 1 {
        let middle = fits + (fails - fits) / 2;
        if need(middle * STEP)? <= budget {
            fits = middle;
        } else {
            fails = middle;
        }
    }
    Ok(Some(fits * STEP))
}
