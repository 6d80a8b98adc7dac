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

/// Mean negative log-likelihood, at most: beyond it a perplexity is no number to draw.
const MAX_NLL: f64 = 230.0;
/// Perplexities: what the likelihoods of a model can come to, with room for rounding.
const PERPLEXITY: (f64, f64) = (0.99, 1e100);
/// Scores, in percent, with room for rounding.
const PERCENT: (f64, f64) = (-1e-6, 100.0 + 1e-6);
/// Samples or tokens, at most. Sums over a study stay whole numbers.
const MAX_COUNT: u64 = 1 << 50;
/// Positions, at most: ggml's are of 32 bits.
const MAX_POSITION: u64 = 1 << 31;
/// Bytes of a name (metric, tag), at most.
const MAX_NAME: usize = 256;
/// Bytes of any other text, at most.
const MAX_TEXT: usize = 16 << 10;
/// Metrics or remarks of a cell, at most.
const MAX_FEW: usize = 256;
/// Buckets or parts of a cell, at most.
const MAX_MANY: usize = 4096;

/// A fault in words where a number is not within a range: NaN never is.
fn outside(name: &str, x: f64, (low, high): (f64, f64)) -> Result<(), String> {
    if (low..=high).contains(&x) {
        return Ok(());
    }
    Err(format!("{name}: expected {low:?} to {high:?}, found {x:?}"))
}

fn above(name: &str, n: u64, most: u64) -> Result<(), String> {
    if n <= most {
        return Ok(());
    }
    Err(format!("{name}: expected at most {most}, found {n}"))
}

impl CellResult {
    /// The fault that makes a result unfit to be kept, if there is one: a figure that no measurement gives. Reports
    /// rely on these ranges. `is_perplexity` is that of the cell's task.
    pub(crate) fn fault(&self, is_perplexity: bool) -> Option<String> {
        let found = self.check_texts().and_then(|()| self.check_figures(is_perplexity)).err();
        found.map(|what| format!("{what} ({:?})", self.metric.chars().take(40).collect::<String>()))
    }

    fn check_texts(&self) -> Result<(), String> {
        let most = |name: &str, n: usize, most: usize| above(name, n as u64, most as u64);
        for (name, n, limit) in [
            ("metrics", self.metrics.len(), MAX_FEW),
            ("notes", self.notes.len(), MAX_FEW),
            ("buckets", self.buckets.len(), MAX_MANY),
            ("by", self.by.len(), MAX_MANY),
            ("bytes of metric", self.metric.len(), MAX_NAME),
            ("bytes of interval_kind", self.interval_kind.len(), MAX_NAME),
            ("bytes of protocol", self.protocol.len(), MAX_TEXT),
            ("bytes of source", self.source.len(), MAX_TEXT),
            ("bytes of rope", self.rope.len(), MAX_TEXT),
            ("bytes of adapter", self.adapter.as_ref().map_or(0, String::len), MAX_TEXT),
        ] {
            most(name, n, limit)?;
        }
        self.metrics.iter().try_for_each(|m| most("bytes of a metric", m.name.len(), MAX_NAME))?;
        self.notes.iter().try_for_each(|n| most("bytes of a note", n.len(), MAX_TEXT))?;
        self.by.iter().try_for_each(|b| most("bytes of a tag", b.tag.len().max(b.value.len()), MAX_NAME))
    }

    fn check_figures(&self, is_perplexity: bool) -> Result<(), String> {
        let score = if is_perplexity { PERPLEXITY } else { PERCENT };
        let interval = |ends: Option<(f64, f64)>| {
            let Some((low, high)) = ends else { return Ok(()) };
            outside("interval", low, score)?;
            // The upper end follows from the lower one, as it does for every interval.
            outside("interval", high, (low, score.1))
        };
        outside("value", self.value, score)?;
        interval(self.interval)?;
        for metric in &self.metrics {
            outside("metrics", metric.value, score)?;
            interval(metric.interval)?;
        }
        outside("chance", self.chance.unwrap_or(0.0), PERCENT)?;
        above("samples", self.samples, MAX_COUNT)?;
        above("tokens", self.tokens, MAX_COUNT)?;
        above("n_ctx", self.n_ctx, MAX_POSITION)?;
        let mut from = 0;
        for bucket in &self.buckets {
            if bucket.start < from || bucket.end <= bucket.start || bucket.end > MAX_POSITION {
                let (start, end) = (bucket.start, bucket.end);
                return Err(format!(
                    "buckets: expected ascending ranges of positions from {from} to {MAX_POSITION}, found {start} \
                     to {end}"
                ));
            }
            from = bucket.end;
            outside("nll of a bucket", bucket.nll, (-0.01, MAX_NLL))?;
            outside("nll_stderr of a bucket", bucket.nll_stderr.unwrap_or(0.0), (0.0, MAX_NLL))?;
            above("tokens of a bucket", bucket.tokens, MAX_COUNT)?;
        }
        for part in &self.by {
            outside("score of a part", part.score, PERCENT)?;
            above("samples of a part", part.samples, MAX_COUNT)?;
        }
        outside("seconds", self.seconds, (0.0, 1e12))?;
        outside("tokens_per_s", self.tokens_per_s, (0.0, 1e15))
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

    /// The fault that makes a file of results unfit to be used, if there is one.
    pub(crate) fn fault(&self, is_perplexity: bool) -> Option<String> {
        let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if self.hash.len() != 64 || !self.hash.bytes().all(is_digit) {
            return Some("hash: expected 64 hexadecimal digits, found something else".into());
        }
        match &self.state {
            State::Done(result) => result.fault(is_perplexity),
            State::Failed(why) => above("bytes of failed", why.len() as u64, MAX_TEXT as u64).err(),
        }
    }
}

/// A reason that fits into a record.
pub(crate) fn reason(mut why: String) -> String {
    let end = (0..=MAX_TEXT.min(why.len())).rev().find(|&i| why.is_char_boundary(i)).unwrap_or(0);
    why.truncate(end);
    why
}
