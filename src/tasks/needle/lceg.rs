//! LCEG's needle: the sentence about San Francisco, and the share of twelve words that the answer has.
//!
//! The published code tokenizes text and needle with the beginning-of-text token of Llama and decodes it with them,
//! so that its prompts name that token in their midst. It is left out here.

use std::collections::HashSet;

use super::{depths, Sandwich, ESSAYS, HAYSTACK};
use crate::metrics::python;
use crate::{Info, Opt};

static DEPTHS: Opt = depths("10");

/// Text that the answer should say.
const EXPECTED: &str = "eat a sandwich and sit in Dolores Park on a sunny day.";
const ANSWER_TOKENS: usize = 50;

pub(super) static TASK: Sandwich = Sandwich {
    info: Info {
        name: "needle_lceg",
        about: "One sentence hidden in essays: the share of its words that the answer has.",
        source: "Controlled study of long-context extension (Lu et al. 2024), Leooyii/LCEG at 2ce672d, \
                 needle/needle_in_haystack.py and needle_plot.py",
        metrics: &["word_share"],
        // "a" stands twice among the twelve words and is counted once.
        best: 11.0 / 12.0,
        options: &[&DEPTHS, &HAYSTACK],
        files: &[&ESSAYS],
        groups: &["depth"],
        ..Info::OF_LENGTH
    },
    blank: true,
    // `generate_prompt` for models other than OpenAI's, whose marker is text and not a chat template; and the question alone.
    prompts: [
        "<|im_start|> This is a very long story book: <book> {context} </book>.\n Based on the content of the book, \
         Question: {question}\nAnswer:",
        "This is a very long story book: <book> {context} </book>.\n Based on the content of the book, \
         Question: {question}",
    ],
    tokens: (ANSWER_TOKENS, ANSWER_TOKENS),
    expected: EXPECTED,
    judge: |answer| vec![word_share(answer)],
};

/// Distinct words of the answer that occur among the expected ones, over the number of those (`load_data` of
/// needle_plot.py).
pub fn word_share(answer: &str) -> f64 {
    let expected = EXPECTED.to_lowercase();
    let expected: Vec<&str> = expected.split(' ').collect();
    let answer = answer.to_lowercase();
    let words = python::split(&answer);
    let found: HashSet<&str> = words.filter(|word| expected.contains(word)).collect();
    found.len() as f64 / expected.len() as f64
}
