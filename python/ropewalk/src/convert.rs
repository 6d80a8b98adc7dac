//! Conversions, and models of random weights.

use std::path::PathBuf;

use pyo3::prelude::*;
use ropewalk::control::Control;
use ropewalk::convert::random::{self, Shape};
use ropewalk::convert::{peft, types, Mixture, Options, Tokenizing};
use ropewalk::gguf::Output;

use crate::args::{self, object, Paths};
use crate::error::of_convert;
use crate::work::{self, Callbacks};

/// Converts a GGUF file or a Hugging Face model directory to a GGUF file: writes a RoPE method, changes the type of weights,
/// merges adapters. With `llama_cpp`, it fails unless stock llama.cpp can run the file. `output` replaces only earlier
/// outputs unless `force` is true. Returns the report of the conversion.
#[pyfunction]
#[pyo3(signature = (
    input, output, *, rope=None, n_ctx=None, dtype=None, lora=None, llama_cpp=false, force=false, progress=None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments")]
pub(crate) fn convert<'py>(
    py: Python<'py>,
    input: PathBuf,
    output: PathBuf,
    rope: Option<&str>,
    n_ctx: Option<usize>,
    dtype: Option<&str>,
    lora: Option<Paths>,
    llama_cpp: bool,
    force: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut options = Options::default()
        .rope(args::spec(rope)?)
        .n_ctx(n_ctx)
        .adapters(args::adapters(lora)?)
        .llama_cpp(llama_cpp)
        .force(force);
    if let Some(name) = dtype {
        match types::parse(name) {
            Err(_) if types::is_mixture(name) => {
                options.mixture = Some(Mixture::default().name(name.to_owned()));
            }
            dtype => options.dtype = Some(dtype.map_err(of_convert)?),
        }
    }
    if input.is_dir() {
        // The program runs tokenizer.json in a process with limits.
        let program = py.import("ropewalk._program")?.call_method0("find")?;
        options.tokenizing = Some(Tokenizing::Apart(program.extract()?));
    }
    let callbacks = Callbacks { progress, ..Callbacks::default() };
    let report =
        work::run(py, &callbacks, |control| ropewalk::convert::convert(&input, &output, &options, control))?;
    object(py, &report.map_err(of_convert)?)
}

/// Converts a PEFT adapter directory to a LoRA file for the model in the GGUF file `base`. Returns the figures of the adapter.
#[pyfunction]
#[pyo3(signature = (folder, base, output, force=false))]
pub(crate) fn from_peft<'py>(
    py: Python<'py>,
    folder: PathBuf,
    base: PathBuf,
    output: PathBuf,
    force: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let convert =
        |control: &Control<'_>| peft::from_peft(&folder, &base, Output::new(&output, force), control);
    let report = work::run(py, &Callbacks::default(), convert)?;
    object(py, &report.map_err(of_convert)?)
}

/// Converts a LoRA file for the model in the GGUF file `base` to a PEFT adapter directory. `repository` is the model on
/// Hugging Face. Returns the figures of the adapter.
#[pyfunction]
#[pyo3(signature = (adapter, base, folder, repository=None, force=false))]
pub(crate) fn to_peft<'py>(
    py: Python<'py>,
    adapter: PathBuf,
    base: PathBuf,
    folder: PathBuf,
    repository: Option<&str>,
    force: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let convert = |control: &Control<'_>| {
        peft::to_peft(&adapter, &base, Output::new(&folder, force), repository, control)
    };
    let report = work::run(py, &Callbacks::default(), convert)?;
    object(py, &report.map_err(of_convert)?)
}

/// Writes a small model of random weights, for tests and for measurements of speed. Returns its size in bytes.
#[pyfunction]
#[pyo3(signature = (output, shape="llama-tiny", dtype="f16", seed=0, force=false))]
pub(crate) fn random_model(
    py: Python<'_>,
    output: PathBuf,
    shape: &str,
    dtype: &str,
    seed: u64,
    force: bool,
) -> PyResult<u64> {
    let shape = Shape::named(shape).map_err(of_convert)?;
    let dtype = types::parse(dtype).map_err(of_convert)?;
    let written = work::run(py, &Callbacks::default(), |control| {
        random::write_watched(&shape, dtype, seed, Output::new(&output, force), control)
    })?;
    written.map_err(of_convert)
}
