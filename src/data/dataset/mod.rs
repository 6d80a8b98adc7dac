//! Samples of one context length from a corpus: any sample of any epoch, without computing those before it.

mod hold_out;
mod mixture;
mod split;

use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::corpus::Corpus;
use crate::error::{invalid, Error, Result};
use crate::random;
use crate::sample::Sample;
use crate::synthetic::Synthetic;
use crate::transform::Transform;
use split::{length, units, Split};

pub use hold_out::HeldOut;
pub use mixture::{Mixture, Upsample};

/// The way documents become samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// All documents are joined in one seeded order and cut every `n_ctx` tokens. The remainder at the end is
    /// dropped.
    #[default]
    Pack,
    /// Each document of more than `n_ctx` tokens is cut into separate windows. Shorter documents, and the
    /// remainder of longer ones, are dropped. No sample has two documents in it.
    Long,
    /// Each document is a sample. A document that is too long is cut, and still ends with the separator
    /// (SBA-RoPE); a shorter one makes a shorter sample, for padding would not be trained on.
    Truncate,
    /// Each document is a sample. What is too long is cut, and [`Dataset::note`] names it: it does not end where it is
    /// cut.
    Records,
    /// Whole documents are joined, in one seeded order, as long as the next one fits into the sample. One that is too
    /// long is an error that names it.
    Whole,
}

/// All of them, as they are typed.
const PACKINGS: [(Packing, &str); 5] = [
    (Packing::Pack, "pack"),
    (Packing::Long, "long"),
    (Packing::Truncate, "truncate"),
    (Packing::Records, "records"),
    (Packing::Whole, "whole"),
];

impl Packing {
    /// Returns true if a sample can be shorter than the context, and any document of two tokens makes one.
    fn is_ragged(self) -> bool {
        !matches!(self, Packing::Pack | Packing::Long)
    }
}

impl Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PACKINGS.iter().find(|(packing, _)| packing == self).map_or("", |(_, name)| *name))
    }
}

impl FromStr for Packing {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = PACKINGS.iter().find(|(_, name)| *name == text).map(|(packing, _)| *packing);
        found.ok_or_else(|| {
            invalid(format!("packing: expected pack, long, truncate, records or whole, found '{text}'"))
        })
    }
}

ropewalk_core::setters! {
    /// Parameters of a [`Dataset`].
    #[derive(Debug, Clone, Copy, PartialEq)]
    pub struct DatasetParams {
        /// Context length: inputs of a sample, in tokens.
        pub n_ctx: usize,
        /// The way documents become samples.
        pub packing: Packing,
        /// The part of the documents that is not trained on.
        pub held_out: HeldOut,
        /// Which documents are trained on, and how often.
        pub mixture: Mixture,
        /// True if inputs that end a document have weight 0 (Megatron's `eod_mask_loss`). Documents without an end token
        /// are not affected.
        pub mask_ends: bool,
        /// Seed of the split, of the order of documents and samples, and of the random numbers of transforms.
        pub seed: u64,
    }
}

impl DatasetParams {
    /// Packed, nothing held out, every document once, seed 0.
    pub fn new(n_ctx: usize) -> Self {
        let (packing, held_out, mixture) = (Packing::default(), HeldOut::default(), Mixture::default());
        DatasetParams { n_ctx, packing, held_out, mixture, mask_ends: false, seed: 0 }
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
    synthetic: Option<Synthetic>,
    n_short: usize,
    note: Option<String>,
    /// An epoch and the order of its samples.
    order: Mutex<Option<(u64, Arc<[u32]>)>>,
}

impl Dataset {
    /// Splits the documents and counts their samples; no token is read yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there are fewer tokens than one sample takes (the error says how many there
    /// are and which context they allow), when texts cannot be split as asked, and when the mixture cannot be
    /// drawn.
    pub fn new(corpus: Arc<Corpus>, params: &DatasetParams) -> Result<Dataset> {
        let n_ctx = params.n_ctx;
        if n_ctx == 0 || u32::try_from(n_ctx).is_err() {
            return Err(invalid(format!("context: expected 1 to {} tokens, found {n_ctx}", u32::MAX)));
        }
        let all = (0..corpus.n_documents() as u32).collect::<Vec<_>>();
        let note = too_long(&corpus, params)?;
        check_size(&corpus, params, n_ctx, &all)?;
        let unit = if params.packing == Packing::Long { n_ctx as u64 } else { 1 };
        let size = |d: usize| unit * units(params.packing, n_ctx, length(&corpus, d));
        // A packed sample needs one token after it as the last target; windows are counted with theirs.
        let needed = |n: u64| match params.packing {
            Packing::Pack => n.saturating_mul(n_ctx as u64).saturating_add(1),
            Packing::Long => n.saturating_mul(n_ctx as u64),
            Packing::Truncate | Packing::Records => n,
            // So many tokens make as many samples, however they fall: the last needs two.
            Packing::Whole => n.saturating_sub(1).saturating_mul(n_ctx as u64 + 1).saturating_add(2),
        };
        let (train, held_out) = params.held_out.split(&corpus, params.seed, &size, &needed)?;
        let facts = mixture::Facts {
            length: &|d| length(&corpus, d as usize),
            group: &|d| corpus.group(d as usize),
            groups: corpus.groups(),
            seed: params.seed,
        };
        let train = params.mixture.draw(train, &facts)?;
        check_size(&corpus, params, n_ctx, &train)?;
        let shuffled = |mut documents: Vec<u32>, purpose: &str| {
            random::shuffle(&mut documents, &mut random::rng(params.seed, purpose, 0, 0));
            Split::new(&corpus, params.packing, documents, n_ctx)
        };
        let train = shuffled(train, "documents")?;
        let mut held_out = shuffled(held_out, "held-out documents")?;
        if let HeldOut::Samples(n) = params.held_out {
            held_out.n_samples = held_out.n_samples.min(n);
        }
        let (params, order) = (*params, Mutex::new(None));
        let (transform, synthetic, n_short) = (None, None, 0);
        Ok(Dataset { corpus, params, train, held_out, transform, synthetic, n_short, note, order })
    }

    /// Applies a transform to training samples; held-out samples stay as they are. One that reads a sample from one
    /// document gets each document's beginning, or its windows under [`Packing::Long`]; documents shorter than a sample are
    /// left out ([`Dataset::n_short`]).
    ///
    /// # Errors
    /// Texts that are too short for it.
    pub fn with_transform(self, transform: Box<dyn Transform>) -> Result<Self> {
        let n_read = transform.n_read(self.params.n_ctx);
        if transform.in_one_document() && self.params.packing != Packing::Long {
            return self.with_heads(transform, n_read);
        }
        check_size(&self.corpus, &self.params, n_read, &self.train.documents)?;
        let longest = self.train.documents.iter().map(|&d| length(&self.corpus, d as usize)).max();
        let (longest, shortest) = (longest.unwrap_or(0), transform.shortest());
        if longest < shortest as u64 {
            return Err(invalid(format!(
                "data method: a document needs {shortest} tokens to be cut, the longest has {longest}"
            )));
        }
        let train = Split::new(&self.corpus, self.params.packing, self.train.documents, n_read)?;
        Ok(Dataset { train, transform: Some(transform), order: Mutex::new(None), ..self })
    }

    fn with_heads(self, transform: Box<dyn Transform>, n_read: usize) -> Result<Self> {
        let (all, needed) = (self.train.documents, self.params.n_ctx as u64 + 1);
        let of = |d: u32| length(&self.corpus, d as usize);
        let documents: Vec<u32> = all.iter().copied().filter(|&d| of(d) >= needed).collect();
        if documents.is_empty() {
            return Err(invalid(format!(
                "data method: a sample of context {} takes {needed} tokens of one document: none of the {} to train on \
                 has as many, the longest has {}",
                self.params.n_ctx,
                all.len(),
                all.iter().map(|&d| of(d)).max().unwrap_or(0)
            )));
        }
        let n_short = all.len() - documents.len();
        let train = Split::heads(&self.corpus, documents, n_read)?;
        Ok(Dataset { train, n_short, transform: Some(transform), order: Mutex::new(None), ..self })
    }

    /// Makes some of the training samples: as many as give the share of `synthetic` in all samples. They are not
    /// transformed, and again in each epoch.
    ///
    /// # Errors
    /// A share that leaves no other sample, or a context without room for a record.
    pub fn with_synthetic(self, synthetic: Synthetic) -> Result<Self> {
        synthetic.check(self.params.n_ctx, &self.corpus)?;
        let data = Dataset { synthetic: Some(synthetic), order: Mutex::new(None), ..self };
        if u32::try_from(data.n_train()).is_err() {
            return Err(invalid(format!("{} samples: expected at most {}", data.n_train(), u32::MAX)));
        }
        Ok(data)
    }

    /// The corpus.
    pub fn corpus(&self) -> &Corpus {
        &self.corpus
    }

    /// The parameters it was made with.
    pub fn params(&self) -> &DatasetParams {
        &self.params
    }

    /// The transform of training samples, if there is one.
    pub fn transform(&self) -> Option<&dyn Transform> {
        self.transform.as_deref()
    }

    /// All that samples depend on except the texts, by name. A resumed run must find the same values.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let DatasetParams { n_ctx: _, packing, held_out, mixture, mask_ends, seed: _ } = &self.params;
        let groups: Vec<String> =
            self.corpus.groups().iter().map(|g| format!("{}:{:?}", g.name, g.share)).collect();
        vec![
            ("packing", packing.to_string()),
            ("held-out", format!("{held_out:?}")),
            ("upsample", mixture.upsample.to_string()),
            ("data-tokens", format!("{:?}", mixture.tokens)),
            ("sources", groups.join(" ")),
            ("eod-mask-loss", mask_ends.to_string()),
            ("data-method", self.transform().map_or("none".into(), Transform::describe)),
            ("synthetic", self.synthetic.as_ref().map_or("none".into(), Synthetic::describe)),
        ]
    }

    /// Documents to train on that are left out because a window, or a sample of the transform, takes more tokens than they
    /// have.
    pub fn n_short(&self) -> usize {
        let n_read = self.n_read() as u64;
        let is_short = |&&d: &&u32| length(&self.corpus, d as usize) <= n_read;
        match self.params.packing {
            Packing::Long => self.train.documents.iter().filter(is_short).count(),
            _ => self.n_short,
        }
    }

    /// The first record that is longer than a sample and therefore cut, and how many others are.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Number of training samples in an epoch; at least one.
    pub fn n_train(&self) -> usize {
        let text = self.train.n_samples;
        text + self.synthetic.as_ref().map_or(0, |s| s.n_samples(text))
    }

    /// Number of held-out samples.
    pub fn n_held_out(&self) -> usize {
        self.held_out.n_samples
    }

    /// Inputs of the first `n` training samples, counted through all epochs. Made samples, of which each is a
    /// little shorter, count as full.
    pub fn n_inputs(&self, n: u64) -> u64 {
        let n_ctx = self.params.n_ctx as u64;
        if !self.params.packing.is_ragged() || self.train.heads {
            return n.saturating_mul(n_ctx);
        }
        let samples = |slot: &u32| match self.train.documents_of(u64::from(*slot)) {
            [] => n_ctx,
            documents => {
                let tokens = documents.iter().map(|&d| length(&self.corpus, d as usize)).sum::<u64>();
                tokens.min(n_ctx + 1) - 1
            }
        };
        let per_epoch = self.n_train() as u64;
        let of = |slots: &[u32]| slots.iter().map(samples).sum::<u64>();
        let whole = of(&self.order(0));
        whole.saturating_mul(n / per_epoch) + of(&self.order(n / per_epoch)[..(n % per_epoch) as usize])
    }

    /// Documents to train on, in the order in which they are joined, each as often as the mixture has it. Under
    /// [`Packing::Long`] some may be too short to be used.
    pub fn train_documents(&self) -> &[u32] {
        &self.train.documents
    }

    /// Documents held out.
    pub fn held_out_documents(&self) -> &[u32] {
        &self.held_out.documents
    }

    /// Training sample `i` of an epoch. Every epoch has the same samples, in a different order.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `i` is not below [`Dataset::n_train`], and when a transform made an invalid
    /// sample.
    pub fn train(&self, epoch: u64, i: usize) -> Result<Sample> {
        self.changed(epoch, i, self.transform())
    }

    /// Training sample `i` of an epoch as it is before its transform.
    ///
    /// # Errors
    /// Returns the errors of [`Dataset::train`].
    pub fn untransformed(&self, epoch: u64, i: usize) -> Result<Sample> {
        self.changed(epoch, i, None)
    }

    fn changed(&self, epoch: u64, i: usize, transform: Option<&dyn Transform>) -> Result<Sample> {
        if i >= self.n_train() {
            return Err(invalid(format!("sample {i} of {}", self.n_train())));
        }
        let slot = self.order(epoch)[i] as usize;
        if let Some(synthetic) = self.synthetic.as_ref().filter(|_| slot >= self.train.n_samples) {
            let mut rng = random::rng(self.params.seed, "synthetic", epoch, i as u64);
            let sample = synthetic.sample(self.params.n_ctx, &self.corpus, &mut rng)?;
            sample.check(self.params.n_ctx, self.corpus.n_vocab())?;
            return Ok(sample);
        }
        self.finished(self.train.cut(&self.corpus, slot as u64), transform, epoch, i as u64)
    }

    /// A sample as it was read, transformed and without the loss that is not taken.
    fn finished(
        &self,
        mut sample: Sample,
        transform: Option<&dyn Transform>,
        epoch: u64,
        i: u64,
    ) -> Result<Sample> {
        let mut n_inputs = self.train.n_read;
        if let Some(transform) = transform {
            let mut rng = random::rng(self.params.seed, "transform", epoch, i);
            sample = transform.apply(sample, &mut rng)?;
            n_inputs = self.params.n_ctx;
        }
        let masks = transform.is_some_and(Transform::masks_ends);
        if (self.params.mask_ends || masks) && self.corpus.has_end() {
            sample.mask_ends();
        }
        sample.check(n_inputs, self.corpus.n_vocab())?;
        Ok(sample)
    }

    /// Inputs of the texts that a training sample is read from: more than the context where a transform leaves
    /// some of them out.
    pub fn n_read(&self) -> usize {
        self.train.n_read
    }

    /// The sample that begins at a token of the training documents as they are joined, one after another in
    /// [`Dataset::train_documents`]; after the last the first follows again. Under another context the same token
    /// is at the same place, as long as the same documents are held out.
    ///
    /// # Errors
    /// [`Error::Invalid`] under another packing than [`Packing::Pack`], with made samples among those of texts, and
    /// when a transform made an invalid sample.
    pub fn at(&self, token: u64) -> Result<Sample> {
        let total = self.train.ends.last().copied().unwrap_or(0);
        if self.train.heads {
            return Err(invalid(
                "samples in the order of the texts: expected texts that are joined, found a data method that takes each \
                 sample from one document (pose:..,join=true joins them)",
            ));
        }
        if self.params.packing != Packing::Pack || total == 0 {
            let packing = self.params.packing;
            return Err(invalid(format!(
                "samples in the order of the texts: expected packing pack, found {packing}"
            )));
        }
        if self.synthetic.is_some() {
            return Err(invalid("samples in the order of the texts: made ones have no place in it"));
        }
        let (epoch, place) = (token / total, token % total);
        self.finished(self.train.cut_at(&self.corpus, place), self.transform(), epoch, place)
    }

    /// Training sample `n`, counted through all epochs.
    ///
    /// # Errors
    /// Returns the errors of [`Dataset::train`].
    pub fn nth(&self, n: u64) -> Result<Sample> {
        let per_epoch = self.n_train() as u64;
        self.train(n / per_epoch, (n % per_epoch) as usize)
    }

    /// Held-out sample `i`, in an order that never changes.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `i` is not below [`Dataset::n_held_out`].
    pub fn held_out(&self, i: usize) -> Result<Sample> {
        if i >= self.held_out.n_samples {
            return Err(invalid(format!("held-out sample {i} of {}", self.held_out.n_samples)));
        }
        let mut sample = self.held_out.cut(&self.corpus, i as u64);
        if self.params.mask_ends && self.corpus.has_end() {
            sample.mask_ends();
        }
        Ok(sample)
    }

    fn order(&self, epoch: u64) -> Arc<[u32]> {
        // The value is replaced as a whole, so that it is valid even if another thread panicked.
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        match &*order {
            Some((of, samples)) if *of == epoch => Arc::clone(samples),
            _ => {
                let mut samples: Vec<u32> = (0..self.n_train() as u32).collect();
                random::shuffle(&mut samples, &mut random::rng(self.params.seed, "samples", epoch, 0));
                let samples: Arc<[u32]> = samples.into();
                *order = Some((epoch, Arc::clone(&samples)));
                samples
            }
        }
    }
}

/// Records that are longer than a sample: an error where they are joined whole, else a note.
fn too_long(corpus: &Corpus, params: &DatasetParams) -> Result<Option<String>> {
    if !matches!(params.packing, Packing::Records | Packing::Whole) {
        return Ok(None);
    }
    let most = params.n_ctx as u64 + 1;
    let long: Vec<(usize, u64)> =
        (0..corpus.n_documents()).map(|d| (d, length(corpus, d))).filter(|(_, n)| *n > most).collect();
    let Some(&(first, n)) = long.first() else { return Ok(None) };
    let longest = long.iter().map(|(_, n)| *n).max().unwrap_or(n);
    let of = format!(
        "{}: {n} tokens, more than the {most} that context {} takes",
        corpus.name(first),
        params.n_ctx
    );
    let all = format!(
        "{} records are longer, and a context of {} tokens takes them whole",
        long.len(),
        longest - 1
    );
    match params.packing {
        Packing::Records => Ok(Some(format!("{of}: cut; {all}"))),
        _ => Err(invalid(format!("{of}: only whole records are joined; {all}, packing=truncate cuts them"))),
    }
}

/// Refuses documents that do not make one sample of so many inputs.
fn check_size(corpus: &Corpus, params: &DatasetParams, n_read: usize, documents: &[u32]) -> Result<()> {
    let lengths = documents.iter().map(|&d| length(corpus, d as usize));
    let (found, what) = match params.packing {
        Packing::Pack => (lengths.sum(), "the texts have"),
        Packing::Long => (lengths.max().unwrap_or(0), "the longest text has"),
        // Any document of two tokens is a sample.
        _ if lengths.max().unwrap_or(0) > 1 => return Ok(()),
        _ => return Err(invalid("too little text: no text has two tokens")),
    };
    if found > n_read as u64 {
        return Ok(());
    }
    let largest = match found.saturating_sub(1) {
        0 => "no context at all".to_owned(),
        n => format!("a context of {n} at most"),
    };
    let reads = match n_read == params.n_ctx {
        true => format!("context {n_read} takes {} tokens", n_read + 1),
        false => format!("a sample of context {} is drawn from {} tokens", params.n_ctx, n_read + 1),
    };
    Err(invalid(format!("too little text: {reads}, {what} {found}, which allows {largest}")))
}

#[cfg(test)]
mod tests;
