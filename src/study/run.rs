//! Runs the cells of a plan, one after another.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use files::Output;
use ropewalk_core::control::Control;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::cell::{Cell, VERSION};
use crate::folder::Folder;
use crate::outcome::{reason, CellResult, Failure, Record, State};
use crate::{Plan, Result};

/// Measures cells. Cells of one model under one method come one after another, so it may keep both loaded.
pub trait Runner {
    /// Stands for the contents of the files of the cell's model and method: the model, given adapters,
    /// training data. Texts of perplexity are seen to here.
    ///
    /// # Errors
    /// Why that cannot be said: the cell is then a failed one.
    fn identity(&mut self, cell: &Cell<'_>) -> Result<String, String>;

    /// Stands for what [`Runner::train`] reads: [`Runner::identity`] without the settings that only measure.
    ///
    /// # Errors
    /// Returns the errors of [`Runner::identity`].
    fn trained_on(&mut self, cell: &Cell<'_>) -> Result<String, String> {
        self.identity(cell)
    }

    /// Stands for the contents of the published data that the cell's task reads.
    ///
    /// # Errors
    /// Returns the errors of [`Runner::identity`].
    fn data(&mut self, _cell: &Cell<'_>) -> Result<String, String> {
        Ok(String::new())
    }

    /// Trains an adapter by the recipe of the cell's method and puts it at `out`, whole or not at all. What a run that
    /// was stopped needs to go on stays in the folder of `out`.
    ///
    /// # Errors
    /// Why it could not; every cell of the model under this method is then a failed one.
    fn train(&mut self, cell: &Cell<'_>, out: &Output, control: &Control<'_>) -> Result<(), Failure>;

    /// Measures a cell. `trained` is the adapter that [`Runner::train`] gave, for a method with a recipe.
    /// `samples` is a file for the samples, of JSON Lines; what a stopped run has left there may be used.
    ///
    /// # Errors
    /// Why it could not, or that it was stopped.
    fn run(
        &mut self,
        cell: &Cell<'_>,
        trained: Option<&Path>,
        samples: &Output,
        control: &Control<'_>,
    ) -> Result<CellResult, Failure>;

    /// Estimates what it takes to measure a cell, without computing anything.
    ///
    /// # Errors
    /// Why it cannot be measured, as far as that is known beforehand.
    fn estimate(&mut self, cell: &Cell<'_>) -> Result<Estimate, String>;

    /// Estimates what [`Runner::train`] takes for a cell whose method has a recipe, without computing anything.
    ///
    /// # Errors
    /// Why it cannot be trained, as far as that is known beforehand.
    fn estimate_training(&mut self, cell: &Cell<'_>) -> Result<Estimate, String>;

    /// Floating-point operations per second with the model of a cell, as a short prompt shows them.
    ///
    /// # Errors
    /// Why the model cannot be run.
    fn speed(&mut self, cell: &Cell<'_>) -> Result<f64, String>;
}

/// Estimated cost of a cell, or of a training.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Estimate {
    /// Tokens that go through the model.
    pub tokens: u64,
    /// Bytes of memory.
    pub bytes: u64,
    /// Floating-point operations, the same on every machine.
    pub cost: f64,
}

/// Outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Summary {
    /// Cells of the study, or of the unit that was run.
    pub cells: usize,
    /// Measured before.
    pub known: usize,
    /// Measured now.
    pub measured: usize,
    /// Failed now.
    pub failed: usize,
    /// Old results whose model, adapter or texts have changed, put aside.
    pub put_aside: usize,
    /// True if the run was stopped before its end.
    pub stopped: bool,
}

/// Bytes of a text, at most, because it is held.
const MAX_TEXT: u64 = 256 << 20;

/// SHA-256 of texts, each file read once.
pub(crate) type Texts = HashMap<PathBuf, Result<String, String>>;

/// SHA-256 of a file, or of each text of a directory.
fn sha256(path: &Path) -> Result<String, String> {
    let of_file = |file: &PathBuf| -> Result<String, files::Error> {
        Ok(format!("{:x}", Sha256::digest(files::foreign::read_file(file, MAX_TEXT)?)))
    };
    let hashes: Result<Vec<String>, files::Error> =
        files::foreign::texts(path).and_then(|texts| texts.iter().map(of_file).collect());
    hashes.map(|hashes| hashes.join(" ")).map_err(|e| e.to_string())
}

/// The hash of a cell and what its method is trained on, or why it has none.
pub(crate) fn hash(
    cell: &Cell<'_>,
    runner: &mut dyn Runner,
    texts: &mut Texts,
) -> Result<(String, String), String> {
    let of_text = |path: &PathBuf| texts.entry(path.clone()).or_insert_with(|| sha256(path)).clone();
    let texts = cell.task.texts.iter().map(of_text).collect::<Result<Vec<_>, _>>()?;
    let identity = runner.identity(cell)?;
    let all = serde_json::to_string(&(&identity, runner.data(cell)?)).map_err(|e| e.to_string())?;
    Ok((cell.hash(&all, &texts), runner.trained_on(cell)?))
}

/// Measures the cells of a study, or of the unit that the folder is for, that have no result yet, and those that
/// failed before. Each result is on the disk before the next cell begins. A cell that fails is a result too. After a
/// request to stop the cell at hand is left as its runner left it. Progress is in cells: each is reported as it
/// begins, and all at the end.
///
/// # Errors
/// The folder or the disk; results so far are kept.
pub fn run(plan: &Plan, folder: &Folder, runner: &mut dyn Runner, control: &Control<'_>) -> Result<Summary> {
    let mut summary = Summary::default();
    let mut texts = Texts::default();
    let mut trainer = Trainer::default();
    let mut before = folder.hashes()?;
    let cells: Vec<Cell<'_>> =
        plan.cells().filter(|cell| folder.unit().is_none_or(|unit| unit.has(cell))).collect();
    let total = cells.len();
    summary.cells = total;
    for (i, cell) in cells.iter().enumerate() {
        if control.stopped() {
            summary.stopped = true;
            break;
        }
        let key = cell.key();
        control.report(format_args!("{key}"), i as u64, total as u64);
        let (hash, trained_on) = match hash(cell, runner, &mut texts) {
            Ok((hash, trained_on)) => (hash, Ok(trained_on)),
            // What was measured stays until it is known to be of other inputs.
            Err(why) if folder.any_measured(before.get(&key))? => {
                control.note(format_args!("{key}: keeps its earlier result: {why}"));
                summary.known += 1;
                continue;
            }
            Err(why) => (cell.hash("", &[]), Err(why)),
        };
        summary.put_aside += folder.put_aside(&key, &hash, &mut before)?;
        if folder.is_measured(&hash)? {
            summary.known += 1;
            continue;
        }
        let outcome = trained_on.map_err(Failure::Failed).and_then(|trained_on| {
            let trained = trainer.adapter(cell, &trained_on, folder, runner, control)?;
            let samples = folder.samples(&hash);
            folder.holds(samples.path()).map_err(|e| Failure::Failed(e.to_string()))?;
            runner.run(cell, trained.as_deref(), &samples, control)
        });
        let state = match outcome {
            Ok(result) => match result.fault(cell.task.is_perplexity()) {
                None => State::Done(Box::new(result)),
                Some(fault) => State::Failed(fault),
            },
            Err(Failure::Failed(why)) => State::Failed(reason(why)),
            Err(Failure::Stopped) => {
                summary.stopped = true;
                break;
            }
        };
        if let State::Failed(why) = &state {
            summary.failed += 1;
            control.note(format_args!("{key}: failed: {why}"));
        } else {
            summary.measured += 1;
        }
        folder.put(&Record { hash, cell: key, state })?;
    }
    if !summary.stopped {
        control.report(format_args!("{total} cells"), total as u64, total as u64);
    }
    Ok(summary)
}

/// Adapters trained for a method, or why they could not be.
#[derive(Default)]
struct Trainer(HashMap<String, Result<PathBuf, String>>);

impl Trainer {
    fn adapter(
        &mut self,
        cell: &Cell<'_>,
        trained_on: &str,
        folder: &Folder,
        runner: &mut dyn Runner,
        control: &Control<'_>,
    ) -> Result<Option<PathBuf>, Failure> {
        let Some(recipe) = &cell.method.train else { return Ok(None) };
        let of_method = (&cell.model.name, &cell.method.name, &cell.method.spec);
        let all = (VERSION, of_method, &recipe.settings, trained_on);
        let bytes = serde_json::to_vec(&all).unwrap_or_default();
        let name = format!("{:x}", Sha256::digest(bytes));
        if let Some(known) = self.0.get(&name) {
            return known.clone().map(Some).map_err(Failure::Failed);
        }
        let out = folder.adapter(&name);
        let trained = match folder.holds(out.path()) {
            Ok(true) => Ok(()),
            Ok(false) => runner.train(cell, &out, control),
            Err(e) => Err(Failure::Failed(e.to_string())),
        };
        let trained = match trained {
            Ok(()) => Ok(out.path().to_owned()),
            Err(Failure::Failed(why)) => Err(format!("training: {why}")),
            Err(Failure::Stopped) => return Err(Failure::Stopped),
        };
        self.0.insert(name, trained.clone());
        trained.map(Some).map_err(Failure::Failed)
    }
}
