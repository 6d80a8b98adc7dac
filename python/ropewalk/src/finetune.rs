//! Fine-tuning.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ropewalk::data::Source;
use ropewalk::finetune::Job;
use ropewalk::train::recipe::{Recipe, RECIPES};
use ropewalk::train::TrainAttention;

use crate::args::{self, object, Paths, Texts};
use crate::error::{argument, mistake, of_job, raised};
use crate::model::Model;
use crate::work::{self, Callbacks};

/// Trains a LoRA adapter under a RoPE method, or all parameters with `targets="full"`, and writes it to `output`. A log,
/// checkpoints, and a loss curve are written next to it. `data` are files or directories, and `settings` are those of
/// `ropewalk finetune --set`. Ctrl-C saves a checkpoint, from which `resume` continues. `on_step` gets a dict for each step:
/// step, steps, loss, lr, grad_norm, tokens_per_s, and the latest val_loss. `on_note` gets lines of text. Returns the report
/// that `ropewalk finetune --json` prints.
#[pyfunction]
#[pyo3(signature = (
    model, data, output, *, rope=None, n_ctx=None, steps=None, lr=None, rank=None, alpha=None, targets=None, recipe=None,
    attention=None, transform=None, init=None, resume=false, seed=42, n_threads=0, force=false, settings=None,
    on_step=None, on_note=None, progress=None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments")]
pub(crate) fn finetune<'py>(
    py: Python<'py>,
    model: &Model,
    data: Paths,
    output: PathBuf,
    rope: Option<&str>,
    n_ctx: Option<usize>,
    steps: Option<u64>,
    lr: Option<f64>,
    rank: Option<usize>,
    alpha: Option<f64>,
    targets: Option<Texts>,
    recipe: Option<&str>,
    attention: Option<&str>,
    transform: Option<String>,
    init: Option<PathBuf>,
    resume: bool,
    seed: u64,
    n_threads: usize,
    force: bool,
    settings: Option<&Bound<'py, PyDict>>,
    on_step: Option<Py<PyAny>>,
    on_note: Option<Py<PyAny>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let source = |path: &PathBuf| path.to_string_lossy().parse::<Source>().map_err(raised);
    let data = data.list().iter().map(source).collect::<PyResult<Vec<_>>>()?;
    let mut job = Job::new(data, output);
    job.rope = args::spec(rope)?;
    job.n_ctx = n_ctx;
    job.rank = rank;
    job.alpha = alpha;
    job.targets = targets.map(Texts::list);
    job.attention = attention.map(|text| text.parse::<TrainAttention>().map_err(raised)).transpose()?;
    job.transform = transform;
    job.init = init;
    job.resume = resume;
    job.seed = seed;
    job.n_threads = n_threads;
    job.force = force;
    if let Some(name) = recipe {
        let known = || RECIPES.iter().map(|recipe| recipe.name).collect::<Vec<_>>().join(", ");
        job.recipe = Some(Recipe::find(name).ok_or_else(|| argument("recipe", &known(), name))?);
    }
    let own = [("steps", steps.map(|n| n.to_string())), ("lr", lr.map(|x| x.to_string()))];
    let own = own.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    for (key, value) in own.chain(args::settings(settings)?) {
        job.given.put("settings", &key.replace('_', "-"), &value).map_err(mistake)?;
    }
    let model = model.handle();
    let callbacks = Callbacks { progress, step: on_step, note: on_note };
    let report = work::run(py, &callbacks, |control| ropewalk::finetune::run(&job, &model, control))?;
    object(py, &report.map_err(of_job)?)
}
