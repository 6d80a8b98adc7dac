//! Chat templates.

use std::path::PathBuf;

use pyo3::prelude::*;
use ropewalk::chat::apart::Apart;
use ropewalk::chat::Template;

use crate::error::raised;

/// The program, which renders chat templates in a process with limits.
pub(crate) fn program(py: Python<'_>) -> PyResult<Apart> {
    let program = py.import("ropewalk._program")?.call_method0("find")?.extract::<PathBuf>()?;
    Ok(Apart::new(program, ["--render-chat-template"]))
}

/// The chat template of a model; ChatML if its file has none.
pub(crate) fn template(py: Python<'_>, model: &ropewalk::Model) -> PyResult<Template> {
    let program = program(py)?;
    py.detach(|| Template::of_apart(model, &program)).map_err(raised)
}
