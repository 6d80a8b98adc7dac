//! The server as its clients meet it: raw HTTP over sockets, and a model that answers by a rule.

mod adapters;
mod answers;
mod called;
mod calls;
mod client;
mod endings;
mod errors;
mod fake;
mod families;
mod functions;
mod hostile;
mod listed;
mod lm_eval;
mod openapi;
mod page;
mod responses;
mod score;
mod selftest;
mod slots;
mod streams;
