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
    /// Value of the headline metric.
    pub value: f64,
    /// 95% interval of the value, if one was found.
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

/// One of several metrics.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Name of the metric.
    pub name: String,
    /// Value of the metric, in the unit of the task.
    pub value: f64,
    /// 95% interval of the value.
    pub interval: Option<(f64, f64)>,
}

/// Tokens at neighboring positions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// First position; 0 is the first token fed.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Mean negative log-likelihood, in nats per token.
    pub nll: f64,
    /// Standard error of `nll`; older records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nll_stderr: Option<f64>,
    /// Tokens scored.
    pub tokens: u64,
}

/// The samples with one value of a tag.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Breakdown {
    /// The tag.
    pub tag: String,
    /// Value of the tag; depths are in percent of the text before the needle.
    pub value: String,
    /// Mean score in percent.
    pub score: f64,
    /// Samples.
    pub samples: u64,
}

/// Mean negative log-likelihoods: beyond these a perplexity is no number to draw.
const NLL: (f64, f64) = (-0.01, 230.0);
/// Perplexities: what the likelihoods of a model can come to, with room for rounding.
const PERPLEXITY: (f64, f64) = (0.99, 1e100);
/// Scores, in percent, with room for rounding.
const PERCENT: (f64, f64) = (-1e-6, 100.0 + 1e-6);
/// Any finite number that is not negative: others would not survive JSON.
const FINITE: (f64, f64) = (0.0, f64::MAX);
/// Buckets, parts or metrics of a cell, at most: a report's work grows with them.
const MAX_PARTS: usize = 4096;
/// Bytes of the reason of a failure, at most.
const MAX_REASON: usize = 16 << 10;

impl CellResult {
    /// The fault that makes a result unfit to be kept, if there is one: a figure that no measurement gives. Reports
    /// rely on these ranges. `is_perplexity` is that of the cell's task.
    pub(crate) fn fault(&self, is_perplexity: bool) -> Option<String> {
        let n_parts = self.buckets.len().max(self.by.len()).max(self.metrics.len());
        if n_parts > MAX_PARTS {
            return Some(format!(
                "expected at most {MAX_PARTS} buckets, parts, and metrics, found {n_parts}"
            ));
        }
        let score = if is_perplexity { PERPLEXITY } else { PERCENT };
        let metrics = self.metrics.iter().map(|m| ("metrics", m.value, score));
        let intervals = self.metrics.iter().map(|m| m.interval).chain([self.interval]).flatten();
        let ends = intervals.flat_map(|(low, high)| [low, high]).map(|end| ("interval", end, score));
        let buckets = self.buckets.iter().flat_map(|b| {
            let error = b.nll_stderr.unwrap_or(0.0);
            [("nll of a bucket", b.nll, NLL), ("nll_stderr of a bucket", error, (0.0, NLL.1))]
        });
        let parts = self.by.iter().map(|b| ("score of a part", b.score, PERCENT));
        let figures = [
            ("value", self.value, score),
            ("chance", self.chance.unwrap_or(0.0), PERCENT),
            ("seconds", self.seconds, FINITE),
            ("tokens_per_s", self.tokens_per_s, FINITE),
        ];
        // NaN is within no range.
        let outside = |(_, x, (low, high)): &(&str, f64, (f64, f64))| !(*low..=*high).contains(x);
        let (name, x, (low, high)) =
            figures.into_iter().chain(metrics).chain(ends).chain(buckets).chain(parts).find(outside)?;
        let metric: String = self.metric.chars().take(40).collect();
        Some(format!("{name}: expected {low:?} to {high:?}, found {x:?} ({metric:?})"))
    }
}

/// Figures of the machine, which no report shows.
const OF_MACHINE: [&str; 2] = ["seconds", "tokens_per_s"];

impl CellResult {
    /// The first figure, less those of the machine, in which another result of the same cell differs: its name, the value
    /// here, and the one there, each as JSON that fits into a line.
    pub(crate) fn difference(&self, other: &CellResult) -> Option<(String, String, String)> {
        let figures = |result: &CellResult| match serde_json::to_value(result) {
            Ok(serde_json::Value::Object(figures)) => figures,
            _ => serde_json::Map::new(),
        };
        let others = figures(other);
        let mut own = figures(self).into_iter().filter(|(name, _)| !OF_MACHINE.contains(&name.as_str()));
        let (name, own) = own.find(|(name, value)| others.get(name) != Some(value))?;
        let short = |value: &serde_json::Value| value.to_string().chars().take(80).collect();
        Some((name.clone(), short(&own), short(others.get(&name)?)))
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

/// A reason that fits into a record.
pub(crate) fn reason(mut why: String) -> String {
    let end = (0..=MAX_REASON.min(why.len())).rev().find(|&i| why.is_char_boundary(i)).unwrap_or(0);
    why.truncate(end);
    why
}
