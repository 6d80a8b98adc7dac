//! Samples of one context, cut from a corpus: any of any epoch, at once.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use super::corpus::Corpus;
use super::hold_out::HeldOut;
use super::sample::{Sample, Transform};
use super::{invalid, shuffle};
use crate::model::{Error, Result};

/// How documents become samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// All documents joined, in one seeded order, and cut every `n_ctx` tokens. What is left at the end is dropped.
    #[default]
    Pack,
    /// Each document of more than `n_ctx` tokens cut into windows of its own; shorter ones and what is left of longer ones
    /// are dropped. No sample has two documents in it.
    Long,
}

impl Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Packing::Pack => "pack",
            Packing::Long => "long",
        })
    }
}

impl FromStr for Packing {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "pack" => Ok(Packing::Pack),
            "long" => Ok(Packing::Long),
            other => Err(invalid(format!("packing: expected pack or long, found '{other}'"))),
        }
    }
}

/// What a data set is made from a corpus by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DatasetParams {
    /// Inputs of a sample, in tokens.
    pub n_ctx: usize,
    /// How documents become samples.
    pub packing: Packing,
    /// How much is kept from training.
    pub held_out: HeldOut,
    /// Of the split, the order of documents and of samples, and what transforms draw.
    pub seed: u64,
}

impl DatasetParams {
    /// Packed, nothing held out, seed 0.
    pub fn new(n_ctx: usize) -> Self {
        DatasetParams { n_ctx, packing: Packing::default(), held_out: HeldOut::default(), seed: 0 }
    }
}

/// Samples to train on and samples held out. Everything it gives is a function of corpus, parameters and the numbers asked
/// with; only the order of the last epoch asked for is kept.
#[derive(Debug)]
pub struct Dataset {
    corpus: Arc<Corpus>,
    params: DatasetParams,
    train: Part,
    held_out: Part,
    transform: Option<Box<dyn Transform>>,
    /// The order of samples in an epoch.
    order: Mutex<Option<(u64, Arc<[u32]>)>>,
}

/// Samples from some of the documents.
#[derive(Debug, Default)]
struct Part {
    documents: Vec<u32>,
    /// For each document, how many tokens (packed) or windows (long) it and those before it make.
    ends: Vec<u64>,
    n_samples: usize,
}

impl Dataset {
    /// Splits and packs; no token is read yet.
    ///
    /// # Errors
    /// Fewer tokens than one sample takes, saying how many there are and what they allow; texts that cannot be split.
    pub fn new(corpus: Arc<Corpus>, params: &DatasetParams) -> Result<Dataset> {
        let n_ctx = params.n_ctx;
        if n_ctx == 0 || u32::try_from(n_ctx).is_err() {
            return Err(invalid(format!("context: expected 1 to {} tokens, found {n_ctx}", u32::MAX)));
        }
        check_size(&corpus, params)?;
        let length = |d: usize| corpus.range(d).end - corpus.range(d).start;
        let windows = |d: usize| (length(d) - 1) / n_ctx as u64;
        let size = |d: usize| match params.packing {
            Packing::Pack => length(d),
            Packing::Long => windows(d) * n_ctx as u64,
        };
        // Packed, the last sample wants a token after it; a window was counted without it.
        let last = u64::from(params.packing == Packing::Pack);
        let needed = |n: u64| n.saturating_mul(n_ctx as u64).saturating_add(last);
        let (train, held_out) = params.held_out.split(&corpus, params.seed, &size, &needed)?;
        let part = |mut documents: Vec<u32>, purpose: &str| -> Result<Part> {
            shuffle::shuffle(&mut documents, &mut shuffle::rng(params.seed, purpose, 0, 0));
            let mut sum = 0;
            let count = |d: &u32| match params.packing {
                Packing::Pack => length(*d as usize),
                Packing::Long => windows(*d as usize),
            };
            let ends: Vec<u64> = documents
                .iter()
                .map(|d| {
                    sum += count(d);
                    sum
                })
                .collect();
            let n = match params.packing {
                Packing::Pack => sum.saturating_sub(1) / n_ctx as u64,
                Packing::Long => sum,
            };
            let n_samples = u32::try_from(n).map_err(|_| {
                invalid(format!("{n} samples of context {n_ctx}: expected at most {}", u32::MAX))
            })? as usize;
            Ok(Part { documents, ends, n_samples })
        };
        let train = part(train, "documents")?;
        let mut held_out = part(held_out, "held-out documents")?;
        if let HeldOut::Samples(n) = params.held_out {
            held_out.n_samples = held_out.n_samples.min(n);
        }
        let params = *params;
        Ok(Dataset { corpus, params, train, held_out, transform: None, order: Mutex::new(None) })
    }

    /// Has samples to train on changed; held-out ones stay as they are.
    pub fn with_transform(self, transform: Box<dyn Transform>) -> Self {
        Dataset { transform: Some(transform), ..self }
    }

    /// The corpus.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// What it was made by.
    pub fn params(&self) -> &DatasetParams {
        &self.params
    }

    /// Samples in an epoch; at least one.
    pub fn n_train(&self) -> usize {
        self.train.n_samples
    }

    /// Held-out samples.
    pub fn n_held_out(&self) -> usize {
        self.held_out.n_samples
    }

    /// Documents to train on, in the order they are joined. Under [`Packing::Long`] some may be too short to be used.
    pub fn train_documents(&self) -> &[u32] {
        &self.train.documents
    }

    /// Documents held out.
    pub fn held_out_documents(&self) -> &[u32] {
        &self.held_out.documents
    }

    /// Sample `i` of an epoch. Every epoch has the same samples, each in its own order.
    ///
    /// # Errors
    /// `i` is not below [`Dataset::n_train`]; a transform that made something that is no sample.
    pub fn train(&self, epoch: u64, i: usize) -> Result<Sample> {
        if i >= self.train.n_samples {
            return Err(invalid(format!("sample {i} of {}", self.train.n_samples)));
        }
        let sample = self.cut(&self.train, self.order(epoch)[i] as usize);
        let Some(transform) = &self.transform else { return Ok(sample) };
        let mut rng = shuffle::rng(self.params.seed, "transform", epoch, i as u64);
        let sample = transform.apply(sample, &mut rng);
        sample.check(self.params.n_ctx, self.corpus.n_vocab())?;
        Ok(sample)
    }

    /// Sample `n` of a training that goes on through epoch after epoch.
    ///
    /// # Errors
    /// As [`Dataset::train`].
    pub fn nth(&self, n: u64) -> Result<Sample> {
        let per_epoch = self.train.n_samples as u64;
        self.train(n / per_epoch, (n % per_epoch) as usize)
    }

    /// Held-out sample `i`, in an order that never changes.
    ///
    /// # Errors
    /// `i` is not below [`Dataset::n_held_out`].
    pub fn held_out(&self, i: usize) -> Result<Sample> {
        if i >= self.held_out.n_samples {
            return Err(invalid(format!("held-out sample {i} of {}", self.held_out.n_samples)));
        }
        Ok(self.cut(&self.held_out, i))
    }

    fn order(&self, epoch: u64) -> Arc<[u32]> {
        // What is inside is always whole, even if another thread panicked.
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        match &*order {
            Some((of, samples)) if *of == epoch => Arc::clone(samples),
            _ => {
                let mut samples: Vec<u32> = (0..self.train.n_samples as u32).collect();
                shuffle::shuffle(&mut samples, &mut shuffle::rng(self.params.seed, "samples", epoch, 0));
                let samples: Arc<[u32]> = samples.into();
                *order = Some((epoch, Arc::clone(&samples)));
                samples
            }
        }
    }

    /// Sample `i` of a part, before any shuffling of samples.
    fn cut(&self, part: &Part, i: usize) -> Sample {
        let (i, n_ctx) = (i as u64, self.params.n_ctx as u64);
        let place = match self.params.packing {
            Packing::Pack => i * n_ctx,
            Packing::Long => i,
        };
        let mut next = part.ends.partition_point(|&end| end <= place);
        let before = if next == 0 { 0 } else { part.ends[next - 1] };
        let mut offset = match self.params.packing {
            Packing::Pack => place - before,
            Packing::Long => (place - before) * n_ctx,
        };
        let mut tokens = Vec::with_capacity(self.params.n_ctx + 1);
        let mut segment_starts = Vec::new();
        let mut missing = n_ctx + 1;
        while missing > 0 {
            let range = self.corpus.range(part.documents[next] as usize);
            if offset == 0 {
                segment_starts.push(tokens.len() as u32);
            }
            let start = range.start + offset;
            let end = range.end.min(start + missing);
            self.corpus.read(start..end, &mut tokens);
            missing -= end - start;
            (next, offset) = (next + 1, 0);
        }
        Sample::new(tokens, segment_starts)
    }
}

/// Whether the whole corpus makes one sample.
fn check_size(corpus: &Corpus, params: &DatasetParams) -> Result<()> {
    let n_ctx = params.n_ctx as u64;
    let (found, what) = match params.packing {
        Packing::Pack => (corpus.n_tokens(), "the texts have"),
        Packing::Long => {
            let lengths =
                (0..corpus.n_documents()).map(|d| corpus.range(d)).map(|range| range.end - range.start);
            (lengths.max().unwrap_or(0), "the longest text has")
        }
    };
    if found > n_ctx {
        return Ok(());
    }
    let largest = match found.saturating_sub(1) {
        0 => "no context at all".to_owned(),
        n => format!("a context of {n} at most"),
    };
    Err(invalid(format!(
        "too little text: context {n_ctx} takes {} tokens, {what} {found}, which allows {largest}",
        n_ctx + 1
    )))
}
