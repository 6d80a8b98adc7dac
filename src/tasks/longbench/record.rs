//! Records of LongBench's files, and the prompts made of them.

use serde::Deserialize;

use crate::data::check_answer;
use crate::metrics::longbench as metrics;
use crate::{text, Error, Result};

/// Right answers of one question, at most: the published ones with most, names and their spellings, have
/// hundreds.
const MAX_ANSWERS: usize = 10_000;

/// A line of a file, as LongBench publishes it. Fields that the protocol does not use are passed over.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Record {
    /// The question, or what the last example leaves open.
    pub(super) input: String,
    pub(super) context: String,
    /// Right answers, each as good as the others.
    pub(super) answers: Vec<String>,
    /// Length as LongBench counts it: English words.
    pub(super) length: u64,
    pub(super) dataset: Option<String>,
    /// Names of classes, for sets that ask for one.
    pub(super) all_classes: Option<Vec<String>>,
    #[serde(rename = "_id")]
    pub(super) id: Option<String>,
}

impl Record {
    /// Checks a record of a set; the error says what was expected and found.
    pub(super) fn check(&self, metric: Metric) -> Result<(), String> {
        if self.answers.is_empty() {
            return Err("expected answers, found none".into());
        }
        if self.answers.len() > MAX_ANSWERS {
            return Err(format!("expected at most {MAX_ANSWERS} answers, found {}", self.answers.len()));
        }
        self.answers.iter().try_for_each(|answer| check_answer("answers", answer))?;
        match metric {
            Metric::Classification if self.all_classes.is_none() => {
                Err("expected a list of names in all_classes, found none".into())
            }
            Metric::Retrieval => match self.answers.iter().find(|a| metrics::paragraph(a).is_none()) {
                Some(answer) => {
                    Err(format!("expected \"Paragraph\" and a number in answers, found {answer:?}"))
                }
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// How a set is scored: `dataset2metric` of LongBench's `eval.py`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metric {
    QaF1,
    Rouge,
    Classification,
    Retrieval,
    Count,
    CodeSim,
}

impl Metric {
    /// The score of an answer: that against the right answer that is nearest.
    pub(super) fn score(self, prediction: &str, answers: &[String], all_classes: &[String]) -> f64 {
        let one = |gold: &String| match self {
            Metric::QaF1 => metrics::qa_f1_score(prediction, gold),
            Metric::Rouge => metrics::rouge_score(prediction, gold),
            Metric::Classification => metrics::classification_score(prediction, gold, all_classes),
            Metric::Retrieval => metrics::retrieval_score(prediction, gold),
            Metric::Count => metrics::count_score(prediction, gold),
            Metric::CodeSim => metrics::code_sim_score(prediction, gold),
        };
        answers.iter().map(one).fold(0.0, f64::max)
    }
}

/// Which code is followed: the option `longbench`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// LongBench's own.
    Official,
    /// That of the controlled study of long-context extension.
    Lceg,
}

impl Form {
    /// Tokens of the prompt, at most, for a context of `length`: `model2maxlen.json`.
    ///
    /// LongBench has 3500 for 4k, 7500 for 8k, 15500 for 16k and 31500 for 32k: thousands less 500, which
    /// are kept for the answer and the chat template. So a multiple of 1024 counts as that many thousands,
    /// and from any other length 500 are taken off. LCEG takes off nothing, and an answer to a long prompt
    /// lies after the end of `length`.
    pub fn max_prompt(self, length: usize) -> Result<usize> {
        let (max, least) = match self {
            Form::Official => (text::thousands(length).saturating_sub(500), 502),
            Form::Lceg => (length, 2),
        };
        if max < 2 {
            return Err(Error::invalid(format!(
                "LongBench: expected a length of at least {least} tokens, found {length}"
            )));
        }
        Ok(max)
    }
}
