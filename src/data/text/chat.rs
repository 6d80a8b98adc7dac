//! Conversations and questions with answers, one on each line of JSON Lines, as texts of which all or the answers
//! alone are trained on.
//!
//! A conversation reaches the chat template as it stands, key by key. A key that neither the template nor anybody else
//! would read is an error: what is left out in silence is missed when the model has been trained.

use std::ops::Range;
use std::sync::Arc;

use ropewalk_core::tokenizer::Failure;
use serde_json::{Map, Value};

use super::Record;
use crate::error::{invalid, Error, Result};

mod message;
#[cfg(test)]
mod tests;

pub(super) type Object = Map<String, Value>;

/// Most values in a record: each takes some dozens of bytes, and as few as two in the file.
const MAX_VALUES: usize = 1 << 20;

/// Keys about a record that are no part of it, as published data has them.
#[rustfmt::skip]
const ABOUT: &[&str] = &[
    "id", "idx", "index", "uuid", "uid", "key", "hash", "prompt_id", "conversation_id", "conversation_hash", "source",
    "origin", "dataset", "data_source", "subset", "split", "category", "categories", "task", "task_type", "topic", "domain",
    "tag", "tags", "lang", "language", "license", "url", "model", "model_name", "generator", "timestamp", "created",
    "created_at", "date", "score", "scores", "quality", "rating", "difficulty", "num_turns", "n_turns", "num_tokens",
    "n_tokens", "token_count", "metadata", "meta",
];
/// Most answers of a conversation of which each is a text with what stands before it.
const MAX_APART: usize = 256;

/// Keys of a record that a template gets besides the messages.
const GIVEN: &[&str] = &["tools", "documents"];
/// Names and characters that mark the text of a `{% generation %}` block in a template's output. No text has these
/// characters.
const MARKS: [(&str, char); 2] = [("__begin", '\u{fdd0}'), ("__end", '\u{fdd1}')];
/// Names that a record cannot give a template.
const OURS: &[&str] = &["messages", "add_generation_prompt", "bos_token", "eos_token"];

/// A model's chat template.
pub trait ChatTemplate: Send + Sync + std::fmt::Debug {
    /// The messages, JSON objects, as text; `variables` are what else the template is given, such as `tools`, and `open`
    /// begins the assistant's turn at the text's end.
    ///
    /// # Errors
    /// Messages that the template refuses.
    fn render(
        &self,
        messages: &[Value],
        variables: &Map<String, Value>,
        open: bool,
    ) -> Result<String, Failure>;
    /// The template's own text, by which is known what it reads.
    fn source(&self) -> String;
    /// A hash: templates of the same one render all conversations alike.
    fn fingerprint(&self) -> String;
}

/// Reads the record on a line and gives it to `each`; `name` is the line's, for errors.
///
/// Templates may render an earlier answer otherwise than the last one: without its thinking, or with another end. Where
/// answers are to be told apart, such a conversation is given once for each answer, up to it, as the model writes it.
///
/// # Errors
/// A line of neither form; a key that would be dropped; a conversation without an assistant's turn; a template under
/// which the turns before an answer are not how the conversation up to it begins, so that nobody can tell whose words
/// are whose; those of `each`.
pub(super) fn record(
    name: &str,
    line: &str,
    answers_only: bool,
    template: Option<&dyn ChatTemplate>,
    each: &mut dyn FnMut(Record) -> Result<()>,
) -> Result<()> {
    let n = n_values(line);
    if n > MAX_VALUES {
        return Err(invalid(format!("{name}: expected at most {MAX_VALUES} values in a record, found {n}")));
    }
    let mut object: Object = serde_json::from_str(line).map_err(|e| invalid(format!("{name}: {e}")))?;
    // Tables of records have a null in each column that a record is without.
    object.retain(|_, value| !value.is_null());
    let found = object.keys().take(6).map(|k| format!("{k:?}")).collect::<Vec<_>>().join(", ");
    let mut take = |key: &str| object.remove(key);
    let (messages, prompt, completion) = (take("messages"), take("prompt"), take("completion"));
    let record = Reading { name, answers_only, template, first_answer: 0 };
    match (messages, prompt, completion) {
        (Some(Value::Array(messages)), prompt, None) => {
            // The first question once more, as UltraChat has it.
            let repeated = |p: &Value| messages.iter().any(|m| m.get("content") == Some(p));
            if prompt.is_some_and(|p| !repeated(&p)) {
                return Err(record.dropped("\"prompt\"", "it is in none of the messages"));
            }
            record.conversation(messages, object, each)
        }
        (None, Some(Value::Array(mut messages)), Some(Value::Array(completion))) => {
            let first_answer = messages.len();
            messages.extend(completion);
            Reading { first_answer, ..record }.conversation(messages, object, each)
        }
        (None, Some(Value::String(prompt)), Some(Value::String(completion))) => {
            each(record.pair(prompt, &completion, &object)?)
        }
        _ => Err(invalid(format!(
            "{name}: expected \"messages\", or \"prompt\" and \"completion\", both texts or both lists of messages; \
             found {}",
            if found.is_empty() { "no key" } else { &found }
        ))),
    }
}

/// About how many values a JSON text has: the commas and brackets outside of strings.
fn n_values(json: &str) -> usize {
    let (mut n, mut inside, mut escaped) = (1, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            b',' | b'[' | b'{' if !inside => n += 1,
            _ => {}
        }
    }
    n
}

/// Returns true if a template's text has a name in it.
fn mentions(source: &str, name: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    source.match_indices(name).any(|(at, _)| {
        !part(source[..at].chars().next_back()) && !part(source[at + name.len()..].chars().next())
    })
}

/// Returns true if a value has nothing that could be missed.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        _ => false,
    }
}

struct Reading<'a> {
    name: &'a str,
    answers_only: bool,
    template: Option<&'a dyn ChatTemplate>,
    /// The first message whose words may be an answer.
    first_answer: usize,
}

impl Reading<'_> {
    fn error(&self, what: impl std::fmt::Display) -> Error {
        invalid(format!("{}: {what}", self.name))
    }

    fn dropped(&self, key: &str, why: &str) -> Error {
        self.error(format_args!(
            "{key}: {why}, so it would be left out of training; remove it from the record"
        ))
    }

    /// A prompt and its completion, one text.
    fn pair(&self, prompt: String, completion: &str, rest: &Object) -> Result<Record> {
        if let Some(key) = rest.keys().find(|key| !ABOUT.contains(&key.as_str())) {
            return Err(
                self.dropped(&format!("{key:?}"), "a prompt and its completion are joined as they are")
            );
        }
        let start = prompt.len();
        let text = prompt + completion;
        let answers = self.answers_only.then(|| std::iter::once(start..text.len()).collect());
        Ok(Record { text, special: false, answers, whole: None })
    }

    fn conversation(
        &self,
        messages: Vec<Value>,
        rest: Object,
        each: &mut dyn FnMut(Record) -> Result<()>,
    ) -> Result<()> {
        let template = self.template.ok_or_else(|| self.error("no chat template to render it"))?;
        let source = template.source();
        let variables = self.variables(rest, &source)?;
        let messages: Vec<Value> = messages
            .into_iter()
            .enumerate()
            .map(|(i, m)| self.message(i, m, &source))
            .collect::<Result<_>>()?;
        let render = |n: usize, open| {
            template.render(&messages[..n], &variables, open).map_err(|e| self.error(e.to_string()))
        };
        let text = render(messages.len(), false)?;
        let is_answer = |i: &usize| *i >= self.first_answer && messages[*i]["role"] == "assistant";
        let answers: Vec<usize> = (0..messages.len()).filter(is_answer).collect();
        if answers.is_empty() {
            return Err(self.error("expected a message of the role assistant, found none"));
        }
        if !self.answers_only {
            return each(Record { text, special: true, answers: None, whole: None });
        }
        if mentions(&source, "endgeneration") {
            let ranges = self.marked(&text, &messages, variables.clone(), template)?;
            return each(Record { text, special: true, answers: Some(ranges), whole: None });
        }
        // Where the answers stand in the whole conversation, if they can be told apart there.
        let mut ranges: Vec<Range<usize>> = Vec::new();
        for &i in &answers {
            let at = ranges.last().map_or(0, |range| range.end);
            let Some(range) = answer(&text, i, &render)?.filter(|range| range.start >= at) else { break };
            ranges.push(range);
        }
        if ranges.len() == answers.len() {
            return each(Record { text, special: true, answers: Some(ranges), whole: None });
        }
        if answers.len() > MAX_APART {
            return Err(self.error(format_args!(
                "the chat template renders earlier answers otherwise than the last one, so each of them is a text: expected \
                 at most {MAX_APART} answers, found {}; train on everything",
                answers.len()
            )));
        }
        let whole: Arc<str> = text.into();
        for i in answers {
            let text = render(i + 1, false)?;
            let range = answer(&text, i, &render)?.ok_or_else(|| {
                self.error(format_args!(
                    "message {}: under the chat template a conversation does not begin as its first turns do, so its \
                     answers cannot be told apart; train on everything",
                    i + 1
                ))
            })?;
            each(Record {
                text,
                special: true,
                answers: Some(vec![range]),
                whole: Some(Arc::clone(&whole)),
            })?;
        }
        Ok(())
    }

    /// Returns the answers that the template marks with `{% generation %}`, as transformers'
    /// `return_assistant_tokens_mask` does.
    fn marked(
        &self,
        text: &str,
        messages: &[Value],
        mut variables: Object,
        template: &dyn ChatTemplate,
    ) -> Result<Vec<Range<usize>>> {
        variables.extend(MARKS.map(|(name, mark)| (name.to_owned(), Value::from(mark.to_string()))));
        let render = |n: usize| -> Result<(String, Vec<Range<usize>>)> {
            let marked = template.render(&messages[..n], &variables, false);
            Ok(unmarked(&marked.map_err(|e| self.error(e.to_string()))?))
        };
        let (plain, mut ranges) = render(messages.len())?;
        if plain != text {
            return Err(self.error(
                "the text between {% generation %} and {% endgeneration %} in the chat template cannot be found in what it \
                 renders; train on everything",
            ));
        }
        if self.first_answer > 0 {
            let before = render(self.first_answer)?.1.len();
            ranges.drain(..before.min(ranges.len()));
        }
        if ranges.is_empty() {
            return Err(
                self.error("the chat template's {% generation %} marks no answer here; train on everything")
            );
        }
        Ok(ranges)
    }

    /// Collects the template's variables besides the messages.
    fn variables(&self, rest: Object, source: &str) -> Result<Object> {
        let mut variables = Object::new();
        for (key, value) in rest {
            match key.as_str() {
                "chat_template_kwargs" => match value {
                    Value::Object(more) => variables.extend(more),
                    _ => return Err(self.error(format_args!("{key:?}: expected an object"))),
                },
                _ if GIVEN.contains(&key.as_str()) => {
                    let value = self.list(&key, value)?;
                    variables.insert(key, value);
                }
                _ if ABOUT.contains(&key.as_str()) => {}
                _ => return Err(self.dropped(&format!("{key:?}"), "no part of a conversation")),
            }
        }
        for (key, value) in &variables {
            if OURS.contains(&key.as_str()) {
                return Err(
                    self.error(format_args!("\"chat_template_kwargs\": {key:?} is not the record's to give"))
                );
            }
            if !is_empty(value) && !mentions(source, key) {
                return Err(self.dropped(&format!("{key:?}"), "the model's chat template does not read it"));
            }
        }
        Ok(variables)
    }

    /// A list, or the text of one: columns of tables hold lists of unlike objects as JSON.
    fn list(&self, key: &str, value: Value) -> Result<Value> {
        let value = match value {
            Value::String(text) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
            value => value,
        };
        match value {
            Value::Array(_) => Ok(value),
            _ => Err(self.error(format_args!("{key:?}: expected a list"))),
        }
    }
}

/// A text without its marks, and the places between them.
fn unmarked(text: &str) -> (String, Vec<Range<usize>>) {
    let (mut out, mut ranges, mut start) = (String::with_capacity(text.len()), Vec::new(), None);
    for c in text.chars() {
        match MARKS.iter().position(|(_, mark)| *mark == c) {
            Some(0) => start = Some(out.len()),
            Some(_) => ranges.extend(start.take().map(|start| start..out.len())),
            None => out.push(c),
        }
    }
    (out, ranges)
}

/// Where the answer that is message `i` stands in the rendered conversation: after what opens the assistant's turn, and
/// with what closes it. `None` where the conversation does not begin as its first turns do.
fn answer(
    text: &str,
    i: usize,
    render: &dyn Fn(usize, bool) -> Result<String>,
) -> Result<Option<Range<usize>>> {
    let open = render(i, true)?;
    let start = if text.starts_with(&open) {
        open.len()
    } else {
        // A prompt may open more than an answer begins with: an empty thought. What both have is the prompt's.
        let common = open.char_indices().zip(text.chars()).find(|((_, a), b)| a != b);
        let common = common.map_or(open.len().min(text.len()), |((at, _), _)| at);
        let before = render(i, false)?;
        if !text.starts_with(&before) || common < before.len() {
            return Ok(None);
        }
        common
    };
    let end = render(i + 1, false)?;
    Ok((text.starts_with(&end) && start <= end.len()).then_some(start..end.len()))
}
