//! Chat templates: renders messages to a prompt through the Jinja template in the model's file.
//!
//! The environment is that of Hugging Face's `apply_chat_template`: `trim_blocks` and `lstrip_blocks`, loop
//! controls, Python's methods on strings, lists and dicts and its way to print values, `raise_exception`,
//! `strftime_now`, and a `tojson` that leaves characters as they are. Messages reach the template as transformers hands them over; [`answer`] takes
//! an answer apart again. A [`Conversation`] has the messages, and a session that answers them.

pub mod answer;
pub mod apart;
mod conversation;
mod python;

use std::time::SystemTime;

use jiff::fmt::strtime::{BrokenDownTime, Config};
use jiff::{tz::TimeZone, Timestamp};
use minijinja::Environment;
use ropewalk_core::tokenizer::Failure;
use serde::{Deserialize, Serialize};
use serde_json::{json, Map, Value};
use sha2::{Digest, Sha256};

use self::apart::Apart;
use crate::model::{Error, Model, Result};
use crate::vocab::Vocab;
use crate::{data, Token};

pub use self::conversation::{Conversation, ConversationParams, Sink, Turn};

/// Most instructions that a template may execute, so that a hostile one ends.
const FUEL: u64 = 20_000_000;

/// Most characters of what a template says is wrong.
const MAX_COMPLAINT: usize = 500;

/// The template of models without one: ChatML, the most common form and libllama's own fallback.
const CHATML: &str =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
    /// Thinking of the model before its answer, kept apart from the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
}
impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message { role: role.into(), content: content.into(), reasoning_content: None }
    }

    /// The message with its thinking as the first block of its content.
    fn in_blocks(&self) -> Value {
        let Some(thinking) = &self.reasoning_content else { return json!(self) };
        let mut blocks = vec![json!({"type": "thinking", "thinking": thinking})];
        if !self.content.is_empty() {
            blocks.push(json!({"type": "text", "text": self.content}));
        }
        json!({"role": self.role, "content": blocks})
    }
}

/// A model's chat template, ready to render.
///
/// [`Template::of`], [`Template::new`] and [`Template::at`] render in this process. They bound the number of
/// steps a template takes, but not the memory: for a template in a file from somebody else, which may end the
/// process that renders it, there is [`Template::of_apart`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.gguf");
/// # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &path)?;
/// use ropewalk::chat::{Message, Template};
/// use ropewalk::model::{Model, ModelParams};
///
/// let model = Model::load(&path, &ModelParams::cpu())?;
/// let template = Template::of(&model)?;
/// let messages = [Message::new("system", "You are terse."), Message::new("user", "What is a rope walk?")];
/// // The prompt for `Session::generate`, with the assistant's turn open.
/// // `template.stop()` goes into its stop strings.
/// let prompt = template.tokens(model.vocab(), &messages, true)?;
/// assert!(template.render(&messages, true)?.contains("What is a rope walk?"));
/// assert!(!prompt.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// From a template's own text:
///
/// ```
/// use ropewalk::chat::{Message, Template};
/// let source = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}";
/// let t = Template::new(Some(source), "<s>", "</s>")?;
/// assert_eq!(t.render(&[Message::new("user", "Hello")], true)?, "[user] Hello\n");
/// # Ok::<(), ropewalk::model::Error>(())
/// ```
#[derive(Debug)]
pub struct Template {
    how: How,
    source: String,
    bos: String,
    eos: String,
    fallback: bool,
}

/// Where a template is rendered.
#[derive(Debug)]
enum How {
    Here(Box<Environment<'static>>),
    /// At this time, or when it is used.
    Apart(Apart, Option<SystemTime>),
}

impl Template {
    /// The template of a model, with the texts of its special tokens.
    ///
    /// # Errors
    /// Returns the errors of [`Template::new`].
    pub fn of(model: &Model) -> Result<Template> {
        let (bos, eos) = special_texts(model)?;
        Template::new(model.chat_template(), &bos, &eos)
    }

    /// [`Template::of`], rendered in separate processes: whatever the file's template does, this process
    /// goes on. ChatML, which takes the place of a missing one, is rendered here.
    ///
    /// # Errors
    /// Returns the errors of [`Template::new_apart`].
    pub fn of_apart(model: &Model, apart: &Apart) -> Result<Template> {
        match (model.chat_template(), special_texts(model)?) {
            (Some(source), (bos, eos)) => Template::new_apart(source, &bos, &eos, apart),
            (None, (bos, eos)) => Template::new(None, &bos, &eos),
        }
    }

    /// [`Template::new`], rendered in separate processes. The first one reads the template.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a template that does not parse or exceeds a limit on the way, and for a process
    /// that cannot be started. [`Error::Argument`] for a template of too many bytes.
    pub fn new_apart(source: &str, bos: &str, eos: &str, apart: &Apart) -> Result<Template> {
        let now = SystemTime::now();
        apart::render(apart, source, now, None)?;
        Ok(Template::made(How::Apart(apart.clone(), Some(now)), Some(source), bos, eos))
    }

    /// A template from its source; ChatML when `source` is `None`. Dates in the prompt are today's, in UTC.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a template that does not parse.
    pub fn new(source: Option<&str>, bos: &str, eos: &str) -> Result<Template> {
        Template::at(source, bos, eos, SystemTime::now())
    }

    /// [`Template::new`] at a given time, so that the rendered text depends on the arguments alone.
    pub fn at(source: Option<&str>, bos: &str, eos: &str, now: SystemTime) -> Result<Template> {
        let text = source.unwrap_or(CHATML);
        let mut env = python::environment("chat", text, FUEL).map_err(|e| error(&e))?;
        env.add_function("strftime_now", move |format: &str| strftime(format, now));
        Ok(Template::made(How::Here(Box::new(env)), source, bos, eos))
    }

    fn made(how: How, source: Option<&str>, bos: &str, eos: &str) -> Template {
        let text = source.unwrap_or(CHATML).to_owned();
        Template { how, source: text, bos: bos.to_owned(), eos: eos.to_owned(), fallback: source.is_none() }
    }

    /// The template with the date of each rendering in the prompt, for programs that run for days.
    #[must_use]
    pub fn dated_by_use(mut self) -> Template {
        match &mut self.how {
            How::Here(env) => {
                env.add_function("strftime_now", |format: &str| strftime(format, SystemTime::now()));
            }
            How::Apart(_, now) => *now = None,
        }
        self
    }

    /// Returns true if the model has no template and ChatML is used.
    pub fn is_fallback(&self) -> bool {
        self.fallback
    }

    /// Texts that end a turn, for templates whose end of turn the vocabulary may not have as a token.
    pub fn stop(&self) -> Vec<String> {
        if self.fallback {
            vec!["<|im_end|>".to_owned()]
        } else {
            Vec::new()
        }
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The conversation as text. `add_generation_prompt` opens the assistant's turn at its end.
    ///
    /// # Errors
    /// Returns the errors of [`Template::render_json`].
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let blocks = answer::in_blocks(self.source());
        let messages =
            messages.iter().map(|m| if blocks { m.in_blocks() } else { json!(m) }).collect::<Vec<_>>();
        self.render_json(&messages, &Map::new(), add_generation_prompt)
    }

    /// A conversation of any form as text: messages are JSON objects with whatever the template reads, such as
    /// `tool_calls`, and `variables` what else it is given, such as `tools`. As in transformers, a key of a message
    /// that is null is left out, and thinking goes by each of its names.
    ///
    /// ```
    /// use ropewalk::chat::Template;
    /// use serde_json::json;
    ///
    /// let source = "{{ tools | tojson }}{% for m in messages %}{{ m.role }}{{ m.tool_calls[0].name }}{% endfor %}";
    /// let messages = [json!({"role": "assistant", "content": null, "tool_calls": [{"name": "now"}]})];
    /// let variables = json!({"tools": [{"name": "now"}]});
    /// let text = Template::new(Some(source), "", "")?.render_json(&messages, variables.as_object().unwrap(), true)?;
    /// assert_eq!(text, r#"[{"name": "now"}]assistantnow"#);
    /// # Ok::<(), ropewalk::model::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] with an error that the template raises (such as roles out of order) or has, or a
    /// limit that it exceeds, in one line. [`Error::During`] where the process for it cannot be started.
    pub fn render_json(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        add_generation_prompt: bool,
    ) -> Result<String> {
        let mut names = Map::new();
        names.insert("bos_token".into(), self.bos.as_str().into());
        names.insert("eos_token".into(), self.eos.as_str().into());
        // Templates ask `is not none` as well as `is defined`.
        names.insert("tools".into(), Value::Null);
        names.insert("documents".into(), Value::Null);
        names.extend(variables.iter().map(|(name, value)| (name.clone(), value.clone())));
        let messages = messages.iter().map(message).collect::<Result<Vec<_>>>()?;
        names.insert("messages".into(), messages.into());
        names.insert("add_generation_prompt".into(), add_generation_prompt.into());
        self.rendered(&names)
    }

    /// The text under all names that the template is given, as `apply_chat_template` gives them.
    fn rendered(&self, names: &Map<String, Value>) -> Result<String> {
        match &self.how {
            How::Here(env) => {
                // The engine has panicked on templates before.
                let render = || env.get_template("chat").and_then(|t| t.render(names));
                let panicked = |_| Err(Error::Invalid("chat template: the template engine panicked".into()));
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(render))
                    .map_or_else(panicked, |text| text.map_err(|e| error(&e)))
            }
            How::Apart(apart, now) => {
                apart::render(apart, &self.source, now.unwrap_or_else(SystemTime::now), Some(names))
            }
        }
    }

    /// The conversation as tokens. Special tokens in the text are parsed as such, and BOS comes first exactly
    /// once.
    ///
    /// # Errors
    /// Returns the errors of [`Template::render`] and of the tokenizer.
    pub fn tokens(
        &self,
        vocab: &Vocab,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<Vec<Token>> {
        tokens(vocab, &self.render(messages, add_generation_prompt)?)
    }
}

/// A rendered conversation as tokens: [`Template::tokens`] in two steps.
///
/// # Errors
/// Returns the errors of the tokenizer.
pub fn tokens(vocab: &Vocab, text: &str) -> Result<Vec<Token>> {
    let mut tokens = vocab.tokenize(text, false, true)?;
    if let Some(bos) = vocab.bos().filter(|&b| vocab.add_bos() && tokens.first() != Some(&b)) {
        tokens.insert(0, bos);
    }
    Ok(tokens)
}

/// A message as the template sees it.
fn message(message: &Value) -> Result<Value> {
    /// Names of the thinking. Templates read the first, gpt-oss's the second.
    const THINKING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
    let Value::Object(given) = message else {
        return Err(Error::Invalid("chat template: expected each message to be an object".into()));
    };
    let given = given.iter().filter(|(_, value)| !value.is_null());
    let mut out: Map<String, Value> = given.map(|(key, value)| (key.clone(), value.clone())).collect();
    if let Some(thinking) = THINKING.iter().find_map(|name| out.get(*name)).cloned() {
        if !out.contains_key("thinking") {
            // It comes first, which templates that print a whole message show.
            out.shift_insert(0, "thinking".into(), thinking.clone());
        }
        out.insert("reasoning_content".into(), thinking);
    }
    Ok(out.into())
}

impl data::ChatTemplate for Template {
    fn render(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> Result<String, Failure> {
        Ok(self.render_json(messages, variables, open)?)
    }

    fn source(&self) -> String {
        Template::source(self).to_owned()
    }

    /// SHA-256 of the template's text and those of the tokens in it.
    fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for text in [&self.source, &self.bos, &self.eos] {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        hash.finalize().iter().take(16).map(|b| format!("{b:02x}")).collect()
    }
}

/// The texts of the tokens that begin and end a text; empty without such a token.
fn special_texts(model: &Model) -> Result<(String, String)> {
    let vocab = model.vocab();
    let text = |token: Option<Token>| -> Result<String> {
        match token {
            Some(t) => Ok(String::from_utf8_lossy(&vocab.piece(t, true)?).into_owned()),
            None => Ok(String::new()),
        }
    };
    Ok((text(vocab.bos())?, text(vocab.eos())?))
}

fn error(e: &minijinja::Error) -> Error {
    let what = e.detail().map_or_else(|| e.kind().to_string(), str::to_owned);
    let line = e.line().map(|l| format!(" line {l}")).unwrap_or_default();
    let what: String = what.chars().take(MAX_COMPLAINT).collect();
    Error::Invalid(format!("chat template{line}: {}", what.lines().collect::<Vec<_>>().join(" ")))
}

/// Python's `strftime`, in UTC. Directives that are not known stay as they are.
fn strftime(format: &str, now: SystemTime) -> String {
    // No clock shows a time outside jiff's range of years -9999 to 9999.
    let now = Timestamp::try_from(now).unwrap_or(Timestamp::UNIX_EPOCH).to_zoned(TimeZone::UTC);
    let config = Config::new().lenient(true);
    BrokenDownTime::from(&now).to_string_with_config(&config, format).unwrap_or_else(|_| format.to_owned())
}
