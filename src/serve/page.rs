//! The page at `/`: its files, and the distance map that it shows.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::app::{blocking, App};
use crate::backend::Fault;
use crate::fields::Fields;

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

/// The page may load only its own files, this server's answers, and maps that it already has.
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
    let (plan, n) = app.asked(&mut Fields::query(query)?)?;
    let n_max = app.backend.card().plans[plan].n_max;
    match n.unwrap_or(n_max) {
        n if (1..=n_max).contains(&n) => Ok((plan, n)),
        n => Err(Fault::invalid("n", format_args!("n: expected 1 to {n_max} tokens, found {n}"))),
    }
}
