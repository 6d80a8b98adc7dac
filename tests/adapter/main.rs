//! Adapters: what they add to a model, held against libllama, against merged weights and against the model alone.

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod make;
mod merge;
mod run;
