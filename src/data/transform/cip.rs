//! CIP-2 (Zhao et al. 2024, "LongSkywork"; the baseline of Untie the Knots): each document of a sample is cut in
//! two, and first halves of all documents stand before their second ones.

use rand_chacha::ChaCha8Rng;

use super::pieces::{self, Builder};
use super::{Method, Transform};
use crate::error::Result;
use crate::sample::Sample;

pub(super) const CIP: Method = Method {
    name: "cip",
    about: "CIP-2, chunk interleaved pretraining (LongSkywork): documents in two chunks at a random place, alternating",
    params: &[],
    make: |_, _| Ok(Box::new(Cip)),
};

/// Two chunks, cut at random; nothing is put in. (`interleaved_skywork` of the released `gpt_dataset_utk.py`; its
/// "fast" variant interleaves nothing.)
#[derive(Debug)]
pub(super) struct Cip;

impl Transform for Cip {
    fn apply(&self, sample: Sample, rng: &mut ChaCha8Rng) -> Result<Sample> {
        let documents = pieces::documents(&sample);
        let cut = |(range, ends): (std::ops::Range<usize>, bool)| {
            (pieces::between(&range, &pieces::cuts(range.len(), 2, true, rng)), ends)
        };
        let cut: Vec<_> = documents.into_iter().map(cut).collect();
        let mut out = Builder::new(&sample);
        for round in 0..2 {
            for (document, (chunks, ends)) in cut.iter().enumerate() {
                if let Some(chunk) = chunks.get(round) {
                    out.text(document, chunk.clone(), *ends && round + 1 == chunks.len());
                }
            }
        }
        Ok(out.finish())
    }

    fn shortest(&self) -> usize {
        2
    }

    fn mixes(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "cip".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::rng;
    use crate::sample::SpanKind;

    /// Documents 1, 2, 3 of 4, 6 and 1 tokens, told apart by hundreds.
    fn sample() -> Sample {
        let mut tokens: Vec<i32> = (0..4).map(|i| 100 + i).collect();
        tokens.extend((0..6).map(|i| 200 + i));
        tokens.push(300);
        Sample::new(tokens, vec![0, 4, 10])
    }

    /// All that can come of documents, written down again: every place to cut each, first parts before second ones.
    fn all_ways(documents: &[&[i32]]) -> std::collections::BTreeSet<Vec<i32>> {
        let mut ways = vec![(Vec::new(), Vec::new())];
        for document in documents {
            let places =
                if document.len() < 2 { document.len()..=document.len() } else { 1..=document.len() - 1 };
            let with = |(first, second): &(Vec<i32>, Vec<i32>), at: usize| {
                ([first, &document[..at]].concat(), [second, &document[at..]].concat())
            };
            ways = ways.iter().flat_map(|way| places.clone().map(move |at| with(way, at))).collect();
        }
        ways.into_iter().map(|(first, second)| [first, second].concat()).collect()
    }

    #[test]
    fn every_way_occurs_and_no_other() {
        let whole = sample().tokens;
        let expected = all_ways(&[&whole[..4], &whole[4..10], &whole[10..]]);
        assert_eq!(expected.len(), 15);
        let mut found = std::collections::BTreeSet::new();
        for seed in 0..400 {
            let out = Cip.apply(sample(), &mut rng(seed, "test", 0, 0)).unwrap();
            let ends: Vec<bool> = out.spans.iter().map(|s| s.ends).collect();
            // The third is too short to be cut: it has its turn in the first round.
            assert_eq!(ends, [false, false, false, true, true], "{:?}", out.spans);
            assert!(
                out.spans.iter().all(|s| s.kind == SpanKind::Text) && out.weights.iter().all(|w| *w == 1.0)
            );
            found.insert(out.tokens);
        }
        assert_eq!(found, expected);
    }
}
