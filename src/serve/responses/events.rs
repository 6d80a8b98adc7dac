//! The body of a stream.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use axum::response::sse;
use serde_json::{json, Value};

use super::Answer;
use crate::app::{blocking, App};
use crate::backend::Fault;
use crate::error::Refusal;
use crate::stream::Jobs;

/// The last events, which repeat all of the answer, while they are written.
type Ending = Pin<Box<dyn Future<Output = VecDeque<sse::Event>> + Send>>;

pub(super) struct Events {
    app: Arc<App>,
    jobs: Jobs,
    /// None after its last event.
    answer: Option<Answer>,
    ending: Option<Ending>,
    ready: VecDeque<sse::Event>,
}

impl Events {
    pub(super) fn new(app: &Arc<App>, jobs: Jobs, mut answer: Answer) -> Events {
        let ready = written(&mut answer);
        Events { app: Arc::clone(app), jobs, answer: Some(answer), ending: None, ready }
    }
}

/// Takes the events of an answer, as text.
fn written(answer: &mut Answer) -> VecDeque<sse::Event> {
    answer.events.drain(..).map(|data| event(&data)).collect()
}

fn event(data: &Value) -> sse::Event {
    sse::Event::default().event(data["type"].as_str().unwrap_or_default()).data(data.to_string())
}

/// A fault in both forms that clients look for.
fn failure(app: &App, fault: &Fault) -> Value {
    let mut error = Refusal::of(fault, app.backend.card()).event();
    for name in ["code", "message", "param"] {
        error[name] = error["error"][name].clone();
    }
    error
}

/// Writes the last events on a thread that may block.
async fn end(app: Arc<App>, mut answer: Answer) -> VecDeque<sse::Event> {
    let (for_work, n_events) = (Arc::clone(&app), answer.n_events);
    let last = blocking(move || {
        let response = answer.end(&for_work);
        let kind = format!("response.{}", response["status"].as_str().unwrap_or_default());
        answer.event(&kind, json!({ "response": response }));
        Ok(written(&mut answer))
    });
    last.await.unwrap_or_else(|fault| {
        let mut error = failure(&app, &fault);
        error["type"] = "error".into();
        error["sequence_number"] = n_events.into();
        VecDeque::from([event(&error)])
    })
}

impl futures_core::Stream for Events {
    type Item = Result<sse::Event, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(event) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(ending) = &mut this.ending {
                this.ready = ready!(ending.as_mut().poll(cx));
                this.ending = None;
                continue;
            }
            let Some(answer) = &mut this.answer else { return Poll::Ready(None) };
            match ready!(this.jobs.poll(cx)) {
                Some(Ok((_, event))) => {
                    answer.take(&this.app, event);
                    this.ready = written(answer);
                }
                Some(Err(fault)) => {
                    answer.event("error", failure(&this.app, &fault));
                    this.ready = written(answer);
                    this.answer = None;
                }
                None => {
                    let Some(answer) = this.answer.take() else { return Poll::Ready(None) };
                    this.ending = Some(Box::pin(end(Arc::clone(&this.app), answer)));
                }
            }
        }
    }
}
