//! Greg Kamradt's needle, judged without a judge model.

use std::collections::HashSet;

use super::{depths, Sandwich, ESSAYS, HAYSTACK};
use crate::{Info, Opt};

static DEPTHS: Opt = depths("35");

/// Text that the answer should say, in lower case and without punctuation.
const EXPECTED: &str = "eat a sandwich and sit in dolores park on a sunny day";
/// Tokens that say it.
const NEEDED_TOKENS: usize = 50;
/// Tokens that the published code asks for, where the length leaves room.
const ANSWER_TOKENS: usize = 300;

pub(super) static TASK: Sandwich = Sandwich {
    info: Info {
        name: "needle_kamradt",
        about: "One sentence hidden in essays; exact match and word overlap in place of the published judge, GPT.",
        source: "gkamradt/LLMTest_NeedleInAHaystack at 7b90d28, llm_needle_haystack_tester.py and providers/; its scores of 1 to \
                 10 by GPT are not comparable",
        metrics: &["exact_match", "word_overlap"],
        options: &[&DEPTHS, &HAYSTACK],
        files: &[&ESSAYS],
        groups: &["depth"],
        ..Info::OF_LENGTH
    },
    blank: false,
    // `providers/Anthropic_prompt.txt`, and the three messages of `generate_prompt` in `providers/openai.py` as one.
    prompts: [
        "You are a helpful AI bot that answers questions for a user. Keep your response short and direct\n\n\
         Human: <context>\n{context}\n</context>\n\n\
         {question} Don't give information outside the document or repeat your findings\n\n\
         Assistant: Here is the most relevant sentence in the context:",
        "You are a helpful AI bot that answers questions for a user. Keep your response short and direct\n\n\
         {context}\n\n\
         {question} Don't give information outside the document or repeat your findings",
    ],
    tokens: (NEEDED_TOKENS, ANSWER_TOKENS),
    expected: "Eat a sandwich and sit in Dolores Park on a sunny day.",
    judge: scores,
};

/// Scores an answer: 1 if it has the expected words in a row, and the share of them that it has at all. Case and
/// punctuation do not count.
pub fn scores(answer: &str) -> Vec<f64> {
    let plain: String =
        answer.to_lowercase().chars().map(|c| if c.is_alphanumeric() { c } else { ' ' }).collect();
    let words: Vec<&str> = plain.split_whitespace().collect();
    let in_a_row = format!(" {} ", words.join(" ")).contains(&format!(" {EXPECTED} "));
    let expected: HashSet<&str> = EXPECTED.split(' ').collect();
    let found = expected.iter().filter(|word| words.contains(word)).count();
    vec![f64::from(u8::from(in_a_row)), found as f64 / expected.len() as f64]
}
