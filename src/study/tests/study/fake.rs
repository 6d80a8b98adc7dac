//! A runner that makes figures up: the same for the same cell, but for what a clock would say.

use std::cell::Cell as Counter;
use std::path::{Path, PathBuf};

use files::Output;
use ropewalk_core::control::{Control, Stop};
use ropewalk_study::{
    merge, run, Breakdown, Bucket, Cell, CellResult, Estimate, Failure, Folder, Known, Metric, Plan, Result,
    Runner, Summary, Unit, SAMPLES,
};

/// Returns the benchmarks that a name stands for.
pub(crate) fn find(name: &str) -> Result<Vec<Known>, String> {
    let known = |name: &str, has_length| Known {
        name: name.into(),
        has_length,
        options: ["ruler", "depth"].map(str::to_owned).into(),
    };
    match name {
        "ruler_niah" => Ok(["niah_single_2", "niah_multikey_1"].map(|n| known(n, true)).to_vec()),
        "longbench" => Ok(["qasper", "trec"].map(|n| known(n, true)).to_vec()),
        "empty" => Ok(Vec::new()),
        "piqa" | "arc_challenge" => Ok(vec![known(name, false)]),
        n if n.starts_with("niah_") || ["vt", "cwe", "qa_1", "needle_lwm", "passkey"].contains(&n) => {
            Ok(vec![known(n, true)])
        }
        _ => Err(format!("unknown task {name:?}")),
    }
}

pub(crate) const PLAN: &str = r#"
title = "Twice the window"
lengths = [4096, 8192, 12288]
samples = 20
texts = ["essays.txt"]

[[models]]
name = "small"
path = "small.gguf"

[[methods]]
name = "plain"
spec = "plain"

[[methods]]
name = "pi"
spec = "pi:factor=2"

[[methods]]
name = "yarn"
spec = "yarn:factor=2"

[[methods]]
name = "yarn, trained"
spec = "yarn:factor=2"
tokens = 1000000
parameters = "lora"
train = { args = ["--steps", "100"], data = ["essays.txt"] }

[[methods]]
name = "dca"
spec = "dca"

[[methods]]
name = "lm-infinite"
spec = "lm-infinite"

[[methods]]
name = "streaming"
spec = "streaming"

[[tasks]]
name = "perplexity"
protocol = "yarn"
max_windows = 8

[[tasks]]
name = "passkey"
seeds = [1, 2]

[[tasks]]
name = "ruler_niah"

[[tasks]]
name = "vt"

[[tasks]]
name = "cwe"
options = { ruler = "2024" }

[[tasks]]
name = "piqa"
ctx = 8192

[[tasks]]
name = "arc_challenge"
ctx = 8192
"#;

/// Tokens that the recipe of [`PLAN`] takes.
pub(crate) const TRAINING: u64 = 100_000;

/// A plan with its texts in a separate folder.
pub(crate) struct Study {
    pub(crate) dir: tempfile::TempDir,
}

impl Study {
    pub(crate) fn new(text: &str) -> Study {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("plan.toml"), text).unwrap();
        std::fs::write(dir.path().join("essays.txt"), "An essay.\n").unwrap();
        Study { dir }
    }

    pub(crate) fn plan(&self) -> Plan {
        Plan::read(&self.dir.path().join("plan.toml"), &find).unwrap()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn open(&self, name: &str) -> Result<Folder> {
        Folder::open(self.at(name), &self.plan(), &find)
    }

    /// Runs the study in a folder, and writes the report.
    pub(crate) fn run(&self, name: &str, fake: &mut Fake) -> Result<Summary> {
        let folder = self.open(name)?;
        let summary = self.run_in(&folder, fake)?;
        ropewalk_study::report::write(&folder, &self.plan())?;
        Ok(summary)
    }

    /// Runs a unit in the folder of its study.
    pub(crate) fn run_unit(&self, name: &str, unit: &Unit, fake: &mut Fake) -> Result<Summary> {
        self.run_in(&Folder::open_unit(self.at(name), &self.plan(), unit.clone(), &find)?, fake)
    }

    fn run_in(&self, folder: &Folder, fake: &mut Fake) -> Result<Summary> {
        let stop = fake.stop.clone();
        run(&self.plan(), folder, fake, &Control::default().with_stop(&stop))
    }

    /// Merges folders into another one, and writes the report.
    pub(crate) fn merge(&self, names: &[&str], out: &str) -> Result<()> {
        let dirs: Vec<PathBuf> = names.iter().map(|name| self.at(name)).collect();
        let (folder, plan) = merge(&dirs, self.at(out), &find)?;
        ropewalk_study::report::write(&folder, &plan)?;
        Ok(())
    }

    /// Removes the results of all tasks but one from a folder.
    pub(crate) fn keep(&self, name: &str, task: &str) {
        for record in self.open(name).unwrap().records().unwrap().values().filter(|r| r.cell.task != task) {
            for (part, ending) in [("cells", "json"), ("samples", "jsonl")] {
                let file = format!("{}.{ending}", record.hash);
                std::fs::remove_file(self.at(name).join(part).join(file)).unwrap();
            }
        }
    }

    /// Both reports of a folder.
    #[track_caller]
    pub(crate) fn reports(&self, name: &str) -> (String, String) {
        let read = |file: &str| std::fs::read_to_string(self.at(name).join(file)).unwrap();
        (read("report.html"), read("report.md"))
    }
}

#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) stop: Stop,
    /// Asks for a stop after this many cells.
    pub(crate) stop_after: Option<usize>,
    /// Fails cells whose key holds this, saying the second.
    pub(crate) fails: Option<(&'static str, &'static str)>,
    /// Gives this as the score of cells whose key holds the text.
    pub(crate) scores: Option<(&'static str, f64)>,
    /// Stands for the model's contents.
    pub(crate) identity: &'static str,
    /// Methods whose model cannot be read.
    pub(crate) unreadable: Option<&'static str>,
    pub(crate) notes: Vec<String>,
    /// Cells measured.
    pub(crate) ran: Vec<String>,
    pub(crate) trained: usize,
    pub(crate) clock: Counter<f64>,
}

/// Numbers from 0 to 1 that follow from a text.
fn draws(text: &str) -> impl FnMut() -> f64 {
    let mut state =
        text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Fake {
    fn made_up(&self, cell: &Cell<'_>) -> CellResult {
        let key = cell.key().to_string();
        let mut draw = draws(&key);
        let length = cell.length.unwrap_or(1024);
        let trained = 8192.0;
        let beyond = (length as f64 / trained - 1.0).max(0.0);
        // How well a method holds up, from 0 to 1.
        let holds = match cell.method.name.as_str() {
            "plain" => 0.0,
            "pi" => 0.55,
            "streaming" => 0.3,
            "lm-infinite" => 0.35,
            "dca" => 0.8,
            _ => 0.9,
        };
        let local = matches!(cell.method.name.as_str(), "streaming" | "lm-infinite");
        let mut result = CellResult {
            samples: cell.task.samples.unwrap_or(8),
            tokens: length,
            protocol: cell.task.protocol.clone().unwrap_or_else(|| "as published".into()),
            source: "reference code".into(),
            rope: cell.method.spec.clone().unwrap_or_default(),
            n_ctx: length + 64,
            adapter: cell.method.train.as_ref().map(|_| "ab".repeat(32)),
            notes: self.notes.clone(),
            seconds: self.clock.get(),
            tokens_per_s: 1000.0 / (1.0 + self.clock.get()),
            ..CellResult::default()
        };
        self.clock.set(self.clock.get() + 1.0);
        if cell.task.is_perplexity() {
            let nll = |x: f64| {
                2.4 - 0.04 * x.max(32.0).log2()
                    + (x / trained - 1.0).max(0.0) * 9.0 * (if local { 0.0 } else { 1.0 - holds })
            };
            let width = length / 32;
            for i in 0..32 {
                let middle = (i as f64 + 0.5) * width as f64;
                let nll = nll(middle) + 0.02 * draw() + 0.1 * (1.0 - holds);
                result.buckets.push(Bucket {
                    start: i * width,
                    end: (i + 1) * width,
                    nll,
                    nll_stderr: Some(0.01),
                    tokens: 8 * width,
                });
            }
            let mean = result.buckets.iter().map(|b| b.nll).sum::<f64>() / 32.0;
            result.metric = "perplexity".into();
            result.value = mean.exp();
            result.interval = Some(((mean - 0.01).exp(), (mean + 0.01).exp()));
            result.interval_kind = "standard error".into();
        } else {
            let score = (96.0 - 4.0 * draw() - beyond * 180.0 * (1.0 - holds)).max(0.0)
                * if local && length > 4096 { 0.5 } else { 1.0 };
            let score = if cell.length.is_none() { 55.0 + 10.0 * draw() } else { score };
            result.metric = "accuracy".into();
            result.value = score;
            result.interval = Some(((score - 12.0).max(0.0), (score + 12.0).min(100.0)));
            result.interval_kind = "wilson".into();
            result.chance = cell.length.is_none().then_some(50.0);
            if cell.length.is_none() {
                let metric = |name: &str, value| Metric { name: name.into(), value, interval: None };
                result.metrics = vec![metric("accuracy", score), metric("acc_norm", score + 1.0)];
            }
            if cell.task.name.starts_with("niah_") || ["passkey", "needle_lwm"].contains(&&*cell.task.name) {
                // More depths than a map shows apart.
                let depths = if cell.task.name == "needle_lwm" { 20 } else { 4 };
                for depth in 0..=depths {
                    let share = if local && 4 * depth < 3 * depths && length > 4096 { 0.1 } else { 1.0 };
                    let score = (score * share * (0.8 + 0.25 * draw())).min(100.0);
                    let value = format!("{}", depth * 100 / depths);
                    result.by.push(Breakdown { tag: "depth".into(), value, score, samples: 4 });
                }
            }
        }
        if let Some((_, score)) = self.scores.filter(|(part, _)| key.contains(part)) {
            result.value = score;
        }
        result
    }
}

impl Runner for Fake {
    fn identity(&mut self, cell: &Cell<'_>) -> Result<String, String> {
        if self.unreadable == Some(cell.method.name.as_str()) {
            return Err("small.gguf: no such file".into());
        }
        Ok(self.identity.into())
    }

    fn train(&mut self, cell: &Cell<'_>, out: &Output, _: &Control<'_>) -> Result<(), Failure> {
        assert_eq!(cell.method.train.as_ref().unwrap().args, ["--steps", "100"]);
        self.trained += 1;
        if self.fails.is_some_and(|(part, _)| part == "training") {
            return Err(Failure::Failed("the loss is not a number".into()));
        }
        std::fs::write(out.path(), "adapter").map_err(|e| Failure::Failed(e.to_string()))
    }

    fn run(
        &mut self,
        cell: &Cell<'_>,
        trained: Option<&Path>,
        samples: &Output,
        control: &Control<'_>,
    ) -> Result<CellResult, Failure> {
        let key = cell.key().to_string();
        assert_eq!(trained.is_some(), cell.method.train.is_some());
        if self.stop_after.is_some_and(|n| self.ran.len() >= n) {
            self.stop.request();
        }
        control.unless_stopped(Failure::Stopped)?;
        if let Some((_, why)) = self.fails.filter(|(part, _)| key.contains(part)) {
            return Err(Failure::Failed(why.into()));
        }
        std::fs::write(samples.path(), format!("{}{{\"sample\": {key:?}}}\n", SAMPLES.header())).unwrap();
        self.ran.push(key);
        Ok(self.made_up(cell))
    }

    fn estimate(&mut self, cell: &Cell<'_>) -> Result<Estimate, String> {
        let tokens = cell.length.unwrap_or(100) * cell.task.samples.unwrap_or(8);
        Ok(Estimate { tokens, bytes: 1 << 20, cost: tokens as f64 })
    }

    fn estimate_training(&mut self, _: &Cell<'_>) -> Result<Estimate, String> {
        Ok(Estimate { tokens: TRAINING, bytes: 2 << 20, cost: TRAINING as f64 })
    }

    fn speed(&mut self, _: &Cell<'_>) -> Result<f64, String> {
        Ok(1000.0)
    }
}
