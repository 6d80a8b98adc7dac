//! A fine-tuning job: from settings, texts, and a model to a written adapter or model.
//!
//! [`run()`] does all of it. Its parts are methods of [`Job`], for callers that show each part on its own:
//! [`Job::settings`], [`Job::prepare`], [`Job::texts`], [`Job::dataset`], [`Job::params`], [`Job::start`], and
//! [`Job::finish`]. [`Job::stages`] makes a job of each stage of a file, and [`run_stages`] runs them in order.
//!
//! Errors and notes have the names of settings in backticks: fields of [`Job`], and keys of [`Settings`], spelled as in
//! [`KEYS`](crate::train::KEYS).

mod data;
mod paths;
mod recipe;
mod run;
mod settings;
mod stages;

use std::path::{Path, PathBuf};

use crate::chat::apart::Apart;
use crate::data::Source;
use crate::math::Math;
use crate::model::Error;
use crate::plot::PlotError;
use crate::rope::Spec;
use crate::train::recipe::Recipe;
use crate::train::{Settings, TrainAttention};

pub use data::{Texts, NO_METHOD};
pub use paths::chart_path;
pub use run::{run, Prepared, Report};
pub use stages::run_stages;

/// The settings of a fine-tuning job. A setting that is `None` has the value of the recipe, or else its default.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Job {
    /// RoPE method; without it and without a recipe, the method that the model's file declares.
    pub rope: Option<Spec>,
    /// Sequence length in tokens; without it and without a recipe, the model's trained context.
    pub n_ctx: Option<usize>,
    /// Attention in training; full by default.
    pub attention: Option<TrainAttention>,
    /// Settings of a paper. The other settings override it.
    pub recipe: Option<&'static Recipe>,
    /// Trained modules: names of matrices, or all, none, norms, embeddings, or full; by default q, k, v, and o, and the
    /// modules that the recipe trains as a whole.
    pub targets: Option<Vec<String>>,
    /// LoRA rank; 8 by default.
    pub rank: Option<usize>,
    /// LoRA alpha; twice the rank by default.
    pub alpha: Option<f64>,
    /// Settings by key.
    pub given: Settings,
    /// Training texts.
    pub data: Vec<Source>,
    /// Data method, as a spec; [`NO_METHOD`] turns off the method of a recipe.
    pub transform: Option<String>,
    /// True if lines of JSON Lines are chats.
    pub chat: bool,
    /// True if the loss covers only answers.
    pub answers_only: bool,
    /// Program that renders the model's chat template in a child process. `None` renders it in this process, which is
    /// safe only for a trusted model file.
    pub template: Option<Apart>,
    /// Adapter whose values training starts from.
    pub init: Option<PathBuf>,
    /// Other files that are read, such as a file of stages: no output may replace them.
    pub inputs: Vec<PathBuf>,
    /// True if the run resumes from its newest checkpoint.
    pub resume: bool,
    /// Random seed of the adapter, the data order, and dropout.
    pub seed: u64,
    /// File to write: an adapter, or a model if all parameters are trained.
    pub output: PathBuf,
    /// Loss plot; by default next to `output`.
    pub plot: Option<PathBuf>,
    /// True if the outputs may replace any regular file; otherwise, they replace only earlier outputs.
    pub force: bool,
    /// Model file whose element types a written model gets under `output-type=file`; `None` for the trained model's file.
    pub types_of: Option<PathBuf>,
    /// Tokens computed at once.
    pub n_block: usize,
    /// Threads; 0 for one per core.
    pub n_threads: usize,
    /// Rounding in matrix products.
    pub math: Math,
    /// True for only those ops that every backend has.
    pub portable: bool,
}

impl Job {
    /// Makes a job with default settings.
    pub fn new(data: Vec<Source>, output: impl Into<PathBuf>) -> Job {
        Job {
            rope: None,
            n_ctx: None,
            attention: None,
            recipe: None,
            targets: None,
            rank: None,
            alpha: None,
            given: Settings::default(),
            data,
            transform: None,
            chat: false,
            answers_only: false,
            template: None,
            init: None,
            inputs: Vec::new(),
            resume: false,
            seed: 42,
            output: output.into(),
            plot: None,
            force: false,
            types_of: None,
            n_block: 512,
            n_threads: 0,
            math: Math::Auto,
            portable: false,
        }
    }
}

/// An error of a fine-tuning job, in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// A setting cannot be used, or cannot be combined with another one.
    #[error("{0}")]
    Settings(String),
    /// The run cannot be set up or finished.
    #[error("{0}")]
    Run(String),
    /// A plot cannot be written.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// An error of the data, the model, or the training.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Result of a job.
pub type Result<T, E = JobError> = std::result::Result<T, E>;

impl From<crate::data::Error> for JobError {
    fn from(e: crate::data::Error) -> Self {
        JobError::Failed(e.into())
    }
}

impl From<files::Error> for JobError {
    fn from(e: files::Error) -> Self {
        JobError::Failed(e.into())
    }
}

fn refused(text: impl Into<String>) -> JobError {
    JobError::Settings(text.into())
}

fn failed(text: impl Into<String>) -> JobError {
    JobError::Run(text.into())
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
