//! Measures the cells of a study in sessions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gguf::Output;
use ropewalk_core::text::hex;

use super::Settings;
use crate::adapter::{fingerprint, metadata_fingerprint, AdapterReader, AdapterSpec};
use crate::chat::{Message, Template};
use crate::control::Control;
use crate::data::{Sources, TextOptions};
use crate::eval::stats::perplexity_interval;
use crate::eval::suite::{self, FileStore};
use crate::eval::{self, perplexity, protocol, rounding, Content, Document, SessionSource};
use crate::model::{Error, Model, ModelParams, Result};
use crate::origin::sha256_of;
use crate::rope::Spec;
use crate::session::{Session, SessionParams};
use crate::study::{self, Bucket, Cell, CellResult, Estimate, Failure, Metric, Plan, Runner};
use crate::tasks::{self, Task};
use crate::Token;

/// How many times the tokens of a text LongPPL reads, about: each 1,024 of them with 4,096 before them.
const LONGPPL: u64 = 6;
/// Prompt tokens that the speed of a model is measured with.
const PROBE: usize = 512;

/// A model that is loaded, with its adapters.
struct Loaded {
    path: PathBuf,
    adapters: Vec<PathBuf>,
    model: Model,
}

/// Runs cells. The model of the last cell stays loaded.
pub(super) struct SessionRunner<'a> {
    settings: &'a Settings<'a>,
    control: Control<'a>,
    data: Option<PathBuf>,
    loaded: Option<Loaded>,
    hashes: HashMap<PathBuf, Result<String, String>>,
    documents: HashMap<Vec<PathBuf>, Vec<Document>>,
    /// Tokens of each document, by model and texts.
    counts: HashMap<(PathBuf, Vec<PathBuf>), Vec<u64>>,
    /// Floating-point operations per second, by model.
    speeds: HashMap<PathBuf, f64>,
}

impl<'a> SessionRunner<'a> {
    pub(super) fn new(plan: &Plan, settings: &'a Settings<'a>, control: Control<'a>) -> SessionRunner<'a> {
        SessionRunner {
            settings,
            control,
            data: plan.data.clone(),
            loaded: None,
            hashes: HashMap::new(),
            documents: HashMap::new(),
            counts: HashMap::new(),
            speeds: HashMap::new(),
        }
    }

    fn hash(&mut self, path: &Path, hash: fn(&Path) -> Result<String>) -> Result<String, String> {
        let known = self.hashes.entry(path.to_owned());
        known.or_insert_with(|| hash(path).map_err(|e| e.to_string())).clone()
    }

    /// The cell's model with its adapters, loaded if it is not.
    fn load(&mut self, cell: &Cell<'_>, trained: Option<&Path>) -> Result<&Loaded, String> {
        let adapters: Vec<PathBuf> =
            cell.method.adapters.iter().map(PathBuf::as_path).chain(trained).map(Path::to_owned).collect();
        let same = |l: &Loaded| l.path == cell.model.path && l.adapters == adapters;
        let loaded = match self.loaded.take().filter(same) {
            Some(loaded) => loaded,
            None => self.load_anew(&cell.model.path, adapters).map_err(|e| e.to_string())?,
        };
        Ok(self.loaded.insert(loaded))
    }

    fn load_anew(&self, path: &Path, adapters: Vec<PathBuf>) -> Result<Loaded> {
        let specs = adapters.iter().map(|path| AdapterSpec::new(path.clone(), 1.0)).collect();
        let model =
            Model::load(path, &ModelParams::auto().device(self.settings.device.clone()).adapters(specs))?;
        if let Some(unread) = model.hparams().unread_note() {
            let name = path.file_name().unwrap_or(path.as_os_str()).display();
            self.control.note(format_args!("note: {name}: {unread}"));
        }
        Ok(Loaded { path: path.to_owned(), adapters, model })
    }

    fn documents(&mut self, paths: &[PathBuf]) -> Result<Vec<Document>, String> {
        if let Some(known) = self.documents.get(paths) {
            return Ok(known.clone());
        }
        let read = eval::read_documents(paths).map_err(|e| e.to_string())?;
        self.documents.insert(paths.to_vec(), read.clone());
        Ok(read)
    }

    /// Tokens of each document of the cell's task.
    fn counts(&mut self, cell: &Cell<'_>, model: &Model) -> Result<Vec<u64>, String> {
        let key = (cell.model.path.clone(), cell.task.texts.clone());
        if let Some(known) = self.counts.get(&key) {
            return Ok(known.clone());
        }
        let documents = self.documents(&key.1)?;
        let counts: Vec<u64> = documents.iter().map(|d| n_tokens(model, d) as u64).collect();
        self.counts.insert(key, counts.clone());
        Ok(counts)
    }
}

impl Runner for SessionRunner<'_> {
    fn identity(&mut self, cell: &Cell<'_>) -> Result<String, String> {
        let session = &self.settings.session;
        let session = format!("{}{}", session.kv_type.name(), rounding(session));
        let mut parts = vec![self.hash(&cell.model.path, of_model)?, session];
        for path in &cell.method.adapters {
            parts.push(self.hash(path, sha256)?);
        }
        for path in cell.method.train.iter().flat_map(|recipe| &recipe.data) {
            parts.push(self.hash(path, texts)?);
        }
        Ok(parts.join(" "))
    }

    fn data(&mut self, cell: &Cell<'_>) -> Result<String, String> {
        let Ok(found) = tasks::find(&cell.task.name) else { return Ok(String::new()) };
        let mut parts = Vec::new();
        let paths = found.iter().flat_map(|task| {
            let data = data_of(self.data.as_deref(), self.settings, *task);
            task.info().files.iter().map(move |file| data.join(file.name))
        });
        for path in paths.collect::<Vec<_>>() {
            // A file that is missing may not be needed; the task says so if it is.
            if path.exists() {
                parts.push(self.hash(&path, sha256)?);
            }
        }
        for path in tasks::named_texts(&found, &cell.task.options).iter().filter(|path| path.exists()) {
            parts.push(self.hash(path, texts)?);
        }
        Ok(parts.join(" "))
    }

    fn train(&mut self, cell: &Cell<'_>, out: &Output, control: &Control<'_>) -> Result<(), Failure> {
        let Some(recipe) = &cell.method.train else { return Ok(()) };
        // Its weights are not in memory twice.
        self.loaded = None;
        let program = self.settings.program;
        let training = program.training(&recipe.args, cell.method.spec.as_deref())?;
        control.note(format_args!("{}, {}: training", cell.model.name, cell.method.name));
        training.run(&cell.model.path, &recipe.data, out, control).map_err(|e| match control.stopped() {
            true => Failure::Stopped,
            false => Failure::Failed(program.reason(&e)),
        })
    }

    fn run(
        &mut self,
        cell: &Cell<'_>,
        trained: Option<&Path>,
        samples: &Output,
        control: &Control<'_>,
    ) -> Result<CellResult, Failure> {
        let started = Instant::now();
        let documents =
            if cell.task.is_perplexity() { self.documents(&cell.task.texts)? } else { Vec::new() };
        let (data, settings) = (self.data.clone(), self.settings);
        let loaded = self.load(cell, trained)?;
        // Before the texts become tokens, which takes seconds.
        control.unless_stopped(Failure::Stopped)?;
        let parse = |text: &String| text.parse::<Spec>().map_err(|e| format!("rope {text}: {e}"));
        let spec = cell.method.spec.as_ref().map(parse).transpose()?;
        let source = SessionSource::new(&loaded.model, session(settings, 0, spec));
        let control = control.without_progress();
        let mut result = match cell.task.name.as_str() {
            "perplexity" | "longppl" => of_text(cell, &source, &documents, settings, &control),
            _ => of_benchmark(cell, &source, &loaded.model, settings, data.as_deref(), samples, &control),
        }?;
        let digests: Vec<&str> = loaded.model.adapters().iter().map(|a| a.digest()).collect();
        result.adapter = (!digests.is_empty()).then(|| digests.join(" "));
        result.tokens_trained = cell.method.tokens.or_else(|| tokens_of(trained?));
        result.seconds = started.elapsed().as_secs_f64();
        Ok(result)
    }

    fn estimate(&mut self, cell: &Cell<'_>) -> Result<Estimate, String> {
        let settings = self.settings;
        let model = self.load(cell, None)?.model.clone();
        let length = cell.length.or(cell.task.ctx).unwrap_or(1024);
        let long = cell.task.name == "longppl";
        let samples = cell.task.samples.or_else(|| {
            let found = tasks::find(&cell.task.name).ok()?;
            found.first()?.info().samples.map(|n| n as u64)
        });
        let tokens = match cell.task.name.as_str() {
            "perplexity" | "longppl" => {
                let texts = self.counts(cell, &model)?.into_iter();
                let windows = cell.task.max_windows.map_or(u64::MAX, |n| n.saturating_mul(length));
                let tokens = match (cell.task.protocol.as_deref().unwrap_or("window"), cell.task.stride) {
                    // The beginning of each text.
                    ("window", _) => texts.map(|n| n.min(length)).sum::<u64>().min(windows),
                    (_, Some(stride)) => {
                        (texts.sum::<u64>() / stride.max(1)).saturating_mul(length).min(windows)
                    }
                    (_, None) => texts.sum::<u64>().min(windows),
                };
                tokens.saturating_mul(if long { LONGPPL } else { 1 })
            }
            // Short prompts: what they are long is not known before they are made.
            _ if cell.length.is_none() => samples.unwrap_or(1000).saturating_mul(256),
            _ => samples.unwrap_or(20).saturating_mul(length),
        };
        let spec =
            cell.method.spec.as_ref().map(|s| s.parse::<Spec>()).transpose().map_err(|e| e.to_string())?;
        let n_ctx = usize::try_from(length).map_err(|e| e.to_string())?;
        let params = session(settings, n_ctx, spec);
        let bytes = Session::bytes_needed(&model, &params).map_err(|e| e.to_string())?;
        Ok(Estimate { tokens, bytes: bytes as u64, cost: cost(&model, tokens, n_ctx) })
    }

    fn estimate_training(&mut self, cell: &Cell<'_>) -> Result<Estimate, String> {
        let Some(recipe) = &cell.method.train else { return Ok(Estimate::default()) };
        let program = self.settings.program;
        let training = program.training(&recipe.args, cell.method.spec.as_deref())?;
        let loaded = self.load(cell, None)?;
        training.estimate(&loaded.model).map_err(|e| program.reason(&e))
    }

    fn speed(&mut self, cell: &Cell<'_>) -> Result<f64, String> {
        if let Some(speed) = self.speeds.get(&cell.model.path) {
            return Ok(*speed);
        }
        let settings = self.settings;
        let loaded = self.load(cell, None)?;
        let speed = measure(&loaded.model, settings).map_err(|e| e.to_string())?;
        self.speeds.insert(cell.model.path.clone(), speed);
        Ok(speed)
    }
}

/// Floating-point operations of so many tokens of texts of this length.
pub(super) fn cost(model: &Model, tokens: u64, length: usize) -> f64 {
    eval::bench::flops_of_text(model, length) / length.max(1) as f64 * tokens as f64
}

/// Settings of a session of this context under this spec.
fn session(settings: &Settings<'_>, n_ctx: usize, rope: Option<Spec>) -> SessionParams {
    SessionParams { n_ctx, rope, ..settings.session.clone() }
}

/// The folder of a task's data: the plan's, else the program's.
fn data_of(data: Option<&Path>, settings: &Settings<'_>, task: &dyn Task) -> PathBuf {
    data.map_or_else(|| settings.program.data(task), Path::to_owned)
}

fn n_tokens(model: &Model, document: &Document) -> usize {
    match &document.content {
        Content::Ids(ids) => ids.len(),
        Content::Text(text) => model.vocab().tokenize(text, false, false).map_or(0, |t| t.len()),
    }
}

/// Floating-point operations per second, of a short prompt.
fn measure(model: &Model, settings: &Settings<'_>) -> Result<f64> {
    let mut session = Session::new(model, &session(settings, PROBE, Some(Spec::plain())))?;
    let n_vocab = model.hparams().n_vocab;
    let tokens: Vec<_> = (0..PROBE).map(|i| (i * 37 % n_vocab.min(1000)) as Token).collect();
    session.append(&tokens)?;
    session.clear();
    let start = Instant::now();
    session.append(&tokens)?;
    Ok(cost(model, PROBE as u64, PROBE) / start.elapsed().as_secs_f64().max(1e-9))
}

/// Tokens that an adapter was trained on, as it says.
fn tokens_of(adapter: &Path) -> Option<u64> {
    AdapterReader::open(adapter).ok()?.meta().tokens
}

fn of_model(path: &Path) -> Result<String> {
    let file = gguf::File::open(path)?;
    Ok(format!("{} {}", fingerprint(&file), metadata_fingerprint(&file)))
}

/// A file of texts, or all files of a folder of them.
fn texts(path: &Path) -> Result<String> {
    if !path.is_dir() {
        return sha256(path);
    }
    let found = Sources::find(&[path.to_owned()], &TextOptions::default())?;
    Ok(found.files().iter().map(|file| hex(&file.sha256)).collect::<Vec<_>>().join(" "))
}

fn sha256(path: &Path) -> Result<String> {
    let found = sha256_of(path, &Control::default()).map_err(|e| Error::Invalid(e.to_string()))?;
    Ok(found.0)
}

fn failed(e: Error, settings: &Settings<'_>) -> Failure {
    match e {
        Error::Interrupted => Failure::Stopped,
        e => Failure::Failed(settings.program.reason(&e.into())),
    }
}

fn length(cell: &Cell<'_>) -> Result<Vec<usize>, Failure> {
    let length = cell.length.map(usize::try_from).transpose();
    Ok(length.map_err(|e| Failure::Failed(e.to_string()))?.into_iter().collect())
}

fn count(n: Option<u64>) -> Option<usize> {
    n.map(|n| usize::try_from(n).unwrap_or(usize::MAX))
}

fn of_text(
    cell: &Cell<'_>,
    source: &SessionSource,
    documents: &[Document],
    settings: &Settings<'_>,
    control: &Control<'_>,
) -> Result<CellResult, Failure> {
    let (task, failed) = (cell.task, |e| failed(e, settings));
    let rule = protocol::protocol(task.protocol.as_deref().unwrap_or("window")).map_err(failed)?;
    let long = task.name == "longppl";
    let params = perplexity::Params {
        ctx: count(task.ctx),
        stride: count(task.stride),
        max_windows: count(task.max_windows),
        seed: None,
        longppl: long.then(perplexity::longppl::Params::default),
        ..perplexity::Params::new(rule, length(cell)?)
    };
    let report = perplexity::run(source, "", documents, &params, control).map_err(failed)?;
    let row = report.results.into_iter().next().filter(|_| !report.interrupted).ok_or(Failure::Stopped)?;
    let around = |x: f64, e: Option<f64>| e.and_then(|e| perplexity_interval(x, e));
    let mut result = CellResult {
        metric: "perplexity".into(),
        value: row.headline.ppl,
        interval: around(row.headline.ppl, row.headline.ppl_stderr),
        interval_kind: "standard error".into(),
        samples: row.windows as u64,
        tokens: row.tokens as u64,
        protocol: match report.stride {
            Some(stride) => format!("{}, stride {stride}", report.protocol),
            None => report.protocol.into(),
        },
        source: report.source.into(),
        rope: report.rope,
        n_ctx: row.n_ctx as u64,
        buckets: row
            .buckets
            .iter()
            .map(|b| Bucket {
                start: b.start as u64,
                end: b.end as u64,
                nll: b.value.nll,
                nll_stderr: b.value.nll_stderr,
                tokens: b.tokens as u64,
            })
            .collect(),
        notes: report.notes,
        tokens_per_s: row.tokens_per_s,
        ..CellResult::default()
    };
    if let Some(found) = row.longppl {
        result.metrics.push(Metric {
            name: "perplexity".into(),
            value: result.value,
            interval: result.interval,
        });
        result.metric = "longppl".into();
        result.source = "LongPPL (Fang et al. 2024), package longppl 0.3.0".into();
        result.value = found.longppl.ok_or_else(|| {
            Failure::Failed("no token of the text depends on its long context: LongPPL is not defined".into())
        })?;
        result.interval = around(result.value, found.longppl_stderr);
        result.notes.push(format!("{} key tokens", found.key_tokens));
    }
    let headline = Metric { name: result.metric.clone(), value: result.value, interval: result.interval };
    result.metrics.insert(0, headline);
    Ok(result)
}

fn of_benchmark(
    cell: &Cell<'_>,
    source: &SessionSource,
    model: &Model,
    settings: &Settings<'_>,
    data: Option<&Path>,
    samples: &Output,
    control: &Control<'_>,
) -> Result<CellResult, Failure> {
    let found = tasks::find(&cell.task.name).map_err(|e| Failure::Failed(e.to_string()))?;
    let [task] = found[..] else {
        return Err(Failure::Failed(format!("{}: expected one task", cell.task.name)));
    };
    let failed = |e| failed(e, settings);
    let chat = match cell.task.template {
        study::Template::Base => None,
        study::Template::Chat => {
            let chat = match &settings.template {
                Some(apart) => Template::of_apart(model, &apart.clone().stopped_by(control)),
                None => Template::of(model),
            };
            Some(chat.map_err(|e| match control.stopped() {
                true => Failure::Stopped,
                false => Failure::Failed(e.to_string()),
            })?)
        }
    };
    let frame = |message: &str| match &chat {
        Some(template) => template.render(&[Message::new("user", message)], true),
        None => Ok(message.to_owned()),
    };
    let data = data_of(data, settings, task);
    let params = suite::Params {
        ctx: count(cell.task.ctx),
        samples: count(cell.task.samples),
        seed: cell.seed,
        template: if chat.is_some() { tasks::Template::Chat } else { tasks::Template::Base },
        frame: chat.is_some().then_some(&frame),
        options: cell.task.options.clone(),
        batch: settings.parallel,
        identity: source.identity().map_err(failed)?,
        ..suite::Params::new(length(cell)?, &data)
    };
    let mut store = FileStore::open(samples.clone()).map_err(failed)?;
    let report = suite::run(source, "", task, &params, &mut store, control).map_err(failed)?;
    let row = report.results.into_iter().next().filter(|_| !report.interrupted).ok_or(Failure::Stopped)?;
    let settings: Vec<String> = report.options.iter().map(|(k, v)| format!("{k} {v}")).collect();
    let metric = |m: &suite::Metric| Metric {
        name: m.name.clone(),
        value: m.score,
        interval: Some((m.ci_low, m.ci_high)),
    };
    Ok(CellResult {
        metric: report.metric,
        value: row.score,
        interval: Some((row.ci_low, row.ci_high)),
        interval_kind: row.metrics.first().map_or("", |m| m.interval).into(),
        metrics: row.metrics.iter().map(metric).collect(),
        samples: row.samples as u64,
        tokens: row.tokens as u64,
        protocol: std::iter::once(format!("template {}", report.template))
            .chain(settings)
            .collect::<Vec<_>>()
            .join(", "),
        source: report.source,
        rope: report.rope,
        n_ctx: row.n_ctx as u64,
        chance: report.chance,
        by: row.by,
        tokens_per_s: row.tokens_per_s,
        ..CellResult::default()
    })
}
