//! HTTP for language models in OpenAI's form.
//!
//! This crate knows no model. A [`Backend`] tokenizes, renders chats, and answers [`Job`]s with [`Event`]s.
#![forbid(unsafe_code)]

mod backend;

pub use backend::{
    Backend, Card, ChatPrompt, Done, Event, Fault, FaultKind, Job, PlanCard, Reason, Sampling, Scored, Split,
    Status, Ticket,
};
