//! `POST /selftest`: whether the model finds passkeys at the lengths that the server promises, under its plans.
//!
//! Other requests go first: a prompt is read while none runs or waits. When one comes, the prompt is set aside.
//! It stays in the cache under a salt that no request has, and is continued from there.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::Extension;
use serde_json::{json, Value};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::app::{blocking, App, Caller};
use crate::backend::{Event, Fault, FaultKind, Job, Passkey, Reason, Sampling};
use crate::error::{json_response, Refusal};
use crate::fields::Fields;
use crate::stream::stopping;

/// The salt of its prompts. Those of requests begin with the length of a key.
const SALT: [u8; 8] = [0xff; 8];
/// Prompts under each plan, and at most.
const SAMPLES: (usize, i64) = (8, 32);
/// Time between two looks at whether other requests run or wait.
const LOOK: Duration = Duration::from_millis(20);
/// Looks at whether the slot of a job that was canceled is free.
const N_LOOKS: usize = 250;

/// A request.
pub(crate) struct Request {
    model: Option<String>,
    rope: Option<String>,
    n: Option<usize>,
    samples: usize,
}

/// Reads a request.
pub(crate) fn read(body: &[u8]) -> Result<Request, Fault> {
    let mut fields = Fields::parse(body)?;
    Ok(Request {
        model: fields.text("model")?,
        rope: fields.text("rope")?,
        n: fields.int("n", 1..=i64::from(i32::MAX))?.map(|n| n as usize),
        samples: fields.int("samples", 1..=SAMPLES.1)?.map_or(SAMPLES.0, |n| n as usize),
    })
}

/// Answers a request.
pub(crate) async fn selftest(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    let Ok(turn) = Arc::clone(&app.selftest).try_acquire_owned() else {
        let message = "selftest: expected none, found one that runs";
        let (status, kind) = (StatusCode::CONFLICT, "invalid_request_error");
        return Refusal::new(status, kind, Some("selftest_running"), message).into_response();
    };
    let (here, gone) = oneshot::channel::<()>();
    let for_work = Arc::clone(&app);
    // Apart from the request: it has to clean up after a client that goes, which drops `here`.
    let work = tokio::spawn(async move {
        let _turn = turn;
        let result = tokio::select! {
            biased;
            result = run(&for_work, caller, body) => result,
            _ = gone => Err(stopping()),
            () = for_work.ending() => Err(stopping()),
        };
        forget(&for_work).await;
        result
    });
    let result = work.await.unwrap_or_else(|_| Err(Fault::new(FaultKind::Server, "the self-test panicked")));
    drop(here);
    app.respond(result.map(|value| json_response(&value)))
}

async fn run(app: &Arc<App>, caller: Caller, body: Bytes) -> Result<Value, Fault> {
    let for_work = Arc::clone(app);
    let (lengths, samples) = blocking(move || asked(&for_work, &body)).await?;
    let mut results = Vec::new();
    for (plan, n) in lengths {
        let for_work = Arc::clone(app);
        let passkeys = blocking(move || for_work.backend.passkeys(n, samples)).await?;
        let mut found = 0;
        for Passkey { prompt, max_tokens, is_found } in passkeys {
            let greedy =
                Sampling { temperature: Some(0.0), repeat_penalty: Some(1.0), ..Sampling::default() };
            let job = Job {
                prompt,
                plan: Some(plan),
                max_tokens: Some(max_tokens),
                sampling: greedy,
                reuse: true,
                salt: SALT.to_vec(),
                caller: caller.0,
                ..Job::default()
            };
            let text = answer(app, &job).await?;
            found += usize::from(is_found(&text));
            // Its text is of no use to requests, and would take the room of those that are.
            forget(app).await;
        }
        let measured = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let rope = app.backend.card().label(plan);
        let result =
            json!({ "rope": rope, "n": n, "found": found, "samples": samples, "measured": measured });
        app.tested.lock().unwrap_or_else(PoisonError::into_inner).insert(plan, result.clone());
        results.push(result);
    }
    Ok(json!({ "object": "selftest", "results": results }))
}

/// The plans of a request, each with the length of its prompts, and how many there are.
fn asked(app: &App, body: &[u8]) -> Result<(Vec<(usize, usize)>, usize), Fault> {
    let Request { model, rope, n, samples } = read(body)?;
    let (model, plan) = app.plan(model.as_deref(), rope.as_deref())?;
    let plans = plan.map_or_else(|| app.of_model(model), |plan| plan..plan + 1);
    let most = |plan: usize| {
        let card = &app.backend.card().plans[plan];
        // One that has no end promises nothing about what left the cache.
        card.n_answer.map_or(card.n_max, |n| n.min(card.n_max))
    };
    let longest = plans.clone().map(most).max().unwrap_or(0);
    let lengths: Vec<(usize, usize)> = plans
        .map(|plan| (plan, n.unwrap_or_else(|| most(plan))))
        .filter(|&(plan, n)| n <= most(plan))
        .collect();
    match n {
        Some(n) if lengths.is_empty() => {
            Err(Fault::invalid("n", format_args!("n: expected at most {longest} tokens, found {n}")))
        }
        _ => Ok((lengths, samples)),
    }
}

/// The answer to a job that runs alone.
async fn answer(app: &Arc<App>, job: &Job) -> Result<String, Fault> {
    loop {
        while running(app)? > 0 {
            sleep(LOOK).await;
        }
        let (sender, mut events) = unbounded_channel();
        let (for_work, job) = (Arc::clone(app), job.clone());
        // Dropping it cancels the job.
        let _ticket = blocking(move || for_work.backend.submit(job, sender)).await?;
        if let Some(text) = listen(app, &mut events).await? {
            return Ok(text);
        }
    }
}

/// The text of a job, or none if another request came.
async fn listen(app: &App, events: &mut UnboundedReceiver<Event>) -> Result<Option<String>, Fault> {
    let mut text = String::new();
    loop {
        let event = tokio::select! {
            biased;
            event = events.recv() => Some(event),
            () = sleep(LOOK) => None,
        };
        match event {
            Some(Some(Event::Token { text: more, .. } | Event::Text(more))) => text.push_str(&more),
            Some(Some(Event::Done(done))) if done.reason == Reason::Cancelled => return Err(stopping()),
            Some(Some(Event::Done(_))) => return Ok(Some(text)),
            Some(Some(Event::Failed(why))) => return Err(Fault::new(FaultKind::Server, why)),
            Some(None) => return Err(Fault::new(FaultKind::Server, "the answer ended before its time")),
            Some(Some(_)) | None => {}
        }
        if running(app)? > 1 {
            return Ok(None);
        }
    }
}

/// Jobs that run or wait, if the server does not stop.
fn running(app: &App) -> Result<usize, Fault> {
    let status = app.backend.status();
    if status.stopping {
        return Err(stopping());
    }
    Ok(status.running + status.waiting)
}

/// Empties what prompts have left in the cache.
async fn forget(app: &Arc<App>) {
    for _ in 0..N_LOOKS {
        let for_work = Arc::clone(app);
        let left = blocking(move || {
            let backend = &for_work.backend;
            for slot in backend.slots(&SALT).iter().filter(|slot| slot.job.is_none()) {
                let _ = backend.erase(&SALT, slot.id);
            }
            // One that was canceled has its slot until the step is done.
            Ok(!backend.slots(&SALT).is_empty())
        });
        if !matches!(left.await, Ok(true)) {
            return;
        }
        sleep(LOOK).await;
    }
}
