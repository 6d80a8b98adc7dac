//! Measurements on fake models, whose scores are known beforehand, and the charts drawn of results.

mod document;
mod fakes;
mod passkey;
mod perplexity;
mod plot;
mod protocol;
