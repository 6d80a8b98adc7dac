//! `POST /v1/responses`: OpenAI's newer form of a chat, without what a server would have to store.

mod events;
mod request;

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{json, Map, Value};

use self::events::Events;
use crate::answer::{usage, Choice, Part};
use crate::app::{blocking, new_id, App, Caller};
use crate::backend::{Event, Fault};
use crate::calls::Piece;
use crate::completions::{each, prepare, rule};
use crate::error::json_response;
use crate::stream::{begin, count, send, Jobs};
use crate::wire::Stream;

pub(crate) use request::read;

/// Counts the tokens of a request's prompt.
pub(crate) async fn input_tokens(State(app): State<Arc<App>>, body: Bytes) -> Response {
    let for_work = Arc::clone(&app);
    let counted = blocking(move || {
        let messages = read(&body)?.messages;
        let prompt = messages.tokens(&*for_work.backend)?;
        Ok(json!({ "object": "response.input_tokens", "input_tokens": prompt.tokens.len() }))
    });
    app.respond(counted.await.map(|value| json_response(&value)))
}

pub(crate) struct Work {
    answer: Answer,
    jobs: Jobs,
    headers: HeaderMap,
    stream: Option<Stream>,
}

pub(crate) fn work(app: &Arc<App>, caller: Caller, body: &[u8]) -> Result<Work, Fault> {
    let request = read(body)?;
    let (mut common, messages) = (request.common, request.messages);
    prepare(app, caller, &mut common)?;
    let template = app.backend.card().chat_template.as_deref();
    let reader = messages.tools.reader(template, request.form.is_some());
    let prompt = messages.tokens(&*app.backend)?;
    let param = if request.form.is_some() { "text.format" } else { "tools" };
    let shape = messages.tools.shape(template, request.form, prompt.header)?;
    common.job.rule = rule(app, shape, prompt.thinks, param)?;
    common.job.stop.extend(prompt.stop);
    let choice = Choice::new(0, common.job.n_top.is_some(), None, Some((prompt.split)(true)));
    let mut choice = choice.with_calls(reader);
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

pub(crate) async fn run(app: Arc<App>, work: Work) -> Result<Response, Fault> {
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

/// One of the parts of an answer.
struct Item {
    id: String,
    kind: Kind,
    status: &'static str,
    /// The text, or the arguments of a call.
    text: String,
    scores: Vec<Value>,
}

#[derive(PartialEq)]
enum Kind {
    Thinking,
    Text,
    Call { id: String, name: String },
}

impl Item {
    fn object(&self) -> Value {
        let content = if self.status == "in_progress" { Vec::new() } else { vec![self.part()] };
        let (id, status) = (&self.id, self.status);
        match &self.kind {
            Kind::Thinking => {
                json!({ "id": id, "type": "reasoning", "status": status, "summary": [], "content": content })
            }
            Kind::Text => {
                json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
            }
            Kind::Call { id: call, name } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call, "name": name, "arguments": self.text,
            }),
        }
    }

    /// The content; null for a call, which has none.
    fn part(&self) -> Value {
        match self.kind {
            Kind::Thinking => json!({ "type": "reasoning_text", "text": self.text }),
            Kind::Text => {
                json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": self.scores })
            }
            Kind::Call { .. } => Value::Null,
        }
    }

    fn is_call(&self) -> bool {
        matches!(self.kind, Kind::Call { .. })
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

    /// An event about the last item, or about its content if it has some.
    fn tell(&mut self, kind: &str, mut data: Value) {
        if let Some(item) = self.items.last() {
            data["item_id"] = item.id.as_str().into();
            data["output_index"] = (self.items.len() - 1).into();
            if !item.is_call() {
                data["content_index"] = json!(0);
            }
        }
        self.event(kind, data);
    }

    /// Takes what happened to the job.
    fn take(&mut self, app: &App, event: Event) {
        let mut part: Part = self.choice.take(event);
        let mut calls = std::mem::take(&mut part.calls);
        // More of a call comes before what follows it, and a call after the text before it.
        if self.items.last().is_some_and(Item::is_call) {
            self.calls(std::mem::take(&mut calls));
        }
        let mut logprobs = self.choice.logprobs(&part.scores, true, app.backend.as_ref());
        if let Some(text) = part.thinking.take() {
            self.grow(&Kind::Thinking, &text, Vec::new());
        } else if let Some(Value::Array(scores)) = logprobs.get_mut("content").map(Value::take) {
            self.scores.extend(scores);
        }
        if !part.text.is_empty() {
            let scores = std::mem::take(&mut self.scores);
            self.grow(&Kind::Text, &part.text, scores);
        }
        self.calls(calls);
    }

    fn calls(&mut self, pieces: Vec<Piece>) {
        for piece in pieces {
            // Scores are those of texts.
            self.scores.clear();
            match piece {
                Piece::Begins { id, name } => self.add("fc", Kind::Call { id, name }),
                // Of a call that other text has ended.
                Piece::Arguments(text) if !self.items.last().is_some_and(Item::is_call) => {
                    self.grow(&Kind::Text, &text, Vec::new());
                }
                Piece::Arguments(text) => {
                    self.tell("response.function_call_arguments.delta", json!({ "delta": text }));
                    if let Some(item) = self.items.last_mut() {
                        item.text.push_str(&text);
                    }
                }
            }
        }
    }

    /// Ends the last item and begins another one.
    fn add(&mut self, prefix: &str, kind: Kind) {
        self.close("completed");
        let n = self.items.len();
        let id = format!("{prefix}_{}{n:02x}", self.id);
        let item = Item { id, kind, status: "in_progress", text: String::new(), scores: Vec::new() };
        let (object, part) = (item.object(), item.part());
        self.items.push(item);
        self.event("response.output_item.added", json!({ "output_index": n, "item": object }));
        if !part.is_null() {
            self.tell("response.content_part.added", json!({ "part": part }));
        }
    }

    /// Adds to the last item, or to a new one if that is of another kind.
    fn grow(&mut self, kind: &Kind, text: &str, scores: Vec<Value>) {
        let thinks = *kind == Kind::Thinking;
        let mut text = text;
        if self.items.last().is_none_or(|item| item.kind != *kind) {
            let rest = text.trim_start_matches('\n');
            if rest.is_empty() && !text.is_empty() {
                return;
            }
            text = rest;
            let (prefix, kind) = if thinks { ("rs", Kind::Thinking) } else { ("msg", Kind::Text) };
            self.add(prefix, kind);
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
        let (object, part) = (item.object(), item.part());
        match &item.kind {
            Kind::Thinking => self.tell("response.reasoning_text.done", json!({ "text": part["text"] })),
            Kind::Text => {
                let done = json!({ "text": part["text"], "logprobs": part["logprobs"] });
                self.tell("response.output_text.done", done);
            }
            Kind::Call { name, .. } => {
                let done = json!({ "name": name, "arguments": item.text });
                self.tell("response.function_call_arguments.done", done);
            }
        }
        if !part.is_null() {
            self.tell("response.content_part.done", json!({ "part": part }));
        }
        let at = self.items.len() - 1;
        self.event("response.output_item.done", json!({ "output_index": at, "item": object }));
    }

    /// The response when the job is done.
    fn end(&mut self, app: &App) -> Map<String, Value> {
        count(app, &self.choice);
        let complete = self.choice.finish() != "length";
        let status = if complete { "completed" } else { "incomplete" };
        if self.items.is_empty() {
            self.grow(&Kind::Text, "", Vec::new());
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
