//! Models: what `Model::load` accepts runs.

use std::path::Path;

use ropewalk::model::{Model, ModelParams, Result};
use ropewalk::session::{Batch, Session, SessionParams};
use ropewalk::DType;

use crate::{accepted, file, model_bytes, small};

/// Loads the model and computes a few tokens.
pub fn run(bytes: &[u8]) -> bool {
    accepted(compute(&file("in.gguf", bytes)))
}

fn compute(path: &Path) -> Result<()> {
    let model = Model::load(path, &ModelParams::cpu())?;
    let params = SessionParams::new(32).n_threads(1).n_ubatch(8);
    let mut session = Session::new(&model, &params)?;
    let mut batch = Batch::new();
    for &token in model.vocab().tokenize("A rope walk.", true, true)?.iter().take(8) {
        batch.push(token, 0, true);
    }
    session.decode(&batch)?;
    Ok(())
}

/// A small model of each architecture.
pub fn seeds() -> Vec<Vec<u8>> {
    let shapes = ["llama-tiny", "qwen2-tiny", "qwen3-tiny", "smollm3-tiny"];
    shapes.map(|name| model_bytes(&small(name), DType::Q8_0)).into()
}
