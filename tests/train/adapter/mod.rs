//! Adapters: what they add to a model, held against libllama, against merged weights and against the model alone.

mod hostile;
mod make;
mod merge;
mod run;
