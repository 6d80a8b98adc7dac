//! HTTP for language models in OpenAI's form: completions, chats, streams, log-probabilities, tokens, metrics.
//!
//! This crate knows no model. A [`Backend`] tokenizes, renders chats, and answers [`Job`]s with [`Event`]s; a [`Server`]
//! checks requests, makes jobs of them, and sends what comes as JSON or as server-sent events.
#![forbid(unsafe_code)]

mod backend;
mod error;
mod fields;
mod calls;
mod metrics;
mod answer;
mod wire;
mod app;
mod page;
mod guard;
mod stream;
mod completions;
mod chat;
mod responses;
mod score;
mod selftest;
mod slots;
mod tokens;
mod models;
mod server;

pub use app::Options;
pub use backend::{
    Backend, Bit, Card, ChatPrompt, Done, Event, Fault, FaultKind, Job, Passkey, PlanCard, Reason, Rule,
    Sampling, Scored, Series, Shape, Slot, SlotFile, Split, Status, Ticket,
};
pub use calls::call_marks;
pub use server::{routes, Server};
pub use wire::MAX_ANSWERS;

/// Whether a body is one that a path such as `/v1/completions` takes, as far as can be said without a model.
///
/// # Errors
/// Returns the first field that is wrong, or that no requests of this path are read.
pub fn check(path: &str, body: &[u8]) -> Result<(), Fault> {
    match path {
        "/v1/completions" => wire::completions(body).map(drop),
        "/v1/chat/completions" => wire::chat(body).map(drop),
        "/v1/responses" => responses::read(body).map(drop),
        "/v1/score" => score::read(body).map(drop),
        "/selftest" => selftest::read(body).map(drop),
        _ => Err(Fault::new(FaultKind::NotFound, "expected a path that takes requests, found another")),
    }
}
