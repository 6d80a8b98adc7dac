//! The library's conversation at a terminal: progress, notes on sessions, and advice in slash commands.

use std::ops::ControlFlow;
use std::path::Path;

use anyhow::anyhow;
use ropewalk::chat::{Conversation, ConversationParams, Turn};
use ropewalk::model::{Error, Model};
use ropewalk::rope::Spec;
use ropewalk::session::StopReason;

use crate::cli::interrupt::Interrupt;
use crate::cli::models::{self, ModelChoice};
use crate::cli::output::OutputArgs;
use crate::cli::{engine, template};

pub(super) struct Chat<'m> {
    pub(super) talk: Conversation,
    choice: &'m ModelChoice,
    interrupt: &'m Interrupt,
    out: OutputArgs,
}

impl<'m> Chat<'m> {
    pub(super) fn open(
        model: &Model,
        choice: &'m ModelChoice,
        params: ConversationParams,
        interrupt: &'m Interrupt,
        out: OutputArgs,
    ) -> anyhow::Result<Self> {
        let template = template::of(model, &interrupt.control())?;
        let chat = Chat { talk: Conversation::open(model, template, params)?, choice, interrupt, out };
        chat.announce()?;
        Ok(chat)
    }

    fn announce(&self) -> anyhow::Result<()> {
        models::announce(&self.out, self.choice, self.talk.session()?);
        Ok(())
    }

    pub(super) fn n_ctx(&self) -> usize {
        self.talk.params().session.n_ctx
    }

    /// The spec of the open session, with defaults filled in.
    pub(super) fn spec(&self) -> anyhow::Result<String> {
        Ok(self.talk.session()?.plan().spec.to_string())
    }

    /// Sends a message, or asks again for an answer to the last one. `show` gets the text.
    pub(super) fn turn(
        &mut self,
        message: Option<&str>,
        show: &mut dyn FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<Turn> {
        let mut failure = None;
        let mut piece = |text: &str| match show(text) {
            Ok(()) => ControlFlow::Continue(()),
            Err(e) => {
                failure = Some(e);
                ControlFlow::Break(())
            }
        };
        let reading = engine::reading(self.out);
        let control = self.interrupt.control().with_progress(&reading);
        let turn = match message {
            Some(text) => self.talk.say(text, &control, &mut piece),
            None => self.talk.answer(&control, &mut piece),
        };
        if let Some(e) = failure {
            return Err(e);
        }
        let lost = match message {
            Some(_) => "the message was not sent; the conversation is unchanged",
            None => "the conversation is unchanged",
        };
        turn.map_err(|e| match e {
            Error::ContextFull { needed, n_ctx, .. } => anyhow!(
                "the conversation needs {needed} tokens and the context holds {n_ctx}: {}; {lost}",
                self.ways_out(needed),
            ),
            Error::Interrupted => anyhow!("stopped before the answer began: {lost}"),
            e => e.into(),
        })
    }

    /// Advice for a context that is too small for `needed` tokens.
    fn ways_out(&self, needed: usize) -> String {
        let n_ctx = needed.max(self.n_ctx().saturating_mul(2)).next_multiple_of(256);
        let trained = self.talk.model().hparams().n_ctx_train;
        if n_ctx > trained {
            format!(
                "/ctx {n_ctx} makes it larger, and past the trained context of {trained} tokens /rope yarn \
                 or /rope dca helps"
            )
        } else {
            format!("/ctx {n_ctx} makes it larger (past the trained context of {trained} tokens, see /rope)")
        }
    }

    /// A note on the end of a turn that the model did not end by itself.
    pub(super) fn note_on(&self, turn: &Turn) -> Option<String> {
        match turn.stop {
            StopReason::ContextFull => Some(format!(
                "(the context of {} tokens is full: the answer stops here; {}, then /regen; nothing is lost)",
                self.n_ctx(),
                self.ways_out(0)
            )),
            StopReason::Cancelled => Some("(stopped)".to_owned()),
            StopReason::Length => Some(format!("(stopped after {} tokens, see -n)", turn.n_generated)),
            StopReason::EndOfGeneration | StopReason::StopString => None,
        }
    }

    /// Goes on under another method or context, and reads the conversation in.
    pub(super) fn reopen(&mut self, n_ctx: usize, spec: Option<Spec>) -> anyhow::Result<()> {
        let reading = engine::reading(self.out);
        let control = self.interrupt.control().with_progress(&reading);
        self.talk.reopen(n_ctx, spec, &control)?;
        self.announce()?;
        Ok(self.talk.prefill(&control)?)
    }

    pub(super) fn restore(&mut self, path: &Path) -> anyhow::Result<()> {
        let reading = engine::reading(self.out);
        let control = self.interrupt.control().with_progress(&reading);
        if self.talk.restore(path, &control)? {
            self.announce()?;
        }
        Ok(())
    }
}
