//! The log of a run: its losses and speeds, in memory and as a file with a line of JSON for each step and
//! validation.

use std::path::PathBuf;

use files::{Kind, Lock};
use serde_json::{json, Value};

use super::optim::StepReport;
use crate::model::Result;

/// Losses by step, in nats/token, and speeds.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// StepReport and mean training loss of its sequences.
    pub losses: Vec<(u64, f64)>,
    /// StepReport and mean loss of the held-out sequences after it; step 0 is before the first.
    pub validations: Vec<(u64, f64)>,
    /// Tokens per second of each step of this process.
    pub rates: Vec<f64>,
}

impl History {
    /// The last training loss.
    pub fn last_loss(&self) -> Option<f64> {
        self.losses.last().map(|l| l.1)
    }

    /// The loss of the last validation.
    pub fn last_validation(&self) -> Option<f64> {
        self.validations.last().map(|v| v.1)
    }

    /// The median speed of this process's steps, in tokens per second.
    pub fn tokens_per_s(&self) -> Option<f64> {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }
}

/// The kind of file that a log is: its first line is that of a step or of a validation.
pub const LOG: Kind = Kind::new("the log of a training run", |head| {
    let line = head.split(|b| *b == b'\n').next().unwrap_or_default();
    let Ok(entry) = serde_json::from_slice::<Value>(line) else {
        // What a killed run had begun.
        return [&b"{\"grad_norm\":"[..], b"{\"step\":"].iter().any(|start| head.starts_with(start));
    };
    let has = |keys: [&str; 2]| keys.iter().all(|key| entry.get(key).is_some());
    entry["step"].is_u64() && (has(["loss", "tokens_per_s"]) || has(["val_loss", "val_ppl"]))
});

/// Bytes of the log of a run that is resumed, at most: lines of over a million steps.
const MAX_BYTES: u64 = 256 << 20;

/// Writes the log's file, where one is wanted, and remembers its figures.
#[derive(Debug)]
pub(super) struct Log {
    path: Option<PathBuf>,
    /// No other run writes the file meanwhile.
    _lock: Option<Lock>,
    pub(super) history: History,
    /// Lines that could not be written yet, and why.
    late: String,
    why: Option<String>,
}

impl Log {
    /// Starts the file anew, or, when a run is resumed, cuts it back to the step it goes on from.
    pub(super) fn start(path: Option<PathBuf>, resumed: Option<u64>) -> Result<Log> {
        let lock = path.as_deref().map(Lock::file).transpose()?;
        let mut log = Log { path, _lock: lock, history: History::default(), late: String::new(), why: None };
        let Some(path) = &log.path else { return Ok(log) };
        LOG.check(path)?;
        let mut lines = String::new();
        if let Some(last) = resumed {
            let bytes = match files::foreign::read_file(path, MAX_BYTES) {
                // A run whose log is gone can be resumed all the same.
                Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                done => done?,
            };
            for line in String::from_utf8_lossy(&bytes).lines() {
                let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
                let Some(step) = entry["step"].as_u64().filter(|s| *s <= last) else { continue };
                log.history.losses.extend(entry["loss"].as_f64().map(|v| (step, v)));
                log.history.validations.extend(entry["val_loss"].as_f64().map(|v| (step, v)));
                lines += line;
                lines += "\n";
            }
        }
        files::replace(path, &LOG, |out| {
            out.write_all(lines.as_bytes()).map_err(|e| files::Error::new(path, e))
        })?;
        Ok(log)
    }

    /// Notes a step: the mean loss of its sequences, tokens per second. Returns what is to be said.
    pub(super) fn step(&mut self, step: &StepReport, loss: f64, rate: f64) -> Option<String> {
        self.history.losses.push((step.step, loss));
        self.history.rates.push(rate);
        self.append(&json!({
            "step": step.step,
            "loss": loss,
            "lr": step.lr,
            "grad_norm": step.grad_norm,
            "tokens_per_s": rate,
            "peak_bytes": ggml::machine::peak_memory(),
        }))
    }

    /// Notes a validation after a step. Returns what is to be said.
    pub(super) fn validation(&mut self, step: u64, loss: f64) -> Option<String> {
        self.history.validations.push((step, loss));
        self.append(&json!({ "step": step, "val_loss": loss, "val_ppl": loss.exp() }))
    }

    /// Appends a line, and those before it that could not be written: a full disk does not end a run. Returns
    /// a sentence when that begins to fail, and when it works again.
    fn append(&mut self, entry: &Value) -> Option<String> {
        let path = self.path.as_deref()?;
        self.late += &format!("{entry}\n");
        match files::append(path, self.late.as_bytes()) {
            Ok(()) => {
                self.late.clear();
                let failed = self.why.take().is_some();
                failed.then(|| format!("{}: written again, nothing is missing", path.display()))
            }
            Err(e) => {
                let first = self.why.replace(e.to_string()).is_none();
                first.then(|| format!("the log cannot be written, training continues: {e}"))
            }
        }
    }

    /// Says what is missing in the file and why, if anything is.
    pub(super) fn problem(&self) -> Option<String> {
        let why = self.why.as_ref()?;
        Some(format!("the log lacks its last {} lines: {why}", self.late.lines().count()))
    }
}
