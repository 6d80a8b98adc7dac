//! Runs an evaluation under each rope method asked for: for `perplexity` and `eval`.

use std::sync::{Mutex, PoisonError};

use ropewalk::control::Control;
use ropewalk::eval::SessionSource;
use ropewalk::model::Model;
use ropewalk::rope::Spec;
use ropewalk::session::Session;

use super::engine::draw;
use super::interrupt::{self, Interrupt};
use super::models::{self, ModelChoice};
use super::output::{OutputArgs, Unit};

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
        mut task: impl FnMut(&SessionSource, &Control<'_>) -> ropewalk::model::Result<R>,
    ) -> anyhow::Result<Vec<R>> {
        let mut reports = Vec::new();
        // A note under one method is true under all methods.
        let said = Mutex::new(Vec::new());
        let note = |text: std::fmt::Arguments<'_>| {
            let text = text.to_string();
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            if !said.contains(&text) {
                self.out.note(&text);
                said.push(text);
            }
        };
        for spec in specs {
            let (out, choice) = (self.out, self.choice.clone());
            let announce = move |session: &Session| models::announce(&out, &choice, session);
            let params = self.choice.session(0, spec.as_ref());
            let source = SessionSource::new(self.model, params).on_open(announce);
            let draw = draw(self.out.progress(0, "measuring", Unit::Tokens));
            reports.push(task(&source, &self.interrupt.control().with_progress(&draw).with_notes(&note))?);
            if self.interrupt.requested() {
                break;
            }
        }
        Ok(reports)
    }

    /// An error if a signal has stopped the run, after the reports.
    pub(crate) fn check_finished(&self) -> anyhow::Result<()> {
        interrupt::check(self.interrupt.requested(), "interrupted: the figures cover the completed part")
    }
}
