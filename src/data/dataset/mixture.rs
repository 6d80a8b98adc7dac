//! Which documents are trained on, and how often: shares of sources, and upsampling by length. The list is
//! made once, from lengths and a seed alone.

use ropewalk_core::settings::{self, Setting, Within};
use std::fmt::{self, Display};
use std::str::FromStr;

use crate::error::{invalid, Error, Result};
use crate::random;
use crate::text::Group;

/// Most times that the texts are repeated on average.
const MOST_REPEATS: f64 = 1000.0;

ropewalk_core::setters! {
    /// How documents are drawn for training.
    #[derive(Debug, Clone, Copy, PartialEq, Default)]
    pub struct Mixture {
        /// Long documents in place of short ones.
        pub upsample: Upsample,
        /// Tokens of an epoch. `None` is as many as keep the shares and repeat no document (under
        /// [`Upsample::Utk`]: leave none out).
        pub tokens: Option<u64>,
    }
}

/// Upsampling of long documents.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Upsample {
    /// None.
    #[default]
    None,
    /// Fu et al. 2024: documents of fewer than `length` tokens are kept with probability `keep`, and each source
    /// is drawn from until it has its share of the tokens.
    Fu {
        /// Tokens from which on a document is long; 4096 as released.
        length: u64,
        /// Probability of a shorter one; 0.1 as released.
        keep: f64,
    },
    /// The same rule without shares: sources with long documents grow.
    Global {
        /// Tokens from which on a document is long.
        length: u64,
        /// Probability of a shorter one.
        keep: f64,
    },
    /// The baseline of Untie the Knots: documents of more than `length` tokens count `weight` times within their
    /// source, whose share stays.
    Utk {
        /// Most tokens of a document that is not long; 32768 in the paper.
        length: u64,
        /// How often a long document counts; 5 in the paper.
        weight: f64,
    },
}

impl Upsample {
    /// Tokens from which on a document is long, and drawn more often.
    pub fn length(&self) -> Option<u64> {
        match *self {
            Upsample::None => None,
            Upsample::Fu { length, .. } | Upsample::Global { length, .. } => Some(length),
            Upsample::Utk { length, .. } => Some(length.saturating_add(1)),
        }
    }
}

impl Display for Upsample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Upsample::None => f.write_str("none"),
            Upsample::Fu { length, keep } => write!(f, "fu:length={length},keep={keep}"),
            Upsample::Global { length, keep } => write!(f, "global:length={length},keep={keep}"),
            Upsample::Utk { length, weight } => write!(f, "utk:length={length},weight={weight}"),
        }
    }
}

impl FromStr for Upsample {
    type Err = Error;

    /// `none`, `fu`, `global` or `utk`, with `:length=4096,keep=0.1` or `:length=32768,weight=5`.
    fn from_str(text: &str) -> Result<Self> {
        let (name, rest) = settings::named(text);
        let (mut length, mut keep, mut weight): (usize, f64, f64) =
            (if name == "utk" { 32_768 } else { 4096 }, 0.1, 5.0);
        let lengths: &mut dyn Setting = &mut Within(&mut length, 1..=u32::MAX as usize);
        let keeps: &mut dyn Setting = &mut Within(&mut keep, 0.0..=1.0);
        let weights: &mut dyn Setting = &mut Within(&mut weight, 1.0..=MOST_REPEATS);
        let mut known = match name {
            "none" => vec![],
            "fu" | "global" => vec![("length", lengths), ("keep", keeps)],
            "utk" => vec![("length", lengths), ("weight", weights)],
            other => {
                return Err(invalid(format!("upsampling: expected none, fu, global or utk, found '{other}'")))
            }
        };
        settings::read(&format!("upsampling {name}"), rest, &mut known).map_err(invalid)?;
        let length = length as u64;
        Ok(match name {
            "fu" => Upsample::Fu { length, keep },
            "global" => Upsample::Global { length, keep },
            "utk" => Upsample::Utk { length, weight },
            _ => Upsample::None,
        })
    }
}

/// Lengths of the documents in tokens, and their groups.
pub(super) struct Facts<'a> {
    pub(super) length: &'a dyn Fn(u32) -> u64,
    pub(super) group: &'a dyn Fn(u32) -> usize,
    pub(super) groups: &'a [Group],
    pub(super) seed: u64,
}

impl Mixture {
    /// The documents to train on, of these, each as often as it is in an epoch.
    ///
    /// # Errors
    /// A source with a share and no text; more tokens than a thousand times the texts; upsampling that keeps no
    /// document.
    pub(super) fn draw(&self, documents: Vec<u32>, facts: &Facts<'_>) -> Result<Vec<u32>> {
        let shared = facts.groups.iter().any(|g| g.share.is_some());
        if *self == Mixture::default() && !shared {
            return Ok(documents);
        }
        let one = [Group { name: "all texts".into(), share: None }];
        let global = matches!(self.upsample, Upsample::Global { .. });
        let groups = if global { &one } else { facts.groups };
        let mut sets = vec![Vec::new(); groups.len()];
        documents.iter().for_each(|&d| sets[if global { 0 } else { (facts.group)(d) }].push(d));
        let size = |set: &[u32]| set.iter().map(|&d| (facts.length)(d)).sum::<u64>();
        let all = size(&documents);
        let shares: Vec<f64> = groups
            .iter()
            .zip(&sets)
            .map(|(g, set)| g.share.unwrap_or(size(set) as f64 / all.max(1) as f64))
            .collect();
        for ((group, set), share) in groups.iter().zip(&sets).zip(&shares) {
            if *share > 0.0 && size(set) == 0 {
                return Err(invalid(format!("{}: a share of {share}, and no text to train on", group.name)));
            }
        }
        // Tokens that a source has for its share, as one number for all.
        let room = |s: usize, tokens: f64| if shares[s] > 0.0 { tokens / shares[s] } else { f64::INFINITY };
        let most = all as f64 * MOST_REPEATS;
        let given = self.tokens.map(|n| n as f64);
        if let Some(n) = given.filter(|n| *n > most) {
            return Err(invalid(format!(
                "{n} tokens of an epoch: expected at most {most}, {MOST_REPEATS} times the texts"
            )));
        }
        let mut list = Vec::new();
        if let Upsample::Utk { length, weight } = self.upsample {
            let weight = |d: u32| if (facts.length)(d) > length { weight } else { 1.0 };
            let weighted =
                |set: &[u32]| set.iter().map(|&d| weight(d) * (facts.length)(d) as f64).sum::<f64>();
            // No document less than once.
            let total = sets.iter().enumerate().filter(|(s, _)| shares[*s] > 0.0);
            let total =
                given.unwrap_or_else(|| total.map(|(s, set)| room(s, weighted(set))).fold(0.0, f64::max));
            if total > most {
                return Err(invalid(format!(
                    "a source is so small for its share that its texts are repeated more than {MOST_REPEATS} times; \
                     give the tokens of an epoch"
                )));
            }
            for (s, (set, share)) in sets.iter().zip(&shares).enumerate() {
                let times = total * share / weighted(set).max(1.0);
                // Systematic sampling: the part of a copy that one document leaves over goes to the next one of
                // like length, so that the tokens come out as they should.
                let mut rng = random::rng(facts.seed, "copies", s as u64, 0);
                let mut set = set.clone();
                random::shuffle(&mut set, &mut rng);
                set.sort_by_key(|&d| (facts.length)(d));
                let mut at = random::unit(&mut rng);
                for d in set {
                    let next = at + weight(d) * times;
                    list.extend(std::iter::repeat_n(d, next as usize - at as usize));
                    at = next;
                }
            }
        } else {
            let walks: Vec<Vec<u32>> = (0..sets.len()).map(|s| self.walk(&sets[s], s, 0, facts)).collect();
            // A walk that keeps nothing is drawn again, and has no say in the total.
            let kept = walks.iter().enumerate().filter(|(_, walk)| !walk.is_empty());
            let total = kept.map(|(s, walk)| room(s, size(walk) as f64));
            let total = given.unwrap_or_else(|| total.fold(f64::INFINITY, f64::min));
            for (s, first) in walks.into_iter().enumerate() {
                let budget = (shares[s] * total).round() as u64;
                let (mut tally, mut pass, mut walk, mut n_empty) = (0, 0, first, 0);
                while tally < budget {
                    n_empty = if walk.is_empty() { n_empty + 1 } else { 0 };
                    if n_empty > 100 {
                        return Err(invalid(format!(
                            "{}: upsampling keeps no document of {} texts",
                            groups[s].name,
                            sets[s].len()
                        )));
                    }
                    for d in std::mem::take(&mut walk) {
                        if tally >= budget {
                            break;
                        }
                        tally += (facts.length)(d);
                        list.push(d);
                    }
                    pass += 1;
                    if tally < budget {
                        walk = self.walk(&sets[s], s, pass, facts);
                    }
                }
            }
        }
        if list.is_empty() {
            return Err(invalid(format!("upsampling {}: keeps no document", self.upsample)));
        }
        Ok(list)
    }

    /// The documents of a source that are kept, in the order of this pass over it.
    fn walk(&self, set: &[u32], s: usize, pass: u64, facts: &Facts<'_>) -> Vec<u32> {
        let mut rng = random::rng(facts.seed, "mixture", s as u64, pass);
        let mut set = set.to_vec();
        random::shuffle(&mut set, &mut rng);
        if let Upsample::Fu { length, keep } | Upsample::Global { length, keep } = self.upsample {
            set.retain(|&d| (facts.length)(d) >= length || random::unit(&mut rng) < keep);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Documents 0 to 99 of group `a`, 10 to 1000 tokens; 100 to 149 of `b`, 50 to 2500.
    fn length(d: u32) -> u64 {
        if d < 100 {
            10 * (u64::from(d) + 1)
        } else {
            50 * (u64::from(d) - 99)
        }
    }

    fn draw(mixture: &str, tokens: Option<u64>, shares: [Option<f64>; 2], seed: u64) -> Result<Vec<u32>> {
        let groups =
            [("a", shares[0]), ("b", shares[1])].map(|(name, share)| Group { name: name.into(), share });
        let facts = Facts { length: &length, group: &|d| usize::from(d >= 100), groups: &groups, seed };
        Mixture { upsample: mixture.parse()?, tokens }.draw((0..150).collect(), &facts)
    }

    /// Tokens of `a`, of `b`, and of documents of 500 tokens and more.
    fn tally(list: &[u32]) -> [u64; 3] {
        let of = |f: &dyn Fn(u32) -> bool| list.iter().filter(|&&d| f(d)).map(|&d| length(d)).sum();
        [of(&|d| d < 100), of(&|d| d >= 100), of(&|d| length(d) >= 500)]
    }

    fn copies(list: &[u32], d: u32) -> usize {
        list.iter().filter(|&&x| x == d).count()
    }

    #[test]
    fn without_shares_and_upsampling_every_document_is_there_once() {
        assert_eq!(draw("none", None, [None; 2], 1).unwrap(), (0..150).collect::<Vec<_>>());
    }

    #[test]
    fn sources_have_their_shares() {
        for (share, seed) in [(0.2, 1), (0.5, 2), (0.9, 3)] {
            for (upsample, tokens) in [
                ("none", None),
                ("none", Some(400_000)),
                ("fu:length=500", None),
                ("fu:length=500,keep=0.3", Some(300_000)),
                ("utk:length=500", None),
                ("utk:length=500,weight=2", Some(50_000)),
            ] {
                let list = draw(upsample, tokens, [Some(share), Some(1.0 - share)], seed).unwrap();
                let [a, b, _] = tally(&list);
                let found = a as f64 / (a + b) as f64;
                // One document of up to 2,500 tokens more than a share, or copies that are drawn.
                let most = 6000.0 / (a + b) as f64;
                assert!((found - share).abs() < most, "{upsample} {tokens:?}: {found} of {share}");
                if let Some(tokens) = tokens {
                    assert!((a + b).abs_diff(tokens) < 6000, "{upsample}: {} of {tokens}", a + b);
                }
                assert_eq!(list, draw(upsample, tokens, [Some(share), Some(1.0 - share)], seed).unwrap());
            }
        }
    }

    #[test]
    fn nothing_is_repeated_unless_more_tokens_are_asked_for_than_there_are() {
        let list = draw("none", None, [Some(0.5), Some(0.5)], 4).unwrap();
        assert!((0..150).all(|d| copies(&list, d) <= 1));
        // All of the source that has least for its share.
        assert!((0..100).all(|d| copies(&list, d) == 1));
        let twice = draw("none", Some(2 * (50_500 + 63_750)), [None; 2], 4).unwrap();
        assert!((0..150).all(|d| copies(&twice, d) == 2), "two passes");
    }

    /// A source of one short text, which most draws do not keep.
    #[test]
    fn a_source_that_keeps_nothing_is_drawn_again() {
        let groups = ["a", "b"].map(|name| Group { name: name.into(), share: None });
        for seed in 0..20 {
            let facts = Facts { length: &length, group: &|d| usize::from(d > 0), groups: &groups, seed };
            let documents = std::iter::once(0).chain(100..150).collect();
            let list = Mixture { upsample: "fu:length=500".parse().unwrap(), tokens: None };
            assert!(list.draw(documents, &facts).unwrap().contains(&0), "{seed}");
        }
    }

    /// Short documents are kept one in ten, long ones all; shares of sources stay as they were.
    #[test]
    fn fu_keeps_long_documents_and_shares() {
        let natural = 50_500.0 / 114_250.0;
        let (mut short, mut long) = (0, 0);
        for seed in 0..40 {
            let list = draw("fu:length=500", None, [None; 2], seed).unwrap();
            let [a, b, _] = tally(&list);
            assert!((a as f64 / (a + b) as f64 - natural).abs() < 0.04, "{seed}");
            short += list.iter().filter(|&&d| d < 100 && length(d) < 500).count();
            long += list.iter().filter(|&&d| d < 100 && length(d) >= 500).count();
        }
        let kept = short as f64 / (40.0 * 49.0);
        assert!((0.07..0.13).contains(&kept), "{kept}");
        assert!(long as f64 / (40.0 * 51.0) > 0.95, "the source that has least for its share is taken whole");
        let global = draw("global:length=1200,keep=0", None, [None; 2], 1).unwrap();
        assert!(global.iter().all(|&d| length(d) >= 1200) && global.len() == 27);
    }

    /// Long documents count five times in their source, of which no document is left out.
    #[test]
    fn utk_repeats_long_documents_within_their_source() {
        let list = draw("utk:length=500", None, [None; 2], 7).unwrap();
        assert!((0..150).all(|d| copies(&list, d) >= 1));
        let mean = |from: u32, to: u32, long: bool| {
            let of: Vec<u32> = (from..to).filter(|&d| (length(d) > 500) == long).collect();
            of.iter().map(|&d| copies(&list, d)).sum::<usize>() as f64 / of.len() as f64
        };
        for (from, to) in [(0, 100), (100, 150)] {
            let ratio = mean(from, to, true) / mean(from, to, false);
            assert!((4.0..6.5).contains(&ratio), "{ratio}");
        }
        let [a, b, _] = tally(&list);
        assert!((a as f64 / (a + b) as f64 - 50_500.0 / 114_250.0).abs() < 0.02);
    }

    /// Hundreds of passes that keep a document now and then, of which many are empty.
    #[test]
    fn empty_passes_do_not_end_a_draw_that_goes_on() {
        let list = draw("fu:length=9999,keep=0.01", Some(500_000), [None; 2], 1).unwrap();
        let [a, b, _] = tally(&list);
        assert!((a + b).abs_diff(500_000) < 6000, "{a} {b}");
    }

    #[test]
    fn what_cannot_be_drawn_is_an_error() {
        let e = |r: Result<Vec<u32>>| r.unwrap_err().to_string();
        assert!(e(draw("none", Some(u64::MAX), [None; 2], 1)).contains("1000 times the texts"));
        assert!(e(draw("fu:length=9999,keep=0", None, [None; 2], 1)).contains("keeps no document"));
        assert!(e(draw("fu:length=9999,keep=0", Some(10), [None; 2], 1)).contains("keeps no document"));
        for bad in [
            "best",
            "fu:keep=2",
            "fu:keep=NaN",
            "utk:keep=0.1",
            "utk:weight=0.5",
            "fu:length=0",
            "fu:length",
            "none:length=3",
        ] {
            let e = bad.parse::<Upsample>().unwrap_err().to_string();
            let says = ["expected ", "unknown parameter `keep`", "takes no parameters"];
            assert!(e.starts_with("upsampling") && says.iter().any(|s| e.contains(s)), "{bad}: {e}");
        }
        let shown = "utk:length=100,weight=2.5";
        assert_eq!(shown.parse::<Upsample>().unwrap().to_string(), shown);
    }
}
