//! `/slots`: what the caches hold of the caller's requests, under llama-server's names, and never a text.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::Extension;
use serde_json::{json, Value};

use crate::app::{blocking, App, Caller};
use crate::backend::{Card, Fault, Slot};
use crate::error::{json_response, Refusal};
use crate::fields::{short, Fields};

/// Lists them.
pub(crate) async fn slots(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let for_work = Arc::clone(&app);
    let list = blocking(move || {
        let (backend, owner) = (&for_work.backend, for_work.salt(caller, &[]));
        let slots = backend.slots(&owner);
        Ok(slots.iter().map(|slot| entry(backend.card(), slot)).collect::<Value>())
    });
    app.respond(list.await.map(|list| json_response(&list)))
}

fn entry(card: &Card, slot: &Slot) -> Value {
    let plan = card.plans.get(slot.plan);
    json!({
        "id": slot.id,
        "id_task": slot.job.map_or(json!(-1), Value::from),
        "is_processing": slot.job.is_some(),
        "n_ctx": plan.map(|plan| plan.n_max),
        "n_past": slot.n_held,
        "n_prompt_tokens": slot.n_prompt,
        "n_prompt_tokens_cache": slot.n_cached,
        "next_token": [{ "n_decoded": slot.n_made }],
        "ropewalk": { "rope": plan.map(|plan| &plan.name) },
    })
}

/// Does what the query asks with one of them.
pub(crate) async fn change(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    uri: Uri,
) -> Response {
    let action = match Fields::query(uri.query().unwrap_or_default()).and_then(|mut f| f.text("action")) {
        Ok(action) => action,
        Err(fault) => return app.respond(Err(fault)),
    };
    match action.as_deref() {
        Some("erase") => {}
        Some(action @ ("save" | "restore")) => {
            let message = format!("action: {action} is not served: a request names no file");
            let status = StatusCode::NOT_IMPLEMENTED;
            return Refusal::new(status, "not_supported_error", None, &message).into_response();
        }
        _ => {
            let found = action.as_deref().map_or_else(|| "none".to_owned(), short);
            let what = format!("action: expected erase, found {found}");
            return app.respond(Err(Fault::invalid("action", what)));
        }
    }
    let for_work = Arc::clone(&app);
    let erased = blocking(move || {
        let wrong =
            || Fault::invalid("id", format_args!("id: expected a slot's number, found {}", short(&id)));
        let slot = id.parse::<usize>().map_err(|_| wrong())?;
        let n = for_work.backend.erase(&for_work.salt(caller, &[]), slot)?;
        Ok(json!({ "id_slot": slot, "n_erased": n }))
    });
    app.respond(erased.await.map(|value| json_response(&value)))
}
