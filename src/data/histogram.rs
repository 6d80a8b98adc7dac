//! Histograms of a data set, as Untie the Knots counts it: tokens by the length of their document (Fig. 4), and
//! the distances of tokens of one document within a sample (Fig. 3).

use serde::Serialize;

use ropewalk_core::control::Control;

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::sample::{Sample, Span, SpanKind};

/// Bins of distances, spaced evenly in their logarithm.
const DISTANCE_BINS: usize = 64;
/// Rows of distances and columns of bars in text.
const TEXT_ROWS: usize = 16;
const BAR: f64 = 40.0;

/// Documents of some lengths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LengthBin {
    /// Fewest tokens of a document here.
    pub start: u64,
    /// Fewer than these.
    pub end: u64,
    /// Documents.
    pub documents: u64,
    /// Their tokens.
    pub tokens: u64,
}

/// Pairs of tokens at some distances.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DistanceBin {
    /// Smallest distance, tokens.
    pub start: u64,
    /// Distances below this.
    pub end: u64,
    /// Pairs of tokens of one document that are so far apart in a sample.
    pub pairs: u64,
}

/// The figures of a data set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inspection {
    /// Documents of the corpus.
    pub documents: u64,
    /// Their tokens, BOS and separators included.
    pub tokens: u64,
    /// Inputs of a sample.
    pub ctx: usize,
    /// Training samples of an epoch.
    pub samples: usize,
    /// Samples whose distances were counted, spread evenly over the first epoch.
    pub inspected: usize,
    /// Part of all pairs of inputs of a sample that are of one document.
    pub same_document: f64,
    /// Documents of the corpus by length, each bin twice as long as the one before.
    pub lengths: Vec<LengthBin>,
    /// Documents as an epoch has them, where the mixture leaves some out or repeats some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drawn: Option<Vec<LengthBin>>,
    /// Pairs of inputs of one document by their distance, that of the positions they are rotated by.
    pub distances: Vec<DistanceBin>,
    /// The same before the transform, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distances_before: Option<Vec<DistanceBin>>,
}

impl Inspection {
    /// Counts the documents of a data set, and the distances in at most `most` of its training samples. Every
    /// pair of a sample counts, not a draw of them: a run of `n` tokens has `n - d` pairs at distance `d`.
    /// Tokens that a transform put in are of no document.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; a sample that its transform made invalid.
    pub fn new(data: &Dataset, most: usize, control: &Control<'_>) -> Result<Inspection> {
        let (corpus, n_ctx, transform) = (data.corpus(), data.params().n_ctx, data.transform());
        let length = |d: usize| corpus.range(d).end - corpus.range(d).start;
        let all_of_them = |documents: &[u32]| {
            let mut times = vec![0; corpus.n_documents()];
            documents.iter().for_each(|&d| times[d as usize] += 1);
            data.held_out_documents().iter().for_each(|&d| times[d as usize] += 1);
            times.iter().all(|n| *n == 1)
        };
        let drawn = Some(data.train_documents()).filter(|documents| !all_of_them(documents));
        let reach = transform.and_then(|t| t.n_positions()).unwrap_or(n_ctx).max(n_ctx);
        let mut distances = distance_bins(reach as u64);
        let mut before = distances.clone();
        let inspected = data.n_train().min(most);
        let mut all = 0;
        for i in 0..inspected {
            control.unless_stopped(Error::Interrupted)?;
            let at = (i as u128 * data.n_train() as u128 / inspected as u128) as usize;
            let sample = data.train(0, at)?;
            let n = sample.inputs().len().min(n_ctx) as u64;
            all += n * n.saturating_sub(1) / 2;
            count(&mut distances, &runs(&sample, n_ctx));
            if transform.is_some() {
                count(&mut before, &runs(&data.untransformed(0, at)?, n_ctx));
            }
            control.report(format_args!("counting distances"), i as u64 + 1, inspected as u64);
        }
        let same: u64 = distances.iter().map(|b| b.pairs).sum();
        Ok(Inspection {
            documents: corpus.n_documents() as u64,
            tokens: corpus.n_tokens(),
            ctx: n_ctx,
            samples: data.n_train(),
            inspected,
            same_document: if all > 0 { same as f64 / all as f64 } else { 0.0 },
            lengths: length_bins((0..corpus.n_documents()).map(length)),
            drawn: drawn.map(|list| length_bins(list.iter().map(|&d| length(d as usize)))),
            distances,
            distances_before: transform.is_some().then_some(before),
        })
    }

    /// Both histograms as text, with bars.
    pub fn text(&self) -> String {
        let share = |n: u64, of: u64| if of == 0 { 0.0 } else { n as f64 / of as f64 };
        let mut out = format!(
            "{} tokens in {} documents; tokens by length of their document\n\n{:>25} {:>10} {:>14} {:>7}\n",
            self.tokens, self.documents, "tokens of a document", "documents", "tokens", "%"
        );
        for b in &self.lengths {
            out += &row(b.start, b.end, &[b.documents, b.tokens], share(b.tokens, self.tokens));
        }
        if let Some(drawn) = &self.drawn {
            let tokens = drawn.iter().map(|b| b.tokens).sum();
            let documents: u64 = drawn.iter().map(|b| b.documents).sum();
            out += &format!("\nan epoch has {tokens} tokens in {documents} documents, repeats counted\n\n");
            for b in drawn {
                out += &row(b.start, b.end, &[b.documents, b.tokens], share(b.tokens, tokens));
            }
        }
        out += &format!(
            "\n{} of {} samples of {} tokens: {:.1} % of all pairs of tokens are of one document; these by distance\n\n\
             {:>25} {:>14} {:>7}\n",
            self.inspected,
            self.samples,
            self.ctx,
            100.0 * self.same_document,
            "distance",
            "pairs",
            "%"
        );
        let table = |bins: &[DistanceBin]| -> String {
            let all: u64 = bins.iter().map(|b| b.pairs).sum();
            let row = |bins: &[DistanceBin]| {
                let pairs = bins.iter().map(|b| b.pairs).sum();
                let (first, last) = (bins.first()?, bins.last()?);
                Some(row(first.start, last.end, &[pairs], share(pairs, all)))
            };
            bins.chunks(bins.len().div_ceil(TEXT_ROWS).max(1)).filter_map(row).collect()
        };
        out += &table(&self.distances);
        if let Some(before) = &self.distances_before {
            out += &format!("\nbefore the data method\n\n{}", table(before));
        }
        out
    }
}

fn row(start: u64, end: u64, counts: &[u64], share: f64) -> String {
    let counts: String = match counts {
        [documents, tokens] => format!("{documents:>10} {tokens:>14}"),
        _ => counts.iter().map(|n| format!("{n:>14}")).collect(),
    };
    let bar = "#".repeat((share * BAR).round() as usize);
    format!("{:>25} {counts} {:>7.2} {bar}", format!("{start}..{}", end - 1), 100.0 * share)
        .trim_end()
        .to_owned()
        + "\n"
}

/// Bins from the shortest document's to the longest's, from one power of two to the next.
fn length_bins(lengths: impl Iterator<Item = u64>) -> Vec<LengthBin> {
    let bin = |k: u32| LengthBin {
        start: 1 << k,
        end: 1u64.checked_shl(k + 1).unwrap_or(u64::MAX),
        documents: 0,
        tokens: 0,
    };
    let mut bins: Vec<LengthBin> = (0..u64::BITS).map(bin).collect();
    for n in lengths {
        // No document is empty.
        let bin = &mut bins[n.max(1).ilog2() as usize];
        bin.documents += 1;
        bin.tokens += n;
    }
    let used = |b: &LengthBin| b.documents > 0;
    let end = bins.iter().rposition(used).map_or(0, |i| i + 1);
    bins.truncate(end);
    let start = bins.iter().position(used).unwrap_or(0);
    bins.split_off(start)
}

/// Bins of all distances that two of `n` tokens can have.
fn distance_bins(n: u64) -> Vec<DistanceBin> {
    let edge = |i: usize| (n as f64).powf(i as f64 / DISTANCE_BINS as f64).round() as u64;
    let mut edges: Vec<u64> = (0..DISTANCE_BINS).map(edge).chain([n]).collect();
    edges.dedup();
    edges.windows(2).map(|e| DistanceBin { start: e[0], end: e[1], pairs: 0 }).collect()
}

/// Tokens of a document in a row: number of the document, the first one's position, how many.
type Run = (u32, u64, u64);

/// The runs of a sample's first `n_ctx` inputs, sorted by document and position.
fn runs(sample: &Sample, n_ctx: usize) -> Vec<Run> {
    let n = sample.inputs().len().min(n_ctx);
    let position = |i: usize| sample.positions.get(i).map_or(i as u64, |&p| u64::from(p));
    let run = |(span, range): (Span, std::ops::Range<usize>)| {
        let (start, end) = (range.start.min(n), range.end.min(n));
        let is_text = span.kind == SpanKind::Text && start < end;
        is_text.then(|| (span.document, position(start), (end - start) as u64))
    };
    let mut runs: Vec<Run> = sample.ranges().filter_map(run).collect();
    runs.sort_unstable();
    runs
}

/// Adds all pairs within runs, and between runs of one document.
fn count(bins: &mut [DistanceBin], runs: &[Run]) {
    for (i, &(document, start, n)) in runs.iter().enumerate() {
        // Pairs closer than x within a run of n: each token with up to x - 1 before it.
        let within = |x: u64| {
            let most = x.saturating_sub(1).min(n - 1);
            most * n - most * (most + 1) / 2
        };
        for bin in bins.iter_mut() {
            bin.pairs += within(bin.end) - within(bin.start);
        }
        for &(_, later, m) in runs[i + 1..].iter().take_while(|r| r.0 == document) {
            let gap = (later - start) as i128;
            let (n, m) = (i128::from(n), i128::from(m));
            // Token i of the first run is closer than x to the first i + x - gap of the second.
            let closer =
                |x: u64| clamped(n - 1 + i128::from(x) - gap, m) - clamped(i128::from(x) - gap - 1, m);
            for bin in bins.iter_mut() {
                bin.pairs += (closer(bin.end) - closer(bin.start)) as u64;
            }
        }
    }
}

/// The sum of all whole numbers up to `to`, each cut to 0..=most.
fn clamped(to: i128, most: i128) -> i128 {
    let below = to.clamp(0, most);
    below * (below + 1) / 2 + (to - most).max(0) * most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_of_distances_are_some_dozens() {
        let bins = distance_bins(131_072);
        assert!(bins.len() > 50 && bins.len() <= DISTANCE_BINS);
        assert_eq!((bins[0].start, bins[bins.len() - 1].end), (1, 131_072));
    }

    /// Chunks of documents apart from each other, and positions that are not those of tokens.
    #[test]
    fn distances_are_counted_across_chunks() {
        for seed in 0..60u64 {
            let mut rng = crate::random::rng(seed, "test", 0, 0);
            let mut below = |n: u64| crate::random::below(&mut rng, n) as u32;
            let n = if seed < 2 { 1 + seed as u32 } else { 20 + below(200) };
            let mut sample = Sample::new(vec![0; n as usize + 1], vec![]);
            let mut at = 0;
            sample.spans.clear();
            while at <= n {
                let kind = if below(5) == 0 { SpanKind::Knot } else { SpanKind::Text };
                sample.spans.push(Span { start: at, kind, document: below(4), from: 0, ends: false });
                at += 1 + below(30);
            }
            let reach = if seed % 2 == 0 { n } else { 3 * n };
            if seed % 2 == 1 {
                // As under PoSE: a gap where a span starts.
                let first = sample.spans[sample.spans.len() / 2].start;
                sample.positions = (0..n).map(|i| if i < first { i } else { i + 2 * n - 1 }).collect();
            }
            let mut bins = distance_bins(u64::from(reach));
            count(&mut bins, &runs(&sample, n as usize));
            let mut naive = vec![0; bins.len()];
            let of = |i: u32| sample.ranges().find(|(_, r)| r.contains(&(i as usize))).unwrap().0;
            let position = |i: u32| sample.positions.get(i as usize).copied().unwrap_or(i);
            for i in 0..n {
                for j in 0..i {
                    let (a, b) = (of(i), of(j));
                    if a.document == b.document && a.kind == SpanKind::Text && b.kind == SpanKind::Text {
                        let d = u64::from(position(i) - position(j));
                        naive[bins.iter().position(|bin| (bin.start..bin.end).contains(&d)).unwrap()] += 1;
                    }
                }
            }
            assert_eq!(bins.iter().map(|b| b.pairs).collect::<Vec<u64>>(), naive, "{seed}");
        }
    }

    #[test]
    fn documents_fall_into_bins_by_length() {
        let bins = length_bins([5, 4, 7, 40, 63].into_iter());
        let short: Vec<_> = bins.iter().map(|b| (b.start, b.end, b.documents, b.tokens)).collect();
        assert_eq!(short, [(4, 8, 3, 16), (8, 16, 0, 0), (16, 32, 0, 0), (32, 64, 2, 103)]);
        assert_eq!(length_bins([1].into_iter())[0].start, 1);
        assert_eq!(length_bins([u64::MAX].into_iter())[0].end, u64::MAX);
    }
}
