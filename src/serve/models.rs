//! Models and the state of the server: `/v1/models`, `/props`, `/plan`, `/health`, `/metrics`, and paths that do not exist.

use std::sync::{Arc, PoisonError};

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{header, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use ropewalk_core::rope::ReachView;
use serde_json::{json, Value};

use crate::answer::number;
use crate::app::{blocking, App};
use crate::backend::{Card, Fault, FaultKind, PlanCard};
use crate::error::{json_response, json_text, Refusal};
use crate::fields::{short, Fields};

/// The model and its adapters by their own names, and once for each plan.
fn entries(card: &Card) -> Vec<Value> {
    let entry = |id: String, plans: &[PlanCard]| {
        json!({
            "id": id,
            "object": "model",
            "created": card.created,
            "owned_by": "ropewalk",
            "root": card.id,
            "max_model_len": plans.iter().map(|plan| plan.n_max).max(),
            "meta": {
                "n_ctx_train": card.n_ctx_train,
                "n_params": card.n_params,
                "size": card.n_bytes,
                "n_vocab": card.n_vocab,
                "n_embd": card.n_embd,
            },
            "ropewalk": plans.iter().map(plan).collect::<Value>(),
        })
    };
    let mut entries = Vec::new();
    for (name, plans) in card.models() {
        entries.push(entry(name.to_owned(), plans));
        let named =
            plans.iter().map(|plan| entry(format!("{name}@{}", plan.name), std::slice::from_ref(plan)));
        entries.extend(named);
    }
    entries
}

fn plan(plan: &PlanCard) -> Value {
    json!({
        "rope": plan.name,
        "spec": plan.spec,
        "n_ctx": plan.n_max,
        "beyond_trained": plan.beyond_trained,
        "default_max_tokens": plan.n_answer,
        "notes": plan.notes,
    })
}

pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    json_response(&json!({ "object": "list", "data": entries(app.backend.card()) }))
}

pub(crate) async fn model(State(app): State<Arc<App>>, id: Result<Path<String>, PathRejection>) -> Response {
    // Bytes that are no text are no name either.
    let id = id.map_or_else(|_| String::new(), |Path(id)| id);
    let found = entries(app.backend.card()).into_iter().find(|entry| entry["id"] == id.as_str());
    app.respond(found.map(|entry| json_response(&entry)).ok_or_else(|| {
        Fault::new(FaultKind::NotFound, format_args!("model: expected a served one, found {}", short(&id)))
    }))
}

/// The properties that llama-server lists, under the same names.
pub(crate) async fn props(State(app): State<Arc<App>>) -> Response {
    let card = app.backend.card();
    let own = &card.sampling;
    let params = json!({
        "temperature": own.temperature.map(number),
        "top_k": own.top_k,
        "top_p": own.top_p.map(number),
        "min_p": own.min_p.map(number),
        "typical_p": own.typical_p.map(number),
        "repeat_penalty": own.repeat_penalty.map(number),
        "repeat_last_n": own.repeat_last_n,
        "frequency_penalty": own.frequency_penalty.map(number),
        "presence_penalty": own.presence_penalty.map(number),
        "dry_multiplier": own.dry_multiplier.map(number),
        "dry_base": own.dry_base.map(number),
        "dry_allowed_length": own.dry_allowed_length,
        "dry_penalty_last_n": own.dry_penalty_last_n,
        // A new one each time.
        "seed": own.seed.unwrap_or(u32::MAX),
        "n_predict": -1,
    });
    let n_ctx = card.plans.iter().map(|plan| plan.n_max).max();
    let tested = app.tested.lock().unwrap_or_else(PoisonError::into_inner);
    json_response(&json!({
        "default_generation_settings": { "n_ctx": n_ctx, "params": params },
        "total_slots": card.n_running * card.plans.len(),
        "model_alias": card.id,
        "model_path": card.file,
        "modalities": { "vision": false, "audio": false },
        "chat_template": card.chat_template,
        "bos_token": card.bos,
        "eos_token": card.eos,
        "build_info": card.build,
        "selftest": tested.values().cloned().collect::<Value>(),
        "ropewalk": card.models().next().map(|(_, plans)| plans.iter().map(plan).collect::<Value>()),
    }))
}

/// A plan, and whether a request of so many tokens has room under it.
pub(crate) async fn plan_for(State(app): State<Arc<App>>, uri: Uri) -> Response {
    let for_work = Arc::clone(&app);
    let query = uri.query().unwrap_or_default().to_owned();
    let found = blocking(move || fitting(&for_work, Fields::query(&query)?)).await;
    app.respond(found.map(|value| json_response(&value)))
}

fn fitting(app: &App, mut fields: Fields) -> Result<Value, Fault> {
    let plans = &app.backend.card().plans;
    let (at, n) = app.asked(&mut fields)?;
    let (used, total) = app.backend.status().cells.get(at).copied().unwrap_or_default();
    let n_train = app.backend.card().n_ctx_train;
    let mut out = plan(&plans[at]);
    out["n_ctx_trained"] = n_train.into();
    out["evicts"] = plans[at].evicts.into();
    out["cells"] = json!({ "used": used, "total": total });
    if let Some(n) = n {
        let fits = n <= plans[at].n_max;
        // Where keys leave the cache, its cells are not counted by tokens.
        let counted = !plans[at].evicts && fits;
        let at_once = counted.then(|| (total / n).min(app.backend.card().n_running));
        let reach = if fits { app.backend.reach(at, n)? } else { Vec::new() };
        let of_kind = |(layers, reach): &(Vec<usize>, ReachView)| {
            json!({
                "layers": layers,
                "largest_distance": reach.largest_distance,
                "most_keys": reach.most_keys,
                "branches": reach.branches,
            })
        };
        out["request"] = json!({
            "n": n,
            "fits": fits,
            "beyond_trained": n > n_train,
            "bytes": app.backend.bytes(at, n)?,
            "at_once": at_once,
            "reach": fits.then(|| reach.iter().map(of_kind).collect::<Value>()),
        });
    }
    Ok(out)
}

/// The description of the interface, for programs.
pub(crate) async fn openapi() -> Response {
    json_text(include_str!("openapi.json").to_owned())
}

pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    if app.backend.status().stopping {
        return app.respond(Err(Fault::new(FaultKind::Stopping, "the server stops")));
    }
    json_response(&json!({ "status": "ok" }))
}

pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let text = app.metrics.text(app.backend.card(), &app.backend.status());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

pub(crate) async fn missing(uri: Uri) -> Response {
    let message = format!("{}: not a path of this server; /v1/chat/completions is one", uri.path());
    Refusal::new(StatusCode::NOT_FOUND, "invalid_request_error", None, &message).into_response()
}

pub(crate) async fn wrong_method(method: Method, uri: Uri) -> Response {
    let message = format!("{} {}: this path has another method, GET or POST", method, uri.path());
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", None, &message).into_response()
}
