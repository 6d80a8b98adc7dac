//! Measurements: perplexity and published benchmarks.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ropewalk::chat::Message;
use ropewalk::eval::suite::{self, FileStore, Params, Several, Store, Unkept};
use ropewalk::eval::{
    check_apart, one_object, protocol, read_documents, under_each, Document, SessionSource,
};
use ropewalk::gguf::Output;
use ropewalk::{tasks, Error, Spec};
use serde_json::{Map, Value};

use crate::args::{self, object, Lengths, Paths, Texts};
use crate::error::{argument, mistake, raised, RopewalkError};
use crate::model::Model;
use crate::work::{self, Callbacks};

/// The texts to measure: files, and texts as they are.
fn read(files: Vec<PathBuf>, texts: Vec<String>) -> Result<Vec<Document>, Error> {
    let mut all = read_documents(&files)?;
    let named = |(i, text): (usize, String)| Document::text(format!("text {}", i + 1), text);
    all.extend(texts.into_iter().enumerate().map(named));
    Ok(all)
}

/// Measures perplexity at several lengths by a named protocol, on files (plain text, `.jsonl`, or token ids in `.bin`) or on
/// texts. Several methods can be compared. `ctx` is the context to plan methods for, if it is larger than a length.
/// Returns the report that `ropewalk perplexity --json` prints.
#[pyfunction]
#[pyo3(signature = (
    model, *, files=None, texts=None, lengths=None, rope=None, protocol=None, stride=None, ctx=None, max_windows=None,
    kv="f16", n_threads=0, math="auto", progress=None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments")]
pub(crate) fn perplexity<'py>(
    py: Python<'py>,
    model: &Model,
    files: Option<Paths>,
    texts: Option<Texts>,
    lengths: Option<Lengths>,
    rope: Option<Texts>,
    protocol: Option<&str>,
    stride: Option<usize>,
    ctx: Option<usize>,
    max_windows: Option<usize>,
    kv: &str,
    n_threads: usize,
    math: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (name, model) = (model.name(), model.handle());
    let (files, texts) = (files.map_or_else(Vec::new, Paths::list), texts.map_or_else(Vec::new, Texts::list));
    let texts = py.detach(|| read(files, texts)).map_err(raised)?;
    let rule = match protocol {
        Some(name) => protocol::protocol(name).map_err(mistake)?,
        None => protocol::default_protocol(stride),
    };
    let lengths = lengths.map_or_else(|| vec![model.hparams().n_ctx_train], Lengths::list);
    let params = ropewalk::eval::perplexity::Params::new(rule, lengths)
        .stride(stride)
        .ctx(ctx)
        .max_windows(max_windows);
    let session = args::session(0, kv, n_threads, math)?;
    let specs = args::specs(rope)?;
    let callbacks = Callbacks { progress, ..Callbacks::default() };
    let reports = work::run(py, &callbacks, |control| {
        let sources = |spec: Option<&Spec>| SessionSource::new(&model, session.clone().rope(spec.cloned()));
        let mut reports = Vec::new();
        let done = under_each(&specs, &sources, &mut reports, control, |source| {
            ropewalk::eval::perplexity::run(source, name, &texts, &params, control)
        });
        (done, reports)
    });
    let (done, reports) = reports?;
    let report = one_object(&reports).map_err(|e| RopewalkError::new_err(e.to_string()))?;
    let rows = report.get("results").cloned().unwrap_or_else(|| Value::Array(Vec::new()));
    done.map_err(|e| with_results(py, raised(e), &rows))?;
    object(py, &report)
}

/// An error with the figures that were measured before it, as `results`.
fn with_results(py: Python<'_>, error: PyErr, rows: &Value) -> PyErr {
    let done = object(py, rows).and_then(|rows| error.value(py).setattr("results", rows));
    done.err().unwrap_or(error)
}

/// Runs published benchmarks, and returns a dict for each task, method, and length. `tasks` are names of tasks or groups, as
/// `ropewalk eval --list` shows them, and `options` their settings. Lengths are of prompt and answer together. Data is read
/// from the directory `data`. With `output`, every sample is saved there as a line of JSON, and samples that the file has
/// are not run again. With `chat`, prompts are messages in the file's chat template.
#[pyfunction]
#[pyo3(signature = (
    model, tasks, lengths=None, *, rope=None, samples=None, seed=None, options=None, data=None, output=None, force=false,
    ctx=None, chat=false, parallel=8, kv="f16", n_threads=0, math="auto", progress=None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments")]
pub(crate) fn evaluate<'py>(
    py: Python<'py>,
    model: &Model,
    tasks: Texts,
    lengths: Option<Lengths>,
    rope: Option<Texts>,
    samples: Option<usize>,
    seed: Option<u64>,
    options: Option<&Bound<'py, PyDict>>,
    data: Option<PathBuf>,
    output: Option<PathBuf>,
    force: bool,
    ctx: Option<usize>,
    chat: bool,
    parallel: usize,
    kv: &str,
    n_threads: usize,
    math: &str,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let chat = if chat { Some(model.template(py)?) } else { None };
    let (name, files, model) = (model.name(), model.files(), model.handle());
    let tasks = tasks::find_all(&tasks.list()).map_err(mistake)?;
    let options = args::settings(options)?;
    let known = |key: &&String| tasks.iter().any(|task| task.info().options.iter().any(|o| o.name == **key));
    if let Some(key) = options.keys().find(|key| !known(key)) {
        return Err(argument("options", "settings of the tasks", key));
    }
    let lengths = lengths.map_or_else(Vec::new, Lengths::list);
    if let Some(task) = tasks.iter().find(|task| task.info().has_length && lengths.is_empty()) {
        return Err(argument("lengths", &format!("at least one for {}", task.info().name), "none"));
    }
    let data = data.unwrap_or_else(|| Path::new("models/benchmarks").to_owned());
    let dir = data.as_path();
    let of_tasks =
        tasks.iter().flat_map(|task| task.info().files.iter().map(move |file| dir.join(file.name)));
    check_apart(files.into_iter().chain(of_tasks).chain(tasks::named_texts(&tasks, &options)), &output)
        .map_err(raised)?;
    let session = args::session(0, kv, n_threads, math)?;
    let specs = args::specs(rope)?;
    let callbacks = Callbacks { progress, ..Callbacks::default() };
    let (done, rows) = work::run(py, &callbacks, |control| -> PyResult<(PyResult<()>, Value)> {
        let mut store: Box<dyn Store> = match output {
            Some(path) => Box::new(FileStore::open(Output::new(path, force)).map_err(raised)?),
            None => Box::new(Unkept),
        };
        let frame = |text: &str| match chat {
            Some(template) => template.render(&[Message::new("user", text)], true),
            None => Ok(text.to_owned()),
        };
        let params = Params::new(lengths, &data)
            .ctx(ctx)
            .samples(samples)
            .seed(seed)
            .template(if chat.is_some() { tasks::Template::Chat } else { tasks::Template::Base })
            .frame(Some(&frame))
            .options(options)
            .batch(parallel);
        let how = Several::new(tasks, params).specs(specs);
        let sources = |spec: Option<&Spec>| SessionSource::new(&model, session.clone().rope(spec.cloned()));
        let mut reports = Vec::new();
        let done = suite::run_all(&sources, name, &how, &mut *store, &mut reports, control).map_err(raised);
        Ok((done, reports.iter().map(flat).collect::<PyResult<Vec<_>>>()?.concat().into()))
    })??;
    done.map_err(|e| with_results(py, e, &rows))?;
    object(py, &rows)
}

/// The rows of a report, each with what the report says of all.
fn flat(report: &suite::Report) -> PyResult<Vec<Value>> {
    let json = serde_json::to_value(report).map_err(|e| RopewalkError::new_err(e.to_string()))?;
    let Value::Object(mut top) = json else { return Ok(Vec::new()) };
    let rows = top.remove("results");
    let whole = |row: &Value| {
        let mut whole: Map<String, Value> = top.clone();
        whole.extend(row.as_object().cloned().unwrap_or_default());
        Value::from(whole)
    };
    Ok(rows.as_ref().and_then(Value::as_array).map_or_else(Vec::new, |rows| rows.iter().map(whole).collect()))
}
