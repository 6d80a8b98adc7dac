//! Errors as OpenAI's clients read them.

use axum::http::{header, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ropewalk_core::terminal::inline;
use serde_json::{json, Value};

use crate::backend::{Card, Fault, FaultKind};

/// Characters of a message; some repeat what a client sent.
const MAX_MESSAGE: usize = 1000;

/// A status and an error object.
pub(crate) struct Refusal {
    status: StatusCode,
    error: Value,
    retry_after: Option<u16>,
}

impl Refusal {
    /// An error that no fault of a backend stands for.
    pub(crate) fn new(status: StatusCode, kind: &str, code: Option<&str>, message: &str) -> Refusal {
        let error = json!({ "message": line(message), "type": kind, "param": null, "code": code });
        Refusal { status, error, retry_after: None }
    }

    /// A fault, with the numbers that clients look for.
    pub(crate) fn of(fault: &Fault, card: &Card) -> Refusal {
        let (status, kind, code) = match fault.kind {
            FaultKind::Invalid => (StatusCode::BAD_REQUEST, "invalid_request_error", None),
            FaultKind::TooLong { .. } => {
                (StatusCode::BAD_REQUEST, "invalid_request_error", Some("context_length_exceeded"))
            }
            FaultKind::NotFound => (StatusCode::NOT_FOUND, "invalid_request_error", Some("model_not_found")),
            FaultKind::Busy => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", Some("queue_full")),
            FaultKind::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "server_error", Some("stopping")),
            FaultKind::Server => (StatusCode::INTERNAL_SERVER_ERROR, "server_error", None),
        };
        let mut refusal = Refusal::new(status, kind, code, &fault.message);
        refusal.error["param"] = json!(fault.param);
        match fault.kind {
            FaultKind::TooLong { n_prompt, n_predict, n_max, plan } => {
                refusal.error["n_prompt_tokens"] = json!(n_prompt);
                refusal.error["max_tokens"] = json!(n_predict);
                refusal.error["n_ctx"] = json!(n_max);
                refusal.error["n_ctx_trained"] = json!(card.n_ctx_train);
                refusal.error["rope"] = json!(card.plans.get(plan).map(|p| &p.name));
            }
            FaultKind::Busy => refusal.retry_after = Some(5),
            FaultKind::Stopping => refusal.retry_after = Some(30),
            _ => {}
        }
        refusal
    }

    /// The error as the data of an event, for a stream that has begun.
    pub(crate) fn event(self) -> Value {
        json!({ "error": self.error })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response = json_response(&json!({ "error": self.error }));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        match status {
            // What ends in a fault is not to be read three times.
            StatusCode::INTERNAL_SERVER_ERROR | StatusCode::NOT_IMPLEMENTED => {
                headers.insert("x-should-retry", HeaderValue::from_static("false"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

/// An answer of status 200.
pub(crate) fn json_response(body: &Value) -> Response {
    json_text(body.to_string())
}

/// The same, of JSON as text.
pub(crate) fn json_text(body: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A text of others in one short line.
pub(crate) fn line(text: &str) -> String {
    let short: String = text.chars().take(MAX_MESSAGE).collect();
    inline(&short).into_owned()
}
