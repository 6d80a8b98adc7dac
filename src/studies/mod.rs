//! A study, run in this process: each cell of a plan is measured in sessions, after the training that its method asks for.
//!
//! The crate [`study`] has the plan, the directory of results, and the report. [`run()`] measures, [`measure()`]
//! measures a unit of it, and [`list()`] and [`units()`] estimate the cost. Reasons of failed cells have the names of settings in backticks, as in
//! [`finetune`](crate::finetune); [`Program::reason`] can word them otherwise.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let model = dir.path().join("tiny.gguf");
//! # convert::random::write(&convert::random::Shape::named("llama-tiny")?, ropewalk::DType::Q8_0, 1, &model)?;
//! # std::fs::write(dir.path().join("a.txt"), "To be, or not to be, that is the question. ".repeat(20))?;
//! use ropewalk::control::Control;
//! use ropewalk::studies::{self, Settings};
//! use ropewalk::study::{Folder, Plan};
//!
//! let path = dir.path().join("plan.toml");
//! std::fs::write(
//!     &path,
//!     r#"title = "One cell"
//!     lengths = [48]
//!     texts = ["a.txt"]
//!     models = [{ name = "tiny", path = "tiny.gguf" }]
//!     methods = [{ name = "pi", spec = "pi:factor=2" }]
//!     tasks = [{ name = "perplexity", protocol = "window" }]"#,
//! )?;
//! let mut settings = Settings::default();
//! # settings.session.n_threads = 1;
//! settings.device = ropewalk::Device::Cpu;
//! let plan = Plan::read(&path, &settings)?;
//! let folder = Folder::open(&dir.path().join("results"), &plan, &settings)?;
//! let done = studies::run(&plan, &folder, &settings, &Control::default())?;
//! assert_eq!(done.report.counts(), (1, 0, 0)); // done, failed, missing
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod measured;
mod runner;
mod training;

use std::path::PathBuf;

use self::runner::SessionRunner;
use crate::chat::apart::Apart;
use crate::control::Control;
use crate::finetune::JobError;
use crate::model::Device;
use crate::session::SessionParams;
use crate::study::report::{self, Report};
use crate::study::{self, Folder, Known, Listing, Names, Plan, Results, Summary, Units};
use crate::tasks::{self, Task};

pub use training::Training;

ropewalk_core::setters! {
    /// Settings of a study that are not in its plan.
    pub struct Settings<'a> {
        /// Settings of sessions, except for the context and the RoPE method.
        pub session: SessionParams,
        /// Device that measured models are loaded onto.
        pub device: Device,
        /// Maximum number of prompts answered together, if memory allows.
        pub parallel: usize,
        /// Program that renders chat templates in a child process. `None` renders them in this process, which is safe only
        /// for trusted model files.
        pub template: Option<Apart>,
        /// Benchmark data, recipes, and the words of failures.
        pub program: &'a dyn Program,
    }
}

impl Default for Settings<'_> {
    /// Measures on the best device, without recipes.
    fn default() -> Self {
        Settings {
            session: SessionParams::new(0),
            device: Device::Auto,
            parallel: 8,
            template: None,
            program: &(),
        }
    }
}

/// Decisions of the program that runs a study. `()` decides as the provided methods do.
pub trait Program {
    /// Returns the directory of a task's data, for a plan that names none: by default the working directory.
    fn data(&self, _task: &dyn Task) -> PathBuf {
        PathBuf::from(".")
    }

    /// Returns the training that a recipe's words ask for, under the spec of its method. By default there is none.
    ///
    /// # Errors
    /// Returns an error if a word is unknown, has a bad value, or is not for recipes.
    fn training(&self, _words: &[String], _spec: Option<&str>) -> Result<Training, String> {
        Err("this program does not train".into())
    }

    /// Words the reason of a failed cell.
    fn reason(&self, error: &JobError) -> String {
        error.to_string()
    }
}

impl Program for () {}

impl Names for Settings<'_> {
    fn tasks(&self, name: &str) -> Result<Vec<Known>, String> {
        let found = tasks::find(name).map_err(|e| e.to_string())?;
        let known = |t: &&dyn Task| Known {
            name: t.info().name.into(),
            has_length: t.info().has_length,
            options: t.info().options.iter().map(|option| option.name.to_owned()).collect(),
        };
        Ok(found.iter().map(known).collect())
    }

    fn training(&self, args: &[String], spec: Option<&str>) -> Result<String, String> {
        self.program.training(args, spec)?.settings().map_err(|e| self.program.reason(&e))
    }
}

/// The result of a study's run.
#[derive(Debug, Clone)]
pub struct Done {
    /// Numbers of cells of this run.
    pub summary: Summary,
    /// Report on all results in the directory.
    pub report: Report,
}

/// Measures the cells that have no result yet, and writes the report. Progress is in cells. Notes are failed cells, unread
/// keys of models, and the notes of training.
///
/// # Errors
/// Returns an error if the directory's results cannot be read or written. A cell that fails is a result. If `control`
/// stops the work, `summary.stopped` is true, and the next run resumes.
pub fn run(
    plan: &Plan,
    folder: &Folder,
    settings: &Settings<'_>,
    control: &Control<'_>,
) -> study::Result<Done> {
    let summary = measure(plan, folder, settings, control)?;
    Ok(Done { summary, report: report::write(folder, plan)? })
}

/// Measures like [`run()`], and writes no report: for the directory of a unit, of which a merge makes one.
///
/// # Errors
/// Returns the errors of [`run()`].
pub fn measure(
    plan: &Plan,
    folder: &Folder,
    settings: &Settings<'_>,
    control: &Control<'_>,
) -> study::Result<Summary> {
    let mut runner = SessionRunner::new(plan, settings, *control);
    study::run(plan, folder, &mut runner, control)
}

/// Estimates the cost of the cells. `results` are those of the study, if it has begun. Nothing is written.
///
/// # Errors
/// Returns an error if the results cannot be read, or if `control` stops the work.
pub fn list(
    plan: &Plan,
    results: Option<&Results>,
    settings: &Settings<'_>,
    control: &Control<'_>,
) -> study::Result<Listing> {
    let mut runner = SessionRunner::new(plan, settings, *control);
    study::list(plan, results, &mut runner, control)
}

/// Estimates the cost of the units, without running the model. `results` are those of the study, or of its units, if it has
/// begun. Nothing is written.
///
/// # Errors
/// Returns the errors of [`list()`].
pub fn units(
    plan: &Plan,
    results: Option<&Results>,
    settings: &Settings<'_>,
    control: &Control<'_>,
) -> study::Result<Units> {
    if let Some(results) = results {
        results.check_units(plan, settings)?;
    }
    let mut runner = SessionRunner::new(plan, settings, *control);
    study::list_units(plan, results, &mut runner, control)
}
