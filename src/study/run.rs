//! Runs the cells of a plan, one after another.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use files::Output;
use ropewalk_core::control::Control;
use ropewalk_core::text::{bytes, count};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::cell::{Cell, VERSION};
use crate::folder::{Folder, Results};
use crate::outcome::{reason, CellResult, Failure, Record, State};
use crate::{Error, Plan, Result, MAX_CELLS};

/// Measures cells. Cells of one model under one method come one after another, so it may keep both loaded.
pub trait Runner {
    /// Stands for the contents of the files of the cell's model and method: the model, given adapters,
    /// training data. Texts of perplexity are seen to here.
    ///
    /// # Errors
    /// Why that cannot be said: the cell is then a failed one.
    fn identity(&mut self, cell: &Cell<'_>) -> Result<String, String>;

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

    /// Estimates the cost of a cell.
    ///
    /// # Errors
    /// Why it cannot be measured, as far as that is known beforehand.
    fn estimate(&mut self, cell: &Cell<'_>) -> Result<Estimate, String>;
}

/// Estimated cost of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Estimate {
    /// Tokens that go through the model.
    pub tokens: u64,
    /// Bytes of memory.
    pub bytes: u64,
    /// Seconds.
    pub seconds: f64,
}

/// One of several equal parts of a study's cells: neighbors in the order of the plan, so that most methods
/// are trained and loaded in one shard only. Written `i/N`, from `1/N` to `N/N`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    part: usize,
    of: usize,
}

impl Shard {
    /// All cells.
    pub const ALL: Shard = Shard { part: 1, of: 1 };

    /// Returns true if a cell belongs to this shard, in a plan of `n` cells.
    pub fn has(&self, index: usize, n: usize) -> bool {
        let border = |i: usize| (i as u128 * n as u128 / self.of as u128) as usize;
        (border(self.part - 1)..border(self.part)).contains(&index)
    }
}

impl FromStr for Shard {
    type Err = Error;

    fn from_str(text: &str) -> Result<Shard> {
        let parsed = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((part, of)) if (1..=MAX_CELLS).contains(&of) && (1..=of).contains(&part) => {
                Ok(Shard { part, of })
            }
            _ => Err(Error::Invalid(format!(
                "shard: expected i/N with i from 1 to N and N at most {MAX_CELLS}, found {text:?}"
            ))),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.part, self.of)
    }
}

/// Outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Summary {
    /// Cells of this shard.
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
type Texts = HashMap<PathBuf, Result<String, String>>;

/// SHA-256 of a file, or of each text of a directory.
fn sha256(path: &Path) -> Result<String, String> {
    let of_file = |file: &PathBuf| -> Result<String, files::Error> {
        Ok(format!("{:x}", Sha256::digest(files::foreign::read_file(file, MAX_TEXT)?)))
    };
    let hashes: Result<Vec<String>, files::Error> =
        files::foreign::texts(path).and_then(|texts| texts.iter().map(of_file).collect());
    hashes.map(|hashes| hashes.join(" ")).map_err(|e| e.to_string())
}

/// The hash of a cell, or why it has none.
fn hash(cell: &Cell<'_>, runner: &mut dyn Runner, texts: &mut Texts) -> Result<(String, String), String> {
    let of_text = |path: &PathBuf| texts.entry(path.clone()).or_insert_with(|| sha256(path)).clone();
    let texts = cell.task.texts.iter().map(of_text).collect::<Result<Vec<_>, _>>()?;
    let identity = runner.identity(cell)?;
    let all = serde_json::to_string(&(&identity, runner.data(cell)?)).map_err(|e| e.to_string())?;
    Ok((cell.hash(&all, &texts), identity))
}

/// Measures the cells of a shard that have no result yet, and those that failed before. Each result is on the
/// disk before the next cell begins. A cell that fails is a result too. After a request to stop the cell at
/// hand is left as its runner left it. Progress is in cells: each is reported as it begins, and all at the end.
///
/// # Errors
/// The folder or the disk; results so far are kept.
pub fn run(
    plan: &Plan,
    folder: &Folder,
    runner: &mut dyn Runner,
    shard: Shard,
    control: &Control<'_>,
) -> Result<Summary> {
    let n = plan.len();
    let mut summary = Summary::default();
    let mut texts = Texts::default();
    let mut trainer = Trainer::default();
    let mut before = folder.hashes()?;
    let total = plan.cells().filter(|c| shard.has(c.index, n)).count();
    summary.cells = total;
    for (i, cell) in plan.cells().filter(|c| shard.has(c.index, n)).enumerate() {
        if control.stopped() {
            summary.stopped = true;
            break;
        }
        let key = cell.key();
        control.report(format_args!("{key}"), i as u64, total as u64);
        let (hash, identity) = match hash(&cell, runner, &mut texts) {
            Ok((hash, identity)) => (hash, Ok(identity)),
            Err(why) => (cell.hash("", &[]), Err(why)),
        };
        summary.put_aside += folder.put_aside(&key, &hash, &mut before)?;
        if folder.get(&hash)?.is_some_and(|r| r.result().is_some()) {
            summary.known += 1;
            continue;
        }
        let outcome = identity.map_err(Failure::Failed).and_then(|identity| {
            let trained = trainer.adapter(&cell, &identity, folder, runner, control)?;
            let samples = folder.samples(&hash);
            folder.holds(samples.path()).map_err(|e| Failure::Failed(e.to_string()))?;
            runner.run(&cell, trained.as_deref(), &samples, control)
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
        identity: &str,
        folder: &Folder,
        runner: &mut dyn Runner,
        control: &Control<'_>,
    ) -> Result<Option<PathBuf>, Failure> {
        let Some(recipe) = &cell.method.train else { return Ok(None) };
        let of_method = (&cell.model.name, &cell.method.name, &cell.method.spec);
        let all = (VERSION, of_method, &recipe.settings, identity);
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

/// Estimated cost of a study, before anything runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listing {
    /// A row for each model under each method.
    pub rows: Vec<Row>,
    /// Cells of this shard.
    pub cells: usize,
    /// Cells with a result.
    pub done: usize,
    /// Tokens of the others.
    pub tokens: u64,
    /// Bytes of memory that the largest of them takes.
    pub bytes: u64,
    /// Seconds of all of them.
    pub seconds: f64,
}

impl Listing {
    /// The rows as text, and their sum. `title` is that of the plan.
    pub fn text(&self, title: &str) -> String {
        let mut out = format!("{title}\n\n");
        for row in &self.rows {
            out += &format!(
                "{:<28} {:<16} {:>4} cells, {:>4} done, {:>12} tokens, {}\n",
                row.model,
                row.method,
                row.cells,
                row.done,
                count(row.tokens),
                bytes(row.bytes)
            );
            row.problems.iter().for_each(|p| out += &format!("    {p}\n"));
        }
        out + &format!(
            "\n{} cells, {} done; {} tokens, at most {} of memory, about {:.0} minutes or more (by the speed of a \
             short prompt)\n",
            self.cells,
            self.done,
            count(self.tokens),
            bytes(self.bytes),
            self.seconds / 60.0
        )
    }
}

/// One model under one method.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Row {
    /// The model.
    pub model: String,
    /// The method.
    pub method: String,
    /// Cells of the row.
    pub cells: usize,
    /// Cells with a result.
    pub done: usize,
    /// Tokens of the others.
    pub tokens: u64,
    /// Bytes of memory that the largest of them takes.
    pub bytes: u64,
    /// Seconds of all of them.
    pub seconds: f64,
    /// Cells that cannot be measured, and why.
    pub problems: Vec<String>,
}

/// Estimates the cost of a shard's cells. `results` are those of the study, if there are some already.
///
/// # Errors
/// The results; [`Error::Stopped`].
pub fn list(
    plan: &Plan,
    results: Option<&Results>,
    runner: &mut dyn Runner,
    shard: Shard,
    control: &Control<'_>,
) -> Result<Listing> {
    let n = plan.len();
    let mut texts = Texts::default();
    let mut rows: Vec<Row> = Vec::new();
    for cell in plan.cells().filter(|c| shard.has(c.index, n)) {
        if control.stopped() {
            break;
        }
        let same = |r: &Row| r.model == cell.model.name && r.method == cell.method.name;
        if !rows.last().is_some_and(same) {
            let (model, method) = (cell.model.name.clone(), cell.method.name.clone());
            rows.push(Row { model, method, ..Row::default() });
        }
        let Some(row) = rows.last_mut() else { continue };
        row.cells += 1;
        let hash = hash(&cell, runner, &mut texts);
        if let (Some(results), Ok((hash, _))) = (results, &hash) {
            if results.get(hash)?.is_some_and(|r| r.result().is_some()) {
                row.done += 1;
                continue;
            }
        }
        match hash.and_then(|_| runner.estimate(&cell)) {
            Ok(estimate) => {
                row.tokens = row.tokens.saturating_add(estimate.tokens);
                row.bytes = row.bytes.max(estimate.bytes);
                row.seconds += estimate.seconds;
            }
            Err(why) => row.problems.push(format!("{}: {why}", cell.key())),
        }
    }
    // A part of the sums would pass for all of them.
    if control.stopped() {
        return Err(Error::Stopped);
    }
    let sum = |f: &dyn Fn(&Row) -> usize| rows.iter().map(f).sum();
    Ok(Listing {
        cells: sum(&|r| r.cells),
        done: sum(&|r| r.done),
        tokens: rows.iter().fold(0, |n: u64, r| n.saturating_add(r.tokens)),
        bytes: rows.iter().map(|r| r.bytes).max().unwrap_or(0),
        seconds: rows.iter().map(|r| r.seconds).sum(),
        rows,
    })
}
