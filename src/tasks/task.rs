//! Tasks: samples with prompts, and judges of answers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use ropewalk_core::control::Control;

use crate::{DataFile, Error, Result};

/// A token's number in the model's vocabulary.
pub type Token = i32;

/// The model's tokenizer and chat template, as tasks use them.
pub trait Encoder {
    /// Text to tokens, without BOS or EOS. Names of special tokens in the text become those tokens, as they
    /// do in the tokenizers that published protocols use.
    fn encode(&self, text: &str) -> Result<Vec<Token>>;
    /// Tokens to text; special tokens are left out.
    fn decode(&self, tokens: &[Token]) -> Result<String>;
    /// The text of the prompt for a user's message: the message itself for base models; under
    /// [`Template::Chat`] the model's chat template around it, up to where the answer begins.
    fn frame(&self, message: &str) -> Result<String>;
    /// How many tokens the model's tokenizer puts before a text by itself: 1 where it puts BOS. Protocols that
    /// count what their tokenizer returns count it.
    fn n_bos(&self) -> usize {
        0
    }
    /// Number of tokens of a text.
    fn count(&self, text: &str) -> Result<usize> {
        Ok(self.encode(text)?.len())
    }
}

/// Form of a prompt: plain text, or a message in the model's chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Template {
    /// Text for base models.
    #[default]
    Base,
    /// The model's chat template.
    Chat,
}

/// The settings that samples are made with.
pub struct Setup<'a> {
    /// Tokens of prompt and answer together; `None` for tasks whose samples are as long as they are.
    pub length: Option<usize>,
    /// Number of samples; `None` is the task's own ([`Info::samples`]).
    pub samples: Option<usize>,
    /// Seed; `None` is the one of the published protocol.
    pub seed: Option<u64>,
    /// Plain text or chat.
    pub template: Template,
    /// Settings by name, of those that [`Info::options`] lists.
    pub options: BTreeMap<String, String>,
    /// The folder of published data.
    pub data: &'a Path,
    /// The tokenizer.
    pub encoder: &'a dyn Encoder,
    /// Progress and cancellation.
    pub control: Control<'a>,
}

impl Setup<'_> {
    /// The value of an option: what the user chose, or its first value.
    ///
    /// # Errors
    /// A value that the option does not have.
    pub fn option(&self, opt: &Opt) -> Result<&str> {
        let Some(value) = self.options.get(opt.name) else { return Ok(opt.default) };
        if !opt.values.is_empty() && !opt.values.contains(&value.as_str()) {
            let known = opt.values.join(", ");
            return Err(Error::invalid(format!("{}: expected one of {known}, found {value:?}", opt.name)));
        }
        Ok(value)
    }

    /// The length, for tasks that need one.
    ///
    /// # Errors
    /// None was given.
    pub fn length(&self) -> Result<usize> {
        self.length.ok_or_else(|| Error::invalid("expected a length in tokens, found none"))
    }

    /// The whole number that an option has, within these bounds.
    pub(crate) fn number(&self, opt: &Opt, bounds: RangeInclusive<usize>) -> Result<usize> {
        let value = self.option(opt)?;
        value.parse().ok().filter(|n| bounds.contains(n)).ok_or_else(|| {
            let (least, most) = (bounds.start(), bounds.end());
            Error::invalid(format!("{}: expected a number from {least} to {most}, found {value:?}", opt.name))
        })
    }

    /// Number of samples: all there are, or as many as are wanted.
    pub(crate) fn samples_of(&self, all: usize) -> usize {
        self.samples.map_or(all, |n| n.min(all))
    }

    /// Numbers of the samples to take of `all`: all, or as many as are wanted, from the first to the last at even steps. For tasks
    /// whose samples go through the text, so that a few of them see all of it.
    pub(crate) fn spread(&self, all: usize) -> Vec<usize> {
        match self.samples_of(all) {
            1 if all > 1 => vec![all / 2],
            n => (0..n).map(|i| i * (all - 1) / (n - 1).max(1)).collect(),
        }
    }

    /// Depths in percent that an option names: a count of them, from 0 to 100 at equal steps, each rounded to a
    /// whole number (`numpy.round(numpy.linspace(0, 100, count))`), or a list such as `0/50/100`.
    ///
    /// # Errors
    /// Neither of the two.
    pub fn depths(&self, opt: &Opt) -> Result<Vec<u32>> {
        let value = self.option(opt)?;
        let wrong = || {
            let form = "a count of 1 to 101, or depths in percent such as 0/50/100";
            Error::invalid(format!("{}: expected {form}, found {value:?}", opt.name))
        };
        if !value.contains('/') {
            let count: u32 = value.parse().map_err(|_| wrong())?;
            return match count {
                1 => Ok(vec![0]),
                2..=101 => Ok(evenly(count)),
                _ => Err(wrong()),
            };
        }
        percents(value).ok_or_else(wrong)
    }

    /// An error when the work is to stop.
    pub fn check_stopped(&self) -> Result<()> {
        self.control.unless_stopped(Error::Interrupted)
    }
}

/// Two or more whole numbers from 0 to 100, at equal steps before they are rounded.
pub(crate) fn evenly(count: u32) -> Vec<u32> {
    let step = 100.0 / f64::from(count - 1);
    let inner = (0..count - 1).map(|i| (f64::from(i) * step).round_ties_even() as u32);
    inner.chain([100]).collect()
}

/// The numbers from 0 to 100 that stand between slashes.
pub(crate) fn percents(text: &str) -> Option<Vec<u32>> {
    text.split('/').map(|part| part.trim().parse::<u32>().ok().filter(|&n| n <= 100)).collect()
}

/// A setting of a task.
#[derive(Debug, Clone, Copy, serde::Serialize)]
pub struct Opt {
    /// Name, as typed.
    pub name: &'static str,
    /// Possible values; empty for free text, which the task checks.
    pub values: &'static [&'static str],
    /// Default value.
    pub default: &'static str,
    /// Effect of the setting, in a sentence.
    pub about: &'static str,
}

/// The texts that settings of tasks name, such as a haystack: the values of free settings without a default.
pub fn named_texts(tasks: &[&'static dyn Task], settings: &BTreeMap<String, String>) -> BTreeSet<PathBuf> {
    let options = tasks.iter().flat_map(|task| task.info().options);
    let free = options.filter(|option| option.values.is_empty() && option.default.is_empty());
    let named = free.filter_map(|option| settings.get(option.name)).filter(|path| !path.is_empty());
    named.map(PathBuf::from).collect()
}

/// A description of a task: its protocol, metrics, settings and data.
#[derive(Debug, Clone, Copy)]
pub struct Info {
    /// Name, as typed: lower case, digits and `_`.
    pub name: &'static str,
    /// The question asked, in a sentence.
    pub about: &'static str,
    /// The published protocol: paper or file of reference code, with its version.
    pub source: &'static str,
    /// Names of the scores that [`Judge`]s give, in their order; the first one is the task's score.
    pub metrics: &'static [&'static str],
    /// The score of a right answer: 1, except for metrics that never reach it.
    pub best: f64,
    /// Expected score of random choices, for tasks that offer choices.
    pub chance: Option<f64>,
    /// True if samples are made for a length.
    pub has_length: bool,
    /// Default number of samples; `None` is all of them.
    pub samples: Option<usize>,
    /// Settings.
    pub options: &'static [&'static Opt],
    /// Data it reads.
    pub files: &'static [&'static DataFile],
    /// Names of the tags ([`Sample::tags`]) that reports give scores by: those of few values that mean something, such as
    /// depth. What a question happens to ask for is none.
    pub groups: &'static [&'static str],
}

impl Info {
    /// Defaults that most tasks share: samples for a length, no limit on their number, and 1 for a right answer.
    pub(crate) const OF_LENGTH: Info = Info {
        name: "",
        about: "",
        source: "",
        metrics: &[],
        best: 1.0,
        chance: None,
        has_length: true,
        samples: None,
        options: &[],
        files: &[],
        groups: &[],
    };
}

/// A benchmark. Implementations are statics in the slice of their file, which the registry lists.
pub trait Task: Sync {
    /// Description of the task.
    fn info(&self) -> &Info;
    /// Samples of the task. The same setup gives the same ones.
    ///
    /// # Errors
    /// Settings that make no sense, data that is missing or damaged, a length that no sample fits into (the
    /// message says what would fit).
    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>>;
}

/// The samples of a task, made one after another.
pub struct Samples<'a> {
    /// How many there are.
    pub n: usize,
    /// The samples.
    pub iter: Box<dyn Iterator<Item = Result<Sample>> + 'a>,
    /// Tokens that prompt and answer may take beyond [`Setup::length`], where a protocol cuts prompts without
    /// regard to the answer; 0 as a rule.
    pub beyond: usize,
    /// True if [`Setup::length`] counts BOS; as a rule BOS is in addition to the length.
    pub counts_bos: bool,
}

impl<'a> Samples<'a> {
    /// Samples made one after another: `make` is called with 0, 1 and so on below `n`, until the work is to stop.
    pub fn new(
        setup: &'a Setup<'a>,
        n: usize,
        mut make: impl FnMut(usize) -> Result<Sample> + 'a,
    ) -> Samples<'a> {
        let make = move |i| setup.check_stopped().and_then(|()| make(i));
        Samples { n, iter: Box::new((0..n).map(make)), beyond: 0, counts_bos: false }
    }

    /// Lets them take tokens beyond the length.
    pub fn with_beyond(self, beyond: usize) -> Samples<'a> {
        Samples { beyond, ..self }
    }
}

/// Judges an answer: one number for each of [`Info::metrics`], 1 for full marks.
pub type Judge = Box<dyn Fn(&Answer) -> Vec<f64> + Send>;

/// One question.
pub struct Sample {
    /// Names it among the samples of its task and length.
    pub id: String,
    /// The prompt as the model reads it, [`Encoder::frame`] and the beginning of the answer included; BOS is
    /// put before it where the model wants it.
    pub prompt: String,
    /// The kind of answer wanted of the model.
    pub ask: Ask,
    /// An answer that gets full marks.
    pub expected: Answer,
    /// Properties that explain the sample: depth, question, subject. [`Info::groups`] says which reports group by.
    pub tags: Vec<(&'static str, String)>,
    /// Judges the answer.
    pub judge: Judge,
}

/// The kind of answer wanted of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// A greedy continuation of the prompt.
    Generate {
        /// Tokens at most.
        max_tokens: usize,
        /// No end-of-generation token before there are this many, nor one that is a text of `stop`.
        min_tokens: usize,
        /// Texts that end the answer; they are not part of it.
        stop: Vec<String>,
    },
    /// The log-likelihood of each of these continuations of the prompt.
    Choose(Vec<String>),
}

/// The answer of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// The continuation, special tokens left out.
    Text(String),
    /// For each choice.
    Choices(Vec<Likelihood>),
}

/// How likely a continuation is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Likelihood {
    /// Sum of `ln p` over its tokens.
    pub sum: f64,
    /// True if each token is the most likely one.
    pub greedy: bool,
    /// Number of tokens.
    pub n_tokens: usize,
}

impl Answer {
    /// The text; empty for choices.
    pub fn text(&self) -> &str {
        match self {
            Answer::Text(text) => text,
            Answer::Choices(_) => "",
        }
    }

    /// Likelihoods that prefer the right one of `n` choices: a correct answer.
    pub fn choose(n: usize, right: usize) -> Answer {
        let likelihood =
            |i| Likelihood { sum: if i == right { 0.0 } else { -1e6 }, greedy: i == right, n_tokens: 1 };
        Answer::Choices((0..n).map(likelihood).collect())
    }
}
