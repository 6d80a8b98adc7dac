//! The log of a run: its losses and speeds, in memory and as a file with a line of JSON for each step and
//! validation.

use files::{Kind, Lock, Output};
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

/// The kind of file that a log is.
pub const LOG: Kind = Kind::record("the log of a training run");

/// Bytes of the log of a run that is resumed, at most: lines of over a million steps.
const MAX_BYTES: u64 = 256 << 20;

/// Writes the log's file, if there is one, and keeps its figures.
#[derive(Debug)]
pub(super) struct Log {
    output: Option<Output>,
    /// Keeps other runs from writing the file.
    _lock: Option<Lock>,
    pub(super) history: History,
    /// The first bytes of the file, until the first line is written.
    start: Option<String>,
    /// Lines that could not be written yet, and why.
    late: String,
    why: Option<String>,
}

impl Log {
    /// Opens the log. The first line starts a new file or, in a resumed run, cuts the file back to the step that it
    /// resumes from.
    pub(super) fn start(output: Option<Output>, resumed: Option<u64>) -> Result<Log> {
        let lock = output.as_ref().map(|output| Lock::file(output.path())).transpose()?;
        let history = History::default();
        let mut log = Log { output, _lock: lock, history, start: None, late: String::new(), why: None };
        let Some(output) = &log.output else { return Ok(log) };
        let path = output.path();
        LOG.claim(output.clone())?;
        let mut lines = LOG.header();
        if let Some(last) = resumed.filter(|_| LOG.marks(path).unwrap_or(false)) {
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
        log.start = Some(lines);
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
        let output = self.output.as_ref()?;
        let path = output.path();
        self.late += &format!("{entry}\n");
        let done = match &self.start {
            Some(start) => files::replace(output.clone(), &LOG, |out| {
                let lines = [start.as_bytes(), self.late.as_bytes()].concat();
                out.write_all(&lines).map_err(|e| files::Error::new(path, e))
            }),
            None => files::append(path, self.late.as_bytes()),
        };
        match done {
            Ok(()) => {
                self.start = None;
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
