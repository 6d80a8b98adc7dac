//! The log: a line of JSON for each step and each validation, and the curve they make.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use ropewalk::plot::{Axis, Chart, Scale, Series};
use ropewalk::train::optim::Step;
use serde_json::{json, Value};

pub(super) struct Log {
    path: PathBuf,
    /// Step and loss.
    losses: Vec<(u64, f64)>,
    vals: Vec<(u64, f64)>,
    rates: Vec<f64>,
}

impl Log {
    pub(super) fn new(path: &Path) -> Log {
        Log { path: path.to_owned(), losses: Vec::new(), vals: Vec::new(), rates: Vec::new() }
    }

    /// A fresh log, or one cut back to the step a run goes on from.
    pub(super) fn start(&mut self, resumed: Option<u64>) -> anyhow::Result<()> {
        let mut kept = String::new();
        if let Some(last) = resumed {
            // A log that is gone is no reason not to go on.
            for line in std::fs::read_to_string(&self.path).unwrap_or_default().lines() {
                let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
                let Some(step) = entry["step"].as_u64().filter(|s| *s <= last) else { continue };
                self.losses.extend(entry["loss"].as_f64().map(|v| (step, v)));
                self.vals.extend(entry["val_loss"].as_f64().map(|v| (step, v)));
                kept += line;
                kept += "\n";
            }
        }
        files::replace(&self.path, |out| {
            out.write_all(kept.as_bytes()).map_err(|e| files::Error::new(&self.path, e))
        })?;
        Ok(())
    }

    fn append(&self, entry: &Value) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.path);
        let file = file.as_mut().map_err(|e| std::io::Error::new(e.kind(), e.to_string()));
        let write = |f: &mut std::fs::File| writeln!(f, "{entry}");
        file.and_then(write).with_context(|| self.path.display().to_string())
    }

    pub(super) fn step(&mut self, s: &Step, loss: f64, rate: f64, peak: Option<u64>) -> anyhow::Result<()> {
        self.losses.push((s.step, loss));
        self.rates.push(rate);
        self.append(&json!({
            "step": s.step,
            "loss": loss,
            "lr": s.lr,
            "grad_norm": s.grad_norm,
            "tokens_per_s": rate,
            "peak_bytes": peak,
        }))
    }

    pub(super) fn validation(&mut self, step: u64, loss: f64) -> anyhow::Result<()> {
        self.vals.push((step, loss));
        self.append(&json!({ "step": step, "val_loss": loss, "val_ppl": loss.exp() }))
    }

    pub(super) fn last_loss(&self) -> Option<f64> {
        self.losses.last().map(|l| l.1)
    }

    pub(super) fn last_val(&self) -> Option<f64> {
        self.vals.last().map(|v| v.1)
    }

    pub(super) fn has_val(&self, step: u64) -> bool {
        self.vals.last().is_some_and(|v| v.0 == step)
    }

    pub(super) fn val_ends(&self) -> (Option<f64>, Option<f64>) {
        (self.vals.first().map(|v| v.1), self.last_val())
    }

    /// The median of this process's steps.
    pub(super) fn tokens_per_s(&self) -> Option<f64> {
        let mut rates = self.rates.clone();
        rates.sort_by(f64::total_cmp);
        rates.get(rates.len() / 2).copied()
    }

    pub(super) fn chart(&self, title: &str) -> Chart {
        let points = |list: &[(u64, f64)]| list.iter().map(|&(s, v)| (s as f64, v)).collect::<Vec<_>>();
        let mut series = vec![Series::new("training", points(&self.losses))];
        if !self.vals.is_empty() {
            series.push(Series::new("held out", points(&self.vals)));
        }
        Chart {
            title: title.to_owned(),
            x: Axis::new("step", Scale::Linear),
            y: Axis::new("loss, nats a token", Scale::Linear),
            series,
        }
    }
}
