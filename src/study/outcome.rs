//! Result of a cell: its figures, or the reason why there are none.

use serde::{Deserialize, Serialize};

use crate::cell::Key;

/// The figures of a cell. Scores are percentages, perplexities plain numbers.
///
/// Figures that depend on the machine (`seconds`, `tokens_per_s`) are kept here and not shown in reports.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellResult {
    /// Name of the headline metric.
    pub metric: String,
    /// Its value.
    pub value: f64,
    /// Its 95 % interval, if one was found.
    pub interval: Option<(f64, f64)>,
    /// How the interval was found: `wilson`, `bootstrap`, `standard error`.
    pub interval_kind: String,
    /// Every metric, the headline among them.
    pub metrics: Vec<Metric>,
    /// Samples judged; for perplexity windows.
    pub samples: u64,
    /// Tokens of a prompt in the mean; for perplexity tokens scored.
    pub tokens: u64,
    /// The protocol with its settings, in words.
    pub protocol: String,
    /// Where the protocol is defined: a paper, or a file of reference code.
    pub source: String,
    /// Rope spec in force.
    pub rope: String,
    /// Tokens the context was opened for.
    pub n_ctx: u64,
    /// Score of random choices, in percent.
    pub chance: Option<f64>,
    /// Negative log-likelihood by position, for perplexity.
    pub buckets: Vec<Bucket>,
    /// Scores by the value of a tag; needles have `depth`.
    pub by: Vec<Breakdown>,
    /// SHA-256 of the adapters in force.
    pub adapter: Option<String>,
    /// Tokens that the weights of the method were trained on, as the adapter or the recipe says.
    pub tokens_trained: Option<u64>,
    /// Remarks that a reader of the figures must know.
    pub notes: Vec<String>,
    /// Wall time. Not in reports.
    pub seconds: f64,
    /// Tokens per second. Not in reports.
    pub tokens_per_s: f64,
}

/// A metric beside others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its name.
    pub name: String,
    /// Its value, in the unit of the task.
    pub value: f64,
    /// Its 95 % interval.
    pub interval: Option<(f64, f64)>,
}

/// Tokens at neighbouring positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// First position; 0 is the first token fed.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Mean negative log-likelihood in nats.
    pub nll: f64,
    /// Tokens scored.
    pub tokens: u64,
}

/// The samples with one value of a tag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breakdown {
    /// The tag.
    pub tag: String,
    /// Its value; depths are in percent of the text before the needle.
    pub value: String,
    /// Mean score in percent.
    pub score: f64,
    /// Samples.
    pub samples: u64,
}

impl CellResult {
    /// The fault that makes a result unfit to be kept, if there is one: a number that is not finite.
    pub(crate) fn fault(&self) -> Option<String> {
        let ends = |i: &Option<(f64, f64)>| i.map_or(0.0, |(a, b)| a + b);
        let checks = [
            ("value", self.value),
            ("interval", ends(&self.interval)),
            ("metrics", self.metrics.iter().map(|m| m.value + ends(&m.interval)).sum()),
            ("chance", self.chance.unwrap_or(0.0)),
            ("buckets", self.buckets.iter().map(|b| b.nll).sum()),
            ("breakdown", self.by.iter().map(|b| b.score).sum()),
        ];
        let bad = checks.iter().find(|(_, x)| !x.is_finite());
        bad.map(|(name, x)| format!("expected finite figures, found {x} in {name} ({})", self.metric))
    }
}

/// Why a cell has no figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// It cannot be measured; the report says why.
    Failed(String),
    /// The work was asked to stop: the cell is as if it had not been begun, but for samples that its runner
    /// kept.
    Stopped,
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Failed(why)
    }
}

/// Outcome of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It was measured.
    Done(Box<CellResult>),
    /// It could not be measured, because of this.
    Failed(String),
}

/// A file of results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The cell's hash, as in the file's name.
    pub hash: String,
    /// The cell's name in reports.
    pub cell: Key,
    /// The cell's outcome.
    pub state: State,
}

impl Record {
    /// The figures, if there are any.
    pub fn result(&self) -> Option<&CellResult> {
        match &self.state {
            State::Done(result) => Some(result),
            State::Failed(_) => None,
        }
    }
}
