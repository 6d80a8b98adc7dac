//! Samples of one context length from a corpus: any sample of any epoch, without computing those before it.

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use super::corpus::Corpus;
use super::hold_out::HeldOut;
use super::sample::{Sample, Transform};
use super::{invalid, shuffle};
use crate::model::{Error, Result};

/// The way documents become samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// All documents are joined in one seeded order and cut every `n_ctx` tokens. The remainder at the end is
    /// dropped.
    #[default]
    Pack,
    /// Each document of more than `n_ctx` tokens is cut into windows of its own. Shorter documents, and the
    /// remainder of longer ones, are dropped. No sample has two documents in it.
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

/// Parameters of a [`Dataset`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DatasetParams {
    /// Context length: inputs of a sample, in tokens.
    pub n_ctx: usize,
    /// The way documents become samples.
    pub packing: Packing,
    /// The part of the documents that is not trained on.
    pub held_out: HeldOut,
    /// Seed of the split, of the order of documents and samples, and of the random numbers of transforms.
    pub seed: u64,
}

impl DatasetParams {
    /// Packed, nothing held out, seed 0.
    pub fn new(n_ctx: usize) -> Self {
        DatasetParams { n_ctx, packing: Packing::default(), held_out: HeldOut::default(), seed: 0 }
    }
}

/// Samples to train on and held-out samples. Each is a function of corpus, parameters, epoch and index. The
/// only state is the order of samples of the last epoch asked for.
#[derive(Debug)]
pub struct Dataset {
    corpus: Arc<Corpus>,
    params: DatasetParams,
    train: Split,
    held_out: Split,
    transform: Option<Box<dyn Transform>>,
    /// An epoch and the order of its samples.
    order: Mutex<Option<(u64, Arc<[u32]>)>>,
}

/// The samples of one side of the split into training and held-out documents.
#[derive(Debug, Default)]
struct Split {
    documents: Vec<u32>,
    /// For each document, the number of tokens (packed) or windows (long) that it and those before it make.
    ends: Vec<u64>,
    n_samples: usize,
}

impl Dataset {
    /// Splits the documents and counts their samples; no token is read yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there are fewer tokens than one sample takes (the error says how many there
    /// are and which context they allow), and when texts cannot be split as asked.
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
        // A packed sample needs one token after it as the last target; windows are counted with theirs.
        let last = u64::from(params.packing == Packing::Pack);
        let needed = |n: u64| n.saturating_mul(n_ctx as u64).saturating_add(last);
        let (train, held_out) = params.held_out.split(&corpus, params.seed, &size, &needed)?;
        let count_samples = |mut documents: Vec<u32>, purpose: &str| -> Result<Split> {
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
            Ok(Split { documents, ends, n_samples })
        };
        let train = count_samples(train, "documents")?;
        let mut held_out = count_samples(held_out, "held-out documents")?;
        if let HeldOut::Samples(n) = params.held_out {
            held_out.n_samples = held_out.n_samples.min(n);
        }
        let params = *params;
        Ok(Dataset { corpus, params, train, held_out, transform: None, order: Mutex::new(None) })
    }

    /// Applies a transform to training samples; held-out samples stay as they are.
    pub fn with_transform(self, transform: Box<dyn Transform>) -> Self {
        Dataset { transform: Some(transform), ..self }
    }

    /// The corpus.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// The parameters it was made with.
    pub fn params(&self) -> &DatasetParams {
        &self.params
    }

    /// Number of training samples in an epoch; at least one.
    pub fn n_train(&self) -> usize {
        self.train.n_samples
    }

    /// Number of held-out samples.
    pub fn n_held_out(&self) -> usize {
        self.held_out.n_samples
    }

    /// Documents to train on, in the order in which they are joined. Under [`Packing::Long`] some may be too
    /// short to be used.
    pub fn train_documents(&self) -> &[u32] {
        &self.train.documents
    }

    /// Documents held out.
    pub fn held_out_documents(&self) -> &[u32] {
        &self.held_out.documents
    }

    /// Training sample `i` of an epoch. Every epoch has the same samples, in an order of its own.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `i` is not below [`Dataset::n_train`], and when a transform made an invalid
    /// sample.
    pub fn train(&self, epoch: u64, i: usize) -> Result<Sample> {
        if i >= self.train.n_samples {
            return Err(invalid(format!("sample {i} of {}", self.train.n_samples)));
        }
        let sample = self.cut(&self.train, self.order(epoch)[i] as usize);
        self.transformed(sample, epoch, i as u64)
    }

    fn transformed(&self, sample: Sample, epoch: u64, i: u64) -> Result<Sample> {
        let Some(transform) = &self.transform else { return Ok(sample) };
        let mut rng = shuffle::rng(self.params.seed, "transform", epoch, i);
        let sample = transform.apply(sample, &mut rng);
        sample.check(self.params.n_ctx, self.corpus.n_vocab())?;
        Ok(sample)
    }

    /// Training sample `n`, counted through all epochs.
    ///
    /// # Errors
    /// Those of [`Dataset::train`].
    pub fn nth(&self, n: u64) -> Result<Sample> {
        let per_epoch = self.train.n_samples as u64;
        self.train(n / per_epoch, (n % per_epoch) as usize)
    }

    /// The sample that begins at a token of the training documents as they are joined, one behind another in
    /// [`Dataset::train_documents`]; behind the last the first follows again. Under another context the same token
    /// is at the same place, as long as the same documents are held out.
    ///
    /// # Errors
    /// [`Error::Invalid`] under another packing than [`Packing::Pack`], and when a transform made an invalid sample.
    pub fn at(&self, token: u64) -> Result<Sample> {
        let total = self.train.ends.last().copied().unwrap_or(0);
        if self.params.packing != Packing::Pack || total == 0 {
            let packing = self.params.packing;
            return Err(invalid(format!(
                "samples in the order of the texts: expected packing pack, found {packing}"
            )));
        }
        let (epoch, place) = (token / total, token % total);
        let sample = self.cut_at(&self.train, place);
        self.transformed(sample, epoch, place)
    }

    /// Held-out sample `i`, in an order that never changes.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `i` is not below [`Dataset::n_held_out`].
    pub fn held_out(&self, i: usize) -> Result<Sample> {
        if i >= self.held_out.n_samples {
            return Err(invalid(format!("held-out sample {i} of {}", self.held_out.n_samples)));
        }
        Ok(self.cut(&self.held_out, i))
    }

    fn order(&self, epoch: u64) -> Arc<[u32]> {
        // The value is replaced as a whole, so that it is valid even if another thread panicked.
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

    /// Sample `i` of a split, before samples are shuffled.
    fn cut(&self, split: &Split, i: usize) -> Sample {
        let i = i as u64;
        self.cut_at(
            split,
            if self.params.packing == Packing::Pack { i * self.params.n_ctx as u64 } else { i },
        )
    }

    /// The sample that begins at a token of the joined documents, or at a window.
    fn cut_at(&self, split: &Split, place: u64) -> Sample {
        let n_ctx = self.params.n_ctx as u64;
        let mut next = split.ends.partition_point(|&end| end <= place);
        let before = if next == 0 { 0 } else { split.ends[next - 1] };
        let mut offset = match self.params.packing {
            Packing::Pack => place - before,
            Packing::Long => (place - before) * n_ctx,
        };
        let mut tokens = Vec::with_capacity(self.params.n_ctx + 1);
        let mut segment_starts = Vec::new();
        let mut missing = n_ctx + 1;
        while missing > 0 {
            let range = self.corpus.range(split.documents[next] as usize);
            if offset == 0 {
                segment_starts.push(tokens.len() as u32);
            }
            let start = range.start + offset;
            let end = range.end.min(start + missing);
            self.corpus.read(start..end, &mut tokens);
            missing -= end - start;
            (next, offset) = ((next + 1) % split.documents.len(), 0);
        }
        Sample::new(tokens, segment_starts)
    }
}

/// Refuses a corpus that does not make one sample.
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
