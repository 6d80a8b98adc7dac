//! Passkey retrieval: lengths x depths x samples of the landmark-attention prompt, counted exactly.
//!
//! Prompts are plain text for base models. A wrapper for instruction-tuned ones would go where [`run`] turns
//! a prompt into tokens, and count towards the length there.

use std::time::Instant;

use serde::Serialize;

use super::stats::wilson;
use super::table::table;
use super::{invalid, open, per_second, tokenize, uninterrupted, Lm, LmSource};
use crate::control::Control;
use crate::model::Result;
use crate::Token;

mod prompt;

pub use prompt::{first_number, largest_fitting, Depth, Draw, KeyRange, Prompt, KEY_RANGES, QUESTION};

/// How much garbage (filler text) a length stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizing {
    /// YaRN's `eval/passkey.py`: as much as fits, in steps of 128 characters. There the length bounds the
    /// prompt alone; here prompt and answer, so that the context asked for is never exceeded.
    Yarn,
    /// LongLoRA's `passkey_retrivial.py`: 3.75 characters per token, rounded down to a multiple of 1024,
    /// whatever they come to in tokens. The context is opened larger than the length where they need it.
    Longlora,
}

/// `Sizing` by name.
pub const SIZINGS: &[(&str, Sizing)] = &[("yarn", Sizing::Yarn), ("longlora", Sizing::Longlora)];

/// When an answer is right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scoring {
    /// The first number in 10 new tokens equals the key (landmark-attention, YaRN).
    Number,
    /// As many new tokens as the key has, all of them the key's (LongLoRA). The key's tokens are those that
    /// follow the question with a space between; with Llama's tokenizer these are the ones LongLoRA compares.
    Tokens,
}

/// `Scoring` by name.
pub const SCORINGS: &[(&str, Scoring)] = &[("number", Scoring::Number), ("tokens", Scoring::Tokens)];

/// New tokens in which landmark-attention and YaRN look for the key.
const N_NEW: usize = 10;

/// Lengths, depths and rules of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Params {
    /// Lengths in tokens, prompt and answer together.
    pub lengths: Vec<usize>,
    /// Positions of the key.
    pub depths: Vec<Depth>,
    /// Samples at each length and depth.
    pub samples: usize,
    /// Seed of keys and places: the same seed gives the same prompts.
    pub seed: u64,
    /// How much garbage (filler text) a length stands for.
    pub sizing: Sizing,
    /// When an answer is right.
    pub scoring: Scoring,
    /// The range that keys are drawn from.
    pub keys: KeyRange,
}

impl Params {
    /// YaRN's settings: 20 samples at random depths, scored by number.
    pub fn new(lengths: Vec<usize>) -> Self {
        Params {
            lengths,
            depths: vec![Depth::Random],
            samples: 20,
            seed: 0,
            sizing: Sizing::Yarn,
            scoring: Scoring::Number,
            keys: KeyRange::Landmark,
        }
    }
}

/// An entry of [`SIZINGS`], [`SCORINGS`] or [`KEY_RANGES`] by name.
///
/// # Errors
/// An unknown name; the message lists the known ones.
pub fn by_name<T: Copy>(what: &str, name: &str, known: &[(&str, T)]) -> Result<T> {
    known.iter().find(|(n, _)| *n == name).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(n, _)| *n).collect();
        invalid(format!("{what}: expected one of {}, found {name:?}", names.join(", ")))
    })
}

/// Result of a run. Serialises to the JSON that the command line promises.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The model's file.
    pub model: String,
    /// The rope spec in force, at the first length.
    pub rope: String,
    /// One entry per length and depth.
    pub results: Vec<Row>,
    /// The rule that sized the garbage.
    pub sizing: &'static str,
    /// The rule that judged the answers.
    pub scoring: &'static str,
    /// The range that keys were drawn from.
    pub keys: &'static str,
    /// The seed.
    pub seed: u64,
    /// Whether the run was stopped: entries may be missing, and the last one may lack samples.
    pub interrupted: bool,
}

/// One length and depth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Tokens asked for, prompt and answer together.
    pub length: usize,
    /// `random`, `start` or a fraction.
    pub depth: String,
    /// `correct / samples`.
    pub accuracy: f64,
    /// Right answers.
    pub correct: usize,
    /// Answers.
    pub samples: usize,
    /// Wilson's 95 % interval of the accuracy.
    pub ci_low: f64,
    /// Its upper end.
    pub ci_high: f64,
    /// Mean tokens of a prompt, BOS among them, rounded.
    pub tokens: usize,
    /// Tokens the context was opened for.
    pub n_ctx: usize,
    /// Samples this run was to do.
    pub samples_planned: usize,
    /// Prompt tokens per second, answers included in the time.
    pub tokens_per_s: f64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// The rope spec in force at this length.
    pub rope: String,
    /// Whether samples are missing because the run was stopped.
    pub interrupted: bool,
    /// Every sample.
    pub cases: Vec<Case>,
}

/// One sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Index of the sample; seed, length, depth and index determine the prompt.
    pub sample: usize,
    /// The key.
    pub key: u32,
    /// Characters of garbage.
    pub garbage: usize,
    /// Characters of garbage before the key.
    pub prefix: usize,
    /// Tokens of the prompt.
    pub tokens: usize,
    /// The model's answer.
    pub answer: String,
    /// Whether that is the key.
    pub correct: bool,
}

/// Measures passkey retrieval. `model` is only copied to the report. Progress is counted in tokens of
/// prompts, over all lengths (in all: an upper estimate), and reported after every sample.
///
/// # Errors
/// Nothing to do; a length too short for the prompt's frame, naming the least that is enough; whatever the
/// model reports. Being stopped is no error: see [`Report::interrupted`].
pub fn run(source: &dyn LmSource, model: &str, params: &Params, control: &Control<'_>) -> Result<Report> {
    if params.lengths.is_empty() || params.depths.is_empty() || params.samples == 0 {
        return Err(invalid("passkey: expected at least one length, one depth and one sample"));
    }
    let per_length = params.depths.len().saturating_mul(params.samples);
    let mut done = Tally {
        fed: 0,
        total: params.lengths.iter().fold(0, |sum, &l| sum.saturating_add(l.saturating_mul(per_length))),
    };
    let mut report = Report {
        model: model.into(),
        rope: String::new(),
        results: Vec::new(),
        sizing: name_of(params.sizing, SIZINGS),
        scoring: name_of(params.scoring, SCORINGS),
        keys: name_of(params.keys, KEY_RANGES),
        seed: params.seed,
        interrupted: false,
    };
    for &length in &params.lengths {
        let sized =
            if control.stopped() { None } else { uninterrupted(size(source, length, params, control))? };
        let Some((mut lm, n)) = sized else {
            report.interrupted = true;
            break;
        };
        if report.rope.is_empty() {
            report.rope = lm.rope();
        }
        for &depth in &params.depths {
            let row = cell(&mut *lm, length, depth, n, params, &mut done, control)?;
            report.interrupted |= row.as_ref().is_none_or(|row| row.interrupted);
            report.results.extend(row);
            if report.interrupted {
                return Ok(report);
            }
        }
    }
    Ok(report)
}

/// Prompt tokens fed so far, and the most that the run will feed.
struct Tally {
    fed: usize,
    total: usize,
}

fn name_of<T: PartialEq>(value: T, known: &[(&'static str, T)]) -> &'static str {
    known.iter().find(|(_, v)| *v == value).map_or("?", |(name, _)| name)
}

fn encode(lm: &dyn Lm, prompt: &Prompt) -> Result<Vec<Token>> {
    tokenize(lm, &prompt.text, lm.add_bos())
}

/// Tokens of the key as they follow the question.
fn answer_tokens(lm: &dyn Lm, key: u32) -> Result<Vec<Token>> {
    let question = lm.tokenize(QUESTION, false)?;
    let with_answer = lm.tokenize(&format!("{QUESTION} {key}"), false)?;
    match with_answer.strip_prefix(question.as_slice()) {
        Some(answer) if !answer.is_empty() => Ok(answer.to_vec()),
        _ => Err(invalid(
            "scoring tokens: this tokenizer joins the question's last word and the key; use scoring number",
        )),
    }
}

fn n_new(lm: &dyn Lm, key: u32, scoring: Scoring) -> Result<usize> {
    match scoring {
        Scoring::Number => Ok(N_NEW),
        Scoring::Tokens => Ok(answer_tokens(lm, key)?.len()),
    }
}

/// Opens a context for the length; with it, the number of characters of garbage that its prompts get.
fn size<'s>(
    source: &'s dyn LmSource,
    length: usize,
    params: &Params,
    control: &Control<'_>,
) -> Result<(Box<dyn Lm + 's>, usize)> {
    let lm = open(source, length, control)?;
    let new = n_new(&*lm, Draw::PROBE.key, params.scoring)?;
    match params.sizing {
        Sizing::Yarn => {
            let mut count = |n| Ok(encode(&*lm, &Draw::PROBE.prompt(n, Depth::Random))?.len());
            let fitting = match length.checked_sub(new) {
                Some(budget) => largest_fitting(budget, &mut count)?,
                None => None,
            };
            match fitting {
                Some(n) => Ok((lm, n)),
                None => Err(too_short(length, count(0)?, new)),
            }
        }
        Sizing::Longlora => {
            // In integers, `int(3.75 * tokens // 1024 * 1024)` as Python reads it.
            let n = (length as u128 * 15 / 4 / 1024 * 1024) as usize;
            let mut need = length;
            for &depth in &params.depths {
                for sample in 0..params.samples {
                    if control.stopped() {
                        return Err(crate::model::Error::Interrupted);
                    }
                    let draw = Draw::new(params.seed, length, depth, sample, params.keys);
                    let tokens = encode(&*lm, &draw.prompt(n, depth))?.len();
                    need = need.max(tokens + n_new(&*lm, draw.key, params.scoring)?);
                }
            }
            if need <= lm.n_ctx() {
                return Ok((lm, n));
            }
            drop(lm);
            Ok((open(source, need, control)?, n))
        }
    }
}

fn too_short(length: usize, frame: usize, new: usize) -> crate::model::Error {
    invalid(format!(
        "passkey: length {length} is too short: the prompt without garbage is {frame} tokens and its answer \
         {new}, so expected at least {}",
        frame + new
    ))
}

/// Measures one length and depth; `None` when stopped before the first sample was done.
fn cell(
    lm: &mut dyn Lm,
    length: usize,
    depth: Depth,
    n: usize,
    params: &Params,
    tally: &mut Tally,
    control: &Control<'_>,
) -> Result<Option<Row>> {
    let mut cases: Vec<Case> = Vec::new();
    let (mut correct, mut fed) = (0, 0);
    let start = Instant::now();
    let seconds = || start.elapsed().as_secs_f64();
    for sample in 0..params.samples {
        if control.stopped() {
            break;
        }
        let draw = Draw::new(params.seed, length, depth, sample, params.keys);
        let Some(case) = uninterrupted(ask(lm, sample, &draw, depth, n, length, params))? else { break };
        fed += case.tokens;
        tally.fed += case.tokens;
        correct += usize::from(case.correct);
        cases.push(case);
        let (done, percent) = (cases.len(), 100.0 * correct as f64 / cases.len() as f64);
        let what = format_args!("length {length} sample {done}/{} accuracy {percent:.0} %", params.samples);
        control.report(what, tally.fed as u64, tally.total as u64);
    }
    if cases.is_empty() {
        return Ok(None);
    }
    let samples = cases.len();
    let (ci_low, ci_high) = wilson(correct, samples);
    Ok(Some(Row {
        length,
        depth: depth.to_string(),
        accuracy: correct as f64 / samples as f64,
        correct,
        samples,
        ci_low,
        ci_high,
        tokens: (fed + samples / 2) / samples,
        n_ctx: lm.n_ctx(),
        samples_planned: params.samples,
        tokens_per_s: per_second(fed, seconds()),
        seconds: seconds(),
        rope: lm.rope(),
        interrupted: samples < params.samples,
        cases,
    }))
}

/// Asks one question and judges the answer.
fn ask(
    lm: &mut dyn Lm,
    sample: usize,
    draw: &Draw,
    depth: Depth,
    mut n: usize,
    length: usize,
    params: &Params,
) -> Result<Case> {
    let new = n_new(lm, draw.key, params.scoring)?;
    let limit = match params.sizing {
        Sizing::Yarn => length,
        Sizing::Longlora => lm.n_ctx(),
    };
    // Prompts were sized with another key: where this one takes a few tokens more, the garbage is cut by
    // steps.
    let (prompt, tokens) = loop {
        let prompt = draw.prompt(n, depth);
        let tokens = encode(lm, &prompt)?;
        if tokens.len() + new <= limit {
            break (prompt, tokens);
        }
        if n == 0 {
            return Err(too_short(limit, tokens.len(), new));
        }
        n = n.saturating_sub(prompt::STEP);
    };
    let out = lm.generate(&tokens, new)?;
    let answer = lm.detokenize(&out)?;
    let correct = match params.scoring {
        Scoring::Number => first_number(&answer) == Some(u64::from(draw.key)),
        Scoring::Tokens => out == answer_tokens(lm, draw.key)?,
    };
    Ok(Case {
        sample,
        key: draw.key,
        garbage: n,
        prefix: prompt.n_prefix,
        tokens: tokens.len(),
        answer,
        correct,
    })
}

impl Report {
    /// The report as text: what was measured, and a markdown table.
    pub fn text(&self) -> String {
        let mut out = format!("model     {}\nrope      {}\n", self.model, self.rope);
        out += &format!(
            "passkey   sizing {}, scoring {}, keys {}, seed {}\n\n",
            self.sizing, self.scoring, self.keys, self.seed
        );
        let percent = |x: f64| format!("{:.1}", 100.0 * x);
        let cells = |r: &Row| {
            vec![
                r.length.to_string(),
                r.depth.clone(),
                percent(r.accuracy),
                format!("{}/{}", r.correct, r.samples),
                format!("{}-{}", percent(r.ci_low), percent(r.ci_high)),
                r.tokens.to_string(),
                format!("{:.1}", r.tokens_per_s),
            ]
        };
        let rows: Vec<_> = self.results.iter().map(cells).collect();
        out +=
            &table(&["length", "depth", "accuracy %", "correct", "95 % interval", "tokens", "tok/s"], &rows);
        if self.interrupted {
            out += "\ninterrupted: the figures cover what was done\n";
        }
        out
    }
}
