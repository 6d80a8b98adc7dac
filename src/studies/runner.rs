//! Measures the cells of a study in sessions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gguf::Output;
use ropewalk_core::text::hex;

use super::measured::{of_benchmark, of_text, template};
use super::Settings;
use crate::adapter::{fingerprint, metadata_fingerprint, AdapterReader, AdapterSpec};
use crate::control::Control;
use crate::data::{Sources, TextOptions};
use crate::eval::suite::TaskEncoder;
use crate::eval::{self, protocol, rounding, Content, Document, SessionSource};
use crate::model::{Error, Model, ModelParams, Result};
use crate::origin::sha256_of;
use crate::rope::Spec;
use crate::session::{Session, SessionParams};
use crate::study::{Cell, CellResult, Estimate, Failure, Plan, Runner};
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
    /// Number of samples, by the settings that they depend on.
    samples: HashMap<String, Result<u64, String>>,
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
            samples: HashMap::new(),
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

    /// Stands for the cell's model, adapters, training data, and a session of these settings.
    fn inputs(&mut self, cell: &Cell<'_>, session: &SessionParams) -> Result<String, String> {
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

    fn documents(&mut self, paths: &[PathBuf]) -> Result<Vec<Document>, String> {
        if let Some(known) = self.documents.get(paths) {
            return Ok(known.clone());
        }
        let read = eval::read_documents(paths).map_err(|e| e.to_string())?;
        self.documents.insert(paths.to_vec(), read.clone());
        Ok(read)
    }

    /// Number of samples of a benchmark. Options that the task rejects, and data that it does not find, are errors.
    fn samples(&mut self, cell: &Cell<'_>, model: &Model) -> Result<u64, String> {
        let task = cell.task;
        let of_task = (&task.name, &task.options, task.template, task.samples);
        let key = format!("{:?}", (&cell.model.path, of_task, cell.length));
        if let Some(known) = self.samples.get(&key) {
            return known.clone();
        }
        let found = tasks::find(&task.name).map_err(|e| e.to_string())?;
        let data = found.first().map(|task| data_of(self.data.as_deref(), self.settings, *task));
        let (Some(of), Some(data)) = (found.first(), data) else {
            return Err(format!("{}: no task", task.name));
        };
        let source = SessionSource::new(model, session(self.settings, 0, None));
        let encoder = TaskEncoder::new(&source, tasks::Template::Base, None).map_err(|e| e.to_string())?;
        let setup = tasks::Setup {
            length: count(cell.length),
            samples: count(task.samples),
            seed: cell.seed,
            template: template(cell),
            options: task.options.clone(),
            data: &data,
            encoder: &encoder,
            control: self.control,
        };
        let n = of.samples(&setup).map(|samples| samples.n as u64).map_err(|e| e.to_string());
        self.samples.insert(key, n.clone());
        n
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
        self.inputs(cell, &self.settings.session)
    }

    fn trained_on(&mut self, cell: &Cell<'_>) -> Result<String, String> {
        self.inputs(cell, &SessionParams::new(0))
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
        let protocol = protocol::protocol(cell.task.protocol.as_deref().unwrap_or("window"));
        let protocol = protocol.map_err(|e| e.to_string())?;
        let long = cell.task.name == "longppl";
        let samples = if cell.task.is_perplexity() { 0 } else { self.samples(cell, &model)? };
        let tokens = match cell.task.name.as_str() {
            "perplexity" | "longppl" => {
                let texts = self.counts(cell, &model)?.into_iter();
                let windows = cell.task.max_windows.map_or(u64::MAX, |n| n.saturating_mul(length));
                let stride = protocol.stride.and(cell.task.stride.or(protocol.stride.map(|n| n as u64)));
                let tokens = match (protocol.name, stride) {
                    // The beginning of each text.
                    ("window", _) => texts.map(|n| n.min(length)).sum::<u64>().min(windows),
                    _ if protocol.restarts => texts.map(|n| n.min(length)).sum::<u64>().min(windows),
                    (_, Some(stride)) => {
                        (texts.sum::<u64>() / stride.max(1)).saturating_mul(length).min(windows)
                    }
                    (_, None) => texts.sum::<u64>().min(windows),
                };
                tokens.saturating_mul(if long { LONGPPL } else { 1 })
            }
            // Short prompts: what they are long is not known before they are made.
            _ if cell.length.is_none() => samples.saturating_mul(256),
            _ => samples.saturating_mul(length),
        };
        let spec =
            cell.method.spec.as_ref().map(|s| s.parse::<Spec>()).transpose().map_err(|e| e.to_string())?;
        let n_ctx = usize::try_from(length).map_err(|e| e.to_string())?;
        let opened = n_ctx.max(count(cell.task.ctx).unwrap_or(0));
        let params = session(settings, opened, spec);
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
pub(super) fn data_of(data: Option<&Path>, settings: &Settings<'_>, task: &dyn Task) -> PathBuf {
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

pub(super) fn count(n: Option<u64>) -> Option<usize> {
    n.map(|n| usize::try_from(n).unwrap_or(usize::MAX))
}
