//! Measurements on fake models, whose scores are known beforehand, and on sessions of a random one; the
//! charts drawn of results.

mod advise;
mod document;
mod fakes;
mod longppl;
mod passkey;
mod perplexity;
mod plot;
mod protocol;
mod search;
mod session;
mod stats;
mod suite;
