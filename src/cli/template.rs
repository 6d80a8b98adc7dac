//! The chat template of a model, rendered by this program in a separate process, under limits.

use std::process::ExitCode;

use anyhow::Context;
use ropewalk::chat::apart::{self, Apart};
use ropewalk::chat::{Message, Template};
use ropewalk::control::Control;
use ropewalk::model::Model;
use ropewalk_core::apart::this_program;

/// The only argument of the process that renders. It is no command, for nobody types it.
const RENDER: &str = "--render-chat-template";

/// This program, as the one that renders in a separate process.
pub(crate) fn program() -> anyhow::Result<Apart> {
    let program = this_program().context("cannot find this program to render the chat template")?;
    Ok(Apart::new(program, [RENDER]))
}

/// The template of a model. Rendering ends where the control's work is to stop.
pub(crate) fn of(model: &Model, control: &Control<'_>) -> anyhow::Result<Template> {
    Ok(Template::of_apart(model, &program()?.stopped_by(control))?)
}

/// The same for a program that renders again and again: the process for the next text waits for it.
pub(crate) fn ready(model: &Model, control: &Control<'_>) -> anyhow::Result<Template> {
    Ok(Template::of_apart(model, &program()?.stopped_by(control).ready())?)
}

/// A user's message in the template, with the assistant's turn opened; the message itself without a template.
pub(crate) fn frame(template: Option<&Template>, message: &str) -> ropewalk::model::Result<String> {
    match template {
        Some(template) => template.render(&[Message::new("user", message)], true),
        None => Ok(message.to_owned()),
    }
}

/// Renders and gives the exit code, if this is the process to do so.
pub(crate) fn serve() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != RENDER || arguments.next().is_some() {
        return None;
    }
    Some(match apart::serve(std::io::stdin().lock(), std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}
