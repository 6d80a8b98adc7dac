//! LCEG's needle: the sentence about San Francisco, and the share of twelve words that the answer has.
//!
//! The published code tokenises text and needle with the beginning-of-text token of Llama and decodes it with them,
//! so that its prompts name that token in their midst. It is left out here.

use std::collections::HashSet;

use super::haystack::{documents, joined, Haystack, Period};
use super::{limit, prompt, ESSAYS, HAYSTACK, SANDWICH, SANDWICH_QUESTION};
use crate::metrics::python;
use crate::{Answer, Ask, Info, Opt, Result, Sample, Samples, Setup, Task};

static DEPTHS: Opt = Opt {
    name: "depths",
    values: &[],
    default: "10",
    about: "depths in percent: a count of them from 0 to 100, or a list such as 0/50/100",
};

static INFO: Info = Info {
    name: "needle_lceg",
    about: "One sentence hidden in essays: the share of its words that the answer has.",
    source: "Controlled study of long-context extension (Lu et al. 2024), Leooyii/LCEG at 2ce672d, \
             needle/needle_in_haystack.py and needle_plot.py",
    metrics: &["word_share"],
    // "a" stands twice among the twelve words and is counted once.
    best: 11.0 / 12.0,
    chance: None,
    has_length: true,
    samples: None,
    options: &[&DEPTHS, &HAYSTACK],
    files: &[&ESSAYS],
};

/// What the answer should say.
const EXPECTED: &str = "eat a sandwich and sit in Dolores Park on a sunny day.";
const ANSWER_TOKENS: usize = 50;

pub(super) struct NeedleLceg;

impl Task for NeedleLceg {
    fn info(&self) -> &Info {
        &INFO
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let length = setup.length()?;
        let depths = setup.depths(&DEPTHS)?;
        let text = joined(setup.encoder, &documents(setup, length, 1)?, length)?;
        let haystack = Haystack::new(setup.encoder, &text, length)?;
        let period = Period::new(setup.encoder, true)?;
        Ok(Samples::new(limit(setup, depths.len()), move |i| {
            setup.check_stopped()?;
            let depth = depths[i];
            let context = haystack.with_needle(setup.encoder, SANDWICH, depth, |token| period.is(token))?;
            let message = format!(
                "This is a very long story book: <book> {context} </book>.\n Based on the content of the book, \
                 Question: {SANDWICH_QUESTION}"
            );
            let plain = plain_prompt(&context);
            let (prompt, max_tokens) = prompt(setup, &plain, &message, ANSWER_TOKENS, ANSWER_TOKENS)?;
            Ok(Sample {
                id: format!("depth-{depth:03}"),
                prompt,
                ask: Ask::Generate { max_tokens, min_tokens: 0, stop: Vec::new() },
                expected: Answer::Text(EXPECTED.into()),
                tags: vec![("depth", depth.to_string())],
                judge: Box::new(|answer| vec![word_share(answer.text())]),
            })
        }))
    }
}

/// `generate_prompt` for models other than OpenAI's; the marker is text, not a chat template.
pub(super) fn plain_prompt(context: &str) -> String {
    format!(
        "<|im_start|> This is a very long story book: <book> {context} </book>.\n Based on the content of the book, \
         Question: {SANDWICH_QUESTION}\nAnswer:"
    )
}

/// Distinct words of the answer that occur among the expected ones, over the number of those (`load_data` of
/// needle_plot.py).
pub(super) fn word_share(answer: &str) -> f64 {
    let expected = EXPECTED.to_lowercase();
    let expected: Vec<&str> = expected.split(' ').collect();
    let answer = answer.to_lowercase();
    let words = python::split(&answer);
    let found: HashSet<&str> = words.filter(|word| expected.contains(word)).collect();
    found.len() as f64 / expected.len() as f64
}
