//! `POST /v1/score`: what each token of a prompt costs, under one plan or two, and which tokens need the long context.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::response::Response;
use ropewalk_core::longppl::{key_tokens, Params};
use serde_json::{json, Map, Value};

use crate::answer::{about, number, usage, Choice, Part};
use crate::app::{blocking, new_id, App, Caller};
use crate::backend::{Backend, Fault, Job};
use crate::completions::checked;
use crate::error::json_response;
use crate::fields::{short, token, wrong, Fields};
use crate::stream::{begin, count, Jobs};
use crate::wire::{prompts, Prompt, MAX_ANSWERS};

/// Plans of one request.
const MAX_PLANS: usize = 2;

/// A request.
pub(crate) struct Request {
    model: Option<String>,
    /// Names of plans; none for the first that fits.
    ropes: Vec<Option<String>>,
    prompt: Prompt,
    add_special: bool,
    longppl: Option<Params>,
    reuse: bool,
    salt: String,
}

/// Reads a request.
pub(crate) fn read(body: &[u8]) -> Result<Request, Fault> {
    let mut fields = Fields::parse(body)?;
    fields.refuse("stream", &["false"])?;
    fields.refuse("lora", &["[]"])?;
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
        longppl: longppl(&mut fields)?,
        reuse: fields.bool("cache_prompt")?.unwrap_or(true),
        salt: fields.text("cache_salt")?.unwrap_or_default(),
    })
}

/// The criteria of key tokens, if a request asks for them.
fn longppl(fields: &mut Fields) -> Result<Option<Params>, Fault> {
    const NAME: &str = "longppl";
    let given = match fields.take(NAME) {
        None | Some(Value::Bool(false)) => return Ok(None),
        Some(Value::Bool(true)) => Map::new(),
        Some(Value::Object(given)) => given,
        Some(other) => return Err(wrong(NAME, "true, false, or an object", &other)),
    };
    let mut params = Params::default();
    for (name, value) in given.iter().filter(|(_, value)| !value.is_null()) {
        let param = format!("{NAME}.{}", short(name));
        let count = || {
            let n = token(value).filter(|n| *n > 0).map(|n| n as usize);
            n.ok_or_else(|| wrong(&param, "a whole number of at least 1", value))
        };
        let nats = || value.as_f64().ok_or_else(|| wrong(&param, "a number", value));
        match name.as_str() {
            "trunc_len" => params.trunc_len = count()?,
            "sliding_window" => params.sliding_window = count()?,
            "alpha" => params.alpha = nats()?,
            "beta" => params.beta = nats()?,
            _ => {
                let what = "expected trunc_len, sliding_window, alpha, or beta, found another";
                return Err(Fault::invalid(&param, format_args!("{param}: {what}")));
            }
        }
    }
    Ok(Some(params))
}

pub(crate) struct Work {
    model: Option<String>,
    tokens: Vec<i32>,
    longppl: Option<Params>,
    /// The parts of the prompt that are also read alone, under each plan.
    parts: Vec<Range<usize>>,
    /// One for each plan, then the parts of each.
    choices: Vec<Choice>,
    jobs: Jobs,
    headers: HeaderMap,
}

pub(crate) fn work(app: &Arc<App>, caller: Caller, body: &[u8]) -> Result<Work, Fault> {
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
    let parts = match &request.longppl {
        Some(params) => parts(params, tokens.len(), request.ropes.len())?,
        None => Vec::new(),
    };
    // A part is read under the plan of the whole prompt, which needs more room.
    let plan = |rope: &Option<String>| -> Result<(usize, Option<usize>), Fault> {
        let (model, plan) = app.plan(request.model.as_deref(), rope.as_deref())?;
        Ok((model, plan.or_else(|| app.first(model, tokens.len()))))
    };
    let plans = request.ropes.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
    let salt = app.salt(caller, request.salt.as_bytes());
    let job = &|(model, plan): (usize, Option<usize>), part: Range<usize>| Job {
        reuse: request.reuse && part.len() == tokens.len(),
        // A short context is of no use to later requests, and would take the room of texts that are.
        forget: part.len() < tokens.len(),
        prompt: tokens[part].to_vec(),
        model,
        plan,
        max_tokens: Some(0),
        echo: Some(0),
        salt: salt.clone(),
        caller: caller.0,
        ..Job::default()
    };
    // Each reads its prompt under its own plan, so that each counts.
    let n = plans.len() * (1 + parts.len());
    let mut choices: Vec<Choice> = (0..n).map(|i| Choice::new(i, true, None, None)).collect();
    let whole = plans.iter().map(|&plan| job(plan, 0..tokens.len()));
    let short = plans.iter().flat_map(|&plan| parts.iter().map(move |part| job(plan, part.clone())));
    let (jobs, headers) = begin(app, whole.chain(short), &mut choices)?;
    let (model, longppl) = (request.model, request.longppl);
    Ok(Work { model, tokens, longppl, parts, choices, jobs, headers })
}

/// The short contexts of a prompt that is read under so many plans, if they are few enough for a request.
fn parts(params: &Params, n: usize, n_plans: usize) -> Result<Vec<Range<usize>>, Fault> {
    // The whole prompt is read as well.
    let most = MAX_ANSWERS / n_plans - 1;
    let parts: Vec<Range<usize>> = params.short_contexts(n).take(most + 1).collect();
    let what = match parts.len() {
        0 => {
            let least = params.trunc_len.saturating_add(params.sliding_window);
            format!("longppl: expected a prompt of more than trunc_len + sliding_window tokens ({least}), found {n}")
        }
        found if found > most => format!(
            "longppl: expected a sliding_window for at most {most} short contexts, found {}",
            params.sliding_window
        ),
        _ => return Ok(parts),
    };
    Err(Fault::invalid("longppl", what))
}

pub(crate) async fn run(app: Arc<App>, work: Work) -> Result<Response, Fault> {
    let Work { model, tokens, longppl, parts, mut choices, mut jobs, headers } = work;
    let mut answers: Vec<Part> = choices.iter().map(|_| Part::default()).collect();
    while let Some(next) = jobs.next().await {
        let (i, event) = next?;
        answers[i].add(choices[i].take(event));
    }
    choices.iter().for_each(|choice| count(&app, choice));
    // Numbers of a long prompt take a while to write.
    blocking(move || {
        let card = app.backend.card();
        let costs: Vec<Vec<f64>> = answers.iter().map(costs).collect();
        let (whole, short) = costs.split_at(costs.len() / (1 + parts.len()));
        let of_plan = |(i, (choice, costs)): (usize, (&Choice, &Vec<f64>))| {
            let plan = card.plans.get(choice.plan);
            let mean = costs.iter().sum::<f64>() / costs.len() as f64;
            let mut out = json!({
                "rope": plan.map(|plan| &plan.name),
                "spec": plan.map(|plan| &plan.spec),
                "beyond_trained": choice.beyond(card),
                "nll": with_first(costs.iter().copied()),
                "mean": mean,
                "perplexity": mean.exp(),
            });
            if let Some(params) = &longppl {
                let parts = parts.iter().zip(short.iter().skip(i * parts.len()));
                out["longppl"] = of_keys(app.backend.as_ref(), params, &tokens, costs, parts);
            }
            out
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
            "scores": choices.iter().zip(whole).enumerate().map(of_plan).collect::<Vec<_>>(),
            "usage": usage(&choices),
            "ropewalk": about(&choices[..whole.len()], card),
        });
        if let [first, second] = whole {
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

/// The perplexity of the tokens that need the long context, and which these are, out of the costs of the tokens from the second
/// on: in the whole prompt, and in its parts.
fn of_keys<'a>(
    backend: &dyn Backend,
    params: &Params,
    tokens: &[i32],
    costs: &[f64],
    parts: impl Iterator<Item = (&'a Range<usize>, &'a Vec<f64>)>,
) -> Value {
    let mut short = vec![None; tokens.len()];
    for (part, costs) in parts {
        // The first token of a part has no cost.
        let scored = costs.iter().skip(params.trunc_len - 1);
        for (short, cost) in short.iter_mut().skip(part.start + params.trunc_len).zip(scored) {
            *short = Some(*cost);
        }
    }
    let full = std::iter::once(0.0).chain(costs.iter().copied());
    let is_key = |(short, full): (&Option<f64>, f64)| short.is_some_and(|short| params.is_key(short, full));
    let is_key: Vec<bool> = short.iter().zip(full).map(is_key).collect();
    let pieces = tokens.iter().map(|token| Ok::<_, Infallible>(backend.piece(*token)));
    let Ok(mut keys) = key_tokens(&is_key, pieces);
    // Nothing predicts the first token.
    keys.retain(|key| *key > 0);
    let of_key: Vec<f64> = keys.iter().filter_map(|key| costs.get(key - 1).copied()).collect();
    let nll = (!of_key.is_empty()).then(|| of_key.iter().sum::<f64>() / of_key.len() as f64);
    json!({ "longppl": nll.map(f64::exp), "nll": nll, "key_tokens": keys.len(), "at": keys, "short": short })
}

/// A list of values of tokens, none of the first.
fn with_first(values: impl Iterator<Item = f64>) -> Value {
    std::iter::once(None).chain(values.map(Some)).map(Value::from).collect()
}
