//! `/slots`: what the caches hold of the caller's requests, under llama-server's names, and never a text.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::Extension;
use serde_json::{json, Value};

use crate::answer::ms;
use crate::app::{blocking, App, Caller};
use crate::backend::{Card, Fault, Slot, SlotFile};
use crate::error::{json_response, Refusal};
use crate::fields::{short, Fields};
use crate::stream::stopping;

const ERASE: &str = "erase";
const SAVE: &str = "save";
const ACTIONS: &[&str] = &[SAVE, "restore", ERASE];

/// Lists them.
pub(crate) async fn slots(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let for_work = Arc::clone(&app);
    let list = alone(&app, move || {
        let (backend, owner) = (&for_work.backend, for_work.salt(caller, &[]));
        let slots = backend.slots(&owner);
        Ok(slots.iter().map(|slot| entry(backend.card(), slot)).collect::<Value>())
    });
    app.respond(list.await.map(|list| json_response(&list)))
}

/// Runs what waits for a step, or for the disk, on a thread that may block, one at a time: there are few such threads, and
/// every request needs one. The end of the server does not wait for it.
async fn alone<T: Send + 'static>(
    app: &App,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    let done = async {
        let turn = Arc::clone(&app.slots).acquire_owned().await;
        let work = move || {
            // Also where the client has gone meanwhile.
            let _turn = turn;
            work()
        };
        blocking(work).await
    };
    tokio::select! {
        biased;
        done = done => done,
        () = app.ending() => Err(stopping()),
    }
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
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
    body: Bytes,
) -> Response {
    let action = match Fields::query(uri.query().unwrap_or_default()).and_then(|mut f| f.text("action")) {
        Ok(action) => action,
        Err(fault) => return app.respond(Err(fault)),
    };
    let Some(action) = action.as_deref().and_then(|action| ACTIONS.iter().find(|known| **known == action))
    else {
        let found = action.as_deref().map_or_else(|| "none".to_owned(), short);
        let what = format!("action: expected {}, found {found}", ACTIONS.join(", "));
        return app.respond(Err(Fault::invalid("action", what)));
    };
    if *action != ERASE && !app.backend.card().saves {
        let message = format!("action: {action} is not served: this server keeps nothing on disk");
        let status = StatusCode::NOT_IMPLEMENTED;
        return Refusal::new(status, "not_supported_error", None, &message).into_response();
    }
    // Bytes that are no text are no number either.
    let id = id.map_or_else(|_| String::new(), |Path(id)| id);
    let for_work = Arc::clone(&app);
    let done = alone(&app, move || act(&for_work, caller, &id, action, &body)).await;
    app.respond(done.map(|value| json_response(&value)))
}

fn act(app: &App, caller: Caller, id: &str, action: &str, body: &[u8]) -> Result<Value, Fault> {
    let wrong = || Fault::invalid("id", format_args!("id: expected a slot's number, found {}", short(id)));
    let slot = id.parse::<usize>().map_err(|_| wrong())?;
    let (backend, owner) = (&app.backend, app.salt(caller, &[]));
    if action == ERASE {
        let n = backend.erase(&owner, slot)?;
        return Ok(json!({ "id_slot": slot, "n_erased": n }));
    }
    let mut fields = Fields::parse(body)?;
    let name = fields.text("filename")?;
    let name = name.ok_or_else(|| Fault::invalid("filename", "filename: expected a name, found none"))?;
    let begun = Instant::now();
    if action == SAVE {
        let SlotFile { slot, n_tokens, n_bytes } = backend.save(&owner, slot, &name)?;
        let timings = json!({ "save_ms": ms(begun.elapsed()) });
        return Ok(json!({
            "id_slot": slot, "filename": name, "n_saved": n_tokens, "n_written": n_bytes, "timings": timings,
        }));
    }
    let salt = app.salt(caller, fields.text("cache_salt")?.unwrap_or_default().as_bytes());
    let SlotFile { slot, n_tokens, n_bytes } = backend.restore(&owner, &salt, slot, &name)?;
    let timings = json!({ "restore_ms": ms(begun.elapsed()) });
    Ok(json!({
        "id_slot": slot, "filename": name, "n_restored": n_tokens, "n_read": n_bytes, "timings": timings,
    }))
}
