//! What is served, and how it goes: `/v1/models`, `/health`, `/metrics`, and what is not there.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{header, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{json, Value};

use crate::app::App;
use crate::backend::{Card, Fault, FaultKind, PlanCard};
use crate::error::{json_response, Refusal};
use crate::fields::short;

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
        "notes": plan.notes,
    })
}

pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    json_response(&json!({ "object": "list", "data": entries(app.backend.card()) }))
}

pub(crate) async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let found = entries(app.backend.card()).into_iter().find(|entry| entry["id"] == id.as_str());
    app.respond(found.map(|entry| json_response(&entry)).ok_or_else(|| {
        Fault::new(FaultKind::NotFound, format_args!("model: expected a served one, found {}", short(&id)))
    }))
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

pub(crate) async fn missing() -> Response {
    let message = "expected a path of OpenAI's interface such as /v1/chat/completions, found another";
    Refusal::new(StatusCode::NOT_FOUND, "invalid_request_error", None, message).into_response()
}

pub(crate) async fn wrong_method() -> Response {
    let message = "expected the other of GET and POST";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", None, message).into_response()
}
