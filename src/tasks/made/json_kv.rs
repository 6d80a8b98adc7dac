//! Key-value retrieval: a JSON object of random UUIDs, and one key of it.
//!
//! The protocol is HELMET's, whose rows are files of pairs drawn once; here they are drawn from a seed. HELMET
//! names 50 keys for 4k tokens of Llama-2 up to 1,800 for 128k; here as many as fit the length. Its rows are
//! not at hand: that the object is written as in Lost in the Middle and that the shots are pairs of it is assumed.

use super::{random, SAMPLES};
use crate::metrics::normalize_answer;
use crate::{Answer, Ask, Error, Info, Opt, Result, Sample, Samples, Setup, Task, Template};

static DEPTHS: Opt = Opt {
    name: "depths",
    values: &[],
    default: "6",
    about: "places of the key in percent, taken in turn: a count of them from 0 to 100, or a list such as 0/50/100",
};

static INFO: Info = Info {
    name: "json_kv",
    about: "The value of one key in a JSON object of random UUIDs.",
    source: "HELMET (Yen et al. 2024) at 5dde2de, data_module/json_kv.py, 2 shots; object and pairs as in Lost in the Middle \
             (Liu et al. 2023)",
    metrics: &["substring_exact_match"],
    samples: Some(SAMPLES),
    options: &[&DEPTHS],
    groups: &["depth"],
    ..Info::OF_LENGTH
};

/// `generation_max_length`.
const ANSWER_TOKENS: usize = 100;
const SHOTS: usize = 2;
/// Keys at least: those of the shots, and the one asked for.
const LEAST_KEYS: usize = SHOTS + 1;
/// The number of this task for its random numbers.
const STREAM: u64 = 1;

pub(super) struct JsonKv;

impl Task for JsonKv {
    fn info(&self) -> &Info {
        &INFO
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let length = setup.length()?;
        let depths = setup.depths(&DEPTHS)?;
        Ok(Samples::new(setup, setup.samples.unwrap_or(SAMPLES), move |i| {
            sample(setup, length, i, depths[i % depths.len()])
        }))
    }
}

fn sample(setup: &Setup, length: usize, index: usize, depth: u32) -> Result<Sample> {
    let mut keys = LEAST_KEYS;
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut random = random(setup, STREAM, index);
    // The prompt with the first `keys` pairs of those drawn; more are drawn where needed.
    let mut made = |keys: usize| -> Result<Sample> {
        while pairs.len() < keys {
            pairs.push((random.uuid4(), random.uuid4()));
        }
        let pairs = &pairs[..keys];
        let asked = ((keys - 1) as f64 * f64::from(depth) / 100.0).round() as usize;
        // The shots are also pairs of the object: those next to its middle that the question does not ask for.
        let shots: Vec<_> =
            (0..keys).map(|i| (keys / 2 + i) % keys).filter(|&i| i != asked).take(SHOTS).collect();
        let shots: Vec<_> = shots.iter().map(|&i| pairs[i].clone()).collect();
        let user = user_prompt(&object(pairs), &shots, &pairs[asked].0);
        let prompt = match setup.template {
            Template::Base => setup.encoder.frame(&format!("{user}\nCorresponding value:"))?,
            Template::Chat => setup.encoder.frame(&user)?,
        };
        let answer = pairs[asked].1.clone();
        Ok(Sample {
            id: index.to_string(),
            prompt,
            ask: Ask::Generate { max_tokens: ANSWER_TOKENS, min_tokens: 0, stop: Vec::new() },
            expected: Answer::Text(answer.clone()),
            tags: vec![("depth", depth.to_string()), ("keys", keys.to_string())],
            judge: Box::new(move |said| vec![substring_exact_match(said.text(), &answer)]),
        })
    };
    let smallest = made(keys)?;
    let count = |prompt: &str| setup.encoder.count(prompt);
    let least = count(&smallest.prompt)?;
    let Some(room) = length.checked_sub(least + ANSWER_TOKENS) else {
        // Random digits have more tokens in one sample, fewer in another.
        let enough = least + least / 4 + ANSWER_TOKENS;
        return Err(Error::invalid(format!(
            "a length of {length} tokens: expected at least {enough} for {LEAST_KEYS} keys, question and answer"
        )));
    };
    // Tokens of a pair, from a few of them; then fewer keys until the prompt fits.
    let probe = 32;
    let more = made(LEAST_KEYS + probe)?;
    let per_key = (count(&more.prompt)?.saturating_sub(least) as f64 / probe as f64).max(1.0);
    keys += (room as f64 / per_key * 1.01) as usize;
    loop {
        setup.check_stopped()?;
        let sample = made(keys)?;
        let n = count(&sample.prompt)? + ANSWER_TOKENS;
        if n <= length {
            return Ok(sample);
        }
        keys = keys.saturating_sub(1 + ((n - length) as f64 / per_key) as usize).max(LEAST_KEYS);
    }
}

/// The pairs as a JSON object, one on each line.
fn object(pairs: &[(String, String)]) -> String {
    let lines: Vec<_> = pairs.iter().map(|(key, value)| format!("\"{key}\": \"{value}\"")).collect();
    format!("JSON data:\n{{{}}}", lines.join(",\n "))
}

/// `user_template` with its shots.
pub fn user_prompt(context: &str, shots: &[(String, String)], key: &str) -> String {
    let shots: String =
        shots.iter().map(|(key, value)| format!("Key: {key}\nCorresponding value: {value}\n\n")).collect();
    format!(
        "{context}\n\nExtract the value corresponding to the specified key in the JSON object below.\n\n\
         {shots}Key: {key}"
    )
}

/// Returns 1 if the answer contains the value, and 0 if not; case, punctuation, and articles do not count
/// (`substring_exact_match_score` of utils.py).
pub fn substring_exact_match(said: &str, value: &str) -> f64 {
    f64::from(u8::from(normalize_answer(said).contains(&normalize_answer(value))))
}
