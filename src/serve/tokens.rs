//! Tokens and texts of prompts, without an answer: `/tokenize`, `/detokenize`, `/apply-template`, `/tokenizer_info`,
//! and the length of a chat. Fields are those of llama-server and of vLLM in one object.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde_json::{json, Value};

use crate::app::{blocking, App};
use crate::backend::Fault;
use crate::completions::{checked, text_of};
use crate::error::json_response;
use crate::fields::{wrong, Fields};
use crate::wire::{messages, tokens};

/// Tokens that come with their texts: an object for each.
const MAX_PIECES: usize = 1 << 17;

async fn answer(app: Arc<App>, body: Bytes, work: fn(&App, Fields) -> Result<Value, Fault>) -> Response {
    let for_work = Arc::clone(&app);
    let value = blocking(move || work(&for_work, Fields::parse(&body)?)).await;
    app.respond(value.map(|value| json_response(&value)))
}

pub(crate) async fn tokenize(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(app, body, |app, mut fields| {
        let with_pieces = fields.bool("with_pieces")?.unwrap_or(false);
        // llama-server adds nothing by default, vLLM what the model wants.
        let (special, parse) = (fields.bool("add_special")?, fields.bool("parse_special")?.unwrap_or(true));
        let of_vllm = fields.bool("add_special_tokens")?;
        let found = match fields.first(&["content", "prompt"]) {
            Some((name, Value::String(text))) => {
                let special = of_vllm.or(special).unwrap_or(name == "prompt");
                app.backend.tokenize(&text, special, parse)?
            }
            Some((name, other)) => return Err(wrong(name, "a text", &other)),
            None => {
                let chat = messages(&mut fields)?;
                chat.tokens(&*app.backend)?.tokens
            }
        };
        if with_pieces && found.len() > MAX_PIECES {
            let n = found.len();
            let what = format!("with_pieces: expected a text of at most {MAX_PIECES} tokens, found {n}");
            return Err(Fault::invalid("with_pieces", what));
        }
        let piece = |token: &i32| {
            let bytes = app.backend.piece(*token);
            let piece = String::from_utf8(bytes).map_or_else(|e| json!(e.into_bytes()), Value::from);
            json!({ "id": token, "piece": piece })
        };
        let list = if with_pieces { found.iter().map(piece).collect::<Value>() } else { json!(found) };
        let max = app.backend.card().plans.iter().map(|plan| plan.n_max).max();
        Ok(json!({ "tokens": list, "count": found.len(), "max_model_len": max }))
    })
    .await
}

pub(crate) async fn detokenize(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(app, body, |app, mut fields| {
        let found = match fields.take("tokens") {
            Some(Value::Array(list)) => tokens("tokens", &list)?,
            other => return Err(wrong("tokens", "a list of tokens", &other.unwrap_or_default())),
        };
        checked(app, "tokens", found.iter().copied())?;
        let text = text_of(app, "tokens", &found)?;
        Ok(json!({ "content": text, "prompt": text }))
    })
    .await
}

pub(crate) async fn apply_template(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(app, body, |app, mut fields| {
        let chat = messages(&mut fields)?;
        let text = chat.text(&*app.backend)?;
        Ok(json!({ "prompt": text }))
    })
    .await
}

pub(crate) async fn input_tokens(State(app): State<Arc<App>>, body: Bytes) -> Response {
    answer(app, body, |app, mut fields| {
        let chat = messages(&mut fields)?;
        let prompt = chat.tokens(&*app.backend)?;
        Ok(json!({ "object": "response.input_tokens", "input_tokens": prompt.tokens.len() }))
    })
    .await
}

pub(crate) async fn tokenizer_info(State(app): State<Arc<App>>) -> Response {
    let card = app.backend.card();
    json_response(&json!({
        "bos_token": card.bos,
        "eos_token": card.eos,
        "pad_token": null,
        "chat_template": card.chat_template,
    }))
}
