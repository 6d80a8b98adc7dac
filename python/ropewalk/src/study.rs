//! Studies: every method by every task at every length of a plan.

use std::path::PathBuf;
use std::str::FromStr;

use pyo3::prelude::*;
use ropewalk::chat::apart::Apart;
use ropewalk::finetune::Job;
use ropewalk::gguf::Output;
use ropewalk::studies::{self, Program, Settings, Training};
use ropewalk::study::{report, Error, Folder, Plan};
use ropewalk::tasks::Task;
use ropewalk::train::recipe::Recipe;
use ropewalk::train::set::Group;
use ropewalk::train::{TrainAttention, KEYS};
use ropewalk::{Device, Spec};

use crate::args::{self, object};
use crate::chat;
use crate::error::of_study;
use crate::work::{self, Callbacks};

/// Measures every model of a plan under every method, by every task, at every length. `plan` is a TOML file. The results and
/// a report go to the directory `output`; a study that was stopped resumes there. Recipes of the plan are trained first.
/// `unit` is the ID of a unit, as `ropewalk study PLAN --units` prints it: then only its cells are measured, in a directory in
/// `output`, for `ropewalk study merge`. `progress` counts cells; `on_note` gets lines of text, such as the reasons
/// of failed cells. Returns a dict for each cell.
#[pyfunction]
#[pyo3(signature = (
    plan, output, *, device="auto", unit=None, kv="f16", parallel=8, n_threads=0, math="auto", force=false, progress=None,
    on_note=None
))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments")]
pub(crate) fn study<'py>(
    py: Python<'py>,
    plan: PathBuf,
    output: PathBuf,
    device: &str,
    unit: Option<&str>,
    kv: &str,
    parallel: usize,
    n_threads: usize,
    math: &str,
    force: bool,
    progress: Option<Py<PyAny>>,
    on_note: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let here = Here { device: device.into(), n_threads, renders: chat::program(py)? };
    let session = args::session(0, kv, n_threads, math)?;
    let callbacks = Callbacks { progress, note: on_note, ..Callbacks::default() };
    let rows = work::run(py, &callbacks, |control| -> Result<Vec<_>, Error> {
        let settings = Settings::default()
            .session(session)
            .device(here.device.clone())
            .parallel(parallel)
            .template(Some(here.renders.clone()))
            .program(&here);
        let plan = Plan::read(&plan, &settings)?;
        let output = Output::new(output, force);
        let folder = match unit {
            Some(id) => Folder::open_unit(output, &plan, plan.unit(id)?, &settings)?,
            None => Folder::open(output, &plan, &settings)?,
        };
        if unit.is_some() {
            studies::measure(&plan, &folder, &settings, control)?;
        } else {
            studies::run(&plan, &folder, &settings, control)?;
        }
        Ok(report::rows(&plan, &folder.records()?))
    })?;
    object(py, &rows.map_err(of_study)?)
}

/// Reads the recipes of a plan as options of `ropewalk finetune`.
struct Here {
    device: Device,
    n_threads: usize,
    /// The program that renders chat templates, with limits.
    renders: Apart,
}

impl Program for Here {
    fn data(&self, _: &dyn Task) -> PathBuf {
        PathBuf::from("models/benchmarks")
    }

    fn training(&self, words: &[String], spec: Option<&str>) -> Result<Training, String> {
        let mut job = Job::new(Vec::new(), "adapter.gguf");
        job.n_threads = self.n_threads;
        let mut training = Training { job, device: self.device.clone() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(n, v)| (n, Some(v)));
            match (name, value) {
                ("--chat", None) => {
                    training.job.chat = true;
                    training.job.template = Some(self.renders.clone());
                }
                ("--answers-only", None) => training.job.answers_only = true,
                _ => {
                    let value = value.or_else(|| words.next().map(String::as_str));
                    let value = value.ok_or_else(|| format!("{name}: expected a value, found none"))?;
                    set(&mut training, name, value)?;
                }
            }
        }
        let job = &mut training.job;
        let mut written = KEYS.iter().filter(|k| matches!(k.group, Group::Files) || k.name == "output-type");
        if let Some(key) = written.find(|key| job.given.text(key.name).is_some()) {
            return Err(format!(
                "--set {}: not a setting of a recipe, because the study names files",
                key.name
            ));
        }
        job.rope = spec.map(str::parse::<Spec>).transpose().map_err(|e| e.to_string())?;
        if job.trains_all() {
            return Err(
                "--targets full: a study measures adapters; expected pairs, norms or embeddings".into()
            );
        }
        job.settings().and_then(|_| job.check_recipe()).map_err(|e| e.to_string())?;
        Ok(training)
    }
}

/// Options of a recipe.
const OPTIONS: &str = "--ctx, --recipe, --rank, --alpha, --targets, --steps, --lr, --seed, --transform, --chat, --answers-only, \
                       --set, --device, --threads, --ubatch, --attention, --math";

/// Sets an option of a recipe.
fn set(training: &mut Training, name: &str, value: &str) -> Result<(), String> {
    let job = &mut training.job;
    match name {
        "--ctx" | "-c" => job.n_ctx = Some(number(name, value)?),
        "--recipe" => {
            let found = Recipe::find(value);
            job.recipe = Some(found.ok_or_else(|| format!("--recipe: expected a recipe, found {value:?}"))?);
        }
        "--rank" | "-r" => job.rank = Some(number(name, value)?),
        "--alpha" | "-a" => job.alpha = Some(number(name, value)?),
        "--targets" => job.targets = Some(value.split(',').map(str::to_owned).collect()),
        "--steps" | "--lr" => job.given.put("--set", &name[2..], value)?,
        "--seed" | "-s" => job.seed = number(name, value)?,
        "--transform" => job.transform = Some(value.to_owned()),
        "--set" => job.given.read("--set", value)?,
        "--device" => training.device = value.into(),
        "--threads" | "-t" => job.n_threads = number(name, value)?,
        "--ubatch" | "-u" => job.n_block = number(name, value)?,
        "--attention" => job.attention = Some(value.parse::<TrainAttention>().map_err(|e| e.to_string())?),
        "--math" if value == "portable" => job.portable = true,
        "--math" => job.math = value.parse()?,
        _ => return Err(format!("{name}: expected one of {OPTIONS}")),
    }
    Ok(())
}

fn number<T: FromStr>(name: &str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{name}: expected a number, found {value:?}"))
}
