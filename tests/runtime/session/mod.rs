//! Properties of sessions: different ways to the same state give the same logits, and failed calls leave no trace.

mod decode;
mod equal;
mod generate;
mod limits;
mod many;
mod memory;
mod owned;
mod recurrent;
mod scheduler;
mod sequences;
mod state;
mod step;
mod text;

use std::collections::HashMap;
use std::sync::Mutex;

use ropewalk::model::Model;
// For `src/scheduler/scores.rs` in `scheduler::parts`, where it is of `crate::session`.
use ropewalk::session::Scored;
use ropewalk::DType;

use crate::common::{assert_close, batch_of, distance, load, open, random_model, score, with_kv, KV};

/// Both architectures.
const SHAPES: [&str; 2] = ["llama-tiny", "qwen2-tiny"];

/// A random model, made once.
fn model(shape: &str, dtype: DType) -> &'static Model {
    static MODELS: Mutex<Option<HashMap<(String, DType), &'static Model>>> = Mutex::new(None);
    let mut models = MODELS.lock().unwrap_or_else(|e| e.into_inner());
    models
        .get_or_insert_default()
        .entry((shape.to_owned(), dtype))
        .or_insert_with(|| Box::leak(Box::new(load(&random_model(shape, dtype, "session")))))
}
