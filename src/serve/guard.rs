//! Who may ask: keys, hosts, origins, and the type, size, and speed of bodies.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{header, HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_core::Stream;
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::OwnedSemaphorePermit;

use crate::app::{App, Caller, Options};
use crate::backend::{Fault, FaultKind};
use crate::error::Refusal;
use crate::page::FILES;

/// Time that a wrong key costs.
const WRONG_KEY: Duration = Duration::from_millis(100);

/// Headers that a page of an allowed origin can read.
const SHOWN: &str = "retry-after, x-ropewalk-beyond-trained, x-ropewalk-rope";

/// Every path that is answered, for counts: a bounded set.
const PATHS: &[&str] = &[
    "/",
    "/apply-template",
    "/detokenize",
    "/health",
    "/map",
    "/metrics",
    "/openapi.json",
    "/plan",
    "/props",
    "/selftest",
    "/slots",
    "/tokenize",
    "/tokenizer_info",
    "/v1/chat/completions",
    "/v1/chat/completions/input_tokens",
    "/v1/completions",
    "/v1/health",
    "/v1/models",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/v1/score",
];

/// Passes on the requests that may be answered, with their bodies read.
pub(crate) async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let endpoint = PATHS.iter().find(|known| **known == path).copied().unwrap_or("other");
    let origin = request.headers().get(header::ORIGIN).filter(|origin| listed(&app.options, origin)).cloned();
    let mut response = match admit(&app, request).await {
        Ok(request) if request.method() == Method::OPTIONS => preflight(),
        Ok(request) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(SHOWN));
        headers.insert(header::VARY, HeaderValue::from_static("origin"));
    }
    app.metrics.answered(endpoint, response.status().as_u16());
    response
}

fn listed(options: &Options, origin: &HeaderValue) -> bool {
    options.origin.iter().any(|known| known.as_bytes() == origin.as_bytes())
}

async fn admit(app: &App, request: Request) -> Result<Request, Refusal> {
    let options = &app.options;
    let (mut parts, body) = request.into_parts();
    place(options, &parts.headers)?;
    let path = parts.uri.path();
    // The page shows nothing until it has a key. No body is read without one.
    let shown = path == "/health" || path == "/v1/health" || FILES.iter().any(|file| file.path == path);
    let open = parts.method == Method::OPTIONS || (shown && parts.method != Method::POST);
    let caller = match key(options, &parts.headers) {
        Some(caller) => caller,
        None if open => Caller::default(),
        None => {
            tokio::time::sleep(WRONG_KEY).await;
            let message =
                "expected a key of this server as `Authorization: Bearer KEY`, found none or another";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "authentication_error", None, message));
        }
    };
    parts.extensions.insert(caller);
    if parts.method != Method::POST {
        return Ok(Request::from_parts(parts, Body::empty()));
    }
    let value = |name: HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let kind = value(header::CONTENT_TYPE).and_then(|kind| kind.split(';').next()).unwrap_or("").trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let message = format!("content-type: expected application/json, found {kind:?}");
        return Err(invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, &message));
    }
    if let Some(encoding) = value(header::CONTENT_ENCODING).filter(|e| !e.eq_ignore_ascii_case("identity")) {
        let message = format!("content-encoding: expected none, found {encoding:?}");
        return Err(invalid(StatusCode::UNSUPPORTED_MEDIA_TYPE, &message));
    }
    let length = value(header::CONTENT_LENGTH).and_then(|n| n.parse::<u64>().ok());
    if length.is_some_and(|n| n > options.max_body as u64) {
        return Err(too_large(options));
    }
    let read = tokio::time::timeout(options.body_timeout, read(body, app)).await;
    let bytes = read.unwrap_or_else(|_| {
        let message = format!("body: expected all of it within {:?}", options.body_timeout);
        Err(invalid(StatusCode::REQUEST_TIMEOUT, &message))
    })?;
    Ok(Request::from_parts(parts, Body::from(bytes)))
}

fn invalid(status: StatusCode, message: &str) -> Refusal {
    Refusal::new(status, "invalid_request_error", None, message)
}

fn too_large(options: &Options) -> Refusal {
    let message = format!("body: expected at most {} bytes, found more", options.max_body);
    invalid(StatusCode::PAYLOAD_TOO_LARGE, &message)
}

/// A body, and its share of what all bodies may have until the last one who reads it is done.
struct Held {
    bytes: Vec<u8>,
    shares: Vec<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

async fn read(body: Body, app: &App) -> Result<Bytes, Refusal> {
    let options = &app.options;
    let mut stream = body.into_data_stream();
    let mut held = Held { bytes: Vec::new(), shares: Vec::new() };
    while let Some(part) = poll_fn(|cx| Pin::new(&mut stream).poll_next(cx)).await {
        let part = part.map_err(|e| invalid(StatusCode::BAD_REQUEST, &format!("body: {e}")))?;
        if part.len() > options.max_body - held.bytes.len() {
            return Err(too_large(options));
        }
        let share = u32::try_from(part.len()).ok();
        let share = share.and_then(|n| Arc::clone(&app.bodies).try_acquire_many_owned(n).ok());
        held.shares.push(share.ok_or_else(|| {
            let fault = Fault::new(FaultKind::Busy, "body: expected room for it, found other large ones");
            Refusal::of(&fault, app.backend.card())
        })?);
        held.bytes.extend_from_slice(&part);
    }
    Ok(Bytes::from_owner(held))
}

/// Refuses pages of other origins and, where no key is needed, names that do not mean this machine: a name of
/// somebody else's that resolves to a loopback address makes a page of theirs the same origin.
fn place(options: &Options, headers: &HeaderMap) -> Result<(), Refusal> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
        (Some(host), None) => host,
        _ => return Err(invalid(StatusCode::BAD_REQUEST, "host: expected one host")),
    };
    let known = |name: &str| options.origin.iter().any(|o| after_scheme(o) == Some(name));
    if options.keys.is_empty() && !loopback(host) && !known(host) {
        return Err(forbidden("host", "a loopback name such as localhost", host));
    }
    for origin in headers.get_all(header::ORIGIN) {
        let same = origin.to_str().is_ok_and(|o| after_scheme(o) == Some(host));
        if !same && !listed(options, origin) {
            let found = origin.to_str().unwrap_or("bytes");
            return Err(forbidden("origin", "this server or an allowed origin", found));
        }
    }
    Ok(())
}

fn forbidden(name: &str, expected: &str, found: &str) -> Refusal {
    let message = format!("{name}: expected {expected}, found {found}");
    Refusal::new(StatusCode::FORBIDDEN, "permission_error", None, &message)
}

fn after_scheme(origin: &str) -> Option<&str> {
    origin.split_once("://").map(|(_, host)| host)
}

/// Whether a host, with or without a port, means this machine.
fn loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or(""),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The key that a request has. Every key is compared, whole.
fn key(options: &Options, headers: &HeaderMap) -> Option<Caller> {
    if options.keys.is_empty() {
        return Some(Caller::default());
    }
    let given = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, given) = given.split_at_checked("Bearer ".len())?;
    if !scheme.eq_ignore_ascii_case(b"Bearer ") {
        return None;
    }
    let mut found = (Choice::from(0), 0);
    for (i, key) in options.keys.iter().enumerate() {
        let equal = key.as_bytes().ct_eq(given);
        found = (found.0 | equal, found.1 | (i * usize::from(equal.unwrap_u8())));
    }
    bool::from(found.0).then_some(Caller(found.1))
}

/// The answer to a browser's preflight request, before a page of an allowed origin may post.
fn preflight() -> Response {
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST"),
        // Clients send headers about themselves too. The star stands for all but the key's.
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, *"),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}
