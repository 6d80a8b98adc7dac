//! Renders chat templates in a separate process.
//!
//! A template is code from a model's file. Its steps can be counted, but one step can request any amount of memory
//! (`'x' * n`, `batch`, `indent`, `format`), and a failed allocation aborts the process. Untrusted templates are
//! therefore rendered by another process under limits. [`Apart`] says how to start it and how much it can use, and the
//! started process calls [`serve`].

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
    template: Cow<'a, str>,
    now: SystemTime,
    /// The template's variables. `None` asks only whether it can be read.
    names: Option<Cow<'a, Map<String, Value>>>,
}

type Reply = std::result::Result<String, String>;

/// Renders, or only reads the template where it is given nothing.
pub(super) fn render(
    apart: &Apart,
    template: &str,
    now: SystemTime,
    names: Option<&Map<String, Value>>,
) -> Result<String> {
    let request = Request { template: Cow::Borrowed(template), now, names: names.map(Cow::Borrowed) };
    let json = serde_json::to_vec(&request).map_err(|e| invalid(&e))?;
    if json.len() as u64 > MAX_BYTES {
        let found = json.len();
        let what = format!("template and messages: expected at most {MAX_BYTES} bytes, found {found}");
        return Err(invalid(&what));
    }
    let reply = apart.ask(&[&json], MAX_BYTES, |bytes| serde_json::from_slice::<Reply>(bytes).ok());
    match reply {
        Ok(Ok(text)) => {
            let most = json.len().saturating_mul(MAX_COPIES).saturating_add(MAX_ADDED);
            if text.len() > most {
                let found = text.len();
                return Err(invalid(&format!("its text: expected at most {most} bytes, found {found}")));
            }
            Ok(text)
        }
        Ok(Err(e)) => Err(Error::Invalid(e)),
        Err(Fault::TooLong(_)) => Err(too_long()),
        Err(Fault::Stopped) => Err(Error::Interrupted),
        // No fault of the template or of what it is given.
        Err(Fault::Unstarted { program, what }) => {
            let place = "chat template: cannot start a process for it".to_owned();
            Err(Error::during(place, Error::io(program, std::io::Error::other(what))))
        }
        Err(fault) => Err(invalid(&fault)),
    }
}

/// The other side of [`Apart`]: puts the limits it is told onto this process, reads a template with its
/// messages from `input` to its end, and writes the text. The process should do nothing else and end then.
///
/// # Errors
/// Input or output that fails. What is wrong with the template is told the other side.
pub fn serve(input: impl Read, output: impl Write) -> std::io::Result<()> {
    apart::serve(input, output, MAX_BYTES, |json| {
        let reply: Reply = json.ok_or_else(too_long).and_then(answer).map_err(|e| e.to_string());
        let fits = |reply: &Vec<u8>| reply.len() as u64 <= MAX_BYTES;
        let reply = serde_json::to_vec(&reply).ok().filter(fits);
        reply.or_else(|| serde_json::to_vec(&Reply::Err(too_long().to_string())).ok()).unwrap_or_default()
    })
}

fn answer(json: Vec<u8>) -> Result<String> {
    let request: Request<'static> = serde_json::from_slice(&json).map_err(|e| invalid(&e))?;
    drop(json);
    let template = Template::at(Some(&request.template), "", "", request.now)?;
    request.names.map_or(Ok(String::new()), |names| template.rendered(&names))
}

fn too_long() -> Error {
    invalid(&format!("its text is more than {MAX_BYTES} bytes"))
}

fn invalid(what: &dyn std::fmt::Display) -> Error {
    Error::Invalid(format!("chat template: {what}"))
}
