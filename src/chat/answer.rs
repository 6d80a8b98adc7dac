//! Splits an answer into thinking and content, as the model's family formats them.
//!
//! Templates expect the two separately in earlier turns: gpt-oss's rejects an answer with its channels, and others
//! would show the model its old thinking as text.
//!
//! ```
//! use ropewalk::chat::answer::{Form, Parts};
//!
//! let template = "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}{% endfor %}";
//! let mut parts = Parts::new(Form::of(template), "<|start|>assistant");
//! parts.push("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hello");
//! let (content, thinking) = parts.finish();
//! assert_eq!((&*content, thinking.as_deref()), ("Hello", Some("Hm.")));
//! ```

use std::collections::HashMap;

use crate::model::Result;
use crate::vocab::Vocab;
use crate::Token;

/// How a family marks the parts of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The answer is the whole text.
    Plain,
    /// `<think>...</think>` before it.
    Think,
    /// `[THINK]...[/THINK]` before it, of Mistral.
    Brackets,
    /// `<|START_THINKING|>...<|END_THINKING|><|START_RESPONSE|>...`, of Cohere.
    Cohere,
    /// `<|channel|>NAME<|message|>...<|end|>`, of gpt-oss.
    Channels,
}

/// Returns true if a template reads the thinking of earlier turns from blocks of the content, as that of Ministral 3
/// does.
pub(super) fn in_blocks(template: &str) -> bool {
    let reads = ["['thinking']", "[\"thinking\"]", ".thinking"];
    Form::of(template) == Form::Brackets
        && !template.contains("reasoning_content")
        && reads.iter().any(|read| template.contains(read))
}

/// A part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The model's thinking.
    Thinking,
    /// The answer to the user.
    Content,
}

/// Where the text goes that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// Nothing but white space has come.
    Start,
    In(Part),
    /// The name of a channel.
    Header,
}

impl Form {
    /// The form of the answers to prompts of a template, by its text.
    pub fn of(template: &str) -> Form {
        let has = |what: &str| template.contains(what);
        if has("<|channel|>") && has("<|message|>") {
            Form::Channels
        } else if has("<|START_RESPONSE|>") || has("<|START_THINKING|>") {
            Form::Cohere
        } else if has("[THINK]") {
            Form::Brackets
        } else if has("<think>") || has("</think>") {
            Form::Think
        } else {
            Form::Plain
        }
    }

    /// The marks between parts, which a vocabulary may have as control tokens.
    pub fn marks(self) -> &'static [&'static str] {
        match self {
            Form::Plain => &[],
            Form::Think => &["<think>", "</think>"],
            Form::Brackets => &["[THINK]", "[/THINK]"],
            Form::Cohere => &[
                "<|START_THINKING|>",
                "<|END_THINKING|>",
                "<|START_RESPONSE|>",
                "<|END_RESPONSE|>",
                "<|START_TEXT|>",
                "<|END_TEXT|>",
            ],
            Form::Channels => &[
                "<|channel|>",
                "<|message|>",
                "<|end|>",
                "<|start|>",
                "<|return|>",
                "<|call|>",
                "<|constrain|>",
            ],
        }
    }
}

/// Those of the marks that a vocabulary has as control tokens. Generated text is without them.
///
/// # Errors
/// Returns the errors of the tokenizer.
pub fn hidden_marks(vocab: &Vocab, marks: &[&'static str]) -> Result<HashMap<Token, &'static str>> {
    let mut out = HashMap::new();
    for mark in marks {
        if let [token] = vocab.tokenize(mark, false, true)?[..] {
            if vocab.piece(token, false)?.is_empty() {
                out.insert(token, *mark);
            }
        }
    }
    Ok(out)
}

/// An answer under way.
#[derive(Debug)]
pub struct Parts {
    form: Form,
    at: At,
    /// Text that may be the beginning of a mark.
    held: String,
    header: String,
    /// Whom the header names before its channel.
    to: Option<String>,
    /// Whether the prompt ends in thinking that is over.
    closed: bool,
    /// Whether calls of functions are content.
    calls: bool,
    /// Whether the last content is a call.
    called: bool,
    thinking: String,
    content: String,
    /// Text that comes with tool calls. It is the content if there is no other.
    aside: String,
}

impl Parts {
    /// An answer that follows a prompt: one that ends in `<think>` has begun the thinking, one that ends in `</think>` has
    /// ended it.
    pub fn new(form: Form, prompt: &str) -> Parts {
        let ends = |mark: Option<&&str>| mark.is_some_and(|mark| prompt.trim_end().ends_with(mark));
        let opens = ends(form.marks().first());
        let closed = matches!(form, Form::Think | Form::Brackets) && ends(form.marks().get(1));
        let at = match form {
            Form::Plain => At::In(Part::Content),
            Form::Channels if prompt.ends_with("<|message|>") => At::In(Part::Content),
            Form::Channels => At::Header,
            _ if opens => At::In(Part::Thinking),
            _ => At::Start,
        };
        let empty = String::new;
        Parts {
            form,
            at,
            held: empty(),
            header: empty(),
            to: None,
            closed,
            calls: false,
            called: false,
            thinking: empty(),
            content: empty(),
            aside: empty(),
        }
    }

    /// The same answer, with the messages of gpt-oss to functions as content, if that is true: each with its header, as
    /// `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>`. They are thinking otherwise.
    #[must_use]
    pub fn with_calls(mut self, calls: bool) -> Parts {
        self.calls = calls;
        self
    }

    /// Takes more text. What of it belongs to a part is returned, to be shown.
    pub fn push(&mut self, text: &str) -> Vec<(Part, String)> {
        self.held.push_str(text);
        let mut shown = Vec::new();
        loop {
            let held = std::mem::take(&mut self.held);
            let found = self.form.marks().iter().filter_map(|mark| Some((held.find(mark)?, *mark))).min();
            let Some((at, mark)) = found else {
                let starts = |n: usize| {
                    held.is_char_boundary(held.len() - n)
                        && self.form.marks().iter().any(|m| m.starts_with(&held[held.len() - n..]))
                };
                let longest =
                    self.form.marks().iter().map(|m| m.len() - 1).max().unwrap_or(0).min(held.len());
                let keep = (1..=longest).rev().find(|n| starts(*n)).unwrap_or(0);
                let (now, later) = held.split_at(held.len() - keep);
                self.text(now, &mut shown);
                self.held = later.to_owned();
                return shown;
            };
            self.text(&held[..at], &mut shown);
            self.mark(mark, &mut shown);
            self.held = held[at + mark.len()..].to_owned();
        }
    }

    fn text(&mut self, text: &str, shown: &mut Vec<(Part, String)>) {
        if text.is_empty() {
            return;
        }
        if self.at == At::Start && !text.trim().is_empty() {
            self.at = At::In(Part::Content);
        }
        match self.at {
            At::Header => self.header.push_str(text),
            At::Start => self.content.push_str(text),
            At::In(part) => {
                match part {
                    Part::Thinking => self.thinking.push_str(text),
                    Part::Content if self.is_aside() => self.aside.push_str(text),
                    Part::Content => self.content.push_str(text),
                }
                shown.push((part, text.to_owned()));
            }
        }
    }

    fn is_aside(&self) -> bool {
        self.form == Form::Channels && self.header.trim_start().starts_with("commentary")
    }

    fn mark(&mut self, mark: &str, shown: &mut Vec<(Part, String)>) {
        let opens = Some(&mark) == self.form.marks().first();
        match self.form {
            Form::Channels => match mark {
                // It may name a function before, after the role.
                "<|channel|>" => {
                    self.to = recipient(&self.header);
                    self.header.clear();
                    self.at = At::Header;
                }
                "<|message|>" => {
                    let to = recipient(&self.header).or_else(|| self.to.take());
                    let function = to.as_deref().and_then(|to| to.strip_prefix("functions."));
                    if let Some(name) = function.filter(|_| self.calls) {
                        let call =
                            format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>");
                        self.at = At::In(Part::Content);
                        self.called = true;
                        return self.text(&call, shown);
                    }
                    let thinks = self.header.trim_start().starts_with("analysis") || to.is_some();
                    self.break_line(if thinks { Part::Thinking } else { Part::Content }, shown);
                    self.at = At::In(if thinks { Part::Thinking } else { Part::Content });
                    self.called &= thinks;
                }
                "<|constrain|>" => {
                    self.header.push(' ');
                    self.at = At::Header;
                }
                _ => {
                    self.header.clear();
                    self.to = None;
                    self.at = At::Header;
                }
            },
            Form::Cohere => match mark {
                "<|START_THINKING|>" => self.at = At::In(Part::Thinking),
                _ => self.at = At::In(Part::Content),
            },
            _ if opens => match self.at {
                At::Start => {
                    self.content.clear();
                    self.at = At::In(Part::Thinking);
                }
                // Of a later one nothing is known: it is text.
                _ => self.text(mark, shown),
            },
            _ => {
                // The thinking began without a mark.
                if !self.closed && self.thinking.is_empty() && self.at != At::In(Part::Thinking) {
                    self.thinking = std::mem::take(&mut self.content);
                } else if self.at == At::In(Part::Content) {
                    return self.text(mark, shown);
                }
                self.at = At::In(Part::Content);
            }
        }
    }

    /// Two messages of one part are two paragraphs.
    fn break_line(&mut self, part: Part, shown: &mut Vec<(Part, String)>) {
        let is_first = match part {
            Part::Thinking => self.thinking.is_empty(),
            // The text after a call is read by itself.
            Part::Content => self.called || self.content.is_empty() && self.aside.is_empty(),
        };
        if !is_first {
            shown.push((part, "\n\n".to_owned()));
        }
        let text = match part {
            Part::Thinking => &mut self.thinking,
            Part::Content if self.is_aside() => &mut self.aside,
            Part::Content => &mut self.content,
        };
        if !text.is_empty() {
            text.push_str("\n\n");
        }
    }

    /// Returns the text that is still held back, to be shown at the end.
    pub fn rest(&mut self) -> Vec<(Part, String)> {
        let (mut shown, held) = (Vec::new(), std::mem::take(&mut self.held));
        self.text(&held, &mut shown);
        shown
    }

    /// The content, and the thinking where there was some.
    pub fn finish(mut self) -> (String, Option<String>) {
        self.rest();
        if self.content.is_empty() {
            self.content = self.aside;
        }
        if self.form == Form::Plain {
            return (self.content, None);
        }
        // Empty lines around the thinking belong to the marks.
        let thinking = self.thinking.trim_matches('\n');
        let thought = self.at != At::Start && !self.thinking.is_empty();
        let content = if thought { self.content.trim_start_matches('\n').to_owned() } else { self.content };
        // Granite's answers may be marked as well.
        let inside = content.trim().strip_prefix("<response>").filter(|_| thought);
        let content = match inside {
            Some(inside) => {
                inside.strip_suffix("</response>").unwrap_or(inside).trim_matches('\n').to_owned()
            }
            None => content,
        };
        (content, (!thinking.trim().is_empty()).then(|| thinking.to_owned()))
    }
}

/// Whom the header of a message names.
fn recipient(header: &str) -> Option<String> {
    header.split_whitespace().find_map(|word| word.strip_prefix("to=")).map(str::to_owned)
}
