//! The texts of a job and the data set that they are made into.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::Output;
use ropewalk_core::text::count;

use super::{failed, refused, Job, JobError, Result};
use crate::adapter::AdapterReader;
use crate::chat::Template;
use crate::control::Control;
use crate::data::{
    self, Built, Corpus, Dataset, DatasetParams, HeldOut, Kind, Mixture, Packing, Records, Separator,
    Sources, TextOptions, Transform, Upsample, MAX_TEXT,
};
use crate::model::{Error, Model};
use crate::rope::Spec;
use crate::train::{LongCe, Settings, TrainParams};

/// Name of no data method. It turns off the method of a recipe.
pub const NO_METHOD: &str = "none";

/// Held out by default: the first of these that the texts are long enough for, or nothing.
const USUALLY_HELD_OUT: [HeldOut; 3] = [HeldOut::Samples(4), HeldOut::Samples(2), HeldOut::Samples(1)];

/// The tokenized texts of a job.
#[derive(Debug)]
pub struct Texts {
    /// Tokens of all documents.
    pub corpus: Corpus,
    /// File that holds the tokens.
    pub path: PathBuf,
}

impl Job {
    /// The settings of the data, which are the same at every context.
    fn set(&self) -> Settings {
        self.at(0)
    }

    /// Returns the tokens around documents: the given ones, else the recipe's, else those that fit the packing.
    pub fn separator(&self) -> Separator {
        let of_recipe = || self.recipe?.settings(0, &self.given).separator;
        let usual = || match self.packing() {
            Packing::Truncate => Separator::Both,
            _ => Separator::default(),
        };
        self.given.separator.clone().or_else(of_recipe).unwrap_or_else(usual)
    }

    fn packing(&self) -> Packing {
        match (self.given.packing, self.chat) {
            (Some(Packing::Pack), true) => Packing::Whole,
            (Some(packing), _) => packing,
            (None, true) => Packing::Records,
            (None, false) => self.set().packing.unwrap_or_default(),
        }
    }

    /// An error of the data method; of one that nobody typed, with the way to go without it.
    fn of_recipe(&self, e: data::Error) -> JobError {
        match (self.recipe, &self.transform) {
            (Some(recipe), None) => {
                failed(format!("{e}; recipe {} sets it: `transform` {NO_METHOD} turns it off", recipe.name))
            }
            _ => e.into(),
        }
    }

    /// Returns true if attention stays within documents.
    pub(super) fn doc_mask(&self) -> bool {
        self.set().doc_mask.unwrap_or_default()
    }

    pub(super) fn longce(&self) -> Option<LongCe> {
        self.set().loss.flatten()
    }

    /// Which documents are drawn more often. What a recipe draws more often is left to it where there is none of them.
    fn upsample(&self, corpus: &Corpus, control: &Control<'_>) -> Upsample {
        let of_recipe = self.set().upsample.unwrap_or_default();
        if self.given.upsample.is_some() {
            return of_recipe;
        }
        let lengths = (0..corpus.n_documents()).map(|d| corpus.range(d)).map(|range| range.end - range.start);
        match (of_recipe.length(), lengths.max()) {
            (Some(length), Some(longest)) if longest < length => {
                control.note(format_args!(
                    "note: skipped the recipe's upsample={of_recipe}: no document has {length} tokens, the \
                     longest has {longest}"
                ));
                Upsample::None
            }
            _ => of_recipe,
        }
    }

    /// The data method, the one given or else the recipe's, for sequences of `n_ctx` tokens.
    fn transform(&self, model: &Model, n_ctx: usize) -> Result<Option<Box<dyn Transform>>> {
        let spec = self.transform.as_deref().or_else(|| self.recipe?.method);
        let Some(spec) = spec.filter(|spec| *spec != NO_METHOD) else { return Ok(None) };
        let transform = data::parse_method(spec, n_ctx, Arc::new(model.vocab().clone()));
        let transform = transform.map_err(|e| self.of_recipe(e))?;
        if self.doc_mask() && transform.mixes() {
            return Err(refused(format!(
                "`doc-mask`: `transform` {spec} mixes documents, and needs attention across them"
            )));
        }
        if self.given.eod_mask_loss == Some(false) && transform.masks_ends() {
            return Err(refused(format!(
                "`eod-mask-loss`=false: `transform` {spec} masks the loss where a document ends"
            )));
        }
        let joined = self.given.packing.filter(|p| matches!(p, Packing::Pack | Packing::Whole));
        if let Some(packing) = joined.filter(|_| transform.in_one_document()) {
            return Err(refused(format!(
                "`packing`={packing}: `transform` {spec} takes each sequence from one document; expected truncate or long, or \
                 join=true in its spec"
            )));
        }
        Ok(Some(transform))
    }

    /// Returns the trainer's settings for this model: with its trained context if no context is given, with the RoPE
    /// method of the adapter that training starts from if neither the settings nor the model name one, and with the context
    /// of the positions that the data method makes.
    ///
    /// # Errors
    /// Returns an error if the data method cannot be used with this model or with another setting.
    pub fn at_context(&self, model: &Model, settings: &TrainParams) -> Result<TrainParams> {
        let (mut settings, hp) = (settings.clone(), model.hparams());
        if settings.n_ctx == 0 {
            settings.n_ctx = hp.n_ctx_train;
        }
        // As in a session with the adapter.
        let declares_none = || Spec::declared(hp).is_ok_and(|spec| spec == Spec::plain());
        if let Some(path) = self.init.as_ref().filter(|_| settings.rope.is_none() && declares_none()) {
            settings.rope = AdapterReader::open(path).map_err(Error::from)?.meta().rope.clone();
        }
        let transform = self.transform(model, settings.n_ctx)?;
        settings.n_positions = transform.and_then(|t| t.n_positions());
        Ok(settings)
    }

    /// Tokenizes the texts, or finds their tokens in a file of an earlier run. The file is kept in `folder`, or next to
    /// the adapter if there is none, unless the setting `cache` names it. Progress is in bytes of the texts. `settings` are
    /// those of [`Job::at_context`].
    ///
    /// # Errors
    /// Returns an error if settings of the texts cannot be combined, if a text cannot be read or tokenized, if the file
    /// cannot be written, or if `control` stops the work.
    pub fn texts(
        &self,
        model: &Model,
        settings: &TrainParams,
        folder: Option<&Path>,
        control: &Control<'_>,
    ) -> Result<Texts> {
        if self.chat && self.given.text_field.is_some() {
            return Err(refused("`text-field`: lines have `messages` or a `prompt` under `chat`"));
        }
        if self.answers_only && !self.chat && self.set().synthetic.is_none() {
            return Err(refused("`answers-only`: only records of `chat` and `synthetic` have answers"));
        }
        if self.doc_mask() && self.given.eod_mask_loss == Some(false) {
            return Err(refused("`eod-mask-loss`=false: `doc-mask` masks the loss at document ends"));
        }
        if self.chat && self.given.packing == Some(Packing::Long) {
            return Err(refused(
                "`packing`=long: it cuts records, which `chat` does not; expected records, whole or truncate",
            ));
        }
        // Fail on a mistake in the data method before texts are tokenized.
        self.transform(model, settings.n_ctx)?;
        let (set, separator) = (self.set(), self.separator());
        let free = ggml::machine::memory_available();
        let options = TextOptions::default()
            .records(match self.chat {
                true => Records::Chat { answers_only: self.answers_only },
                false => Records::Text(set.text_field.unwrap_or_default()),
            })
            .replace_invalid(set.replace_invalid.unwrap_or_default())
            .token_bytes(set.token_type.map_or(2, |t| t as usize))
            .max_text(free.map_or(MAX_TEXT, |free| MAX_TEXT.min(free / 8)));
        let mut sources = Sources::mixed(&self.data, &options)?;
        let ids = sources.files().iter().find(|file| file.kind == Kind::Tokens);
        let n_vocab = model.hparams().n_vocab;
        if let (Some(file), None, true) = (ids, self.given.token_type, n_vocab > 1 << 16) {
            return Err(refused(format!(
                "{}: ids of a vocabulary of {n_vocab} tokens need more than 16 bits; expected `token-type`=u32, or u16 \
                 if the file has small ones only",
                file.path.display()
            )));
        }
        if self.chat {
            let template = match &self.template {
                Some(apart) => Template::of_apart(model, &apart.clone().stopped_by(control)),
                None => Template::of(model),
            };
            sources = sources.with_template(Arc::new(template?));
        }
        let path = match set.cache {
            Some(path) => path,
            None => {
                let name = Corpus::file_name(model.vocab(), &sources, &separator)?;
                let path = folder.or(self.output.parent()).unwrap_or(Path::new("")).join(name);
                // The user did not name this file, so another user may have put a link there.
                if path.is_symlink() {
                    let what = "is a symbolic link, expected a token cache; name another with `cache`";
                    return Err(failed(format!("{}: {what}", path.display())));
                }
                path
            }
        };
        sources.notes().iter().for_each(|n| control.note(format_args!("note: {n}")));
        let notes = |text: std::fmt::Arguments<'_>| control.note(format_args!("note: {text}"));
        let control = control.with_notes(&notes);
        let output = Output::new(&path, self.force);
        let open = || Corpus::open(output, model.vocab(), &sources, &separator, &control);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(settings.n_threads).build();
        let corpus = pool.map_err(|e| failed(e.to_string()))?.install(open)?;
        Ok(Texts { corpus, path })
    }

    /// Makes the data set of the texts: the training sequences and the validation set. `settings` are those of
    /// [`Job::at_context`].
    ///
    /// # Errors
    /// Returns an error if the texts are too short, or if settings cannot be combined.
    pub fn dataset(
        &self,
        model: &Model,
        settings: &TrainParams,
        texts: Texts,
        control: &Control<'_>,
    ) -> Result<Dataset> {
        let Texts { corpus, path } = texts;
        corpus.notes().iter().for_each(|n| control.note(format_args!("note: {n}")));
        if let Built::Again(why) = corpus.built() {
            control.note(format_args!("note: rebuilt {}: {why}", path.display()));
        }
        let transform = self.transform(model, settings.n_ctx)?;
        let set = self.set();
        let mut corpus = Arc::new(corpus);
        let mut params = DatasetParams::new(settings.n_ctx)
            .packing(self.packing())
            .held_out(HeldOut::None)
            .mixture(Mixture::default().upsample(self.upsample(&corpus, control)).tokens(set.data_tokens))
            .mask_ends(set.eod_mask_loss == Some(true) || self.doc_mask())
            .seed(self.seed);
        let mut dataset = self.split(&mut corpus, &mut params, control)?;
        if let Some(transform) = transform {
            dataset = dataset.with_transform(transform).map_err(|e| self.of_recipe(e))?;
        }
        dataset.note().into_iter().for_each(|note| control.note(format_args!("note: {note}")));
        if dataset.n_short() > 0 {
            let (n_short, windows) = (dataset.n_short(), self.packing() == Packing::Long);
            control.note(format_args!(
                "note: skipped {n_short} of {} training documents: they have fewer than the {} tokens of a \
                 {}",
                if windows { 0 } else { n_short } + dataset.train_documents().len(),
                if windows { dataset.n_read() } else { settings.n_ctx } + 1,
                if windows { "window" } else { "sequence" },
            ));
        }
        if let Some(longce) = self.longce() {
            control.note(format_args!("loss {} at context {}", longce.at(settings.n_ctx), settings.n_ctx));
        }
        if let Some(share) = set.synthetic {
            let tokenizer = Arc::new(model.vocab().clone());
            let synthetic = data::synthetic::Synthetic::new(share, self.answers_only, tokenizer)?;
            dataset = dataset.with_synthetic(synthetic)?;
        }
        Ok(dataset)
    }

    /// Holds out the requested part; by default a few sequences, or fewer if the texts are short.
    fn split(
        &self,
        corpus: &mut Arc<Corpus>,
        params: &mut DatasetParams,
        control: &Control<'_>,
    ) -> Result<Dataset> {
        let (usual, last) = match self.given.held_out {
            Some(asked) => (&[][..], asked),
            None => (&USUALLY_HELD_OUT[..], HeldOut::None),
        };
        let mut held_out = |held_out: HeldOut| -> Result<Dataset> {
            params.held_out = held_out;
            let is_cut = cut_tail(corpus, params);
            let dataset = Dataset::new(Arc::clone(corpus), params)?;
            if is_cut {
                let range = corpus.range(1);
                let (name, n) = (corpus.name(0), count(range.end - range.start));
                control.note(format_args!("note: {name} is one text: its last {n} tokens are held out"));
            }
            Ok(dataset)
        };
        if let Some(dataset) = usual.iter().find_map(|&usual| held_out(usual).ok()) {
            return Ok(dataset);
        }
        let dataset = held_out(last)?;
        if !usual.is_empty() {
            control.note(format_args!("note: no validation: the texts are too short for a validation set"));
        }
        Ok(dataset)
    }
}

/// Cuts what is to be held out off the end of a single text.
fn cut_tail(corpus: &mut Arc<Corpus>, params: &DatasetParams) -> bool {
    let Some(corpus) = Arc::get_mut(corpus) else { return false };
    let sequences = |n: u64| n.saturating_mul(params.n_ctx as u64).saturating_add(1);
    let tail = match params.held_out {
        HeldOut::None => None,
        HeldOut::Samples(n) => Some(sequences(n as u64)),
        HeldOut::Tokens(n) => Some(n),
        HeldOut::Fraction(f) => Some(sequences(1).max((f * corpus.n_tokens() as f64) as u64)),
    };
    // The tail is the smaller part, and so the one that is held out.
    let tail = tail.filter(|&n| n < corpus.n_tokens() / 2);
    corpus.cut_tail(tail.filter(|_| matches!(params.packing, Packing::Pack | Packing::Long)))
}
