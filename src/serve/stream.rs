//! Runs the jobs of a request, and sends their answers: in one piece, or as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::{poll_fn, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, HeaderValue};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::{json, Map, Value};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};

use crate::answer::{about, ms, usage, Choice, Head, Part};
use crate::app::{blocking, App};
use crate::backend::{Event, Fault, FaultKind, Job, Reason};
use crate::error::{json_text, Refusal};
use crate::wire::Stream;

/// Tokens of all prompts of a request, once for each of their answers.
const MAX_TOKENS: usize = 1 << 24;
/// Scores of the tokens of all prompts of a request: about 100 bytes each in an answer, and as many in memory.
const MAX_SCORES: usize = 1 << 22;

/// A request that runs.
pub(crate) struct Work {
    pub(crate) head: Head,
    /// One for each job.
    pub(crate) choices: Vec<Choice>,
    pub(crate) jobs: Jobs,
    pub(crate) headers: HeaderMap,
    pub(crate) stream: Option<Stream>,
}

/// Sends the answers.
pub(crate) async fn run(app: Arc<App>, work: Work) -> Result<Response, Fault> {
    let mut response = match work.stream {
        Some(stream) => streamed(&app, work.jobs, work.head, work.choices, stream),
        None => whole(&app, work.jobs, work.head, work.choices).await?,
    };
    response.headers_mut().extend(work.headers);
    Ok(response)
}

/// Submits a job for each choice, on a thread that may block. Errors that can be known before the first token are returned here,
/// also for streams. The headers say under which plans the jobs run.
pub(crate) fn begin(
    app: &Arc<App>,
    jobs: impl Iterator<Item = Job>,
    choices: &mut [Choice],
) -> Result<(Jobs, HeaderMap), Fault> {
    let (jobs, beyond) = Jobs::submit(app, jobs, choices)?;
    let card = app.backend.card();
    let mut names = Vec::new();
    for plan in choices.iter().filter_map(|choice| card.plans.get(choice.plan)) {
        if !names.contains(&plan.name.as_str()) {
            names.push(plan.name.as_str());
        }
    }
    let mut headers = HeaderMap::new();
    if let Ok(names) = HeaderValue::from_str(&names.join(", ")) {
        headers.insert("x-ropewalk-rope", names);
    }
    let beyond = if beyond { "true" } else { "false" };
    headers.insert("x-ropewalk-beyond-trained", HeaderValue::from_static(beyond));
    Ok((jobs, headers))
}

async fn whole(
    app: &Arc<App>,
    mut jobs: Jobs,
    head: Head,
    mut choices: Vec<Choice>,
) -> Result<Response, Fault> {
    let mut parts: Vec<Part> = choices.iter().map(|_| Part::default()).collect();
    while let Some(next) = jobs.next().await {
        let (i, event) = next?;
        parts[i].add(choices[i].take(event));
    }
    choices.iter().for_each(|choice| count(app, choice));
    // The scores of a long prompt are millions of numbers, and streams go on meanwhile.
    let app = Arc::clone(app);
    blocking(move || Ok(json_text(object(&app, &head, choices, parts)))).await
}

/// A whole answer as JSON. Choices become text one by one: as values, the scores of a hundred are gigabytes.
fn object(app: &App, head: &Head, mut choices: Vec<Choice>, parts: Vec<Part>) -> String {
    let mut out = head.object(false);
    let mut of_prompt = Map::new();
    let one = |(i, (choice, mut part)): (usize, (&mut Choice, Part))| {
        let (ids, mut prompt) = (std::mem::take(&mut part.ids), choice.prompt(app.backend.as_ref()));
        let mut out = choice.whole(i, part, head.chat, app.backend.as_ref());
        choice.list(ids, &mut out);
        // All choices of a chat have one prompt.
        match &mut out {
            Value::Object(out) if !head.chat => out.append(&mut prompt),
            _ => of_prompt.append(&mut prompt),
        }
        out.to_string()
    };
    let texts: Vec<String> = choices.iter_mut().zip(parts).enumerate().map(one).collect();
    out.append(&mut of_prompt);
    out.insert("usage".to_owned(), usage(&choices));
    out.insert("ropewalk".to_owned(), about(&choices, app.backend.card()));
    if let [choice] = &choices[..] {
        out.insert("timings".to_owned(), choice.timings());
    }
    let rest = Value::from(out).to_string();
    format!("{},\"choices\":[{}]}}", &rest[..rest.len() - 1], texts.join(","))
}

/// Counts an answer that is complete.
pub(crate) fn count(app: &App, choice: &Choice) {
    if let Some(done) = &choice.done {
        app.metrics.done(done, choice.plan, choice.beyond(app.backend.card()));
    }
}

fn streamed(app: &Arc<App>, jobs: Jobs, head: Head, choices: Vec<Choice>, stream: Stream) -> Response {
    let begun = vec![false; choices.len()];
    let (queue, since, ping) = (VecDeque::new(), Instant::now(), stream.ping);
    let own = Arc::clone(app);
    let writer = Some(Writer { app: Arc::clone(app), head, choices, stream, begun, since, queue });
    send(app, ping, Events { app: own, jobs, writer, writing: None, finished: false })
}

/// Events as a response, with signs of life as often as a request asks.
pub(crate) fn send<S>(app: &App, ping: Option<u64>, events: S) -> Response
where
    S: futures_core::Stream<Item = Result<sse::Event, Infallible>> + Send + 'static,
{
    let ping = ping.map_or(app.options.ping, Duration::from_secs);
    let events = Sse::new(events);
    let mut response = if ping.is_zero() {
        events.into_response()
    } else {
        events.keep_alive(KeepAlive::new().interval(ping)).into_response()
    };
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A job that runs. Dropping it cancels it.
struct Running {
    app: Arc<App>,
    events: UnboundedReceiver<Event>,
    _guard: Box<dyn Send>,
    since: Instant,
    last: Option<Instant>,
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.app.metrics.cancelled();
        }
    }
}

/// The jobs of a request.
pub(crate) struct Jobs {
    list: Vec<Option<Running>>,
    ending: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// The job to be asked first, so that none is served more often than another.
    first: usize,
}

impl Jobs {
    /// The jobs, and whether one may become longer than the model was trained with. A job is made when those before it were
    /// taken: no prompt that is too long is copied for each answer.
    fn submit(
        app: &Arc<App>,
        jobs: impl Iterator<Item = Job>,
        choices: &mut [Choice],
    ) -> Result<(Jobs, bool), Fault> {
        let card = app.backend.card();
        let (mut list, mut beyond) = (Vec::with_capacity(choices.len()), false);
        let (mut n_tokens, mut n_scores) = (0, 0usize);
        for (job, choice) in jobs.zip(choices) {
            n_tokens += job.prompt.len();
            if n_tokens > MAX_TOKENS {
                let what = format!("n: expected at most {MAX_TOKENS} tokens of all prompts, found more");
                return Err(Fault::invalid("n", what));
            }
            n_scores += job.echo.map_or(0, |n_top| job.prompt.len().saturating_mul(1 + n_top));
            if n_scores > MAX_SCORES {
                let what = format!("n: expected at most {MAX_SCORES} scores of all prompts, found more");
                return Err(Fault::invalid("n", what));
            }
            let (n_prompt, max_tokens) = (job.prompt.len(), job.max_tokens);
            let (sender, events) = unbounded_channel();
            let ticket = app.backend.submit(job, sender)?;
            choice.plan = ticket.plan;
            beyond |= card.plans.get(ticket.plan).is_some_and(|plan| {
                let most = n_prompt.saturating_add(max_tokens.or(plan.n_answer).unwrap_or(usize::MAX));
                most.min(plan.n_max) > card.n_ctx_train
            });
            let (app, since) = (Arc::clone(app), Instant::now());
            list.push(Some(Running { app, events, _guard: ticket.guard, since, last: None, ended: false }));
        }
        Ok((Jobs { list, ending: app.ending(), first: 0 }, beyond))
    }

    /// The next event, with the number of its job; none when all are done.
    pub(crate) async fn next(&mut self) -> Option<Result<(usize, Event), Fault>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// As [`Jobs::next`].
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<(usize, Event), Fault>>> {
        let n = self.list.len();
        let mut waits = false;
        let first = self.first;
        for i in (0..n).map(|k| (first + k) % n) {
            let Some(running) = &mut self.list[i] else { continue };
            let Poll::Ready(event) = running.events.poll_recv(cx) else {
                waits = true;
                continue;
            };
            self.first = i + 1;
            let now = Instant::now();
            running.ended = matches!(event, None | Some(Event::Done(_) | Event::Failed(_)));
            let fault = match &event {
                Some(Event::Token { .. }) => {
                    match running.last.replace(now) {
                        None => running.app.metrics.first(now - running.since),
                        Some(last) => running.app.metrics.gap(now - last),
                    }
                    None
                }
                Some(Event::Done(done)) => {
                    self.list[i] = None;
                    (done.reason == Reason::Cancelled).then(stopping)
                }
                Some(Event::Failed(why)) => Some(Fault::new(FaultKind::Server, why)),
                None => Some(Fault::new(FaultKind::Server, "the answer ended before its time")),
                Some(_) => None,
            };
            return Poll::Ready(match (fault, event) {
                (None, Some(event)) => Some(Ok((i, event))),
                (fault, _) => {
                    self.list.clear();
                    fault.map(Err)
                }
            });
        }
        if !waits {
            return Poll::Ready(None);
        }
        ready!(self.ending.as_mut().poll(cx));
        self.list.clear();
        Poll::Ready(Some(Err(stopping())))
    }
}

pub(crate) fn stopping() -> Fault {
    Fault::new(FaultKind::Stopping, "the server stops")
}

/// A thread that may block, which writes what is long.
type Writing = Pin<Box<dyn Future<Output = Result<Writer, Fault>> + Send>>;

/// The body of a stream.
struct Events {
    app: Arc<App>,
    jobs: Jobs,
    /// None while another thread writes, and after that has failed.
    writer: Option<Writer>,
    writing: Option<Writing>,
    finished: bool,
}

/// Makes data of events.
struct Writer {
    app: Arc<App>,
    head: Head,
    choices: Vec<Choice>,
    stream: Stream,
    /// Whether a choice's first delta was sent.
    begun: Vec<bool>,
    since: Instant,
    /// Data of events that are ready.
    queue: VecDeque<String>,
}

impl Writer {
    fn push(&mut self, choices: Vec<Value>, more: impl FnOnce(&mut Map<String, Value>)) {
        let mut out = self.head.object(true);
        out.insert("choices".to_owned(), choices.into());
        if self.stream.usage {
            out.insert("usage".to_owned(), Value::Null);
        }
        more(&mut out);
        self.queue.push_back(Value::from(out).to_string());
    }

    fn take(&mut self, i: usize, event: Event) {
        if let Event::Progress { done, total } = event {
            if self.stream.progress {
                let time = ms(self.since.elapsed());
                let progress = json!({ "index": i, "total": total, "processed": done, "time_ms": time });
                self.push(Vec::new(), |out| drop(out.insert("prompt_progress".to_owned(), progress)));
            }
            return;
        }
        // With the first token, not earlier: who measures takes the first choice for the end of the prompt.
        let begins = matches!(event, Event::Token { .. } | Event::Text(_) | Event::Done(_));
        let mut part = self.choices[i].take(event);
        let calls = std::mem::take(&mut part.calls);
        if begins && self.head.chat && !std::mem::replace(&mut self.begun[i], true) {
            let delta = json!({ "role": "assistant", "content": "" });
            let mut prompt = self.choices[i].prompt(self.app.backend.as_ref());
            self.push(
                vec![json!({ "index": i, "delta": delta, "logprobs": null, "finish_reason": null })],
                |out| out.append(&mut prompt),
            );
        }
        if !part.is_empty() {
            let (choice, backend) = (&mut self.choices[i], self.app.backend.as_ref());
            let (ids, mut prompt) = (std::mem::take(&mut part.ids), choice.prompt(backend));
            let mut piece = choice.piece(i, part, self.head.chat, backend);
            choice.list(ids, &mut piece);
            if let Value::Object(piece) = &mut piece {
                piece.append(&mut prompt);
            }
            self.push(vec![piece], |_| ());
        }
        for piece in self.choices[i].called(i, calls) {
            self.push(vec![piece], |_| ());
        }
        if self.choices[i].done.is_some() {
            let logprobs = self.choices[i].logprobs(&[], false, self.app.backend.as_ref());
            let choice = &self.choices[i];
            count(&self.app, choice);
            let (reason, about) = (choice.finish(), choice.about(self.app.backend.card()));
            let timings = choice.timings();
            let last = if self.head.chat {
                json!({ "index": i, "delta": {}, "logprobs": null, "finish_reason": reason })
            } else {
                json!({ "index": i, "text": "", "logprobs": logprobs, "finish_reason": reason })
            };
            self.push(vec![last], |out| {
                out.insert("ropewalk".to_owned(), about);
                out.insert("timings".to_owned(), timings);
            });
        }
    }
}

/// The last event of a stream that fails.
fn failure(app: &App, fault: &Fault) -> sse::Event {
    sse::Event::default().data(Refusal::of(fault, app.backend.card()).event().to_string())
}

impl futures_core::Stream for Events {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(writing) = &mut this.writing {
                let written = ready!(writing.as_mut().poll(cx));
                this.writing = None;
                match written {
                    Ok(writer) => this.writer = Some(writer),
                    Err(fault) => return Poll::Ready(Some(Ok(failure(&this.app, &fault)))),
                }
            }
            let Some(writer) = &mut this.writer else { return Poll::Ready(None) };
            if let Some(data) = writer.queue.pop_front() {
                return Poll::Ready(Some(Ok(sse::Event::default().data(data))));
            }
            if this.finished {
                return Poll::Ready(None);
            }
            match ready!(this.jobs.poll(cx)) {
                Some(Ok((i, event))) if writer.choices[i].is_long(&event) => {
                    let Some(mut writer) = this.writer.take() else { return Poll::Ready(None) };
                    this.writing = Some(Box::pin(blocking(move || {
                        writer.take(i, event);
                        Ok(writer)
                    })));
                }
                Some(Ok((i, event))) => writer.take(i, event),
                Some(Err(fault)) => {
                    this.writer = None;
                    return Poll::Ready(Some(Ok(failure(&this.app, &fault))));
                }
                None => {
                    if writer.stream.usage {
                        let total = usage(&writer.choices);
                        writer.push(Vec::new(), |out| drop(out.insert("usage".to_owned(), total)));
                    }
                    writer.queue.push_back("[DONE]".to_owned());
                    this.finished = true;
                }
            }
        }
    }
}
