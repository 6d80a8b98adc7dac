//! Made records that need the whole context: the five families of Untie the Knots (table 6), at the proportions
//! stated there. A record is a list of facts, a question about them, and its answer.
//!
//! The paper publishes no code. Taken freely are the words, how many hops (1 to 5, each as likely), attributes
//! and traders there are, and that the three kinds of attribute inclusion are as likely as each other. Names are
//! made of syllables; they are none that RULER uses.

mod attributes;
mod hops;
mod names;
mod sorting;
mod strings;
mod trades;

use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use ropewalk_core::tokenizer::{Token, Tokenizer};

use crate::corpus::Corpus;
use crate::error::{invalid, Result};
use crate::random::choose;
use crate::sample::{Sample, Span, SpanKind};

/// A record: facts in order, a question, its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// A line for each fact, between lines that say what they are.
    pub text: String,
    /// The question, up to where the answer begins.
    pub question: String,
    /// The answer.
    pub answer: String,
}

/// A family of records.
pub struct Family {
    /// Name of the family.
    pub name: &'static str,
    /// Weight of the family among the records, in elevenths: billions of tokens in the paper.
    pub weight: f64,
    /// Fewest facts of a record.
    pub least: usize,
    /// A record of so many facts. Its answer is right, and the only right one.
    pub make: fn(usize, &mut ChaCha8Rng) -> Record,
}

/// All families.
pub static FAMILIES: &[Family] =
    &[sorting::SORTING, hops::MULTI_HOP, trades::TRADES, strings::STRINGS, attributes::ATTRIBUTES];

/// Made samples among the samples of texts.
#[derive(Debug, Clone)]
pub struct Synthetic {
    share: f64,
    answers_only: bool,
    tokenizer: Arc<dyn Tokenizer>,
}

/// Tokens that a record may have, in samples of `n_ctx` inputs.
fn room(n_ctx: usize, corpus: &Corpus) -> usize {
    let (before, after) = corpus.around();
    (n_ctx + 1).saturating_sub(before.len() + after.len())
}

/// Draws of a record that has to fit into the context.
const TRIES: usize = 100;

impl Synthetic {
    /// Made samples as this part of all samples (0.3 in the paper). Under `answers_only` the loss is taken over
    /// their answers alone; the paper does not say.
    ///
    /// # Errors
    /// A share that is not above 0 and below 1.
    pub fn new(share: f64, answers_only: bool, tokenizer: Arc<dyn Tokenizer>) -> Result<Synthetic> {
        if share > 0.0 && share < 1.0 {
            return Ok(Synthetic { share, answers_only, tokenizer });
        }
        Err(invalid(format!("synthetic records: expected a share above 0 and below 1, found {share}")))
    }

    /// Number of synthetic samples for a number of samples of texts.
    pub(crate) fn n_samples(&self, n_text: usize) -> usize {
        (n_text as f64 * self.share / (1.0 - self.share)).round() as usize
    }

    pub(crate) fn describe(&self) -> String {
        format!("{}, answers only: {}", self.share, self.answers_only)
    }

    /// Refuses a context that has no room for the shortest records.
    pub(crate) fn check(&self, n_ctx: usize, corpus: &Corpus) -> Result<()> {
        for family in FAMILIES {
            let mut rng = crate::random::rng(0, "synthetic", 0, 0);
            self.fitted(family, room(n_ctx, corpus), &mut rng)?;
        }
        Ok(())
    }

    /// A record of a family drawn by weight, with as many facts as fit into `n_ctx` inputs, between the tokens
    /// that stand around documents.
    pub(crate) fn sample(&self, n_ctx: usize, corpus: &Corpus, rng: &mut ChaCha8Rng) -> Result<Sample> {
        let weights: Vec<f64> = FAMILIES.iter().map(|f| f.weight).collect();
        let family = &FAMILIES[choose(rng, &weights)];
        let ((before, after), room) = (corpus.around(), room(n_ctx, corpus));
        // The shortest record of other draws may still have room.
        let mut made = self.fitted(family, room, rng);
        for _ in 1..TRIES {
            made = made.or_else(|_| {
                // Records are made with a copy.
                crate::random::unit(rng);
                self.fitted(family, room, rng)
            });
        }
        let (prompt, answer) = made?;
        let n_prompt = before.len() + prompt.len();
        let tokens = [before, &prompt, &answer, after].concat();
        // Target i is token i + 1.
        let weight = |i: usize| if self.answers_only && i + 1 < n_prompt { 0.0 } else { 1.0 };
        let weights = (0..tokens.len() - 1).map(weight).collect();
        let spans = vec![Span { start: 0, kind: SpanKind::Text, document: 0, from: 0, ends: true }];
        Ok(Sample { tokens, segment_starts: vec![0], weights, positions: Vec::new(), spans })
    }

    /// Prompt and answer of the longest record that has at most `room` tokens. The same draws serve all lengths.
    fn fitted(&self, family: &Family, room: usize, rng: &mut ChaCha8Rng) -> Result<(Vec<Token>, Vec<Token>)> {
        let made = |n: usize| -> Result<Option<(Vec<Token>, Vec<Token>)>> {
            let Record { text, question, answer } = (family.make)(n, &mut rng.clone());
            let tokens = |text: &str| {
                let failed = |e| invalid(format!("synthetic records of {}: {e}", family.name));
                self.tokenizer.tokenize(text, false).map_err(failed)
            };
            let (prompt, answer) = (tokens(&(text + &question))?, tokens(&answer)?);
            Ok((prompt.len() + answer.len() <= room).then_some((prompt, answer)))
        };
        let (mut low, mut high) = (family.least, 2 * family.least);
        let mut best = made(low)?.ok_or_else(|| {
            invalid(format!(
                "synthetic records of {}: {room} tokens have no room for the shortest; expected a longer context",
                family.name
            ))
        })?;
        while let Some(longer) = made(high)? {
            (best, low, high) = (longer, high, 2 * high);
        }
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            match made(middle)? {
                Some(longer) => (best, low) = (longer, middle),
                None => high = middle,
            }
        }
        Ok(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::rng;
    use crate::testing::Bytes;

    #[test]
    fn records_fill_the_context_and_are_the_same_again() {
        let made = Synthetic::new(0.3, true, Arc::new(Bytes::default())).unwrap();
        for family in FAMILIES {
            for room in [1200, 3001, 20_000] {
                let of = |seed| made.fitted(family, room, &mut rng(seed, "test", 0, 0)).unwrap();
                let (prompt, answer) = of(1);
                let n = prompt.len() + answer.len();
                // The next fact would not fit; facts take at most 400 bytes.
                assert!(n <= room && n + 400 > room, "{}: {n} of {room}", family.name);
                assert_eq!((prompt.clone(), answer), of(1));
                assert_ne!(prompt, of(2).0);
            }
            let e = made.fitted(family, 20, &mut rng(1, "test", 0, 0)).unwrap_err().to_string();
            assert!(e.contains("20 tokens have no room for the shortest"), "{e}");
        }
    }

    #[test]
    fn proportions_are_those_of_the_paper() {
        let weights: Vec<(&str, f64)> = FAMILIES.iter().map(|f| (f.name, f.weight)).collect();
        let expected = [
            ("sorting", 1.0),
            ("multi-hop", 5.0),
            ("state tracking", 1.0),
            ("similarity retrieval", 1.0),
            ("attribute inclusion", 3.0),
        ];
        assert_eq!(weights, expected);
        for (share, n_text, n) in [(0.3, 70, 30), (0.5, 9, 9), (0.01, 10, 0)] {
            assert_eq!(
                Synthetic::new(share, false, Arc::new(Bytes::default())).unwrap().n_samples(n_text),
                n
            );
        }
        for share in [0.0, 1.0, -1.0, f64::NAN] {
            Synthetic::new(share, false, Arc::new(Bytes::default())).unwrap_err();
        }
    }
}
