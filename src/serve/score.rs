//! `POST /v1/score`: what each token of a prompt costs, under one plan or two.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::Extension;
use serde_json::{json, Value};

use crate::answer::{about, number, usage, Choice, Part};
use crate::app::{answered, blocking, new_id, App, Caller};
use crate::backend::{Fault, Job};
use crate::completions::checked;
use crate::error::json_response;
use crate::fields::{wrong, Fields};
use crate::stream::{begin, count, Jobs};
use crate::wire::{prompts, Prompt};

/// Plans of one request.
const MAX_PLANS: usize = 2;

/// A request.
pub(crate) struct Request {
    model: Option<String>,
    /// Names of plans; none for the first that fits.
    ropes: Vec<Option<String>>,
    prompt: Prompt,
    add_special: bool,
    reuse: bool,
    salt: String,
}

/// Reads a request.
pub(crate) fn read(body: &[u8]) -> Result<Request, Fault> {
    let mut fields = Fields::parse(body)?;
    fields.refuse("stream", &["false"])?;
    let mut list = match fields.take("prompt") {
        Some(value) => prompts(value)?,
        None => return Err(Fault::invalid("prompt", "prompt: expected a text or tokens, found none")),
    };
    let (Some(prompt), true) = (list.pop(), list.is_empty()) else {
        return Err(Fault::invalid("prompt", "prompt: expected one, found several"));
    };
    let expected = format!("a method's name or a list of 1 to {MAX_PLANS}");
    let ropes = match fields.take("rope") {
        None => vec![None],
        Some(Value::String(name)) => vec![Some(name)],
        Some(Value::Array(list)) if (1..=MAX_PLANS).contains(&list.len()) => {
            let name = |name: &Value| name.as_str().map(|name| Some(name.to_owned()));
            let names = list.iter().map(|value| name(value).ok_or_else(|| wrong("rope", &expected, value)));
            names.collect::<Result<Vec<_>, _>>()?
        }
        Some(other) => return Err(wrong("rope", &expected, &other)),
    };
    Ok(Request {
        model: fields.text("model")?,
        ropes,
        prompt,
        add_special: fields.bool("add_special_tokens")?.unwrap_or(true),
        reuse: fields.bool("cache_prompt")?.unwrap_or(true),
        salt: fields.text("cache_salt")?.unwrap_or_default(),
    })
}

/// Answers a request.
pub(crate) async fn score(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    answered(app, move |app| work(app, caller, &body), run).await
}

struct Work {
    model: Option<String>,
    tokens: Vec<i32>,
    choices: Vec<Choice>,
    jobs: Jobs,
    headers: HeaderMap,
}

fn work(app: &Arc<App>, caller: Caller, body: &[u8]) -> Result<Work, Fault> {
    let request = read(body)?;
    let tokens = match request.prompt {
        Prompt::Text(text) => app.backend.tokenize(&text, request.add_special, true)?,
        Prompt::Tokens(tokens) => tokens,
    };
    checked(app, "prompt", tokens.iter().copied())?;
    if tokens.len() < 2 {
        let what = format!("prompt: expected at least two tokens, found {}", tokens.len());
        return Err(Fault::invalid("prompt", what));
    }
    let job = |rope: &Option<String>| -> Result<Job, Fault> {
        let (model, plan) = app.plan(request.model.as_deref(), rope.as_deref())?;
        Ok(Job {
            prompt: tokens.clone(),
            model,
            plan,
            max_tokens: Some(0),
            echo: Some(0),
            reuse: request.reuse,
            salt: app.salt(caller, request.salt.as_bytes()),
            caller: caller.0,
            ..Job::default()
        })
    };
    let jobs = request.ropes.iter().map(job).collect::<Result<Vec<_>, _>>()?;
    // Each reads the prompt under its own plan, so that each counts.
    let mut choices: Vec<Choice> = (0..jobs.len()).map(|i| Choice::new(i, true, None, None)).collect();
    let (jobs, headers) = begin(app, jobs.into_iter(), &mut choices)?;
    Ok(Work { model: request.model, tokens, choices, jobs, headers })
}

async fn run(app: Arc<App>, work: Work) -> Result<Response, Fault> {
    let Work { model, tokens, mut choices, mut jobs, headers } = work;
    let mut parts: Vec<Part> = choices.iter().map(|_| Part::default()).collect();
    while let Some(next) = jobs.next().await {
        let (i, event) = next?;
        parts[i].add(choices[i].take(event));
    }
    choices.iter().for_each(|choice| count(&app, choice));
    // Numbers of a long prompt take a while to write.
    blocking(move || {
        let card = app.backend.card();
        let costs: Vec<Vec<f64>> = parts.iter().map(costs).collect();
        let of_plan = |(choice, costs): (&Choice, &Vec<f64>)| {
            let plan = card.plans.get(choice.plan);
            let mean = costs.iter().sum::<f64>() / costs.len() as f64;
            json!({
                "rope": plan.map(|plan| &plan.name),
                "spec": plan.map(|plan| &plan.spec),
                "beyond_trained": choice.beyond(card),
                "nll": with_first(costs.iter().copied()),
                "mean": mean,
                "perplexity": mean.exp(),
            })
        };
        let head = app.head(model.as_deref(), false);
        let text = |token: &i32| String::from_utf8_lossy(&app.backend.piece(*token)).into_owned();
        let mut out = json!({
            "id": new_id("score-"),
            "object": "score",
            "created": head.created,
            "model": head.model,
            "token_ids": tokens,
            "tokens": tokens.iter().map(text).collect::<Vec<_>>(),
            "scores": choices.iter().zip(&costs).map(of_plan).collect::<Vec<_>>(),
            "usage": usage(&choices),
            "ropewalk": about(&choices, card),
        });
        if let [first, second] = &costs[..] {
            out["difference"] = with_first(second.iter().zip(first).map(|(b, a)| b - a));
        }
        let mut response = json_response(&out);
        response.headers_mut().extend(headers);
        Ok(response)
    })
    .await
}

/// Negative log-likelihoods of the tokens from the second on, as the completion's `logprobs` have them.
fn costs(part: &Part) -> Vec<f64> {
    let scores = part.scores.iter().filter_map(|(_, score)| score.as_ref());
    scores.map(|score| 0.0 - number(score.logprob).as_f64().unwrap_or(0.0)).collect()
}

/// A list of values of tokens, none of the first.
fn with_first(values: impl Iterator<Item = f64>) -> Value {
    std::iter::once(None).chain(values.map(Some)).map(Value::from).collect()
}
