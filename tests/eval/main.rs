//! Measurements on fake models, whose scores are known beforehand, and on sessions of a random one; the
//! charts drawn of results.

mod advise;
mod bench;
mod divergence;
mod document;
mod evolve;
mod fakes;
mod longppl;
mod methods;
mod passkey;
mod perplexity;
mod plot;
mod protocol;
mod search;
mod session;
mod stats;
mod suite;

// For `src/eval/divergence/points.rs` in `divergence`, and `src/eval/search/evolve.rs` in `evolve`.
use ropewalk::{eval, model};
