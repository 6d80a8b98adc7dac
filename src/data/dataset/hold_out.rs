//! The split of documents into those to train on and those held out to measure on.

use std::collections::BTreeMap;

use crate::corpus::Corpus;
use crate::error::{invalid, Result};
use crate::random;

/// The part of the documents that is held out.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum HeldOut {
    /// Nothing.
    #[default]
    None,
    /// This fraction of the tokens that can be trained on, between 0 and 1: as many whole documents as fit in
    /// it, and the smallest document that makes a sample where those make none.
    Fraction(f64),
    /// Documents that make at least this many samples; exactly this many are used.
    Samples(usize),
    /// Documents of at least this many tokens: the same ones at every context, where texts are packed.
    Tokens(u64),
}

impl HeldOut {
    /// Splits the documents into those to train on and those held out, each in ascending order. No text is in
    /// both: documents of equal text stay together.
    ///
    /// `size` gives the tokens that a document adds to the samples, `needed` the tokens that a number of
    /// samples takes. Documents are taken in a seeded random order as long as they fit. Where those are fewer
    /// tokens than needed, the smallest document that makes up for it is added.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) when the texts cannot be split so that each side has
    /// a sample.
    pub(super) fn split(
        self,
        corpus: &Corpus,
        seed: u64,
        size: &dyn Fn(usize) -> u64,
        needed: &dyn Fn(u64) -> u64,
    ) -> Result<(Vec<u32>, Vec<u32>)> {
        let all = 0..corpus.n_documents() as u32;
        let sample = needed(1);
        let total: u64 = all.clone().map(|d| size(d as usize)).sum();
        let (most, least) = match self {
            HeldOut::None => return Ok((all.collect(), Vec::new())),
            HeldOut::Fraction(f) if f > 0.0 && f < 1.0 => ((total as f64 * f) as u64, sample),
            HeldOut::Fraction(f) => {
                return Err(invalid(format!("held-out part: expected a fraction between 0 and 1, found {f}")))
            }
            HeldOut::Samples(0) | HeldOut::Tokens(0) => {
                return Err(invalid("held-out part: expected at least one sample, found 0"))
            }
            HeldOut::Tokens(n) => (n, n),
            HeldOut::Samples(n) => {
                let n = needed(n as u64);
                (n, n)
            }
        };
        // Documents of equal text, in an order that depends on nothing but the corpus.
        let mut groups: BTreeMap<u64, (u64, Vec<u32>)> = BTreeMap::new();
        for document in all.clone() {
            let group = groups.entry(corpus.text_hash(document as usize)).or_default();
            group.0 += size(document as usize);
            group.1.push(document);
        }
        let mut groups: Vec<(u64, Vec<u32>)> = groups.into_values().filter(|(n, _)| *n > 0).collect();
        let n_groups = groups.len();
        random::shuffle(&mut groups, &mut random::rng(seed, "held out", 0, 0));
        let (mut held, mut taken) = (Vec::new(), 0u64);
        groups.retain(|(n, documents)| {
            let fits = taken.saturating_add(*n) <= most;
            if fits {
                taken += n;
                held.extend_from_slice(documents);
            }
            !fits
        });
        while taken < least && !groups.is_empty() {
            let missing = least - taken;
            let enough = |(_, g): &(usize, &(u64, Vec<u32>))| g.0 >= missing;
            let by_size = |(_, g): &(usize, &(u64, Vec<u32>))| g.0;
            let best = groups.iter().enumerate().filter(enough).min_by_key(by_size);
            let best = best.or_else(|| groups.iter().enumerate().max_by_key(by_size)).map(|(i, _)| i);
            let (n, documents) = groups.remove(best.unwrap_or_default());
            taken += n;
            held.extend(documents);
        }
        if taken < least || total - taken < sample {
            return Err(invalid(format!(
                "held-out part: {n_groups} different texts of {total} tokens cannot be split into {least} \
                 tokens to hold out and {sample} to train on, each text on one side; give more texts, or hold \
                 out less or nothing"
            )));
        }
        held.sort_unstable();
        Ok((all.filter(|d| held.binary_search(d).is_err()).collect(), held))
    }
}
