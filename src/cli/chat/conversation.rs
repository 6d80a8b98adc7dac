//! A conversation: its messages, and the session that answers them.
//!
//! Every turn renders all messages through the template, and the session computes only the tokens it does not
//! hold already. A change of method or context opens a new session under the same messages.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use anyhow::{anyhow, bail, Context};
use ropewalk::chat::answer::{Form, Part, Parts};
use ropewalk::chat::{self, Message, Template};
use ropewalk::model::{Error, Model};
use ropewalk::rope::{Plan, Spec};
use ropewalk::sampler::SamplerParams;
use ropewalk::session::{GenerateParams, SavedSession, Session};
use ropewalk::vocab::Vocab;
use ropewalk::Token;
use serde::{Deserialize, Serialize};

use crate::cli::interrupt::Interrupt;
use crate::cli::models::{self, ModelChoice};
use crate::cli::output::OutputArgs;
use crate::cli::{engine, template};

/// Settings of a conversation.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) n_ctx: usize,
    /// The spec that the user asked for; `None` for the one that the file declares.
    pub(super) spec: Option<Spec>,
    pub(super) sampler: SamplerParams,
    /// Largest number of tokens of one answer.
    pub(super) n_predict: usize,
    pub(super) ignore_eos: bool,
}

/// Tokens and times of one answer.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Turn {
    pub(super) n_prompt: usize,
    /// Tokens of the prompt that the session had in its cache.
    pub(super) reused: usize,
    pub(super) n_generated: usize,
    pub(super) prefill_s: f64,
    pub(super) decode_s: f64,
    pub(super) stop: &'static str,
}

/// Attachment of a saved session for this command, as JSON: everything of the conversation that is not in the
/// session itself.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    messages: Vec<Message>,
    /// Files that go into the next message.
    loaded: Vec<(String, String)>,
}

/// Takes the text of an answer as it is generated.
pub(super) type Sink<'a> = &'a mut dyn FnMut(&str) -> anyhow::Result<()>;

pub(super) struct Conversation<'m> {
    model: &'m Model,
    choice: &'m ModelChoice,
    interrupt: &'m Interrupt,
    out: OutputArgs,
    template: Template,
    form: Form,
    /// The marks of the form that the vocabulary has as control tokens, which generated text is without.
    marks: HashMap<Token, &'static str>,
    settings: Settings,
    /// `None` only while one session is replaced by another.
    session: Option<Session>,
    messages: Vec<Message>,
    /// Files that go into the next message: name and text.
    loaded: Vec<(String, String)>,
    last: Option<Turn>,
    /// Number of answers that were replaced. It is added to the seed, so that each try samples other tokens.
    tries: u32,
}

impl<'m> Conversation<'m> {
    pub(super) fn open(
        model: &'m Model,
        choice: &'m ModelChoice,
        settings: Settings,
        interrupt: &'m Interrupt,
        out: OutputArgs,
    ) -> anyhow::Result<Self> {
        let template = template::of(model, &interrupt.control())?;
        let form = Form::of(template.source());
        let mut chat = Conversation {
            model,
            choice,
            interrupt,
            out,
            marks: hidden_marks(model.vocab(), form)?,
            form,
            template,
            settings,
            session: None,
            messages: Vec::new(),
            loaded: Vec::new(),
            last: None,
            tries: 0,
        };
        chat.session = Some(chat.new_session(&chat.settings)?);
        Ok(chat)
    }

    fn new_session(&self, settings: &Settings) -> anyhow::Result<Session> {
        let session = Session::new(self.model, &self.choice.session(settings.n_ctx, settings.spec.as_ref()))?;
        self.interrupt.watch(&session);
        models::announce(&self.out, self.choice, &session, settings.spec.is_some());
        Ok(session)
    }

    fn session(&mut self) -> anyhow::Result<&mut Session> {
        self.session.as_mut().ok_or_else(|| anyhow!("no session is open"))
    }

    pub(super) fn template(&self) -> &Template {
        &self.template
    }
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }
    pub(super) fn n_ctx(&self) -> usize {
        self.settings.n_ctx
    }
    pub(super) fn model(&self) -> &'m Model {
        self.model
    }
    pub(super) fn last_turn(&self) -> Option<&Turn> {
        self.last.as_ref()
    }
    /// The spec of the open session, with defaults filled in.
    pub(super) fn spec(&self) -> anyhow::Result<String> {
        Ok(self.opened()?.plan().spec.to_string())
    }
    pub(super) fn opened(&self) -> anyhow::Result<&Session> {
        self.session.as_ref().ok_or_else(|| anyhow!("no session is open"))
    }

    /// Sets, replaces or removes the system message.
    pub(super) fn set_system(&mut self, text: Option<String>) {
        self.messages.retain(|m| m.role != "system");
        if let Some(text) = text {
            self.messages.insert(0, Message::new("system", text));
        }
    }
    pub(super) fn system(&self) -> Option<&str> {
        self.messages.first().filter(|m| m.role == "system").map(|m| m.content.as_str())
    }

    /// Removes the last message of the user and everything after it; returns that message.
    pub(super) fn undo(&mut self) -> Option<Message> {
        let at = self.messages.iter().rposition(|m| m.role == "user")?;
        let taken = self.messages.drain(at..).next();
        self.last = None;
        taken
    }

    /// Removes all messages but the system message.
    pub(super) fn clear(&mut self) {
        self.messages.retain(|m| m.role == "system");
        self.loaded.clear();
        self.last = None;
    }

    /// Removes the last answer; false when there is no message to answer again.
    pub(super) fn drop_answer(&mut self) -> bool {
        let is_answer = self.messages.last().is_some_and(|m| m.role == "assistant");
        if is_answer {
            self.messages.pop();
            self.tries = self.tries.wrapping_add(1);
        }
        is_answer || self.messages.last().is_some_and(|m| m.role == "user")
    }

    /// Adds a text to the next message; returns its number of tokens.
    pub(super) fn load_text(&mut self, path: &Path, text: String) -> anyhow::Result<usize> {
        let n = self.model.vocab().tokenize(&text, false, false)?.len();
        self.loaded.push((path.display().to_string(), text));
        Ok(n)
    }

    /// Sends a message and gets its answer. When there is an error before the answer begins, the message is
    /// removed again.
    pub(super) fn say(&mut self, text: &str, show: Sink<'_>) -> anyhow::Result<Turn> {
        let mut content = String::new();
        for (name, text) in &self.loaded {
            content += &format!("{name}:\n\n{}\n\n", text.trim_end());
        }
        content += text;
        self.messages.push(Message::new("user", content));
        match self.answer(show) {
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

    /// Answers the last message.
    pub(super) fn answer(&mut self, show: Sink<'_>) -> anyhow::Result<Turn> {
        let text = self.template.render(&self.messages, true)?;
        let prompt = chat::tokens(self.model.vocab(), &text)?;
        let mut parts = Parts::new(self.form, &text);
        let n_ctx = self.session.as_ref().map_or(self.settings.n_ctx, Session::n_max);
        if prompt.len() >= n_ctx {
            bail!(
                "the conversation needs {} tokens and the context holds {n_ctx}: {}; the message was not \
                 sent, and nothing else is lost",
                prompt.len() + 1,
                self.ways_out(prompt.len() + 1),
            );
        }
        let params = GenerateParams {
            n_predict: self.settings.n_predict,
            sampler: SamplerParams {
                seed: self.settings.sampler.seed.wrapping_add(self.tries),
                ..self.settings.sampler.clone()
            },
            stop: self.template.stop(),
            ignore_eos: self.settings.ignore_eos,
            special: false,
        };
        let out = self.out;
        let marks = self.marks.clone();
        let started = Instant::now();
        let session = self.session()?;
        let reused = match engine::prefill(session, &prompt, &out) {
            Err(Error::Interrupted) => bail!("stopped before the answer began: the message was not sent"),
            other => other?,
        };
        let prefill_s = started.elapsed().as_secs_f64();

        let started = Instant::now();
        let (mut n_generated, mut failure, mut shown) = (0, None, None);
        // Marks that generated text has are shown as they are; where it is without, an empty line stands for them.
        let mut show = |text: &str, of_parts: Vec<(Part, String)>| {
            if marks.is_empty() {
                return show(text);
            }
            for (part, text) in of_parts {
                if shown.replace(part).is_some_and(|before| before != part) {
                    show("\n\n")?;
                }
                show(&text)?;
            }
            Ok(())
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
                    if let Err(e) = show(&piece.text, of_parts) {
                        failure = Some(e);
                        break;
                    }
                }
                Err(e) => {
                    failure = Some(e.into());
                    break;
                }
            }
        }
        let stop = engine::stop_name(generation.stop_reason());
        drop(generation);
        if failure.is_none() {
            failure = show("", parts.rest()).err();
        }
        let turn = Turn {
            n_prompt: prompt.len(),
            reused,
            n_generated,
            prefill_s,
            decode_s: started.elapsed().as_secs_f64(),
            stop,
        };
        // The text generated so far is kept, however the answer ended.
        let (content, reasoning_content) = parts.finish();
        self.messages.push(Message { reasoning_content, ..Message::new("assistant", content) });
        self.last = Some(turn.clone());
        match failure {
            Some(e) => Err(e),
            None => Ok(turn),
        }
    }

    /// The tokens of the conversation so far; none before the first message, which templates may refuse to
    /// render.
    fn rendered(&self) -> anyhow::Result<Vec<Token>> {
        if self.messages.iter().all(|m| m.role == "system") {
            return Ok(Vec::new());
        }
        self.tokens(false)
    }

    fn tokens(&self, prompt: bool) -> anyhow::Result<Vec<Token>> {
        Ok(self.template.tokens(self.model.vocab(), &self.messages, prompt)?)
    }

    /// Advice for a context that is too small for `needed` tokens.
    fn ways_out(&self, needed: usize) -> String {
        let n_ctx = needed.max(self.settings.n_ctx.saturating_mul(2)).next_multiple_of(256);
        let trained = self.model.hparams().n_ctx_train;
        if n_ctx > trained {
            format!(
                "/ctx {n_ctx} makes it larger, and past the trained context of {trained} tokens /rope yarn \
                 or /rope harpe helps"
            )
        } else {
            format!("/ctx {n_ctx} makes it larger (past the trained context of {trained} tokens, see /rope)")
        }
    }

    /// A note on the end of a turn that the model did not end by itself.
    pub(super) fn note_on(&self, turn: &Turn) -> Option<String> {
        match turn.stop {
            "context" => Some(format!(
                "(the context of {} tokens is full: the answer stops here; {}, then /regen; nothing is lost)",
                self.settings.n_ctx,
                self.ways_out(0)
            )),
            "cancelled" => Some("(stopped)".to_owned()),
            "length" => Some(format!("(stopped after {} tokens, see -n)", turn.n_generated)),
            _ => None,
        }
    }

    /// Opens a session under another method or context and computes the conversation in it. On an error the
    /// conversation goes on in a session with the old settings.
    pub(super) fn reopen(&mut self, n_ctx: usize, spec: Option<Spec>) -> anyhow::Result<()> {
        let settings = Settings { n_ctx, spec, ..self.settings.clone() };
        let effective = models::effective_spec(self.model, settings.spec.as_ref())?;
        // An invalid spec must be an error while the old session is still open.
        let plan = Plan::new(&effective, self.model.hparams(), n_ctx)?;
        let messages = self.rendered()?;
        if messages.len() >= n_ctx && !plan.evict {
            bail!("the conversation has {} tokens, and does not fit a context of {n_ctx}", messages.len());
        }
        // The old session is closed first, because memory may not hold two caches.
        self.session = None;
        let opened = self.new_session(&settings);
        match opened {
            Ok(session) => {
                self.session = Some(session);
                self.settings = settings;
                self.read_in(&messages)
            }
            Err(e) => {
                let quiet = OutputArgs { quiet: true, ..self.out };
                let loud = std::mem::replace(&mut self.out, quiet);
                let back = self.new_session(&self.settings);
                self.out = loud;
                self.session = Some(back.context("the session cannot be opened again")?);
                self.read_in(&messages)?;
                Err(e)
            }
        }
    }

    /// Computes the messages now rather than at the next turn. It may be interrupted.
    fn read_in(&mut self, messages: &[Token]) -> anyhow::Result<()> {
        let out = self.out;
        if messages.is_empty() {
            return Ok(());
        }
        match engine::prefill(self.session()?, messages, &out) {
            Err(Error::Interrupted) | Ok(_) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// The spec that the user asked for; `None` for the file's own.
    pub(super) fn asked_spec(&self) -> Option<Spec> {
        self.settings.spec.clone()
    }

    /// Saves the session and the conversation to a file.
    pub(super) fn save(&mut self, path: &Path) -> anyhow::Result<()> {
        let saved = Saved { messages: self.messages.clone(), loaded: self.loaded.clone() };
        let attachment = serde_json::to_vec(&saved)?;
        Ok(self.session()?.save(path, &attachment)?)
    }

    /// Restores what [`Conversation::save`] wrote, with its method and context. On an error the conversation
    /// goes on as it was.
    pub(super) fn restore(&mut self, path: &Path) -> anyhow::Result<()> {
        let name = path.display();
        let mut file = SavedSession::open(path)?;
        file.check_model(self.model)?;
        if file.attachment().is_empty() {
            bail!("{name}: expected a conversation that /save wrote, found a session without messages");
        }
        let saved: Saved =
            serde_json::from_slice(file.attachment()).map_err(|e| anyhow!("{name}: conversation: {e}"))?;
        let before = (self.settings.n_ctx, self.settings.spec.clone());
        let other = file.rope() != self.spec()? || file.n_ctx() != self.settings.n_ctx;
        if other {
            let spec: Spec = file.rope().parse().map_err(|e| anyhow!("{name}: rope: {e}"))?;
            // The messages of now need not be computed in the session to be restored.
            let messages = std::mem::take(&mut self.messages);
            let reopened = self.reopen(file.n_ctx(), Some(spec));
            self.messages = messages;
            reopened?;
        }
        if let Err(e) = self.session()?.restore_from(&mut file) {
            if other {
                self.reopen(before.0, before.1)?;
            }
            return Err(e.into());
        }
        self.messages = saved.messages;
        self.loaded = saved.loaded;
        self.last = None;
        Ok(())
    }
}

/// Which control tokens are marks of the form.
fn hidden_marks(vocab: &Vocab, form: Form) -> anyhow::Result<HashMap<Token, &'static str>> {
    let mut out = HashMap::new();
    for mark in form.marks() {
        if let [token] = vocab.tokenize(mark, false, true)?[..] {
            if vocab.piece(token, false)?.is_empty() {
                out.insert(token, *mark);
            }
        }
    }
    Ok(out)
}
