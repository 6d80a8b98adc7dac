//! Common words extraction: a numbered list of words, ten of which appear more often than the others. An example
//! with its answer stands before it.

use serde_json::{Map, Value};

use super::{
    fit, info, prompt, seed, string_match_all, word_list, Draft, Generator, Synthetic, Version, ADJECTIVES,
    NOUNS, VERBS,
};
use crate::draws::Random;
use crate::{DataFile, Error, Result, Setup};

/// English words, for lists of more words than the others have: from about 180,000 tokens on.
static ENGLISH: DataFile = DataFile {
    name: "ruler/english_words.json",
    sha256: Some("affcd6d45fdf3cc843d585c99c97ad615094e760e6c4756b654bab6c73bc2eca"),
    from: "it is part of the repository NVIDIA/RULER, scripts/data/synthetic/json/english_words.json (in Git LFS)",
};

/// Tokens of an answer.
const ANSWER: usize = 120;
/// Words that appear more often than others.
const COMMON: usize = 10;
/// Steps of the search for a number of words.
const STEP: usize = 10;
/// Words of the list that the current generator estimates tokens by.
const PROBE: usize = 4096;

const ANSWER_PREFIX: &str = " Answer: The top 10 words that appear most often in the list are:";

pub(super) static CWE: Synthetic = Synthetic {
    info: info("cwe", "The ten most frequent words of a numbered list.", &[&NOUNS, &ADJECTIVES, &VERBS]),
    metric: string_match_all,
    answer: ANSWER,
    beyond_2024: 0,
    generator,
};

fn generator<'a>(setup: &'a Setup<'a>, version: Version, length: usize) -> Result<Generator<'a>> {
    let seed = seed(setup)?;
    let mut all = Vec::new();
    for file in [&NOUNS, &ADJECTIVES, &VERBS] {
        all.extend(word_list(setup, file)?);
    }
    all.sort_unstable();
    all.dedup();
    Random::new(seed.into()).shuffle(&mut all);
    let random = Random::new(seed.into());
    let mut lists = Lists { setup, version, short: length < 4096, words: all, english: None, seed, random };
    let words = match version {
        Version::V2024 => {
            let most = lists.words.len();
            fit::by_steps(setup, STEP, length, most, false, |words| {
                let (list, common) = lists.draw(words)?;
                Ok(ANSWER + setup.encoder.count(&format!("{list} {}", numbered(&common)))?)
            })?
        }
        Version::Current => {
            let (list, _) = lists.draw(PROBE)?;
            let tokens = setup.encoder.count(&list)?.max(1);
            // Rounded down before it is doubled, as in the original.
            let most = length * PROBE / tokens * 2;
            fit::bisect(setup, STEP, length, most, |words| {
                Ok(ANSWER + setup.encoder.count(&lists.draw(words)?.0)?)
            })?
        }
    };
    Ok(Box::new(move |_| {
        fit::sample(setup, words, STEP, length, |words| {
            let (prompt, references) = lists.draw(words)?;
            let tokens = ANSWER + setup.encoder.count(&prompt)?;
            Ok((Draft { prompt, references, tags: vec![("words", words.to_string())] }, tokens))
        })
    }))
}

struct Lists<'a> {
    setup: &'a Setup<'a>,
    version: Version,
    /// Shorter lists, in which words appear less often.
    short: bool,
    words: Vec<String>,
    /// Read when they are needed.
    english: Option<Vec<String>>,
    seed: u32,
    random: Random,
}

impl Lists<'_> {
    /// A prompt with a list of `n` different words, and the common ones among them.
    fn draw(&mut self, n: usize) -> Result<(String, Vec<String>)> {
        let (example, task) = if self.short { ((20, 3, 1), (6, 1)) } else { ((40, 10, 3), (30, 3)) };
        let (example_list, example_common) = self.list(example.0, example.1, example.2)?;
        let (list, common) = self.list(n, task.0, task.1)?;
        let between = if self.version == Version::V2024 { "" } else { " " };
        let example = prompt(self.setup, &text(&example_list), ANSWER_PREFIX)?;
        let question = prompt(self.setup, &text(&list), ANSWER_PREFIX)?;
        Ok((format!("{example}{between}{}\n{question}", numbered(&example_common)), common))
    }

    /// A numbered list of `n` different words, the first ten of which appear `common` times, the others `others`
    /// times; and those ten.
    fn list(&mut self, n: usize, common: usize, others: usize) -> Result<(String, Vec<String>)> {
        if n > self.words.len() && self.english.is_none() {
            self.english = Some(english_words(self.setup)?);
        }
        let words = self.english.as_ref().filter(|_| n > self.words.len()).unwrap_or(&self.words);
        if n > words.len() {
            return Err(Error::invalid(format!(
                "cwe: expected a length that needs at most {} words, found one that may need {n}",
                words.len()
            )));
        }
        let chosen: Vec<&str> =
            self.random.sample_range(words.len(), n).into_iter().map(|i| words[i].as_str()).collect();
        let (often, rarely) = chosen.split_at(COMMON.min(n));
        let mut list = often.repeat(common);
        list.extend(rarely.repeat(others));
        Random::new(self.seed.into()).shuffle(&mut list);
        Ok((numbered(&list), often.iter().map(|&word| word.to_owned()).collect()))
    }
}

fn text(list: &str) -> String {
    format!(
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones \
         that appear most often.\n{list}\nQuestion: What are the 10 most common words in the above list?"
    )
}

/// "1. first 2. second" and so on.
pub fn numbered<T: AsRef<str>>(words: &[T]) -> String {
    let numbered = words.iter().enumerate().map(|(i, word)| format!("{}. {}", i + 1, word.as_ref()));
    numbered.collect::<Vec<_>>().join(" ")
}

/// The words in the order of the file: serde_json has its feature `preserve_order`.
fn english_words(setup: &Setup<'_>) -> Result<Vec<String>> {
    let words: serde_json::Result<Map<String, Value>> = serde_json::from_slice(&ENGLISH.read(setup.data)?);
    let words = words.map_err(|e| Error::file(setup.data.join(ENGLISH.name), e))?;
    Ok(words.values().filter_map(Value::as_str).map(str::to_owned).collect())
}
