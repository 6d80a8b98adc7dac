//! A conversation: its messages, and the session that answers them.
//!
//! Every turn renders all messages through the template, and the session computes only the tokens it does not
//! hold already. A change of method or context opens a new session under the same messages.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::answer::{hidden_marks, Form, Part, Parts};
use super::{tokens, Message, Template};
use crate::control::Control;
use crate::model::{Error, Model, Result};
use crate::rope::{Plan, Spec};
use crate::session::{GenerateParams, SavedSession, Session, SessionParams, StopReason};
use crate::Token;

/// Context that a saved session may ask for, in times the tokens that it has, and in times the trained context:
/// otherwise a few bytes in a small file would take all memory for a cache. It may always ask for the present context.
const MAX_ROOM: usize = 8;
/// Least and most tokens that a file without as many gets for the trained context's sake.
const TRAINED_ROOM: (usize, usize) = (8_192, 131_072);

ropewalk_core::setters! {
    /// Settings of a conversation.
    #[derive(Debug, Clone)]
    pub struct ConversationParams {
        /// Settings of the session, with the context and the RoPE method.
        pub session: SessionParams,
        /// Limits and sampling of one answer. The template's stop strings are added.
        pub generate: GenerateParams,
    }
}

impl ConversationParams {
    /// A conversation in such a session, with such answers.
    pub fn new(session: SessionParams, generate: GenerateParams) -> ConversationParams {
        ConversationParams { session, generate }
    }
}

/// Tokens and times of one answer.
#[derive(Debug, Clone, Serialize)]
pub struct Turn {
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Tokens of the prompt that the session had in its cache.
    pub reused: usize,
    /// Tokens of the answer.
    pub n_generated: usize,
    /// Seconds to read the prompt.
    pub prefill_s: f64,
    /// Seconds to generate the answer.
    pub decode_s: f64,
    /// The reason why the answer ended.
    pub stop: StopReason,
}

/// Attachment of a saved session, as JSON: everything of the conversation that is not in the session itself.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    messages: Vec<Message>,
    /// Files that go into the next message.
    loaded: Vec<(String, String)>,
    /// The method that was asked for, without what the context adds to it.
    #[serde(default)]
    rope: Option<String>,
}

/// Takes the text of an answer as it is generated. The answer ends if it breaks.
pub type Sink<'a> = &'a mut dyn FnMut(&str) -> ControlFlow<()>;

/// A conversation with a model.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
/// use std::ops::ControlFlow;
///
/// use ropewalk::chat::{Conversation, ConversationParams, Template};
/// use ropewalk::control::Control;
/// use ropewalk::{GenerateParams, Model, ModelParams, SessionParams};
///
/// let model = Model::load(&path, &ModelParams::cpu())?;
/// let session = SessionParams::new(256);
/// # let session = session.n_threads(1);
/// let params = ConversationParams::new(session, GenerateParams::greedy(8));
/// let mut chat = Conversation::open(&model, Template::of(&model)?, params)?;
/// let turn = chat.say("What is a rope walk?", &Control::default(), &mut |text| {
///     print!("{text}");
///     ControlFlow::Continue(())
/// })?;
/// assert!(turn.n_generated <= 8 && chat.messages().len() == 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Conversation {
    model: Model,
    template: Template,
    form: Form,
    /// The marks of the form that the vocabulary has as control tokens, which generated text is without.
    marks: HashMap<Token, &'static str>,
    params: ConversationParams,
    /// `None` only while one session is replaced by another.
    session: Option<Session>,
    messages: Vec<Message>,
    /// Files that go into the next message: name and text.
    loaded: Vec<(String, String)>,
    last: Option<Turn>,
    /// The answer that [`Conversation::drop_answer`] removed, until another one begins.
    dropped: Option<Message>,
    /// Number of answers that were replaced. It is added to the seed, so that each try samples other tokens.
    tries: u32,
}

impl Conversation {
    /// Opens a session for a conversation without messages.
    ///
    /// # Errors
    /// Returns the errors of [`Session::new`].
    pub fn open(model: &Model, template: Template, params: ConversationParams) -> Result<Conversation> {
        let form = Form::of(template.source());
        Ok(Conversation {
            model: model.clone(),
            marks: hidden_marks(model.vocab(), form.marks())?,
            form,
            template,
            session: Some(Session::new(model, &params.session)?),
            params,
            messages: Vec::new(),
            loaded: Vec::new(),
            last: None,
            dropped: None,
            tries: 0,
        })
    }

    fn session_mut(&mut self) -> Result<&mut Session> {
        self.session.as_mut().ok_or_else(closed)
    }

    /// Returns the open session.
    ///
    /// # Errors
    /// Returns an error if a session was closed to be replaced and none could be opened.
    pub fn session(&self) -> Result<&Session> {
        self.session.as_ref().ok_or_else(closed)
    }

    /// The model's template.
    pub fn template(&self) -> &Template {
        &self.template
    }

    /// Messages, in their order.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Settings of the open session and of answers.
    pub fn params(&self) -> &ConversationParams {
        &self.params
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Figures of the last answer, if the messages did not change after it.
    pub fn last_turn(&self) -> Option<&Turn> {
        self.last.as_ref()
    }

    /// Sets, replaces or removes the system message.
    pub fn set_system(&mut self, text: Option<String>) {
        self.messages.retain(|m| m.role != "system");
        if let Some(text) = text {
            self.messages.insert(0, Message::new("system", text));
        }
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        self.messages.first().filter(|m| m.role == "system").map(|m| m.content.as_str())
    }

    /// Removes the last message of the user and everything after it; returns that message.
    pub fn undo(&mut self) -> Option<Message> {
        let at = self.messages.iter().rposition(|m| m.role == "user")?;
        let taken = self.messages.drain(at..).next();
        (self.last, self.dropped) = (None, None);
        taken
    }

    /// Removes all messages but the system message.
    pub fn clear(&mut self) {
        self.messages.retain(|m| m.role == "system");
        self.loaded.clear();
        (self.last, self.dropped) = (None, None);
    }

    /// Removes the last answer, for [`Conversation::answer`]; false when there is no message to answer again.
    pub fn drop_answer(&mut self) -> bool {
        self.dropped = self.messages.pop_if(|m| m.role == "assistant");
        if self.dropped.is_some() {
            self.tries = self.tries.wrapping_add(1);
        }
        self.dropped.is_some() || self.messages.last().is_some_and(|m| m.role == "user")
    }

    /// Adds a text to the next message, under this name; returns its number of tokens.
    ///
    /// # Errors
    /// Returns the errors of the tokenizer.
    pub fn load_text(&mut self, name: String, text: String) -> Result<usize> {
        let n = self.model.vocab().tokenize(&text, false, false)?.len();
        self.loaded.push((name, text));
        Ok(n)
    }

    /// Sends a message and gets its answer. When there is an error before the answer begins, the message is
    /// removed again.
    ///
    /// # Errors
    /// Returns the errors of [`Conversation::answer`].
    pub fn say(&mut self, text: &str, control: &Control<'_>, show: Sink<'_>) -> Result<Turn> {
        let mut content = String::new();
        for (name, text) in &self.loaded {
            content += &format!("{name}:\n\n{}\n\n", text.trim_end());
        }
        content += text;
        self.dropped = None;
        self.messages.push(Message::new("user", content));
        match self.answer(control, show) {
            Ok(turn) => {
                self.loaded.clear();
                Ok(turn)
            }
            Err(e) => {
                if self.messages.last().is_some_and(|m| m.role == "user") {
                    self.messages.pop();
                }
                Err(e)
            }
        }
    }

    /// Answers the last message. Progress is in tokens of the prompt. What was generated is kept, however the answer ends.
    /// When there is an error before the answer begins, one that [`Conversation::drop_answer`] removed is put back.
    ///
    /// # Errors
    /// Returns [`Error::ContextFull`] if the conversation does not fit, [`Error::Interrupted`] if `control` stops the
    /// work before the answer begins (later, that is the answer's stop reason), and the errors of [`Template::render`]
    /// and [`Session::generate`].
    pub fn answer(&mut self, control: &Control<'_>, show: Sink<'_>) -> Result<Turn> {
        let (dropped, n) = (self.dropped.take(), self.messages.len());
        let turn = self.answer_anew(control, show);
        if self.messages.len() == n {
            self.messages.extend(dropped);
        }
        turn
    }

    fn answer_anew(&mut self, control: &Control<'_>, show: Sink<'_>) -> Result<Turn> {
        let text = self.template.render(&self.messages, true)?;
        let prompt = tokens(self.model.vocab(), &text)?;
        let mut parts = Parts::new(self.form, &text);
        let generate = &self.params.generate;
        let params = GenerateParams {
            sampler: generate.sampler.clone().seed(generate.sampler.seed.wrapping_add(self.tries)),
            stop: [self.template.stop(), generate.stop.clone()].concat(),
            ..generate.clone()
        };
        let marks = self.marks.clone();
        let session = self.session_mut()?;
        let n_ctx = session.n_max();
        if prompt.len() >= n_ctx {
            return Err(Error::ContextFull { needed: prompt.len() + 1, free: n_ctx, n_ctx });
        }
        let started = Instant::now();
        // The generation reads the last token. To go back by one costs recurrent layers more.
        let reused = session.prefill(&prompt[..prompt.len().saturating_sub(1)], control)?;
        let prefill_s = started.elapsed().as_secs_f64();

        let started = Instant::now();
        let (mut n_generated, mut failure, mut broken, mut shown) = (0, None, false, None);
        // Marks that generated text has are shown as they are; where it is without, an empty line stands for them.
        let mut show = |text: &str, of_parts: Vec<(Part, String)>| {
            if marks.is_empty() {
                return show(text);
            }
            for (part, text) in of_parts {
                let is_other = shown.replace(part).is_some_and(|before| before != part);
                if is_other {
                    show("\n\n")?;
                }
                // A later message of a part begins with an empty line.
                show(if is_other { text.trim_start_matches('\n') } else { &text })?;
            }
            ControlFlow::Continue(())
        };
        let mut generation = session.generate(&prompt, &params)?;
        for piece in generation.by_ref() {
            match piece {
                Ok(piece) => {
                    n_generated += usize::from(piece.token.is_some());
                    let mut of_parts = parts.push(&piece.text);
                    if let Some(mark) = piece.token.and_then(|token| marks.get(&token)) {
                        of_parts.extend(parts.push(mark));
                    }
                    if show(&piece.text, of_parts).is_break() {
                        broken = true;
                        break;
                    }
                }
                Err(e) => {
                    failure = Some(e);
                    break;
                }
            }
        }
        let stop = generation.stop_reason().unwrap_or(StopReason::Cancelled);
        drop(generation);
        if failure.is_none() && !broken {
            let _ = show("", parts.rest());
        }
        let turn = Turn {
            n_prompt: prompt.len(),
            reused,
            n_generated,
            prefill_s,
            decode_s: started.elapsed().as_secs_f64(),
            stop,
        };
        let (content, reasoning_content) = parts.finish();
        self.messages.push(Message { reasoning_content, ..Message::new("assistant", content) });
        self.last = Some(turn.clone());
        failure.map_or(Ok(turn), Err)
    }

    /// The tokens of the conversation so far; none before the first message, which templates may refuse to
    /// render.
    fn rendered(&self) -> Result<Vec<Token>> {
        if self.messages.iter().all(|m| m.role == "system") {
            return Ok(Vec::new());
        }
        self.template.tokens(self.model.vocab(), &self.messages, false)
    }

    /// Opens a session under another method or context. The messages are computed in it by [`Conversation::prefill`], or
    /// with the next answer. On an error the conversation continues in a session with the old settings.
    ///
    /// # Errors
    /// Returns an error if the method cannot be used with the model, if the conversation does not fit into the context, or
    /// if the session cannot be opened.
    pub fn reopen(&mut self, n_ctx: usize, rope: Option<Spec>, control: &Control<'_>) -> Result<()> {
        let params = SessionParams { n_ctx, rope, ..self.params.session.clone() };
        let spec = params.rope.clone().map_or_else(|| self.model.default_rope(), Ok)?;
        // An invalid spec must be an error while the old session is still open.
        let plan = Plan::new(&spec, self.model.hparams(), n_ctx)?;
        let n = self.rendered()?.len();
        if n >= n_ctx && !plan.evict {
            let what = format!("the conversation has {n} tokens, and does not fit a context of {n_ctx}");
            return Err(Error::Invalid(what));
        }
        // The old session is closed first, because memory may not hold two caches.
        self.session = None;
        match Session::new(&self.model, &params) {
            Ok(session) => {
                self.session = Some(session);
                self.params.session = params;
                Ok(())
            }
            Err(e) => {
                let back = Session::new(&self.model, &self.params.session);
                let place = "the session cannot be opened again";
                self.session = Some(back.map_err(|e| Error::during(place.to_owned(), e))?);
                self.prefill(control)?;
                Err(e)
            }
        }
    }

    /// Computes the messages now rather than with the next answer. Progress is in tokens. If `control` stops the work, the
    /// next answer computes the rest.
    ///
    /// # Errors
    /// Returns the errors of [`Template::tokens`] and [`Session::prefill`], except for [`Error::Interrupted`].
    pub fn prefill(&mut self, control: &Control<'_>) -> Result<()> {
        let messages = self.rendered()?;
        if messages.is_empty() {
            return Ok(());
        }
        match self.session_mut()?.prefill(&messages, control) {
            Err(Error::Interrupted) | Ok(_) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Saves the session and the conversation to a file.
    ///
    /// # Errors
    /// Returns the errors of [`Session::save`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let saved = Saved {
            messages: self.messages.clone(),
            loaded: self.loaded.clone(),
            rope: self.params.session.rope.as_ref().map(Spec::to_string),
        };
        let attachment = serde_json::to_vec(&saved).map_err(|e| Error::Invalid(e.to_string()))?;
        self.session()?.save(path, &attachment)
    }

    /// Restores what [`Conversation::save`] wrote, with its method and context. Returns true if that is another method or
    /// context, for which a new session was opened. On an error the conversation continues as it was.
    ///
    /// # Errors
    /// Returns an error if the file has no conversation or is of another model, and the errors of
    /// [`Conversation::reopen`] and [`Session::restore_from`].
    pub fn restore(&mut self, path: impl AsRef<Path>, control: &Control<'_>) -> Result<bool> {
        let path = path.as_ref();
        let invalid = |what: String| Error::Invalid(format!("{}: {what}", path.display()));
        let mut file = SavedSession::open(path)?;
        file.check_model(&self.model)?;
        if file.attachment().is_empty() {
            let what = "expected a saved conversation, found a session without messages";
            return Err(invalid(what.to_owned()));
        }
        let saved: Saved =
            serde_json::from_slice(file.attachment()).map_err(|e| invalid(format!("conversation: {e}")))?;
        let (n_ctx, rope) = (self.params.session.n_ctx, self.params.session.rope.clone());
        let other = file.rope() != self.session()?.plan().spec.to_string() || file.n_ctx() != n_ctx;
        if other {
            let spec = file.rope().parse::<Spec>().map_err(|e| invalid(format!("rope: {e}")))?;
            let (asked, hp) = (file.n_ctx(), self.model.hparams());
            let room = |n: usize| n.saturating_mul(MAX_ROOM);
            let trained = room(hp.n_ctx_train).clamp(TRAINED_ROOM.0, TRAINED_ROOM.1);
            let most = room(file.n_tokens()).max(n_ctx).max(trained);
            if asked > most {
                let what = format!(
                    "ctx: expected at most {most} tokens, found {asked} (/ctx {asked} makes room for it)"
                );
                return Err(invalid(what));
            }
            Plan::of_file(&spec, hp, asked).map_err(|e| invalid(e.to_string()))?;
            // The messages of now need not be computed in the session to be restored.
            let messages = std::mem::take(&mut self.messages);
            let reopened = self.reopen(file.n_ctx(), Some(spec), control);
            self.messages = messages;
            reopened?;
        }
        if let Err(e) = self.session_mut()?.restore_from(&mut file) {
            if other {
                self.reopen(n_ctx, rope, control)?;
                self.prefill(control)?;
            }
            return Err(e);
        }
        // A later context is planned by what was asked for, if that is what the file has.
        let asked = saved.rope.and_then(|text| text.parse::<Spec>().ok());
        let is_same = |spec: &Spec| {
            let plan = Plan::of_file(spec, self.model.hparams(), file.n_ctx());
            plan.is_ok_and(|plan| plan.spec.to_string() == file.rope())
        };
        if let Some(spec) = asked.filter(|spec| other && is_same(spec)) {
            self.params.session.rope = Some(spec);
        }
        self.messages = saved.messages;
        self.loaded = saved.loaded;
        self.last = None;
        Ok(other)
    }
}

fn closed() -> Error {
    Error::Invalid("no session is open".into())
}
