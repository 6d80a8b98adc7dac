//! Runs an evaluation under each rope method asked for, and prints the reports as one: for `perplexity`,
//! `passkey` and `eval`.

use ropewalk::control::Control;
use ropewalk::eval::SessionSource;
use ropewalk::model::Model;
use ropewalk::rope::Spec;
use ropewalk::session::Session;
use serde::Serialize;
use serde_json::Value;

use super::engine::draw;
use super::interrupt::{stopped, Interrupt};
use super::models::{self, ModelChoice};
use super::output::{self, OutputArgs, Unit};

/// A model, and where its evaluations are shown.
pub(crate) struct Comparison<'a> {
    pub(crate) model: &'a Model,
    pub(crate) choice: &'a ModelChoice,
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) out: OutputArgs,
}

impl Comparison<'_> {
    /// The reports of a task under each spec in turn (`None`: what the file declares), up to the first that
    /// a signal stopped.
    pub(crate) fn run<R>(
        &self,
        specs: &[Option<Spec>],
        mut task: impl FnMut(&SessionSource<'_>, &Control<'_>) -> ropewalk::model::Result<R>,
    ) -> anyhow::Result<Vec<R>> {
        let mut reports = Vec::new();
        for spec in specs {
            let announce =
                |session: &Session| models::announce(&self.out, self.choice, session, spec.is_some());
            let params = self.choice.session(0, spec.as_ref());
            let source = SessionSource::new(self.model, params).on_open(&announce);
            let draw = draw(self.out.progress(0, "measuring", Unit::Tokens));
            reports.push(task(&source, &self.interrupt.control().with_progress(&draw))?);
            if self.interrupt.requested() {
                break;
            }
        }
        Ok(reports)
    }

    /// Prints the reports: as one JSON object, or one after another as `text` gives them.
    pub(crate) fn print<R: Serialize>(&self, reports: &[R], text: fn(&R) -> String) -> anyhow::Result<()> {
        if self.out.json {
            output::print_json(&joined(reports)?)
        } else {
            output::print(&reports.iter().map(text).collect::<Vec<_>>().join("\n"))
        }
    }

    /// An error if a signal has stopped the run, after the reports.
    pub(crate) fn check_finished(&self) -> anyhow::Result<()> {
        if self.interrupt.requested() {
            return Err(stopped("interrupted: the figures cover what was done"));
        }
        Ok(())
    }
}

/// One JSON object of several reports: the first one's, with the results of all (each names its own rope).
fn joined(reports: &[impl Serialize]) -> anyhow::Result<Value> {
    let mut all: Option<Value> = None;
    for report in reports {
        let mut value = serde_json::to_value(report)?;
        let Some(first) = &mut all else {
            all = Some(value);
            continue;
        };
        for key in ["results", "notes", "mean_over_ctx"] {
            if let (Some(a), Some(b)) = (first[key].as_array_mut(), value[key].as_array_mut()) {
                a.append(b);
            }
        }
        if value["interrupted"] == true {
            first["interrupted"] = true.into();
        }
    }
    Ok(all.unwrap_or_default())
}
