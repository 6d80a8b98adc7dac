//! The texts and what is made of them: options, and the data set that they come to.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::anyhow;
use ropewalk::control::Control;
use ropewalk::data::{
    self, Built, Corpus, Dataset, DatasetParams, HeldOut, Knots, Mixture, Packing, Records, Separator,
    Source, Sources, TextOptions, Transform, Upsample, MAX_TEXT,
};
use ropewalk::model::Model;
use ropewalk::train::{recipe, LongCe, TrainParams};

use super::super::engine::draw;
use super::super::output::{self, Unit};
use super::super::{template, usage};
use super::args::Args;

/// The data method that is none, to leave out a recipe's.
pub(super) const NO_METHOD: &str = "none";

/// The texts.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Texts")]
pub(super) struct TextArgs {
    /// pack: documents joined and cut, under --chat joined whole; long: windows of documents longer than the context;
    /// truncate: a document each, cut to the context, between BOS and EOS (SBA-RoPE); records: a document each, of which one
    /// that is cut is named and gets no EOS; whole: as many whole documents as fit, and a longer one is an error. Default:
    /// pack, or the recipe's; under --chat records
    #[arg(long, value_name = "HOW", value_parser = parsed::<Packing>)]
    pub(super) packing: Option<Packing>,
    /// Order of sequences: shuffled, or text, one behind another in the texts, which is the same text at every context;
    /// default: shuffled, with --stages text
    #[arg(long, value_name = "HOW", value_parser = ["shuffled", "text"])]
    pub(super) order: Option<String>,
    /// Token of the texts, in their order of training, to begin at; default: 0, with --init where the earlier run
    /// stopped
    #[arg(long, value_name = "N")]
    pub(super) data_offset: Option<u64>,
    /// No attention across documents, and no loss where one ends (AttnMask of Untie the Knots, Llama 3); default: false,
    /// or the recipe's
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) doc_mask: Option<bool>,
    /// No loss of the token that ends a document (Megatron's eod_mask_loss; so it is under --doc-mask and utk); default:
    /// false, or the recipe's
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(super) eod_mask_loss: Option<bool>,
    /// Held out to validate on: a fraction of the text, or a number of sequences; 0: nothing. Whole documents are held out; of a
    /// single one, its end. Default: 4 sequences, or as many fewer as short texts leave
    #[arg(long, value_name = "X", value_parser = held_out)]
    pub(super) held_out: Option<HeldOut>,
    /// The end of a document: auto, flags, eos, eot, bos, bos+eos, or a token's text; default: auto, bos+eos
    /// under --packing truncate, or the recipe's. `bos` puts BOS before each document and, unless the model's
    /// flag asks for it, no EOS behind: the form of the data of Fu et al., LCEG and HARPE
    #[arg(long, value_name = "TOKEN", value_parser = parsed::<Separator>)]
    pub(super) separator: Option<Separator>,
    /// The field of .jsonl lines
    #[arg(long, value_name = "NAME", default_value = "text")]
    text_field: String,
    /// Lines of .jsonl hold `messages`, for the model's chat template, or a `prompt` and its `completion`. Each is a
    /// sequence, unless --packing says otherwise; a key that nothing would read is an error
    #[arg(long, conflicts_with = "text_field")]
    chat: bool,
    /// Loss of answers only: of the tokens that lie wholly in the assistant's turns or completions (--chat), or in what a
    /// chat template marks with {% generation %}, and of answers of --synthetic
    #[arg(long)]
    answers_only: bool,
    /// Bytes of a token id in a .bin file: u16 or u32
    #[arg(long, value_name = "TYPE", default_value = "u16", value_parser = ["u16", "u32"])]
    token_type: String,
    /// Replace bytes that are not UTF-8 instead of refusing them
    #[arg(long)]
    replace_invalid: bool,
    /// The file that caches the tokens; default: beside the adapter; for --inspect-data without an adapter's name none stays
    #[arg(long, value_name = "FILE")]
    pub(super) cache: Option<PathBuf>,
}

/// The data method, the loss and the form of the texts.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Data method")]
pub(super) struct MethodArgs {
    /// A change of sequences: utk-80, utk-30, utk:share=0.8,order=false, cip, pose:target=N (positions of a context
    /// of N, for which the rope method is made, in sequences of --ctx tokens); default: none, or the recipe's
    #[arg(long, value_name = "SPEC", long_help = methods_help())]
    pub(super) data_method: Option<String>,
    /// Tokens at the cuts of utk: end of chunk 1, start of 2, end of 2, start of 3; texts, or #NUMBER; default:
    /// tokens that the vocabulary leaves unused
    #[arg(long, value_name = "TOKEN,...", value_delimiter = ',')]
    knot_tokens: Vec<String>,
    /// Marks of utk: start and end of a label, start of the list of labels, between two, its end
    #[arg(long, value_name = "TOKEN,...", value_delimiter = ',')]
    mark_tokens: Vec<String>,
    /// Long documents more often: fu or global[:length=4096,keep=0.1], utk[:length=32768,weight=5]; default: none, or the
    /// recipe's
    #[arg(long, value_name = "HOW", value_parser = parsed::<Upsample>)]
    pub(super) upsample: Option<Upsample>,
    /// Tokens of an epoch under shares or --upsample; default: as many as repeat no document, or with --upsample
    /// utk as leave none out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    data_tokens: Option<u64>,
    /// Part of the sequences that are made: records of the five families of Untie the Knots; there: 0.3
    #[arg(long, value_name = "SHARE", value_parser = share)]
    synthetic: Option<f64>,
    /// longce[:short=4096,stride=1024,gamma=5]: tokens count by how much likelier the long context makes them than a short
    /// one, by default of an eighth of it, at most 4,096 tokens; ce: all alike; default: ce, or the recipe's
    #[arg(long, value_name = "HOW", value_parser = parsed::<Loss>)]
    pub(super) loss: Option<Loss>,
}

/// How targets count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Loss(pub(super) Option<LongCe>);

impl FromStr for Loss {
    type Err = ropewalk::model::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Loss(if text == "ce" { None } else { Some(text.parse()?) }))
    }
}

impl Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(longce) => longce.fmt(f),
            None => f.write_str("ce"),
        }
    }
}

/// Names and parameters of data methods, for help.
fn methods_help() -> String {
    let mut out =
        "A change of sequences, NAME or NAME:KEY=VALUE,...; default: none, or the recipe's\n".to_owned();
    for method in data::METHODS {
        out += &format!("  {}: {}\n", method.name, method.about);
        // The first of those that share parameters lists them.
        let first = data::METHODS.iter().find(|m| std::ptr::eq(m.params, method.params));
        if first.is_some_and(|m| m.name == method.name) {
            method.params.iter().for_each(|(key, about)| out += &format!("    {key}: {about}\n"));
        }
    }
    out
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}

/// `--data`: a path, or `NAME=PATH:SHARE`.
pub(super) fn source(text: &str) -> Result<Source, String> {
    parsed(text)
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|x: &f64| *x > 0.0 && *x < 1.0);
    share.ok_or_else(|| "expected a share above 0 and below 1, such as 0.3".to_owned())
}

/// Held out by default: the first of these that the texts are long enough for, or nothing.
const USUALLY_HELD_OUT: [HeldOut; 3] = [HeldOut::Samples(4), HeldOut::Samples(2), HeldOut::Samples(1)];

fn held_out(text: &str) -> Result<HeldOut, String> {
    let bad = || "expected a fraction below 1 (0.01) or a number of sequences (4)".to_owned();
    match (text.parse::<usize>(), text.parse::<f64>()) {
        (Ok(0), _) => Ok(HeldOut::None),
        (Ok(n), _) => Ok(HeldOut::Samples(n)),
        (_, Ok(f)) if f > 0.0 && f < 1.0 => Ok(HeldOut::Fraction(f)),
        _ => Err(bad()),
    }
}

impl Args {
    /// The tokens around documents where no option and no recipe says.
    pub(super) fn default_separator(&self) -> Separator {
        match self.packing() {
            Packing::Truncate => Separator::Both,
            _ => Separator::default(),
        }
    }

    /// What no option says of the data.
    fn recipe_data(&self) -> recipe::Data {
        self.recipe().map_or(recipe::Data::PACKED, |r| r.data)
    }

    /// The way documents become sequences.
    fn packing(&self) -> Packing {
        match (self.text.packing, self.text.chat) {
            (Some(Packing::Pack), true) => Packing::Whole,
            (Some(packing), _) => packing,
            (None, true) => Packing::Records,
            (None, false) => self.recipe_data().packing,
        }
    }

    /// The spec of the data method: the one given, else the recipe's.
    fn data_method(&self) -> Option<&str> {
        self.method.data_method.as_deref().or(self.recipe_data().method).filter(|spec| *spec != NO_METHOD)
    }

    /// An error of the data method; of one that nobody typed, with the way to go without it.
    fn of_recipe(&self, e: data::Error) -> anyhow::Error {
        match (self.recipe(), &self.method.data_method) {
            (Some(recipe), None) => {
                anyhow!("{e}; it is of recipe {}: --data-method {NO_METHOD} leaves it out", recipe.name)
            }
            _ => e.into(),
        }
    }

    /// Whether attention stays within documents.
    pub(super) fn doc_mask(&self) -> bool {
        self.text.doc_mask.unwrap_or(self.recipe_data().doc_mask)
    }

    /// Whether no loss is taken where a document ends.
    fn mask_ends(&self) -> bool {
        self.text.eod_mask_loss.unwrap_or(self.recipe_data().mask_ends) || self.doc_mask()
    }

    /// The weights of targets.
    pub(super) fn longce(&self) -> Option<LongCe> {
        self.method.loss.map_or(self.recipe_data().longce, |loss| loss.0)
    }

    /// Which documents are drawn more often. What a recipe draws more often is left to it where there is none of them.
    fn upsample(&self, corpus: &Corpus) -> Upsample {
        let of_recipe = self.recipe_data().upsample;
        if let Some(given) = self.method.upsample {
            return given;
        }
        let lengths = (0..corpus.n_documents()).map(|d| corpus.range(d)).map(|range| range.end - range.start);
        match (of_recipe.length(), lengths.max()) {
            (Some(length), Some(longest)) if longest < length => {
                self.out.note(format_args!(
                    "note: --upsample {of_recipe} of the recipe is left out: no document has {length} tokens, the longest \
                     has {longest}"
                ));
                Upsample::None
            }
            _ => of_recipe,
        }
    }

    /// The data method, for sequences of `n_ctx` tokens.
    pub(super) fn transform(
        &self,
        model: &Model,
        n_ctx: usize,
    ) -> anyhow::Result<Option<Box<dyn Transform>>> {
        let tokens =
            [("--knot-tokens", &self.method.knot_tokens), ("--mark-tokens", &self.method.mark_tokens)];
        let Some(spec) = self.data_method() else {
            return match tokens.iter().find(|(_, given)| !given.is_empty()) {
                Some((option, _)) => {
                    Err(usage(format!("{option}: expected a --data-method that has such tokens, found none")))
                }
                None => Ok(None),
            };
        };
        let ids = Knots { knots: self.method.knot_tokens.clone(), marks: self.method.mark_tokens.clone() };
        let transform = data::parse_method(spec, n_ctx, Arc::new(model.vocab().clone()), &ids);
        let transform = transform.map_err(|e| self.of_recipe(e))?;
        if self.doc_mask() && transform.mixes() {
            return Err(usage(format!(
                "--doc-mask: --data-method {spec} mixes documents, and needs attention across them"
            )));
        }
        if self.text.eod_mask_loss == Some(false) && transform.masks_ends() {
            return Err(usage(format!(
                "--eod-mask-loss=false: --data-method {spec} takes no loss where a document ends"
            )));
        }
        let joined = self.text.packing.filter(|p| matches!(p, Packing::Pack | Packing::Whole));
        if let Some(packing) = joined.filter(|_| transform.in_one_document()) {
            return Err(usage(format!(
                "--packing {packing}: --data-method {spec} takes each sequence from one document; expected truncate or long, or \
                 join=true in its spec"
            )));
        }
        Ok(Some(transform))
    }

    /// The settings at the context that is trained, and the positions of the data method.
    pub(super) fn at_context(&self, model: &Model, settings: &TrainParams) -> anyhow::Result<TrainParams> {
        let mut settings = settings.clone();
        if settings.n_ctx == 0 {
            settings.n_ctx = model.hparams().n_ctx_train;
        }
        let transform = match self.transform(model, settings.n_ctx) {
            // Memory does not depend on the tokens that a recipe's method lacks.
            Err(_) if self.plan_memory && self.method.data_method.is_none() => None,
            made => made?,
        };
        settings.n_positions = transform.and_then(|t| t.n_positions());
        Ok(settings)
    }

    /// The samples to train on: texts are tokenised, or their tokens found. The tokens are kept in `folder` where there is
    /// one and no file was named, else beside the adapter.
    pub(super) fn dataset(
        &self,
        model: &Model,
        settings: &TrainParams,
        folder: Option<&Path>,
        control: &Control<'_>,
    ) -> anyhow::Result<Dataset> {
        if self.text.chat && self.text.packing == Some(Packing::Long) {
            return Err(usage(
                "--packing long: it cuts records, which --chat does not; expected records, whole or truncate",
            ));
        }
        let transform = self.transform(model, settings.n_ctx)?;
        let mut corpus = Arc::new(self.corpus(model, settings, folder, control)?);
        let mut params = DatasetParams {
            n_ctx: settings.n_ctx,
            packing: self.packing(),
            held_out: HeldOut::None,
            mixture: Mixture { upsample: self.upsample(&corpus), tokens: self.method.data_tokens },
            mask_ends: self.mask_ends(),
            seed: self.adapter.seed,
        };
        let mut dataset = self.split(&mut corpus, &mut params)?;
        if let Some(transform) = transform {
            dataset = dataset.with_transform(transform).map_err(|e| self.of_recipe(e))?;
        }
        dataset.note().into_iter().for_each(|note| self.out.note(format_args!("note: {note}")));
        if dataset.n_short() > 0 {
            let n_short = dataset.n_short();
            self.out.note(format_args!(
                "note: {n_short} of {} documents to train on are left out: they have fewer than the {} tokens of a sequence",
                n_short + dataset.train_documents().len(),
                settings.n_ctx + 1
            ));
        }
        if let Some(longce) = self.longce() {
            self.out.note(format_args!("loss {} at context {}", longce.at(settings.n_ctx), settings.n_ctx));
        }
        if let Some(share) = self.method.synthetic {
            let tokenizer = Arc::new(model.vocab().clone());
            let synthetic = data::synthetic::Synthetic::new(share, self.text.answers_only, tokenizer)?;
            dataset = dataset.with_synthetic(synthetic)?;
        }
        Ok(dataset)
    }

    /// Holds out what was asked for; by default as many of a few sequences as the texts are long enough for.
    fn split(&self, corpus: &mut Arc<Corpus>, params: &mut DatasetParams) -> anyhow::Result<Dataset> {
        let (usual, last) = match self.text.held_out {
            Some(asked) => (&[][..], asked),
            None => (&USUALLY_HELD_OUT[..], HeldOut::None),
        };
        let mut held_out = |held_out: HeldOut| -> anyhow::Result<Dataset> {
            params.held_out = held_out;
            let is_cut = self.cut_tail(corpus, params);
            let dataset = Dataset::new(Arc::clone(corpus), params)?;
            if is_cut {
                let range = corpus.range(1);
                let (name, n) = (corpus.name(0), output::count(range.end - range.start));
                self.out.note(format_args!("note: {name} is one text: its last {n} tokens are held out"));
            }
            Ok(dataset)
        };
        if let Some(dataset) = usual.iter().find_map(|&usual| held_out(usual).ok()) {
            return Ok(dataset);
        }
        let dataset = held_out(last)?;
        if !usual.is_empty() {
            self.out.note("note: the texts are too short to hold out from: no validation");
        }
        Ok(dataset)
    }

    /// Cuts what is to be held out off the end of a single text.
    fn cut_tail(&self, corpus: &mut Arc<Corpus>, params: &DatasetParams) -> bool {
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

    fn corpus(
        &self,
        model: &Model,
        settings: &TrainParams,
        folder: Option<&Path>,
        control: &Control<'_>,
    ) -> anyhow::Result<Corpus> {
        let (text, separator) = (&self.text, self.separator());
        let free = ggml::machine::memory_available();
        let options = TextOptions {
            records: match text.chat {
                true => Records::Chat { answers_only: text.answers_only },
                false => Records::Text(text.text_field.clone()),
            },
            replace_invalid: text.replace_invalid,
            token_bytes: if text.token_type == "u32" { 4 } else { 2 },
            max_text: free.map_or(MAX_TEXT, |free| MAX_TEXT.min(free / 8)),
        };
        let mut sources = Sources::mixed(&self.data, &options)?;
        if text.chat {
            sources = sources.with_template(Arc::new(template::of(model, control)?));
        }
        let path = match &text.cache {
            Some(path) => path.clone(),
            None => {
                let name = Corpus::file_name(model.vocab(), &sources, &separator)?;
                folder.or(self.output().parent()).unwrap_or(Path::new("")).join(name)
            }
        };
        sources.notes().iter().for_each(|n| self.out.note(format_args!("note: {n}")));
        let draw = draw(self.out.progress(sources.n_bytes(), "tokenising", Unit::Bytes));
        let notes = |text: std::fmt::Arguments<'_>| self.out.note(format_args!("note: {text}"));
        let control = self.out.watched(control, &draw, &notes);
        let open = || Corpus::open(&path, model.vocab(), &sources, &separator, &control);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(settings.n_threads).build()?;
        let corpus = pool.install(open)?;
        drop(draw);
        corpus.notes().iter().for_each(|n| self.out.note(format_args!("note: {n}")));
        if let Built::Again(why) = corpus.built() {
            self.out.note(format_args!("note: {} was made again: {why}", path.display()));
        }
        Ok(corpus)
    }

    /// The texts and what is made of them, in words that change with what is learnt and with nothing else.
    pub(super) fn texts_in_words(&self) -> String {
        let (separator, order) = (Some(self.separator()), Some(format!("{:?}", self.order())));
        let text = TextArgs { separator, order, cache: None, ..self.text.clone() };
        format!("{text:?}, {:?}", self.method)
    }
}
