//! Facts among sentences of a background text (`babilong_utils.py`).

use super::pcg64::DefaultRng;
use crate::text::Punkt;
use crate::{Encoder, Error, Result, Setup, Token};

/// Tokens of a background sentence, at least (`min_sentence_len`).
const LEAST_TOKENS: usize = 10;
/// Pieces of background without a usable sentence before giving up.
const TRIES: usize = 1000;

/// `SentenceSampler` with `shuffle`: sentences from random places of the texts.
pub(super) struct Sentences {
    texts: Vec<Vec<char>>,
    left: std::vec::IntoIter<String>,
    random: DefaultRng,
}

impl Sentences {
    pub(super) fn new(texts: &[String], seed: u64) -> Sentences {
        let texts = texts.iter().map(|text| text.chars().collect()).collect();
        Sentences { texts, left: Vec::new().into_iter(), random: DefaultRng::new(seed) }
    }

    /// Sentences as tokens, `size` in all; the last one is cut.
    fn sample(&mut self, setup: &Setup, size: usize) -> Result<Vec<Vec<Token>>> {
        let mut sample = Vec::new();
        let mut total = 0;
        let mut empty = 0;
        loop {
            setup.check_stopped()?;
            let before = sample.len();
            for sentence in self.left.by_ref() {
                let mut tokens = setup.encoder.encode(&format!(" {sentence}"))?;
                if tokens.len() < LEAST_TOKENS {
                    continue;
                }
                total += tokens.len();
                let reached = total >= size;
                tokens.truncate(tokens.len().saturating_sub(total.saturating_sub(size)));
                sample.push(tokens);
                if reached {
                    return Ok(sample);
                }
            }
            empty = if sample.len() > before { 0 } else { empty + 1 };
            if empty > TRIES {
                return Err(Error::invalid(format!(
                    "background: expected sentences of at least {LEAST_TOKENS} tokens, found none in {TRIES} pieces"
                )));
            }
            self.refill(size);
        }
    }

    /// `sample_sentences_`: the whole sentences of a piece that begins anywhere.
    fn refill(&mut self, size: usize) {
        let below = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let text = &self.texts[self.random.choice(below(self.texts.len())) as usize];
        if text.is_empty() {
            return;
        }
        let start = self.random.choice(below(text.len())) as usize;
        let end = text.len().min(start.saturating_add(size.saturating_mul(10)));
        let piece: String = text[start..end].iter().collect();
        let mut sentences = Punkt::untrained().sentences(&piece);
        sentences.pop();
        let whole: Vec<String> = sentences.into_iter().skip(1).map(str::to_owned).collect();
        self.left = whole.into_iter();
    }
}

/// `NoiseInjectionDataset`: facts at random places between background sentences, in their order.
pub struct Noise {
    sentences: Sentences,
    random: DefaultRng,
}

impl Noise {
    /// Both draw with the seed, as the published code's defaults do.
    pub fn new(texts: &[String], seed: u64) -> Noise {
        Noise { sentences: Sentences::new(texts, seed), random: DefaultRng::new(seed) }
    }

    /// A text of `size` tokens with the facts in it; the facts have fewer.
    pub fn hide(&mut self, setup: &Setup, facts: &[String], size: usize) -> Result<String> {
        let facts = tokens_of(setup.encoder, facts)?;
        let taken: usize = facts.iter().map(Vec::len).sum();
        let background = self.sentences.sample(setup, size.saturating_sub(taken))?;
        let places = u32::try_from(background.len() + 1).unwrap_or(u32::MAX);
        let mut at: Vec<usize> = facts.iter().map(|_| self.random.choice(places) as usize).collect();
        at.sort_unstable();
        let mut tokens = Vec::with_capacity(size);
        let mut next = facts.iter().zip(at).peekable();
        for i in 0..=background.len() {
            while let Some((fact, _)) = next.next_if(|&(_, place)| place == i) {
                tokens.extend_from_slice(fact);
            }
            if let Some(sentence) = background.get(i) {
                tokens.extend_from_slice(sentence);
            }
        }
        setup.encoder.decode(&tokens)
    }
}

/// Facts as the published code tokenizes them.
pub(super) fn tokens_of(encoder: &dyn Encoder, facts: &[String]) -> Result<Vec<Vec<Token>>> {
    facts.iter().map(|fact| encoder.encode(&format!(" {fact}"))).collect()
}
