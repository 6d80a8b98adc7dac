//! Histograms of a data set, as Untie the Knots counts it: tokens by the length of their document (Fig. 4), and
//! the distances of tokens of one document within a sample (Fig. 3).

use serde::Serialize;

use super::dataset::Dataset;
use super::sample::Sample;
use crate::control::Control;
use crate::model::{Error, Result};

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
    /// Pairs of inputs of one document by their distance.
    pub distances: Vec<DistanceBin>,
}

impl Inspection {
    /// Counts the documents of a data set, and the distances in at most `most` of its training samples. Every
    /// pair of a sample counts, not a draw of them: a run of `n` tokens has `n - d` pairs at distance `d`.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; a sample that its transform made invalid.
    pub fn new(data: &Dataset, most: usize, control: &Control<'_>) -> Result<Inspection> {
        let (corpus, n_ctx) = (data.corpus(), data.params().n_ctx);
        let lengths = (0..corpus.n_documents()).map(|d| corpus.range(d)).map(|r| r.end - r.start);
        let mut distances = distance_bins(n_ctx as u64);
        let inspected = data.n_train().min(most);
        for i in 0..inspected {
            if control.stopped() {
                return Err(Error::Interrupted);
            }
            let at = (i as u128 * data.n_train() as u128 / inspected as u128) as usize;
            let sample = data.train(0, at)?;
            runs(&sample).for_each(|n| count_run(&mut distances, n));
            control.report(format_args!("counting distances"), i as u64 + 1, inspected as u64);
        }
        let same: u64 = distances.iter().map(|b| b.pairs).sum();
        let all = inspected as f64 * n_ctx as f64 * (n_ctx as f64 - 1.0) / 2.0;
        Ok(Inspection {
            documents: corpus.n_documents() as u64,
            tokens: corpus.n_tokens(),
            ctx: n_ctx,
            samples: data.n_train(),
            inspected,
            same_document: if all > 0.0 { same as f64 / all } else { 0.0 },
            lengths: length_bins(lengths),
            distances,
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
        let all: u64 = self.distances.iter().map(|b| b.pairs).sum();
        for bins in self.distances.chunks(self.distances.len().div_ceil(TEXT_ROWS).max(1)) {
            let pairs = bins.iter().map(|b| b.pairs).sum();
            if let [first, ..] = bins {
                let end = bins.last().map_or(first.end, |b| b.end);
                out += &row(first.start, end, &[pairs], share(pairs, all));
            }
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

/// Lengths of the parts of a sample's inputs that are of one document each.
fn runs(sample: &Sample) -> impl Iterator<Item = u64> + '_ {
    let end = sample.inputs().len() as u64;
    let starts = sample.segment_starts.iter().map(move |&s| u64::from(s).min(end));
    let ends = starts.clone().chain([end]);
    // What stands before the first start is of a document that an earlier sample began.
    std::iter::once(0).chain(starts).zip(ends).map(|(start, end)| end - start).filter(|&n| n > 0)
}

/// Adds all pairs of `n` tokens in a row.
fn count_run(bins: &mut [DistanceBin], n: u64) {
    for bin in bins {
        let (from, end) = (bin.start, bin.end.min(n));
        if from < end {
            // The sum of n - d over these distances.
            bin.pairs += (end - from) * n - (from + end - 1) * (end - from) / 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_all_pairs() {
        for (n_ctx, starts) in
            [(300, vec![0, 40, 41, 200]), (300, vec![]), (257, vec![100, 257]), (1, vec![0]), (2, vec![0, 1])]
        {
            let sample = Sample::new(vec![0; n_ctx + 1], starts.clone());
            let mut bins = distance_bins(n_ctx as u64);
            runs(&sample).for_each(|n| count_run(&mut bins, n));
            let document = |i: usize| starts.iter().filter(|&&s| s as usize <= i).count();
            let mut naive: Vec<u64> = vec![0; bins.len()];
            for i in 0..n_ctx {
                for j in (0..i).filter(|&j| document(i) == document(j)) {
                    let d = (i - j) as u64;
                    let at: Vec<usize> =
                        (0..bins.len()).filter(|&b| (bins[b].start..bins[b].end).contains(&d)).collect();
                    assert_eq!(at.len(), 1, "distance {d} of {n_ctx} in one bin");
                    naive[at[0]] += 1;
                }
            }
            assert_eq!(bins.iter().map(|b| b.pairs).collect::<Vec<_>>(), naive, "{n_ctx} {starts:?}");
        }
        let bins = distance_bins(131_072);
        assert!(bins.len() > 50 && bins.len() <= DISTANCE_BINS);
        assert_eq!((bins[0].start, bins[bins.len() - 1].end), (1, 131_072));
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
