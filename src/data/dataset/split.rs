//! The samples of training or of held-out documents, in the order of the documents.

use super::Packing;
use crate::corpus::Corpus;
use crate::error::{invalid, Result};
use crate::sample::{Sample, Span, SpanKind};

/// The samples of one side of the split into training and held-out documents.
#[derive(Debug, Default)]
pub(super) struct Split {
    packing: Packing,
    pub(super) documents: Vec<u32>,
    /// For each document, the number of tokens (packed), windows (long) or samples (else) that it and those before it
    /// make.
    pub(super) ends: Vec<u64>,
    /// Inputs of a sample as it is read.
    pub(super) n_read: usize,
    pub(super) n_samples: usize,
    /// Samples are the beginnings of documents, of at most `n_read` inputs, as they stand there.
    pub(super) heads: bool,
}

/// Documents joined to a sample.
#[derive(Default)]
struct Joined {
    sample: Vec<(crate::Token, bool)>,
    segment_starts: Vec<u32>,
    spans: Vec<Span>,
}

impl Joined {
    /// Adds tokens of one document; `starts` and `ends` say whether its first and its last are among them.
    fn document(&mut self, corpus: &Corpus, range: std::ops::Range<u64>, starts: bool, ends: bool) {
        let (start, document) = (self.sample.len() as u32, self.spans.len() as u32);
        if starts {
            self.segment_starts.push(start);
        }
        self.spans.push(Span { start, kind: SpanKind::Text, document, from: start, ends });
        self.sample.extend(corpus.marked(range));
    }

    /// Adds a document of at most `most` tokens: a longer one is cut, and ends as it would have.
    fn truncated(&mut self, corpus: &Corpus, document: u32, most: u64) {
        let range = corpus.range(document as usize);
        let tail = corpus.end_of(document as usize).len() as u64;
        if range.end - range.start <= most || tail >= most {
            let end = range.end.min(range.start + most);
            return self.document(corpus, range.start..end, true, end == range.end);
        }
        self.document(corpus, range.start..range.start + most - tail, true, tail > 0);
        // An answer that is cut ends as it would have; a question does not.
        let is_trained = self.sample.last().is_some_and(|(_, trained)| *trained);
        let end = corpus.marked(range.end - tail..range.end);
        self.sample.extend(end.map(|(token, trained)| (token, trained && is_trained)));
    }

    fn sample(self) -> Sample {
        Sample {
            tokens: self.sample.iter().map(|(token, _)| *token).collect(),
            segment_starts: self.segment_starts,
            weights: self.sample.iter().skip(1).map(|(_, trained)| f32::from(u8::from(*trained))).collect(),
            positions: Vec::new(),
            spans: self.spans,
        }
    }
}

/// How much a document of so many tokens is, in the unit that this packing counts.
pub(super) fn units(packing: Packing, n_read: usize, length: u64) -> u64 {
    match packing {
        Packing::Pack | Packing::Whole => length,
        Packing::Long => (length - 1) / n_read as u64,
        Packing::Truncate | Packing::Records => u64::from(length > 1),
    }
}

impl Split {
    pub(super) fn new(
        corpus: &Corpus,
        packing: Packing,
        mut documents: Vec<u32>,
        n_read: usize,
    ) -> Result<Split> {
        let (mut sum, mut filled) = (0, u64::MAX);
        if packing == Packing::Whole {
            // A document of one token might be left as a sample.
            documents.retain(|&d| length(corpus, d as usize) > 1);
        }
        let count = |d: &u32| {
            let n = length(corpus, *d as usize);
            if packing != Packing::Whole {
                sum += units(packing, n_read, n);
            } else if filled.saturating_add(n) > n_read as u64 + 1 {
                (sum, filled) = (sum + 1, n);
            } else {
                filled += n;
            }
            sum
        };
        let ends: Vec<u64> = documents.iter().map(count).collect();
        let n = match packing {
            Packing::Pack => sum.saturating_sub(1) / n_read as u64,
            _ => sum,
        };
        let n_samples = u32::try_from(n)
            .map_err(|_| invalid(format!("{n} samples of {n_read} tokens: expected at most {}", u32::MAX)))?;
        Ok(Split { packing, documents, ends, n_read, n_samples: n_samples as usize, heads: false })
    }

    /// A sample of each document, which is its beginning: nothing is put after a document that is cut.
    pub(super) fn heads(corpus: &Corpus, documents: Vec<u32>, n_read: usize) -> Result<Split> {
        Ok(Split { heads: true, ..Split::new(corpus, Packing::Truncate, documents, n_read)? })
    }

    /// The documents of sample `i`, where samples are of whole documents or of their beginnings.
    pub(super) fn documents_of(&self, i: u64) -> &[u32] {
        let before = |i: u64| self.ends.partition_point(|&end| end <= i);
        match self.packing {
            // Documents of one token make no sample, and end where the one before them does.
            Packing::Truncate | Packing::Records => {
                &self.documents[before(i)..self.documents.len().min(before(i) + 1)]
            }
            _ => &self.documents[before(i)..before(i + 1)],
        }
    }

    /// Sample `i`, before samples are shuffled.
    pub(super) fn cut(&self, corpus: &Corpus, i: u64) -> Sample {
        let place = if self.packing == Packing::Pack { i * self.n_read as u64 } else { i };
        self.cut_at(corpus, place)
    }

    /// The sample that begins at a token of the joined documents, at a window, or is a document. After the last
    /// document the first follows again.
    pub(super) fn cut_at(&self, corpus: &Corpus, place: u64) -> Sample {
        let n_read = self.n_read as u64;
        let mut next = self.ends.partition_point(|&end| end <= place);
        let before = if next == 0 { 0 } else { self.ends[next - 1] };
        let mut offset = match self.packing {
            Packing::Pack => place - before,
            Packing::Long => (place - before) * n_read,
            Packing::Truncate | Packing::Records | Packing::Whole => 0,
        };
        let mut missing = n_read + 1;
        let mut out = Joined::default();
        // The beginning of a document, which does not end where it is cut.
        if self.heads || self.packing == Packing::Records {
            let range = corpus.range(self.documents[next] as usize);
            let end = range.end.min(range.start + missing);
            out.document(corpus, range.start..end, true, end == range.end);
            return out.sample();
        }
        if self.packing.is_ragged() {
            self.documents_of(place).iter().for_each(|&d| out.truncated(corpus, d, missing));
            return out.sample();
        }
        while missing > 0 {
            let range = corpus.range(self.documents[next] as usize);
            let start = range.start + offset;
            let end = range.end.min(start + missing);
            out.document(corpus, start..end, offset == 0, end == range.end);
            missing -= end - start;
            (next, offset) = ((next + 1) % self.documents.len(), 0);
        }
        out.sample()
    }
}

pub(super) fn length(corpus: &Corpus, document: usize) -> u64 {
    let range = corpus.range(document);
    range.end - range.start
}
