//! The plan of a study: what is measured with what, read from TOML and checked.

mod read;
mod toml_file;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use self::read::COPY;

/// Cells of a plan, at most. A plan of a few kilobytes can ask for any number, by its lists, and a report has about a
/// hundred bytes for each. At a minute a cell, these take ten weeks.
pub const MAX_CELLS: usize = 100_000;

/// The plan of a study. Paths are joined to the folder of the plan's file.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The file.
    pub path: PathBuf,
    /// Text of the plan.
    pub text: String,
    /// Heading of the report.
    pub title: String,
    /// Models.
    pub models: Vec<Model>,
    /// Methods.
    pub methods: Vec<Method>,
    /// Tasks; a group of tasks is taken apart.
    pub tasks: Vec<Task>,
    /// Folder of published data, if the plan names one.
    pub data: Option<PathBuf>,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Model {
    /// Name in the report.
    pub name: String,
    /// Path of the GGUF file.
    pub path: PathBuf,
}

/// A way to run a model: a rope spec, adapters, or both.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Method {
    /// Name in the report.
    pub name: String,
    /// The rope spec; `None` is the one of the file or the adapter.
    pub spec: Option<String>,
    /// LoRA adapters.
    pub adapters: Vec<PathBuf>,
    /// Names of the models it is measured on; empty for all.
    pub models: Vec<String>,
    /// Training that comes first; the adapter that comes of it is used together with `adapters`.
    pub train: Option<Recipe>,
    /// Exact or approximate attention. If the plan does not say, it follows from the spec: a method that changes which
    /// keys a query sees, or at which distances, is approximate.
    pub attention: Attention,
    /// Trained or frozen weights for this method. If the plan does not say, adapters or a recipe mean trained.
    pub trained: Trained,
    /// Tokens seen in training, as the plan states it.
    pub tokens: Option<u64>,
    /// Which parameters were trained, as the plan states it.
    pub parameters: Option<Parameters>,
}

/// A training run that comes before measuring.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Recipe {
    /// Options of `ropewalk finetune`, as the plan writes them: less the model, the data, the rope spec and files.
    pub args: Vec<String>,
    /// Settings that these come to, as [`Names::training`] gives them: the same for the same training, however its
    /// options are written. Results hang on them, not on the words.
    pub settings: String,
    /// Texts to train on.
    pub data: Vec<PathBuf>,
}

/// Attention of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// Every query sees every key before it, at its true distance.
    Exact,
    /// Keys are left out, or stand at other distances than they have.
    Approximate,
}

/// Trained or frozen weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trained {
    /// The model's weights as they are.
    Frozen,
    /// Weights trained for the method.
    Trained,
}

/// Which parameters were trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parameters {
    /// LoRA pairs, whatever else was trained with them.
    Lora,
    /// All weights.
    All,
}

/// Form of prompts: plain text, or messages in the model's chat template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Template {
    /// Text for base models.
    #[default]
    Base,
    /// The model's chat template.
    Chat,
}

/// A task with its settings: `perplexity`, `longppl`, or a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Task {
    /// Name of the task that is run.
    pub name: String,
    /// Name in the report.
    pub label: String,
    /// The group that the plan named, if it was one.
    pub group: Option<String>,
    /// Lengths in tokens; `None` for a task that is as long as its samples are.
    pub lengths: Vec<Option<u64>>,
    /// Samples of a cell; `None` is the protocol's number.
    pub samples: Option<u64>,
    /// Seeds; `None` is the protocol's own.
    pub seeds: Vec<Option<u64>>,
    /// Context that methods are worked out for, where it is more than the task needs.
    pub ctx: Option<u64>,
    /// Settings by name.
    pub options: BTreeMap<String, String>,
    /// How prompts are framed.
    pub template: Template,
    /// The perplexity protocol.
    pub protocol: Option<String>,
    /// Stride of the protocol.
    pub stride: Option<u64>,
    /// Windows measured, at most.
    pub max_windows: Option<u64>,
    /// Texts that perplexity is measured on.
    pub texts: Vec<PathBuf>,
}

impl Task {
    /// Returns true if the score is a perplexity: lower is better, and it is read on a logarithmic scale. All other
    /// scores are percentages.
    pub fn is_perplexity(&self) -> bool {
        matches!(self.name.as_str(), "perplexity" | "longppl")
    }
}

/// Description of a benchmark, for [`Plan::read`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    /// The task.
    pub name: String,
    /// True if its samples are made for a length.
    pub has_length: bool,
    /// The names of its options.
    pub options: Vec<String>,
}

/// Meaning of what a plan names and this crate does not know.
pub trait Names {
    /// Returns the benchmarks of a name, which may be that of a group.
    ///
    /// # Errors
    /// Why there are none.
    fn tasks(&self, name: &str) -> Result<Vec<Known>, String>;

    /// Returns the settings that options of a recipe come to, under the rope spec of its method.
    ///
    /// # Errors
    /// An option that does not exist, has a bad value, or is not for plans.
    fn training(&self, args: &[String], spec: Option<&str>) -> Result<String, String>;
}

/// A function knows benchmarks only: settings of training are then the words.
impl<F: Fn(&str) -> Result<Vec<Known>, String>> Names for F {
    fn tasks(&self, name: &str) -> Result<Vec<Known>, String> {
        self(name)
    }

    fn training(&self, args: &[String], _spec: Option<&str>) -> Result<String, String> {
        serde_json::to_string(args).map_err(|e| e.to_string())
    }
}

impl Plan {
    /// Compares what two plans say, less where their files lie and how they are written. Gives the first difference.
    pub(crate) fn same_study(&self, other: &Plan) -> Option<&'static str> {
        let parts = |plan: &Plan| {
            let names: Vec<String> = plan.models.iter().map(|m| m.name.clone()).collect();
            let (mut methods, mut tasks) = (plan.methods.clone(), plan.tasks.clone());
            let mut paths: Vec<PathBuf> = plan.models.iter().map(|m| m.path.clone()).collect();
            for m in &mut methods {
                paths.append(&mut m.adapters);
                if let Some(recipe) = &mut m.train {
                    paths.append(&mut recipe.data);
                    recipe.args.clear();
                }
            }
            tasks.iter_mut().for_each(|t| paths.append(&mut t.texts));
            paths.extend(plan.data.clone());
            let folder = plan.path.parent().unwrap_or(Path::new(""));
            // A copy of a plan can have them from its own directory, and absolute ones as they were.
            let relative = |p: &PathBuf| p.strip_prefix(folder).unwrap_or(p).to_owned();
            let paths: Vec<[PathBuf; 2]> = paths.into_iter().map(|p| [relative(&p), p]).collect();
            (names, methods, tasks, paths)
        };
        let (own, others) = (parts(self), parts(other));
        let same = |(a, b): (&[PathBuf; 2], &[PathBuf; 2])| a[0] == b[0] || a[1] == b[1];
        let same_paths = own.3.len() == others.3.len() && own.3.iter().zip(&others.3).all(same);
        let differences = [
            ("title", self.title != other.title),
            ("models", own.0 != others.0),
            ("methods", own.1 != others.1),
            ("tasks, lengths, samples or seeds", own.2 != others.2),
            ("paths", !same_paths),
        ];
        differences.iter().find(|(_, differ)| *differ).map(|(name, _)| *name)
    }

    /// Cells in all.
    pub fn len(&self) -> usize {
        let methods: usize = self
            .methods
            .iter()
            .map(|m| if m.models.is_empty() { self.models.len() } else { m.models.len() })
            .sum();
        let of_tasks = self.tasks.iter().map(|t| t.lengths.len().saturating_mul(t.seeds.len()));
        of_tasks.fold(0, usize::saturating_add).saturating_mul(methods)
    }

    /// Returns true if there are none; [`Plan::read`] refuses such a plan.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
