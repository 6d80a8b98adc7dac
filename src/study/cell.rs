//! A cell: one model under one method, measured by one task at one length with one seed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::plan::{Method, Model, Plan, Task, Template};

/// Version of what is computed. Count it up when a change of the program gives other figures for the same plan (a
/// protocol, a default, a score, sums that are rounded otherwise by more than noise), so that old results are measured
/// again and old adapters trained again.
pub(crate) const VERSION: u32 = 1;

/// One measurement of a plan.
#[derive(Debug, Clone, Copy)]
pub struct Cell<'p> {
    /// Place in the plan: models, methods, tasks, lengths, seeds, the last one fastest.
    pub index: usize,
    /// The model.
    pub model: &'p Model,
    /// The method.
    pub method: &'p Method,
    /// The task.
    pub task: &'p Task,
    /// Tokens of prompt and answer together, or of a window; `None` for a task without lengths.
    pub length: Option<u64>,
    /// The seed; `None` is the protocol's.
    pub seed: Option<u64>,
}

/// Name of a cell in a report: unlike its hash, the same whatever the files of the plan hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Name of the model.
    pub model: String,
    /// Name of the method.
    pub method: String,
    /// Label of the task.
    pub task: String,
    /// Tokens.
    pub length: Option<u64>,
    /// Seed.
    pub seed: Option<u64>,
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}", self.model, self.method, self.task)?;
        if let Some(length) = self.length {
            write!(f, ", {length} tokens")?;
        }
        if let Some(seed) = self.seed {
            write!(f, ", seed {seed}")?;
        }
        Ok(())
    }
}

/// All that determines a result, in one order for ever.
#[derive(Serialize)]
struct Determined<'a> {
    version: u32,
    key: &'a Key,
    /// Identity of the model's file, of adapters, and of the data that the runner reads.
    identity: &'a str,
    spec: Option<&'a str>,
    /// Settings of training; the data are in the identity.
    recipe: Option<&'a str>,
    task: &'a str,
    samples: Option<u64>,
    ctx: Option<u64>,
    options: &'a BTreeMap<String, String>,
    template: Template,
    protocol: Option<&'a str>,
    stride: Option<u64>,
    max_windows: Option<u64>,
    /// SHA-256 of each.
    texts: &'a [String],
}

impl Cell<'_> {
    /// Name of the cell in a report.
    pub fn key(&self) -> Key {
        Key {
            model: self.model.name.clone(),
            method: self.method.name.clone(),
            task: self.task.label.clone(),
            length: self.length,
            seed: self.seed,
        }
    }

    /// SHA-256 in hexadecimal over all that determines the result: the file name of the result. `identity`
    /// stands for the contents of the files that the runner reads (model, adapters, training data), `texts`
    /// are the SHA-256 of the task's texts. Names of model, method and task are part of it, so that each row
    /// of a report has its own file; paths are not.
    pub fn hash(&self, identity: &str, texts: &[String]) -> String {
        let determined = Determined {
            version: VERSION,
            key: &self.key(),
            identity,
            spec: self.method.spec.as_deref(),
            recipe: self.method.train.as_ref().map(|r| r.settings.as_str()),
            task: &self.task.name,
            samples: self.task.samples,
            ctx: self.task.ctx,
            options: &self.task.options,
            template: self.task.template,
            protocol: self.task.protocol.as_deref(),
            stride: self.task.stride,
            max_windows: self.task.max_windows,
            texts,
        };
        // Strings, numbers and maps with string keys always serialize.
        let bytes = serde_json::to_vec(&determined).unwrap_or_default();
        format!("{:x}", Sha256::digest(bytes))
    }
}

impl Plan {
    /// The methods that a model is measured under, in the order of the plan.
    pub(crate) fn methods_of<'p>(&'p self, model: &'p Model) -> impl Iterator<Item = &'p Method> {
        self.methods.iter().filter(move |m| m.models.is_empty() || m.models.contains(&model.name))
    }

    /// The cells, in the order of the plan: those of one model under one method follow each other.
    pub fn cells(&self) -> impl Iterator<Item = Cell<'_>> {
        let pairs = move |model| self.methods_of(model).map(move |method| (model, method));
        self.models
            .iter()
            .flat_map(pairs)
            .flat_map(move |(model, method)| {
                self.tasks.iter().flat_map(move |task| {
                    task.lengths.iter().flat_map(move |&length| {
                        let cell = move |&seed| Cell { index: 0, model, method, task, length, seed };
                        task.seeds.iter().map(cell)
                    })
                })
            })
            .enumerate()
            .map(|(index, cell)| Cell { index, ..cell })
    }
}
