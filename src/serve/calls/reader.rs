//! Separates calls from text, in an answer that comes in pieces.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use super::{qwen, After, At, Format, Found, Said, Tool};

/// More of an answer's calls.
#[derive(Debug, PartialEq)]
pub(crate) enum Piece {
    /// A call. What follows belongs to it, up to the next one.
    Begins { id: String, name: String },
    /// More of its arguments, which are JSON as a text.
    Arguments(String),
}

/// A call in an answer.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) arguments: String,
}

/// The calls that pieces make.
pub(crate) fn joined(pieces: Vec<Piece>) -> Vec<Call> {
    let mut calls: Vec<Call> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Begins { id, name } => calls.push(Call { id, name, arguments: String::new() }),
            Piece::Arguments(text) => {
                if let Some(call) = calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
        }
    }
    calls
}

/// Reads an answer. What only looks like a call is text.
///
/// A call of an offered function is one from the moment at which its arguments begin as an object. They are sent on as they
/// are written, up to the bracket that ends them: no later text can make it another thing, but an answer that is cut, or a
/// model that writes bad JSON, leaves arguments that do not parse, as OpenAI's do. Where more text could still make a call
/// something else (Llama's form, unless the answer must be of it), and where arguments are no JSON until they are complete
/// (Qwen's form, and arguments that are a text), a call comes whole.
#[derive(Clone)]
pub(crate) struct Reader {
    format: &'static Format,
    tools: Arc<[Tool]>,
    parallel: bool,
    /// Whether the answer begins like a call only where one comes.
    sure: bool,
    place: Place,
    /// White space, and after it what may be a call.
    held: String,
    /// Whether only white space and calls came.
    blank: bool,
    n_calls: usize,
}

/// The part of an answer that comes next.
#[derive(Clone, Copy)]
enum Place {
    Text,
    /// Text that may be a call, in a list after another one or not.
    Call {
        inside: bool,
    },
    /// Arguments that are sent on.
    Arguments(Scan),
    /// The text after these.
    Behind,
}

/// Finds the end of a JSON object.
#[derive(Clone, Copy, Default)]
struct Scan {
    depth: usize,
    quoted: bool,
    escaped: bool,
}

impl Scan {
    /// The bytes of more text that belong to the object, and whether it is over.
    fn take(&mut self, text: &str) -> (usize, bool) {
        for (i, byte) in text.bytes().enumerate() {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.quoted => self.escaped = true,
                b'"' => self.quoted = !self.quoted,
                _ if self.quoted => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return (i + 1, true);
                    }
                }
                // No JSON has it here, and marks begin with it.
                b'<' => return (i, true),
                _ => {}
            }
        }
        (text.len(), false)
    }
}

impl Reader {
    pub(super) fn new(format: &'static Format, tools: Arc<[Tool]>, parallel: bool, sure: bool) -> Reader {
        let (place, held) = (Place::Text, String::new());
        Reader { format, tools, parallel, sure, place, held, blank: true, n_calls: 0 }
    }

    /// Takes more text; the text and the pieces of calls that are ready.
    pub(crate) fn push(&mut self, text: &str) -> (String, Vec<Piece>) {
        self.held.push_str(text);
        // Calls end with one of these, and arguments begin with one. A long call is not to be read again with every token.
        if matches!(self.place, Place::Call { .. }) && !text.contains(['{', '}', ']', '>']) {
            return (String::new(), Vec::new());
        }
        self.read(false)
    }

    /// The text that was held back.
    pub(crate) fn finish(&mut self) -> (String, Vec<Piece>) {
        self.read(true)
    }

    fn read(&mut self, last: bool) -> (String, Vec<Piece>) {
        let (mut text, mut calls) = (String::new(), Vec::new());
        loop {
            let over = !self.parallel && self.n_calls > 0;
            if over && matches!(self.place, Place::Text | Place::Call { .. }) {
                self.held.clear();
                return (text, calls);
            }
            match self.place {
                Place::Text => {
                    let (ready, open) = self.ready(last);
                    let later = self.held.split_off(ready);
                    let now = std::mem::replace(&mut self.held, later);
                    self.blank &= now.trim().is_empty();
                    text.push_str(&now);
                    if !open {
                        if last && self.n_calls > 0 {
                            text.truncate(text.trim_end().len());
                        }
                        return (text, calls);
                    }
                    self.place = Place::Call { inside: false };
                }
                Place::Call { inside } => {
                    let space = self.held.len() - self.held.trim_start().len();
                    let body = &self.held[space..];
                    let sure = self.sure || !self.format.whole || !body.starts_with('{');
                    match (self.format.read)(body, At { inside, last, sure }) {
                        Found::Open if !last => return (text, calls),
                        Found::Call(said, n, more) if self.tool(&said.name).is_some() => {
                            self.held.drain(..space + n);
                            self.n_calls += 1;
                            calls.extend(self.call(said));
                            self.place = if more { Place::Call { inside: true } } else { Place::Text };
                        }
                        Found::Begun(name, n) if self.tool(&name).is_some() => {
                            self.held.drain(..space + n);
                            self.n_calls += 1;
                            calls.push(Piece::Begins { id: id(), name });
                            self.place = Place::Arguments(Scan::default());
                        }
                        _ => {
                            let begins = self.format.begins.iter().filter(|b| body.starts_with(**b));
                            let n = space + begins.map(|b| b.len()).max().unwrap_or(0);
                            text.extend(self.held.drain(..n));
                            self.blank = false;
                            self.place = Place::Text;
                        }
                    }
                }
                Place::Arguments(mut scan) => {
                    let (n, over) = scan.take(&self.held);
                    if n > 0 {
                        calls.push(Piece::Arguments(self.held.drain(..n).collect()));
                    }
                    self.place = if over { Place::Behind } else { Place::Arguments(scan) };
                    if !over {
                        return (text, calls);
                    }
                }
                Place::Behind => {
                    let (n, next) = match (self.format.behind)(&self.held, last) {
                        After::Open if !last => return (text, calls),
                        After::Open => (0, Place::Text),
                        After::Next(n) => (n, Place::Call { inside: true }),
                        After::End(n) => (n, Place::Text),
                        After::Other(n) => {
                            self.blank = false;
                            (n, Place::Text)
                        }
                    };
                    self.held.drain(..n);
                    self.place = next;
                }
            }
        }
    }

    fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.iter().find(|tool| tool.name == name)
    }

    /// A call that comes whole.
    fn call(&self, said: Said) -> [Piece; 2] {
        let Said { name, mut arguments } = said;
        if let Some(tool) = self.tool(&name).filter(|_| self.format.texts) {
            let values = arguments.as_object_mut().into_iter().flatten();
            values.for_each(|(key, value)| qwen::typed(&tool.parameters["properties"][key.as_str()], value));
        }
        [Piece::Begins { id: id(), name }, Piece::Arguments(arguments.to_string())]
    }

    /// The bytes that are text, and whether a call may begin after them.
    fn ready(&self, last: bool) -> (usize, bool) {
        let held = self.held.as_str();
        let body = held.trim_start();
        let begins = self.format.begins;
        if self.format.whole {
            let open = self.blank && begins.iter().any(|b| body.starts_with(b));
            let undecided = self.blank && !last && begins.iter().any(|b| b.starts_with(body));
            let ready = if last { held.len() } else { held.trim_end().len() };
            return (if open || undecided { 0 } else { ready }, open);
        }
        if let Some(at) = begins.iter().filter_map(|b| held.find(b)).min() {
            return (held[..at].trim_end().len(), true);
        }
        if last {
            return (held.len(), false);
        }
        let longest = begins.iter().map(|b| b.len()).max().unwrap_or(0);
        let start = held.len().saturating_sub(longest);
        let starts =
            |at: &usize| held.is_char_boundary(*at) && begins.iter().any(|b| b.starts_with(&held[*at..]));
        let at = (start..held.len()).find(starts).unwrap_or(held.len());
        (held[..at].trim_end().len(), false)
    }
}

/// An id of nine letters and digits, which is what Mistral's templates take.
fn id() -> String {
    const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut random = RandomState::new().build_hasher().finish();
    let mut letter = || {
        let letter = LETTERS[(random % 36) as usize];
        random /= 36;
        char::from(letter)
    };
    (0..9).map(|_| letter()).collect()
}
