//! Renders chat templates in a process of its own.
//!
//! A template is a program out of a model's file. Its steps can be counted, but one step can ask for any
//! amount of memory (`'x' * n`, `batch`, `indent`, `format`), and a process that gets none is ended by the
//! allocator. So whoever does not trust a file has its template rendered by another process under limits:
//! [`Apart`] says how to start it and how much it may take, and the process that was started calls
//! [`serve`].

use std::borrow::Cow;
use std::io::{Read, Write};
use std::time::SystemTime;

use ropewalk_core::apart::{self, Fault};
use serde::{Deserialize, Serialize};

use serde_json::{Map, Value};

use super::Template;
use crate::model::{Error, Result};

/// How to start a process that renders templates, see [`serve`]. The limits of [`Limits::default`] are enough for texts
/// of [`MAX_BYTES`].
///
/// ```no_run
/// use ropewalk::chat::{apart::{self, Apart}, Message, Template};
///
/// // In a program that renders in a process of itself:
/// if std::env::args().nth(1).as_deref() == Some("render") {
///     return Ok(apart::serve(std::io::stdin().lock(), std::io::stdout().lock())?);
/// }
/// let apart = Apart::new(std::env::current_exe()?, ["render"]);
/// let template = Template::new_apart("{{ messages[0].content }}", "<s>", "</s>", &apart)?;
/// assert_eq!(template.render(&[Message::new("user", "Hello")], true)?, "Hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use ropewalk_core::apart::{Apart, Limits};

/// Most bytes of a template with its messages, and most bytes of the rendered text, each as JSON.
pub const MAX_BYTES: u64 = 32 << 20;

/// Most bytes that a template may add to what it is given: a page of instructions has a hundredth of it.
const MAX_ADDED: usize = 1 << 20;
/// How often a template may print what it is given, its own text among it. Each printed byte can become a token, and a
/// loop of one line prints millions, which take a minute to tokenize before any context is too small for them.
const MAX_COPIES: usize = 4;

/// A request to the process.
#[derive(Debug, Serialize, Deserialize)]
struct Request<'a> {
    source: Cow<'a, Source>,
    /// `None` asks only whether the template can be read.
    messages: Option<Cow<'a, [Value]>>,
    variables: Cow<'a, Map<String, Value>>,
    add_generation_prompt: bool,
}

/// Input of a template.
pub(super) struct Conversation<'a> {
    pub(super) messages: &'a [Value],
    pub(super) variables: &'a Map<String, Value>,
    pub(super) add_generation_prompt: bool,
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Text(String),
    Error(String),
}

/// Renders, or only reads the template where there is no conversation.
pub(super) fn render(
    apart: &Apart,
    source: &Source,
    conversation: Option<Conversation<'_>>,
) -> Result<String> {
    let none = Map::new();
    let request = Request {
        source: Cow::Borrowed(source),
        messages: conversation.as_ref().map(|c| Cow::Borrowed(c.messages)),
        variables: Cow::Borrowed(conversation.as_ref().map_or(&none, |c| c.variables)),
        add_generation_prompt: conversation.as_ref().is_some_and(|c| c.add_generation_prompt),
    };
    let json = serde_json::to_vec(&request).map_err(|e| invalid(&e))?;
    if json.len() as u64 > MAX_BYTES {
        let found = json.len();
        let what = format!("template and messages: expected at most {MAX_BYTES} bytes, found {found}");
        return Err(invalid(&what));
    }
    let reply = apart.ask(&[&json], MAX_BYTES, |bytes| serde_json::from_slice(bytes).ok());
    match reply {
        Ok(Reply::Text(text)) => {
            let most = json.len().saturating_mul(MAX_COPIES).saturating_add(MAX_ADDED);
            if text.len() > most {
                let found = text.len();
                return Err(invalid(&format!("its text: expected at most {most} bytes, found {found}")));
            }
            Ok(text)
        }
        Ok(Reply::Error(e)) => Err(Error::Invalid(e)),
        Err(Fault::TooLong(_)) => Err(too_long()),
        Err(Fault::Stopped) => Err(Error::Interrupted),
        Err(fault) => Err(invalid(&fault)),
    }
}

/// A template that another process reads.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Source {
    pub(super) template: String,
    pub(super) bos: String,
    pub(super) eos: String,
    pub(super) now: SystemTime,
}

/// The other side of [`Apart`]: puts the limits it is told onto this process, reads a template with its
/// messages from `input` to its end, and writes the text. The process should do nothing else and end then.
///
/// # Errors
/// Input or output that fails. What is wrong with the template is told the other side.
pub fn serve(input: impl Read, output: impl Write) -> std::io::Result<()> {
    apart::serve(input, output, MAX_BYTES, |json| {
        let reply = match json.ok_or_else(too_long).and_then(answer) {
            Ok(text) => Reply::Text(text),
            Err(e) => Reply::Error(e.to_string()),
        };
        let fits = |reply: &Vec<u8>| reply.len() as u64 <= MAX_BYTES;
        let reply = serde_json::to_vec(&reply).ok().filter(fits);
        reply.or_else(|| serde_json::to_vec(&Reply::Error(too_long().to_string())).ok()).unwrap_or_default()
    })
}

fn answer(json: Vec<u8>) -> Result<String> {
    let request: Request<'static> = serde_json::from_slice(&json).map_err(|e| invalid(&e))?;
    drop(json);
    let Source { template, bos, eos, now } = &*request.source;
    let template = Template::at(Some(template), bos, eos, *now)?;
    match &request.messages {
        Some(messages) => template.render_json(messages, &request.variables, request.add_generation_prompt),
        None => Ok(String::new()),
    }
}

fn too_long() -> Error {
    invalid(&format!("its text is more than {MAX_BYTES} bytes"))
}

fn invalid(what: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!("chat template: {what}"))
}
