//! Answers as JSON: whole, or in the pieces of a stream.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{json, Map, Value};

use crate::backend::{Backend, Card, Done, Event, Reason, Scored, Split};
use crate::calls::{joined, Call, Piece, Reader};

/// The first fields of an answer.
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) fingerprint: String,
    pub(crate) chat: bool,
}

impl Head {
    /// An object of the answer, without choices.
    pub(crate) fn object(&self, streams: bool) -> Map<String, Value> {
        let kind = match (self.chat, streams) {
            (true, true) => "chat.completion.chunk",
            (true, false) => "chat.completion",
            _ => "text_completion",
        };
        let mut out = Map::new();
        out.insert("id".to_owned(), self.id.as_str().into());
        out.insert("object".to_owned(), kind.into());
        out.insert("created".to_owned(), self.created.into());
        out.insert("model".to_owned(), self.model.as_str().into());
        out.insert("system_fingerprint".to_owned(), self.fingerprint.as_str().into());
        out
    }
}

/// The prompt, where the answer repeats it.
pub(crate) struct Echo {
    pub(crate) text: Arc<str>,
    /// The first token, if tokens are scored.
    pub(crate) first: Option<i32>,
}

/// One of the answers to a request, as far as it has come.
#[derive(Default)]
pub(crate) struct Choice {
    /// The prompt's number.
    prompt: usize,
    /// Whether tokens are scored.
    scored: bool,
    echo: Option<Echo>,
    /// Separates reasoning from text.
    split: Option<Box<dyn Split>>,
    /// Separates calls from text.
    reader: Option<Reader>,
    n_calls: usize,
    pub(crate) plan: usize,
    pub(crate) done: Option<Done>,
    differs_at: Option<usize>,
    because: Option<&'static str>,
    thinks: bool,
    n_thinking: usize,
    /// Characters of the tokens that were shown.
    offset: usize,
    /// Whether tokens are listed by number.
    ids: bool,
    /// The prompt's tokens that are still to be listed.
    prompt_ids: Vec<i32>,
    /// The prompt's scores, if they are apart.
    prompt_scores: Option<Vec<Scored>>,
}

/// More of an answer.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) text: String,
    pub(crate) thinking: Option<String>,
    /// Tokens with their scores; the first of a prompt has none.
    pub(crate) scores: Vec<(i32, Option<Scored>)>,
    /// Made tokens, if they are listed.
    pub(crate) ids: Vec<i32>,
    pub(crate) calls: Vec<Piece>,
}

impl Part {
    /// Whether it has nothing but calls.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.thinking.is_none() && self.scores.is_empty() && self.ids.is_empty()
    }

    pub(crate) fn add(&mut self, part: Part) {
        self.text.push_str(&part.text);
        if let Some(more) = part.thinking {
            self.thinking.get_or_insert_default().push_str(&more);
        }
        self.scores.extend(part.scores);
        self.ids.extend(part.ids);
        self.calls.extend(part.calls);
    }
}

impl Choice {
    pub(crate) fn new(
        prompt: usize,
        scored: bool,
        echo: Option<Echo>,
        split: Option<Box<dyn Split>>,
    ) -> Choice {
        Choice { prompt, scored, echo, split, ..Choice::default() }
    }

    /// Lists tokens by number, the prompt's first, or keeps the prompt's scores apart, as vLLM does.
    pub(crate) fn listing(mut self, ids: bool, prompt: &[i32], scores: bool) -> Choice {
        self.ids = ids;
        if ids {
            self.prompt_ids = prompt.to_vec();
        }
        self.prompt_scores = scores.then(Vec::new);
        self
    }

    /// The choice with calls read out of its text.
    pub(crate) fn with_calls(mut self, reader: Option<Reader>) -> Choice {
        self.reader = reader;
        self
    }

    /// Whether an event adds what is as long as the prompt, and takes a while to write.
    pub(crate) fn is_long(&self, event: &Event) -> bool {
        match event {
            Event::Started { .. } => self.echo.is_some(),
            Event::Scores(_) => true,
            Event::Progress { .. } => false,
            _ => !self.prompt_ids.is_empty(),
        }
    }

    /// Takes an event other than a failure; what it adds to the answer.
    pub(crate) fn take(&mut self, event: Event) -> Part {
        let mut part = Part::default();
        match event {
            Event::Started { differs_at, because, .. } => {
                (self.differs_at, self.because) = (differs_at, because);
                if let Some(echo) = self.echo.take() {
                    part.text = echo.text.to_string();
                    part.scores.extend(echo.first.map(|token| (token, None)));
                }
            }
            Event::Scores(scores) => match &mut self.prompt_scores {
                Some(own) => own.extend(scores),
                None => part.scores.extend(scores.into_iter().map(|s| (s.token, Some(s)))),
            },
            Event::Token { token, text, score } => {
                self.text(&mut part, Some(token), text);
                self.n_thinking += usize::from(self.thinks);
                if self.scored {
                    part.scores.push((token, score));
                }
                if self.ids {
                    part.ids.push(token);
                }
            }
            Event::Text(text) => self.text(&mut part, None, text),
            Event::Done(done) => {
                let rest = self.split.as_mut().map(|split| split.finish());
                self.sort(&mut part, rest.unwrap_or_default());
                if let Some(reader) = &mut self.reader {
                    let (text, calls) = reader.finish();
                    self.said(&mut part, text, calls);
                }
                self.done = Some(done);
            }
            Event::Progress { .. } | Event::Failed(_) => {}
        }
        part
    }

    fn text(&mut self, part: &mut Part, token: Option<i32>, text: String) {
        match &mut self.split {
            Some(split) => {
                let parts = split.push(token, &text);
                self.sort(part, parts);
            }
            None => self.content(part, &text),
        }
    }

    fn content(&mut self, part: &mut Part, text: &str) {
        match &mut self.reader {
            Some(reader) => {
                let (text, calls) = reader.push(text);
                self.said(part, text, calls);
            }
            None => part.text.push_str(text),
        }
    }

    fn said(&mut self, part: &mut Part, text: String, calls: Vec<Piece>) {
        part.text.push_str(&text);
        self.n_calls += n_begun(&calls);
        part.calls.extend(calls);
    }

    fn sort(&mut self, part: &mut Part, parts: Vec<(bool, String)>) {
        for (thinks, text) in parts {
            self.thinks = thinks;
            if thinks && !text.is_empty() {
                part.thinking.get_or_insert_default().push_str(&text);
            } else if !thinks {
                self.content(part, &text);
            }
        }
    }

    /// The choice as an object of a whole answer.
    pub(crate) fn whole(&mut self, i: usize, part: Part, chat: bool, backend: &dyn Backend) -> Value {
        let logprobs = self.logprobs(&part.scores, chat, backend);
        let finish_reason = self.finish();
        if !chat {
            return json!({ "index": i, "text": part.text, "logprobs": logprobs, "finish_reason": finish_reason });
        }
        let mut message = json!({ "role": "assistant", "content": part.text, "refusal": null });
        if let Some(thinking) = part.thinking {
            message["reasoning_content"] = thinking.into();
        }
        if !part.calls.is_empty() {
            if message["content"] == "" {
                message["content"] = Value::Null;
            }
            let call = |call: Call| {
                let function = json!({ "name": call.name, "arguments": call.arguments });
                json!({ "id": call.id, "type": "function", "function": function })
            };
            message["tool_calls"] = joined(part.calls).into_iter().map(call).collect();
        }
        json!({ "index": i, "message": message, "logprobs": logprobs, "finish_reason": finish_reason })
    }

    /// The choice as an object of a piece of a stream.
    pub(crate) fn piece(&mut self, i: usize, part: Part, chat: bool, backend: &dyn Backend) -> Value {
        let logprobs = self.logprobs(&part.scores, chat, backend);
        if !chat {
            return json!({ "index": i, "text": part.text, "logprobs": logprobs, "finish_reason": null });
        }
        let mut delta = Map::new();
        if let Some(thinking) = part.thinking {
            delta.insert("reasoning_content".to_owned(), thinking.into());
        }
        if !part.text.is_empty() || delta.is_empty() {
            delta.insert("content".to_owned(), part.text.into());
        }
        json!({ "index": i, "delta": delta, "logprobs": logprobs, "finish_reason": null })
    }

    /// Adds the numbers of made tokens to a choice's object.
    pub(crate) fn list(&self, ids: Vec<i32>, out: &mut Value) {
        if self.ids {
            out["token_ids"] = ids.into();
        }
    }

    /// Fields about the prompt, listed once.
    pub(crate) fn prompt(&mut self, backend: &dyn Backend) -> Map<String, Value> {
        let mut out = Map::new();
        if !self.prompt_ids.is_empty() {
            out.insert("prompt_token_ids".to_owned(), std::mem::take(&mut self.prompt_ids).into());
        }
        if let Some(scores) = self.prompt_scores.take() {
            let by_number = scores.iter().map(|score| by_number(score, backend));
            let list = std::iter::once(Value::Null).chain(by_number).collect();
            out.insert("prompt_logprobs".to_owned(), list);
        }
        out
    }

    /// The pieces of a stream for the pieces of calls that came last.
    pub(crate) fn called(&self, i: usize, calls: Vec<Piece>) -> Vec<Value> {
        let mut next = self.n_calls - n_begun(&calls);
        let one = |piece: Piece| {
            let call = match piece {
                Piece::Begins { id, name } => {
                    next += 1;
                    let function = json!({ "name": name, "arguments": "" });
                    json!({ "index": next - 1, "id": id, "type": "function", "function": function })
                }
                Piece::Arguments(text) => {
                    json!({ "index": next.saturating_sub(1), "function": { "arguments": text } })
                }
            };
            let delta = json!({ "tool_calls": [call] });
            json!({ "index": i, "delta": delta, "logprobs": null, "finish_reason": null })
        };
        calls.into_iter().map(one).collect()
    }

    /// Why the answer ended, in OpenAI's words, which are a closed set.
    pub(crate) fn finish(&self) -> &'static str {
        match self.done.as_ref().map(|done| done.reason) {
            Some(Reason::End | Reason::Stop) if self.n_calls > 0 => "tool_calls",
            Some(Reason::End | Reason::Stop) => "stop",
            _ => "length",
        }
    }

    /// Log-probabilities in the form of a chat or of a completion; null if the request does not ask for them.
    pub(crate) fn logprobs(
        &mut self,
        scores: &[(i32, Option<Scored>)],
        chat: bool,
        backend: &dyn Backend,
    ) -> Value {
        if !self.scored {
            return Value::Null;
        }
        if chat {
            let content: Vec<Value> =
                scores.iter().map(|(token, score)| in_chat(*token, score, backend)).collect();
            return json!({ "content": content, "refusal": null });
        }
        let (mut tokens, mut values, mut tops, mut offsets) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (token, score) in scores {
            let bytes = backend.piece(*token);
            offsets.push(self.offset);
            // Characters that begin in the token, also where it has only a part of one.
            self.offset += bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count();
            tokens.push(String::from_utf8_lossy(&bytes).into_owned());
            values.push(score.as_ref().map(|score| number(score.logprob)));
            tops.push(score.as_ref().map(|score| top(score, backend)));
        }
        json!({ "tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets })
    }

    /// Whether prompt and answer were longer than the model was trained with.
    pub(crate) fn beyond(&self, card: &Card) -> bool {
        self.done.as_ref().is_some_and(|done| done.n_prompt + done.n_made > card.n_ctx_train)
    }

    /// The object `ropewalk` of an answer.
    pub(crate) fn about(&self, card: &Card) -> Value {
        let plan = card.plans.get(self.plan);
        let Some(done) = &self.done else { return Value::Null };
        let stop = match done.reason {
            Reason::End => "end",
            Reason::Stop => "stop",
            Reason::Length => "length",
            Reason::Context => "context",
            Reason::Cancelled => "cancelled",
        };
        let from = (done.n_cached > 0).then_some(if done.n_restored > 0 { "disk" } else { "memory" });
        json!({
            "rope": plan.map(|p| &p.name),
            "spec": plan.map(|p| &p.spec),
            "n_ctx": plan.map(|p| p.n_max),
            "n_ctx_trained": card.n_ctx_train,
            "beyond_trained": self.beyond(card),
            "stop": stop,
            "cached": { "tokens": done.n_cached, "from": from, "differs_at": self.differs_at },
            "recomputed_because": self.because,
            "queue_ms": ms(done.queue),
            "prefill_ms": ms(done.prefill),
            "decode_ms": ms(done.decode),
            "preempted": done.preempted,
        })
    }

    /// Times under the names that llama-server gives them, which user interfaces read.
    pub(crate) fn timings(&self) -> Value {
        let Some(done) = &self.done else { return Value::Null };
        let n = done.n_prompt - done.n_cached.min(done.n_prompt);
        let each = |n: usize, time: Duration| if n == 0 { 0.0 } else { ms(time) / n as f64 };
        let rate =
            |n: usize, time: Duration| if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() };
        json!({
            "cache_n": done.n_cached,
            "prompt_n": n,
            "prompt_ms": ms(done.prefill),
            "prompt_per_token_ms": each(n, done.prefill),
            "prompt_per_second": rate(n, done.prefill),
            "predicted_n": done.n_made,
            "predicted_ms": ms(done.decode),
            "predicted_per_token_ms": each(done.n_made, done.decode),
            "predicted_per_second": rate(done.n_made, done.decode),
        })
    }
}

/// The calls that begin in these pieces.
fn n_begun(calls: &[Piece]) -> usize {
    calls.iter().filter(|piece| matches!(piece, Piece::Begins { .. })).count()
}

/// The tokens of all choices. A prompt counts once, however many answers it has.
pub(crate) fn usage(choices: &[Choice]) -> Value {
    let (mut prompt, mut cached, mut made, mut thinking) = (0, 0, 0, 0);
    let mut last = None;
    for choice in choices {
        let Some(done) = &choice.done else { continue };
        if last != Some(choice.prompt) {
            last = Some(choice.prompt);
            prompt += done.n_prompt;
            cached += done.n_cached;
        }
        made += done.n_made;
        thinking += choice.n_thinking;
    }
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": { "cached_tokens": cached },
        "completion_tokens_details": { "reasoning_tokens": thinking },
    })
}

/// One object for one choice, else a list.
pub(crate) fn about(choices: &[Choice], card: &Card) -> Value {
    match choices {
        [one] => one.about(card),
        many => many.iter().map(|choice| choice.about(card)).collect(),
    }
}

fn in_chat(token: i32, score: &Option<Scored>, backend: &dyn Backend) -> Value {
    let entry = |token: i32, logprob: f32| {
        let bytes = backend.piece(token);
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": number(logprob), "bytes": bytes })
    };
    let Some(score) = score else { return entry(token, f32::NEG_INFINITY) };
    let mut out = entry(token, score.logprob);
    out["top_logprobs"] = score.top.iter().map(|(token, logprob)| entry(*token, *logprob)).collect();
    out
}

/// The most likely tokens and the token itself by number, with their ranks. That of a token behind these is not known.
fn by_number(score: &Scored, backend: &dyn Backend) -> Value {
    let ranked = score.top.iter().enumerate().map(|(i, (token, logprob))| (*token, *logprob, Some(i + 1)));
    let known = score.top.iter().any(|(token, _)| *token == score.token);
    let own = (!known).then_some((score.token, score.logprob, None));
    let entry = |(token, logprob, rank): (i32, f32, Option<usize>)| {
        let text = String::from_utf8_lossy(&backend.piece(token)).into_owned();
        (token.to_string(), json!({ "logprob": number(logprob), "rank": rank, "decoded_token": text }))
    };
    own.into_iter().chain(ranked).map(entry).collect()
}

/// The most likely tokens and the token itself by text. Of two tokens with the same text, the more likely one counts.
fn top(score: &Scored, backend: &dyn Backend) -> Value {
    let mut out = Map::new();
    let own = (score.token, score.logprob);
    let mut sorted = score.top.clone();
    if !sorted.iter().any(|(token, _)| *token == score.token) {
        sorted.push(own);
    }
    for (token, logprob) in sorted {
        let text = String::from_utf8_lossy(&backend.piece(token)).into_owned();
        let value = number(logprob);
        if out.get(&text).and_then(Value::as_f64) < value.as_f64() {
            out.insert(text, value);
        }
    }
    out.into()
}

/// The shortest decimal that reads as this number. JSON has no infinity: OpenAI writes -9999.
pub(crate) fn number(x: f32) -> Value {
    let decimal = x.to_string().parse::<f64>().ok().filter(|x| x.is_finite());
    decimal.unwrap_or(-9999.0).into()
}

/// Milliseconds, to a thousandth.
pub(crate) fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}
