//! Untie the Knots (Tian et al. 2024): documents of a sample are cut into chunks, the chunks of all of them
//! shuffled, and the model learns to find the parts of each again. As in the released `gpt_dataset_utk.py`.
//!
//! One choice differs from that file: for the last document of a sample, cut into several chunks, it looks the
//! labels up by the number of the chunk where it should by its place, so that its list names other chunks and
//! may stand after an earlier one. Here that list is as all others are.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use ropewalk_core::tokenizer::{Token, Tokenizer};

use super::pieces::{self, Builder, Role};
use super::spec::Args;
use super::{token, Method, Setup, Transform};
use crate::error::{invalid, Result};
use crate::random::{choose, shuffle};
use crate::sample::Sample;

/// Number of chunks that stands for "cut every so many tokens".
const FIXED: usize = 4;

const PARAMS: &[(&str, &str)] = &[
    ("share", "fraction of the samples whose documents are cut"),
    (
        "chunks",
        "probabilities of 1, 2, 3 chunks of a document, and of cutting it every `size` tokens: 0/0.5/0.5",
    ),
    ("mix", "in place of both: weights and probabilities of several kinds of samples, 0.8@0/0.5/0.5+0.2@1"),
    ("order", "chunks of a document stay in their order (true), or not (disrupt order: false)"),
    ("backtrace", "labels of chunks, and the list of them at the last one (true), or none (false)"),
    ("random", "documents are cut at random (true), or into equal parts (false)"),
    ("min-split", "shorter documents stay whole (0; in the paper, but not in the released code)"),
    ("size", "tokens of a chunk where a document is cut at fixed lengths (1024)"),
    (
        "knots",
        "tokens at cuts, as texts or #NUMBER, with / between: end of chunk 1, start of 2, end of 2, start of 3 \
         (tokens that the vocabulary leaves unused)",
    ),
    (
        "marks",
        "tokens around labels: start and end of one, start of the list of them, between two, its end (the same)",
    ),
];

pub(super) const UTK_80: Method = Method {
    name: "utk-80",
    about: "Untie the Knots on 80 % of the samples, documents in 2 or 3 chunks, equally often (the paper gives no \
            proportions)",
    params: PARAMS,
    make: |args, setup| make(args, setup, 0.8),
};

pub(super) const UTK_30: Method = Method {
    name: "utk-30",
    about: "the same on 30 %",
    params: PARAMS,
    make: |args, setup| make(args, setup, 0.3),
};

pub(super) const UTK: Method = Method {
    name: "utk",
    about: "Untie the Knots, with parameters; without any it is utk-80",
    params: PARAMS,
    make: |args, setup| make(args, setup, 0.8),
};

/// The settings of Untie the Knots, which are those of `GPTDatasetUtKConfig`.
#[derive(Debug)]
pub(super) struct Utk {
    /// Kinds of samples: weight, and probabilities of 1, 2, 3 chunks and of fixed lengths.
    mix: Vec<(f64, Vec<f64>)>,
    /// End of the first chunk, start of the second, end of the second, start of the third.
    knots: Vec<Token>,
    /// Start and end of a label, start of the list, between two labels, its end; none without backtrace.
    marks: Option<[Token; 5]>,
    order: bool,
    random: bool,
    min_split: usize,
    size: usize,
    tokenizer: Arc<dyn Tokenizer>,
}

fn make(args: &Args<'_>, setup: &Setup, share: f64) -> Result<Box<dyn Transform>> {
    let mix = mix(args, share)?;
    let most = |&(weight, ref p): &(f64, Vec<f64>)| {
        // Fixed lengths take four ids, two around the number at each side.
        let ids = [0, 2, 4, 4];
        let used = p.iter().zip(ids).filter(|(p, _)| **p > 0.0 && weight > 0.0);
        used.map(|(_, ids)| ids).max().unwrap_or(0)
    };
    let n_knots = mix.iter().map(most).max().unwrap_or(0);
    let backtrace = args.flag("backtrace", true)?;
    let (order, random) = (args.flag("order", true)?, args.flag("random", true)?);
    let (min_split, size) =
        (args.number("min-split", 0)?.unwrap_or(0), args.number("size", 1)?.unwrap_or(1024));
    let (knots, marks) = ids(args, setup, n_knots, if backtrace { 5 } else { 0 })?;
    let (marks, tokenizer) = (marks.try_into().ok(), Arc::clone(&setup.tokenizer));
    Ok(Box::new(Utk { mix, knots, marks, order, random, min_split, size, tokenizer }))
}

fn mix(args: &Args<'_>, share: f64) -> Result<Vec<(f64, Vec<f64>)>> {
    let Some(text) = args.get("mix") else {
        let share = args.part("share")?.unwrap_or(share);
        let chunks = args.probabilities("chunks", args.get("chunks").unwrap_or("0/0.5/0.5"), FIXED)?;
        return Ok(vec![(share, chunks), (1.0 - share, vec![1.0])]);
    };
    if let Some(other) = ["share", "chunks"].iter().find(|key| args.get(key).is_some()) {
        return Err(args.bad(format!("mix stands in place of {other}: give one of them")));
    }
    let kinds = text.split('+').map(|kind| {
        let parts =
            kind.split_once('@').and_then(|(weight, p)| Some((weight.trim().parse::<f64>().ok()?, p)));
        let (weight, p) = parts.filter(|(w, _)| (0.0..=1.0).contains(w)).ok_or_else(|| {
            args.bad(format!(
                "mix: expected weights and probabilities such as 0.8@0/0.5/0.5+0.2@1, found '{text}'"
            ))
        })?;
        Ok((weight, args.probabilities("mix", p, FIXED)?))
    });
    let mix: Vec<(f64, Vec<f64>)> = kinds.collect::<Result<_>>()?;
    let sum: f64 = mix.iter().map(|(w, _)| w).sum();
    if (sum - 1.0).abs() > 1e-6 {
        return Err(args.bad(format!("mix: expected weights that add up to 1, found {sum}")));
    }
    Ok(mix)
}

/// The ids of knots and marks: those given, or the first that the vocabulary leaves unused.
fn ids(args: &Args<'_>, setup: &Setup, n_knots: usize, n_marks: usize) -> Result<(Vec<Token>, Vec<Token>)> {
    let tokenizer = &*setup.tokenizer;
    let given = |what: &str, key: &str, n: usize| -> Result<Option<Vec<Token>>> {
        let Some(texts) = args.get(key) else { return Ok(None) };
        let texts: Vec<&str> = texts.split('/').map(str::trim).collect();
        if texts.len() < n {
            return Err(args.bad(format!("{what}: expected {n}, found {}", texts.len())));
        }
        texts[..n].iter().map(|text| token(tokenizer, what, text)).collect::<Result<_>>().map(Some)
    };
    let (knots, marks) = (given("knot token", "knots", n_knots)?, given("mark token", "marks", n_marks)?);
    let taken: Vec<Token> = knots.iter().chain(&marks).flatten().copied().collect();
    let free: Vec<Token> = tokenizer.unused().into_iter().filter(|t| !taken.contains(t)).collect();
    let needed = if knots.is_some() { 0 } else { n_knots } + if marks.is_some() { 0 } else { n_marks };
    if free.len() < needed {
        return Err(args.bad(format!(
            "the vocabulary has {} unused tokens, {needed} are needed: name rare ones, {n_knots} as knots=A/B/.. and \
             {n_marks} as marks=A/B/..",
            free.len()
        )));
    }
    let mut free = free.into_iter();
    let knots = knots.unwrap_or_else(|| free.by_ref().take(n_knots).collect());
    let marks = marks.unwrap_or_else(|| free.take(n_marks).collect());
    let mut all: Vec<Token> = knots.iter().chain(&marks).copied().collect();
    all.sort_unstable();
    if let Some(twice) = all.windows(2).find(|w| w[0] == w[1]) {
        return Err(
            args.bad(format!("knots and marks: expected different tokens, found #{} twice", twice[0]))
        );
    }
    Ok((knots, marks))
}

/// All that is random about a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Draws {
    /// Where each document is cut, from its start; and whether it is cut at fixed lengths.
    pub(super) cuts: Vec<(Vec<usize>, bool)>,
    /// The places of each document's chunks in the new order: all but the last chunk of the last document,
    /// which keeps the last place.
    pub(super) places: Vec<Vec<usize>>,
    /// The label of each place; none without backtrace.
    pub(super) labels: Vec<String>,
}

impl Utk {
    pub(super) fn draw(&self, documents: &[Range<usize>], rng: &mut ChaCha8Rng) -> Draws {
        let weights: Vec<f64> = self.mix.iter().map(|(w, _)| *w).collect();
        let probabilities = &self.mix[choose(rng, &weights)].1;
        let cut = |document: &Range<usize>| {
            let (len, n) = (document.len(), choose(rng, probabilities) + 1);
            if len < self.min_split {
                return (Vec::new(), false);
            }
            if n == FIXED {
                return ((self.size..len).step_by(self.size).collect(), true);
            }
            (pieces::cuts(len, n, self.random, rng), false)
        };
        let cuts: Vec<(Vec<usize>, bool)> = documents.iter().map(cut).collect();
        let mut counts: Vec<usize> = cuts.iter().map(|(cuts, _)| cuts.len() + 1).collect();
        if let Some(last) = counts.last_mut() {
            *last -= 1;
        }
        let n: usize = counts.iter().sum();
        let mut order: Vec<usize> = (0..n).collect();
        shuffle(&mut order, rng);
        let mut rest = order.into_iter();
        let mut places: Vec<Vec<usize>> = counts.iter().map(|&k| rest.by_ref().take(k).collect()).collect();
        if self.order {
            places.iter_mut().for_each(|p| p.sort_unstable());
        }
        if let Some(last) = places.last_mut() {
            last.push(n);
        }
        let labels = (0..=n).filter(|_| self.marks.is_some()).map(|_| pieces::label(rng)).collect();
        Draws { cuts, places, labels }
    }

    pub(super) fn assemble(&self, sample: &Sample, draws: &Draws) -> Result<Sample> {
        let documents = pieces::documents(sample);
        let n = draws.places.iter().map(Vec::len).sum();
        // The document and the number of the chunk at each place.
        let mut at = vec![(0, 0); n];
        for (document, places) in draws.places.iter().enumerate() {
            places.iter().enumerate().for_each(|(chunk, &place)| at[place] = (document, chunk));
        }
        let mut out = Builder::new(sample);
        for (place, (document, chunk)) in at.into_iter().enumerate() {
            let ((range, ends), places) = (&documents[document], &draws.places[document]);
            let (cuts, fixed) = &draws.cuts[document];
            let marks = self.marks.filter(|_| places.len() > 1);
            if let Some([start, end, ..]) = marks {
                out.insert(document, start, Role::LabelStart);
                out.insert_all(document, &self.tokens(&draws.labels[place])?, Role::Label);
                out.insert(document, end, Role::LabelEnd);
            }
            if chunk > 0 {
                self.knot(&mut out, document, chunk, true, *fixed)?;
            }
            let last = chunk == cuts.len();
            out.text(document, pieces::between(range, cuts)[chunk].clone(), *ends && last);
            if !last {
                self.knot(&mut out, document, chunk, false, *fixed)?;
            }
            if let Some([_, _, start, next, end]) = marks.filter(|_| places.iter().max() == Some(&place)) {
                out.insert(document, start, Role::ListStart);
                for (i, &place) in places.iter().enumerate() {
                    if i > 0 {
                        out.insert(document, next, Role::ListNext);
                    }
                    out.insert_all(document, &self.tokens(&draws.labels[place])?, Role::ListLabel);
                }
                out.insert(document, end, Role::ListEnd);
            }
        }
        Ok(out.finish())
    }

    /// The ids at the head or the tail of a chunk.
    fn knot(
        &self,
        out: &mut Builder<'_>,
        document: usize,
        chunk: usize,
        head: bool,
        fixed: bool,
    ) -> Result<()> {
        if !fixed {
            out.insert(document, self.knots[if head { 2 * chunk - 1 } else { 2 * chunk }], Role::Knot);
            return Ok(());
        }
        let [before, after] = if head { [0, 1] } else { [2, 3] };
        out.insert(document, self.knots[before], Role::Knot);
        out.insert_all(document, &self.tokens(&chunk.to_string())?, Role::Number);
        out.insert(document, self.knots[after], Role::Knot);
        Ok(())
    }

    fn tokens(&self, text: &str) -> Result<Vec<Token>> {
        self.tokenizer.tokenize(text, false).map_err(|e| invalid(format!("label {text}: {e}")))
    }
}

impl Transform for Utk {
    fn apply(&self, sample: Sample, rng: &mut ChaCha8Rng) -> Result<Sample> {
        let documents: Vec<Range<usize>> = pieces::documents(&sample).into_iter().map(|(r, _)| r).collect();
        self.assemble(&sample, &self.draw(&documents, rng))
    }

    fn shortest(&self) -> usize {
        let cut = self.mix.iter().filter(|(w, _)| *w > 0.0).flat_map(|(_, p)| {
            let shortest = [usize::MAX, 2, 3, self.size.saturating_add(1)];
            p.iter().zip(shortest).filter(|(p, _)| **p > 0.0).map(|(_, shortest)| shortest)
        });
        // Where none is cut, none is too short.
        cut.min().filter(|n| *n < usize::MAX).map_or(1, |n| n.max(self.min_split))
    }

    fn mixes(&self) -> bool {
        true
    }

    fn masks_ends(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        let Utk { mix, knots, marks, order, random, min_split, size, tokenizer: _ } = self;
        let mut out = format!("utk {mix:?}, knots {knots:?}, marks {marks:?}");
        let _ = write!(out, ", order {order}, random {random}, min-split {min_split}, size {size}");
        out
    }
}

#[cfg(test)]
#[path = "utk_tests.rs"]
mod tests;
