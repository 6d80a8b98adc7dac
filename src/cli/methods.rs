//! Runs an evaluation under each rope method asked for: for `perplexity` and `eval`.

use std::sync::{Mutex, PoisonError};

use ropewalk::control::{Control, Progress};
use ropewalk::eval::{SessionSource, Sources};
use ropewalk::model::Model;
use ropewalk::rope::Spec;
use ropewalk::session::Session;

use super::interrupt::Interrupt;
use super::models::{self, ModelChoice};
use super::output::{self, OutputArgs, Unit};

/// Does work that makes a source of sessions for each method, with a bar for each.
pub(crate) fn under_methods<R>(
    model: &Model,
    choice: &ModelChoice,
    interrupt: &Interrupt,
    out: OutputArgs,
    work: impl FnOnce(Sources<'_>, &Control<'_>) -> R,
) -> R {
    // A note under one method is true under all methods.
    let said = Mutex::new(Vec::new());
    let note = |text: std::fmt::Arguments<'_>| {
        let text = text.to_string();
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if !said.contains(&text) {
            out.note(&text);
            said.push(text);
        }
    };
    let bar = Mutex::new(None::<output::Progress>);
    let source = |spec: Option<&Spec>| {
        let shown = choice.clone();
        let announce = move |session: &Session| models::announce(&out, &shown, session);
        let next = out.progress(0, "measuring", Unit::Tokens);
        *bar.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        SessionSource::new(model, choice.session(0, spec)).on_open(announce)
    };
    let draw = |p: &Progress<'_>| {
        if let Some(bar) = &mut *bar.lock().unwrap_or_else(PoisonError::into_inner) {
            bar.show(p);
        }
    };
    work(&source, &interrupt.control().with_progress(&draw).with_notes(&note))
}
