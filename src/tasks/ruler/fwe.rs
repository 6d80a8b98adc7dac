//! Frequent words extraction: invented words whose numbers follow a zeta distribution; the three most frequent ones
//! are asked for, after the dots that stand for noise.

use std::f64::consts::PI;

use super::{fit, info, prompt, seed, string_match_all, Draft, Generator, Synthetic, Version};
use crate::draws::Random;
use crate::{Error, Result, Setup};

/// Tokens of an answer.
const ANSWER: usize = 50;
/// Letters of a word.
const LETTERS: usize = 6;
/// Words that are asked for.
const ASKED: usize = 3;
/// Tokens of text for each different word.
const TOKENS_PER_WORD: usize = 50;
/// Steps of the search for a number of words, at most. A text of as many words as tokens is reached in 32.
const MAX_STEPS: usize = 100;

const ANSWER_PREFIX: &str =
    " Answer: According to the coded text above, the three most frequently appeared words are:";

pub(super) static FWE: Synthetic = Synthetic {
    info: info("fwe", "The three most frequent words of a text of invented words.", &[]),
    metric: string_match_all,
    answer: ANSWER,
    beyond_2024: ANSWER,
    generator,
};

fn generator<'a>(setup: &'a Setup<'a>, version: Version, length: usize) -> Result<Generator<'a>> {
    // The generators of 2024 fill the whole length with the prompt.
    let reserved = if version == Version::V2024 { 0 } else { ANSWER };
    let limit = length - reserved;
    let n_words = limit / TOKENS_PER_WORD;
    if n_words <= ASKED {
        let needed = (ASKED + 1) * TOKENS_PER_WORD + reserved;
        return Err(fit::too_short(needed, length));
    }
    let seed = seed(setup)?;
    let mut texts = Texts { setup, limit, reserved, n_words, seed, random: Random::new(seed.into()) };
    let words = texts.size()?;
    Ok(Box::new(move |_| texts.draw(words)))
}

/// Draws words and makes texts of them.
struct Texts<'a> {
    setup: &'a Setup<'a>,
    /// Tokens of a prompt at most.
    limit: usize,
    /// Tokens kept free for the answer.
    reserved: usize,
    /// Different words.
    n_words: usize,
    seed: u32,
    random: Random,
}

impl Texts<'_> {
    /// Steps by which a text grows or shrinks, in words.
    fn step(&self) -> usize {
        self.limit / 32
    }

    /// The number of words a step before the first text that fills the limit.
    fn size(&mut self) -> Result<usize> {
        let vocabulary = self.vocabulary();
        let mut words = self.limit / LETTERS;
        for _ in 0..MAX_STEPS {
            self.setup.check_stopped()?;
            if self.setup.encoder.count(&self.text(&vocabulary, words)?)? >= self.limit {
                return Ok(words - self.step());
            }
            words += self.step();
        }
        Err(Error::invalid(format!("expected a tokenizer that finds {} tokens in {words} words", self.limit)))
    }

    /// A text of a number of words, less by a step after each one that is too long.
    fn draw(&mut self, mut words: usize) -> Result<Draft> {
        let vocabulary = self.vocabulary();
        loop {
            self.setup.check_stopped()?;
            let prompt = self.text(&vocabulary, words)?;
            let tokens = self.setup.encoder.count(&prompt)?;
            if tokens <= self.limit {
                let references = vocabulary[1..=ASKED].to_vec();
                return Ok(Draft { prompt, references, tags: vec![("words", words.to_string())] });
            }
            words = words
                .checked_sub(self.step())
                .filter(|&words| words > 0)
                .ok_or_else(|| fit::too_short(tokens + self.reserved, self.limit + self.reserved))?;
        }
    }

    /// Different words in an order of their own; the first one is the noise.
    fn vocabulary(&mut self) -> Vec<String> {
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < self.n_words {
            let letters = self.random.choices(b"abcdefghijklmnopqrstuvwxyz", LETTERS);
            seen.insert(letters.into_iter().map(char::from).collect::<String>());
        }
        let mut words: Vec<String> = seen.into_iter().collect();
        Random::new(self.seed.into()).shuffle(&mut words);
        words[0] = "...".to_owned();
        words
    }

    /// The prompt of a text in which the word of rank k appears `words / (k^2 zeta(2))` times, rounded down.
    fn text(&self, vocabulary: &[String], words: usize) -> Result<String> {
        let mut text: Vec<&str> = Vec::new();
        for (rank, word) in (1..).zip(vocabulary) {
            let count = words as f64 * f64::from(rank).powf(-2.0) / ZETA_2;
            text.extend(std::iter::repeat_n(word.as_str(), count as usize));
        }
        Random::new(self.seed.into()).shuffle(&mut text);
        let text = format!(
            "Read the following coded text and track the frequency of each coded word. Find the three most \
             frequently appeared coded words. {}\nQuestion: Do not provide any explanation. Please ignore the dots \
             '....'. What are the three most frequently appeared words in the above coded text?",
            text.join(" ")
        );
        prompt(self.setup, &text, ANSWER_PREFIX)
    }
}

/// The zeta function at 2, the exponent of the published task.
pub const ZETA_2: f64 = PI * PI / 6.0;
