//! The file of scored lists, from which a search resumes.

use std::path::Path;

use files::Output;
use ropewalk_core::terminal::one_line;
use serde::{Deserialize, Serialize};

use crate::eval::invalid;
use crate::model::Result;

/// The largest record that is read.
const MAX_BYTES: u64 = 64 << 20;
/// The kind of file that a record is: its header, and a line of JSON.
pub const RECORD: files::Kind = files::Kind::record("the record of a search");

/// Factors and their score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scored {
    pub(super) factors: Vec<f64>,
    /// Mean negative log-likelihood, nats.
    pub(super) nll: f64,
}

/// Everything that was scored, in order. What is asked for next follows from it, so nothing else is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// All that the search depends on, in words.
    pub(super) of: String,
    pub(super) scored: Vec<Scored>,
}

impl Record {
    /// Reads the record of an earlier run.
    pub(super) fn read(path: &Path, of: &str) -> Result<Record> {
        let name = path.display();
        let bytes = files::foreign::read_file(path, MAX_BYTES)?;
        let json = bytes.strip_prefix(RECORD.header().as_bytes()).unwrap_or_default();
        let record: Record = serde_json::from_slice(json)
            .map_err(|e| invalid(format!("{name}: expected the record of a search: {}", one_line(e))))?;
        if record.of != of {
            return Err(invalid(format!(
                "{name}: the record belongs to another search: expected {of}, found {}",
                record.of
            )));
        }
        let wrong = || invalid(format!("{name}: expected scores that are finite numbers"));
        record.scored.iter().all(|s| s.nll.is_finite()).then_some(record).ok_or_else(wrong)
    }

    /// The score of individual `i`, if an earlier run found it.
    pub(super) fn score_of(&self, i: usize, factors: &[f64]) -> Result<Option<f64>> {
        let Some(scored) = self.scored.get(i) else { return Ok(None) };
        let same = scored.factors.len() == factors.len()
            && scored.factors.iter().zip(factors).all(|(a, b)| (a - b).abs() < 1e-9 * b.abs());
        let what = || format!("the record of the search has other factors at index {i}; start a new search");
        same.then_some(Some(scored.nll)).ok_or_else(|| invalid(what()))
    }

    /// Writes the record, atomically.
    pub(super) fn write(&self, to: &Output) -> Result<()> {
        let json = serde_json::to_string(self).map_err(|e| invalid(e.to_string()))?;
        let bytes = format!("{}{json}\n", RECORD.header()).into_bytes();
        files::replace(to.clone(), &RECORD, |out| {
            out.write_all(&bytes).map_err(|e| files::Error::new(to.path(), e))
        })?;
        Ok(())
    }
}
