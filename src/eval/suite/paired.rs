//! Differences between two runs over the same samples.

use serde::Serialize;

use super::super::stats::interval_of_differences;
use super::report::Report;

/// The mean difference of a task's score between two runs, over the samples that both have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Paired {
    /// The task.
    pub task: String,
    /// Requested length, in tokens.
    pub length: Option<usize>,
    /// The method spec of the first run.
    pub from: String,
    /// The method spec of the second run.
    pub to: String,
    /// Mean of second minus first, in percentage points.
    pub difference: f64,
    /// Lower end of the 95% interval.
    pub ci_low: f64,
    /// Upper end of the 95% interval.
    pub ci_high: f64,
    /// Samples with the same prompt in both runs.
    pub samples: usize,
}

/// Differences of the second report from the first, for each length that both have.
pub fn paired(a: &Report, b: &Report) -> Vec<Paired> {
    let mut out = Vec::new();
    for row in &a.results {
        let Some(other) = b.results.iter().find(|r| r.length == row.length) else { continue };
        let differences: Vec<f64> = row
            .records
            .iter()
            .filter_map(|r| {
                let same = |s: &&super::Record| s.id == r.id && s.prompt_sha256 == r.prompt_sha256;
                let twin = other.records.iter().find(same)?;
                Some(twin.score(&a.metric) - r.score(&a.metric))
            })
            .collect();
        if differences.is_empty() || a.task != b.task {
            continue;
        }
        let (low, high) = interval_of_differences(&differences);
        out.push(Paired {
            task: a.task.clone(),
            length: row.length,
            from: row.rope.clone(),
            to: other.rope.clone(),
            difference: 100.0 * differences.iter().sum::<f64>() / differences.len() as f64,
            ci_low: 100.0 * low,
            ci_high: 100.0 * high,
            samples: differences.len(),
        });
    }
    out
}
