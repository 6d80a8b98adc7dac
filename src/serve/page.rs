//! The page at `/`: its files, and the distance map that it shows.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::{blocking, App};
use crate::backend::Fault;
use crate::fields::short;

/// A file of the page.
pub(crate) struct File {
    pub(crate) path: &'static str,
    kind: &'static str,
    text: &'static str,
}

/// The page in files, so that it needs no script and no style inside of the markup, and its policy allows none.
pub(crate) static FILES: [File; 4] = [
    File { path: "/", kind: "text/html; charset=utf-8", text: include_str!("page/page.html") },
    File { path: "/page.css", kind: "text/css; charset=utf-8", text: include_str!("page/page.css") },
    File { path: "/page.js", kind: "text/javascript; charset=utf-8", text: include_str!("page/page.js") },
    File { path: "/page.svg", kind: "image/svg+xml", text: include_str!("page/page.svg") },
];

/// What the page may load: its own files, this server's answers, and maps that it has got already.
const POLICY: &str = "default-src 'self'; img-src 'self' blob:; object-src 'none'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

impl File {
    pub(crate) fn response(&self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, self.kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            // Another version of the program has another page.
            (header::CACHE_CONTROL, "no-cache"),
        ];
        (headers, self.text).into_response()
    }
}

/// `GET /map?rope=SPEC&n=TOKENS`.
pub(crate) async fn map(State(app): State<Arc<App>>, RawQuery(query): RawQuery) -> Response {
    let drawn = match asked(&app, &query.unwrap_or_default()) {
        Ok((plan, n)) => {
            let backend = Arc::clone(&app.backend);
            blocking(move || backend.map(plan, n)).await
        }
        Err(fault) => Err(fault),
    };
    app.respond(drawn.map(|svg| {
        let headers = [
            (header::CONTENT_TYPE, "image/svg+xml"),
            (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        ];
        (headers, svg).into_response()
    }))
}

/// The plan and the number of tokens of a query: without a plan the first with room, without a number all of the plan's.
fn asked(app: &App, query: &str) -> Result<(usize, usize), Fault> {
    let (mut plan, mut n) = (None, None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "rope" => plan = app.plan(None, Some(&value))?.1,
            "n" => {
                n = Some(value.parse::<usize>().map_err(|_| {
                    Fault::invalid("n", format_args!("n: expected tokens, found {}", short(&value)))
                })?);
            }
            _ => {}
        }
    }
    // An adapter changes no distances.
    let card = app.backend.card();
    let plans = &card.plans[..card.plans.len() / (1 + card.adapters.len())];
    let first = || plans.iter().position(|plan| n.is_none_or(|n| n <= plan.n_max)).unwrap_or(plans.len() - 1);
    let plan = plan.unwrap_or_else(first);
    let n_max = plans[plan].n_max;
    match n.unwrap_or(n_max) {
        n if (1..=n_max).contains(&n) => Ok((plan, n)),
        n => Err(Fault::invalid("n", format_args!("n: expected 1 to {n_max} tokens, found {n}"))),
    }
}
