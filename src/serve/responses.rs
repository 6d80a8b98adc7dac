//! `POST /v1/responses`: OpenAI's newer form of a chat, without what a server would have to store.

mod events;

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::Extension;
use serde_json::{json, Map, Value};

use self::events::Events;
use crate::answer::{usage, Choice, Part};
use crate::app::{answered, blocking, new_id, App, Caller};
use crate::backend::{Bit, Event, Fault};
use crate::completions::{each, prepare, rule};
use crate::error::json_response;
use crate::fields::{short, wrong, Fields};
use crate::stream::{begin, count, send, Jobs};
use crate::wire::{common, form, messages, Common, Messages, Stream, MAX_COUNT, MAX_MESSAGES, MAX_TOP};

/// Fields that are known but not served, with the values that ask for nothing.
#[rustfmt::skip]
const NOT_SERVED: &[(&str, &[&str])] = &[
    ("background", &["false"]), ("context_management", &["[]"]), ("conversation", &[]), ("max_tool_calls", &[]),
    ("moderation", &[]), ("n", &["1"]), ("previous_response_id", &[]), ("prompt", &[]), ("prompt_logprobs", &[]),
    ("response_format", &[]), ("return_progress", &["false"]), ("return_token_ids", &["false"]),
    ("service_tier", &["\"auto\"", "\"default\""]), ("store", &["false"]), ("tool_choice", &["\"none\"", "\"auto\""]),
    ("tools", &["[]"]), ("truncation", &["\"disabled\""]),
];

/// The one thing that can be included.
const LOGPROBS: &str = "message.output_text.logprobs";

/// A request, and what the answer repeats of it.
pub(crate) struct Request {
    common: Common,
    messages: Messages,
    /// The JSON that the text is to be.
    form: Option<Bit>,
    repeated: Map<String, Value>,
}

/// Reads a request.
pub(crate) fn read(body: &[u8]) -> Result<Request, Fault> {
    let mut fields = Fields::parse(body)?;
    for (name, neutral) in NOT_SERVED {
        fields.refuse(name, neutral)?;
    }
    let mut repeated = Map::new();
    for name in ["instructions", "max_output_tokens", "temperature", "top_logprobs", "top_p"] {
        repeated.insert(name.to_owned(), fields.peek(name));
    }
    repeated.insert("metadata".to_owned(), fields.object("metadata")?.unwrap_or_default().into());
    repeated.insert("user".to_owned(), fields.text("user")?.into());
    let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    repeated.insert("parallel_tool_calls".to_owned(), parallel.into());
    let reasoning = fields.object("reasoning")?.unwrap_or_default();
    let effort = reasoning.get("effort").cloned().unwrap_or_default();
    if !matches!(effort, Value::Null | Value::String(_)) {
        return Err(wrong("reasoning.effort", "a text", &effort));
    }
    for name in ["summary", "generate_summary"] {
        refuse("reasoning", &reasoning, name, &["\"auto\""])?;
    }
    repeated.insert("reasoning".to_owned(), json!({ "effort": effort, "summary": null }));
    let text = fields.object("text")?.unwrap_or_default();
    refuse("text", &text, "verbosity", &["\"medium\""])?;
    let format = text.get("format").filter(|format| !format.is_null());
    let format = format.cloned().unwrap_or_else(|| json!({ "type": "text" }));
    let form = form("text.format", &format, None)?;
    repeated.insert("text".to_owned(), json!({ "format": format }));

    let scored = included(&mut fields)?;
    let n_top = fields.count("top_logprobs", MAX_TOP)?;
    let max_tokens = fields.count("max_output_tokens", MAX_COUNT)?;
    let list = input(&mut fields)?;
    // From here on it is a chat.
    fields.put("messages", list.into());
    if !effort.is_null() {
        fields.put("reasoning_effort", effort);
    }
    let messages = messages(&mut fields)?;
    let mut common = common(&mut fields)?;
    common.job.n_top = n_top.or(scored.then_some(0));
    common.job.max_tokens = max_tokens.or(common.job.max_tokens);
    Ok(Request { common, messages, form, repeated })
}

/// Refuses a field of an object, unless it asks for nothing.
fn refuse(object: &str, fields: &Map<String, Value>, name: &str, neutral: &[&str]) -> Result<(), Fault> {
    match fields.get(name).filter(|value| !value.is_null()).map(Value::to_string) {
        Some(value) if !neutral.contains(&value.as_str()) => {
            let name = format!("{object}.{name}");
            Err(Fault::invalid(&name, format_args!("{name}: not served yet")))
        }
        _ => Ok(()),
    }
}

/// Whether log-probabilities are asked for.
fn included(fields: &mut Fields) -> Result<bool, Fault> {
    let list = match fields.take("include") {
        None => return Ok(false),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong("include", "a list", &other)),
    };
    match list.iter().find(|name| *name != LOGPROBS) {
        None => Ok(!list.is_empty()),
        Some(Value::String(name)) => {
            let what = format!("include: {} is not served yet", short(name));
            Err(Fault::invalid("include", what))
        }
        Some(other) => Err(wrong("include", "a list of texts", other)),
    }
}

/// The messages of a chat: the instructions, then the items of the input.
fn input(fields: &mut Fields) -> Result<Vec<Value>, Fault> {
    let mut list = Vec::new();
    if let Some(text) = fields.text("instructions")? {
        list.push(json!({ "role": "system", "content": text }));
    }
    let items = match fields.take("input") {
        Some(Value::String(text)) => vec![json!({ "role": "user", "content": text })],
        Some(Value::Array(items)) if (1..MAX_MESSAGES).contains(&items.len()) => items,
        Some(other) => {
            let expected = format!("a text or a list of 1 to {} items", MAX_MESSAGES - 1);
            return Err(wrong("input", &expected, &other));
        }
        None => return Err(Fault::invalid("input", "input: expected a text or items, found none")),
    };
    let mut thought = None;
    for (i, item) in items.into_iter().enumerate() {
        list.extend(message(i, item, &mut thought)?);
    }
    if list.is_empty() {
        return Err(Fault::invalid("input", "input: expected a message, found none"));
    }
    Ok(list)
}

/// An item as a message. Reasoning is none: it goes with the message after it.
fn message(i: usize, item: Value, thought: &mut Option<String>) -> Result<Option<Value>, Fault> {
    let mut item = match item {
        Value::Object(item) => item,
        other => return Err(wrong(&format!("input[{i}]"), "an object", &other)),
    };
    let at = |name: &str| format!("input[{i}].{name}");
    let kind = item.get("type").cloned().unwrap_or_default();
    match kind.as_str() {
        None if kind.is_null() => {}
        Some("message") => {}
        Some("reasoning") => {
            refuse(&format!("input[{i}]"), &item, "encrypted_content", &[])?;
            let content = item.remove("content").filter(|content| !content.is_null());
            *thought = content.map(|content| text(&at("content"), content)).transpose()?;
            return Ok(None);
        }
        Some(name) => {
            let what = format!("{}: {} is not served yet", at("type"), short(name));
            return Err(Fault::invalid(&at("type"), what));
        }
        None => return Err(wrong(&at("type"), "message or reasoning", &kind)),
    }
    let role = item.get("role").cloned().unwrap_or_default();
    if !matches!(role.as_str(), Some("system" | "developer" | "user" | "assistant")) {
        return Err(wrong(&at("role"), "system, developer, user, or assistant", &role));
    }
    let content = text(&at("content"), item.remove("content").unwrap_or_default())?;
    let mut out = json!({ "role": role, "content": content });
    if let Some(thought) = thought.take().filter(|_| role == "assistant") {
        out["reasoning_content"] = thought.into();
    }
    Ok(Some(out))
}

/// A content: a text, or parts of text.
fn text(name: &str, content: Value) -> Result<String, Fault> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        other => return Err(wrong(name, "a text or parts of text", &other)),
    };
    let one = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("input_text" | "output_text" | "reasoning_text" | "text"), Some(text)) => Ok(text.to_owned()),
        _ => Err(wrong(name, "parts of text", part)),
    };
    Ok(parts.iter().map(one).collect::<Result<Vec<_>, _>>()?.join("\n"))
}

/// Answers a request.
pub(crate) async fn responses(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    answered(app, move |app| work(app, caller, &body), run).await
}

/// Counts the tokens of a request's prompt.
pub(crate) async fn input_tokens(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let for_work = Arc::clone(&app);
    let counted = blocking(move || {
        let messages = read(&body)?.messages;
        let prompt = for_work.backend.chat_tokens(&messages.list, &messages.variables, messages.open)?;
        Ok(json!({ "object": "response.input_tokens", "input_tokens": prompt.tokens.len() }))
    });
    app.respond(counted.await.map(|value| json_response(&value)))
}

struct Work {
    answer: Answer,
    jobs: Jobs,
    headers: HeaderMap,
    stream: Option<Stream>,
}

fn work(app: &Arc<App>, caller: Caller, body: &[u8]) -> Result<Work, Fault> {
    let request = read(body)?;
    let (mut common, messages) = (request.common, request.messages);
    prepare(app, caller, &mut common)?;
    let prompt = app.backend.chat_tokens(&messages.list, &messages.variables, messages.open)?;
    let shape = messages.tools.shape(None, request.form, prompt.header)?;
    common.job.rule = rule(app, shape, prompt.thinks, "text.format")?;
    common.job.stop.extend(prompt.stop);
    let mut choice = Choice::new(0, common.job.n_top.is_some(), None, Some((prompt.split)()));
    let jobs = each(&common, &prompt.tokens);
    let (jobs, headers) = begin(app, jobs, std::slice::from_mut(&mut choice))?;
    let (head, id) = (app.head(common.model.as_deref(), true), new_id(""));
    let frame = json!({
        "id": format!("resp_{id}"),
        "object": "response",
        "created_at": head.created,
        "model": head.model,
        "background": false,
        "error": null,
        "incomplete_details": null,
        "previous_response_id": null,
        "store": false,
        "tool_choice": "auto",
        "tools": [],
        "truncation": "disabled",
        "usage": null,
    });
    let mut repeated = request.repeated;
    if let Value::Object(frame) = frame {
        repeated.extend(frame);
    }
    let answer = Answer {
        id,
        repeated,
        choice,
        items: Vec::new(),
        scores: Vec::new(),
        events: VecDeque::new(),
        n_events: 0,
    };
    Ok(Work { answer, jobs, headers, stream: common.stream })
}

async fn run(app: Arc<App>, work: Work) -> Result<Response, Fault> {
    let Work { mut answer, mut jobs, headers, stream } = work;
    let mut response = match stream {
        Some(stream) => {
            for kind in ["response.created", "response.in_progress"] {
                let response = answer.object("in_progress");
                answer.event(kind, json!({ "response": response }));
            }
            send(&app, stream.ping, Events::new(&app, jobs, answer))
        }
        None => {
            let mut events = Vec::new();
            while let Some(next) = jobs.next().await {
                events.push(next?.1);
            }
            // The scores of a long answer take a while to write.
            let whole = blocking(move || {
                for event in events {
                    answer.take(&app, event);
                    answer.events.clear();
                }
                Ok(json_response(&answer.end(&app).into()))
            });
            whole.await?
        }
    };
    response.headers_mut().extend(headers);
    Ok(response)
}

/// Reasoning or text, one of the parts of an answer.
struct Item {
    id: String,
    thinks: bool,
    status: &'static str,
    text: String,
    scores: Vec<Value>,
}

impl Item {
    fn object(&self) -> Value {
        let content = if self.status == "in_progress" { Vec::new() } else { vec![self.part()] };
        let (id, status) = (&self.id, self.status);
        if self.thinks {
            json!({ "id": id, "type": "reasoning", "status": status, "summary": [], "content": content })
        } else {
            json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
        }
    }

    fn part(&self) -> Value {
        if self.thinks {
            json!({ "type": "reasoning_text", "text": self.text })
        } else {
            json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.scores })
        }
    }
}

/// An answer as it grows, and the events that tell of it.
struct Answer {
    id: String,
    repeated: Map<String, Value>,
    choice: Choice,
    items: Vec<Item>,
    /// Scores of tokens whose text was held back.
    scores: Vec<Value>,
    events: VecDeque<Value>,
    n_events: usize,
}

impl Answer {
    /// The response as it is now.
    fn object(&self, status: &str) -> Map<String, Value> {
        let mut out = self.repeated.clone();
        out.insert("status".to_owned(), status.into());
        out.insert("output".to_owned(), self.items.iter().map(Item::object).collect());
        out
    }

    fn event(&mut self, kind: &str, mut data: Value) {
        data["type"] = kind.into();
        data["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        self.events.push_back(data);
    }

    /// An event about the content of the last item.
    fn tell(&mut self, kind: &str, mut data: Value) {
        if let Some(item) = self.items.last() {
            data["item_id"] = item.id.as_str().into();
            data["output_index"] = (self.items.len() - 1).into();
            data["content_index"] = json!(0);
        }
        self.event(kind, data);
    }

    /// Takes what happened to the job.
    fn take(&mut self, app: &App, event: Event) {
        let mut part: Part = self.choice.take(event);
        let mut logprobs = self.choice.logprobs(&part.scores, true, app.backend.as_ref());
        if let Some(text) = part.thinking.take() {
            self.grow(true, &text, Vec::new());
        } else if let Some(Value::Array(scores)) = logprobs.get_mut("content").map(Value::take) {
            self.scores.extend(scores);
        }
        if !part.text.is_empty() {
            let scores = std::mem::take(&mut self.scores);
            self.grow(false, &part.text, scores);
        }
    }

    /// Adds to the last item, or to a new one if that is of the other kind.
    fn grow(&mut self, thinks: bool, text: &str, scores: Vec<Value>) {
        if self.items.last().is_none_or(|item| item.thinks != thinks) {
            self.close("completed");
            let n = self.items.len();
            let id = format!("{}_{}{n:02x}", if thinks { "rs" } else { "msg" }, self.id);
            let item = Item { id, thinks, status: "in_progress", text: String::new(), scores: Vec::new() };
            let (object, part) = (item.object(), item.part());
            self.items.push(item);
            self.event("response.output_item.added", json!({ "output_index": n, "item": object }));
            self.tell("response.content_part.added", json!({ "part": part }));
        }
        if thinks {
            self.tell("response.reasoning_text.delta", json!({ "delta": text }));
        } else {
            self.tell("response.output_text.delta", json!({ "delta": text, "logprobs": scores }));
        }
        if let Some(item) = self.items.last_mut() {
            item.text.push_str(text);
            item.scores.extend(scores);
        }
    }

    /// Ends the last item.
    fn close(&mut self, status: &'static str) {
        let Some(item) = self.items.last_mut() else { return };
        item.status = status;
        let (thinks, object, part) = (item.thinks, item.object(), item.part());
        if thinks {
            self.tell("response.reasoning_text.done", json!({ "text": part["text"] }));
        } else {
            let done = json!({ "text": part["text"], "logprobs": part["logprobs"] });
            self.tell("response.output_text.done", done);
        }
        self.tell("response.content_part.done", json!({ "part": part }));
        let at = self.items.len() - 1;
        self.event("response.output_item.done", json!({ "output_index": at, "item": object }));
    }

    /// The response when the job is done.
    fn end(&mut self, app: &App) -> Map<String, Value> {
        count(app, &self.choice);
        let complete = self.choice.finish() != "length";
        let status = if complete { "completed" } else { "incomplete" };
        if self.items.is_empty() {
            self.grow(false, "", Vec::new());
        }
        self.close(status);
        let mut out = self.object(status);
        if !complete {
            out.insert("incomplete_details".to_owned(), json!({ "reason": "max_output_tokens" }));
        }
        let of_chat = usage(std::slice::from_ref(&self.choice));
        let (prompt, cached) =
            (&of_chat["prompt_tokens"], &of_chat["prompt_tokens_details"]["cached_tokens"]);
        let written = prompt.as_u64().unwrap_or(0).saturating_sub(cached.as_u64().unwrap_or(0));
        let usage = json!({
            "input_tokens": prompt,
            "input_tokens_details": { "cached_tokens": cached, "cache_write_tokens": written },
            "output_tokens": of_chat["completion_tokens"],
            "output_tokens_details": of_chat["completion_tokens_details"],
            "total_tokens": of_chat["total_tokens"],
        });
        out.insert("usage".to_owned(), usage);
        out.insert("ropewalk".to_owned(), self.choice.about(app.backend.card()));
        out.insert("timings".to_owned(), self.choice.timings());
        out
    }
}
