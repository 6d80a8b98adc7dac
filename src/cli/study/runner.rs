//! Measures the cells of a study in sessions of this process, and trains as `finetune` does.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use ropewalk::adapter::{AdapterReader, AdapterSpec};
use ropewalk::control::Control;
use ropewalk::data::{SourceFile, Sources, TextOptions};
use ropewalk::eval::stats::perplexity_interval;
use ropewalk::eval::suite::{self, FileStore};
use ropewalk::eval::{perplexity, protocol, Document, SessionSource};
use ropewalk::fetch::sha256_of;
use ropewalk::model::{Error, Model};
use ropewalk::rope::Spec;
use ropewalk::session::Session;
use ropewalk::tasks::{self, Template};
use ropewalk::DType;
use ropewalk_study::{Breakdown, Bucket, Cell, CellResult, Estimate, Failure, Metric, Plan, Runner};

use super::super::finetune::Training;
use super::super::hints;
use super::super::models::{self, ModelChoice};
use super::super::options::read_documents;
use super::super::template;
use super::Args;

/// How many times the tokens of a text LongPPL reads, about: each 1,024 of them with 4,096 before them.
const LONGPPL: u64 = 6;
/// Prompt tokens that the speed of a model is measured with.
const PROBE: usize = 512;

/// A model that is loaded, with its adapters.
struct Loaded {
    path: PathBuf,
    adapters: Vec<PathBuf>,
    choice: ModelChoice,
    model: Model,
}

/// Runs cells. The model of the last cell stays loaded.
pub(super) struct SessionRunner<'a> {
    args: &'a Args,
    data: Option<PathBuf>,
    kv_type: DType,
    loaded: Option<Loaded>,
    /// Hashes of files, by path.
    hashes: HashMap<PathBuf, Result<String, String>>,
    documents: HashMap<Vec<PathBuf>, Vec<Document>>,
    /// Prompt tokens per second, by model.
    speeds: HashMap<PathBuf, f64>,
}

impl<'a> SessionRunner<'a> {
    pub(super) fn new(plan: &Plan, args: &'a Args) -> anyhow::Result<SessionRunner<'a>> {
        let kv_type = DType::parse(&args.kv).with_context(|| format!("--kv {}: unknown type", args.kv))?;
        Ok(SessionRunner {
            args,
            data: plan.data.clone(),
            kv_type,
            loaded: None,
            hashes: HashMap::new(),
            documents: HashMap::new(),
            speeds: HashMap::new(),
        })
    }

    fn hash(&mut self, path: &Path, hash: fn(&Path) -> anyhow::Result<String>) -> Result<String, String> {
        let known = self.hashes.entry(path.to_owned());
        known.or_insert_with(|| hash(path).map_err(|e| format!("{e:#}"))).clone()
    }

    /// The cell's model with its adapters, loaded if it is not.
    fn load(&mut self, cell: &Cell<'_>, trained: Option<&Path>) -> Result<&Loaded, String> {
        let adapters: Vec<PathBuf> =
            cell.method.adapters.iter().map(PathBuf::as_path).chain(trained).map(Path::to_owned).collect();
        let same = |l: &Loaded| l.path == cell.model.path && l.adapters == adapters;
        let loaded = match self.loaded.take().filter(same) {
            Some(loaded) => loaded,
            None => self.load_anew(&cell.model.path, adapters).map_err(|e| format!("{e:#}"))?,
        };
        Ok(self.loaded.insert(loaded))
    }

    fn load_anew(&self, path: &Path, adapters: Vec<PathBuf>) -> anyhow::Result<Loaded> {
        let specs: Vec<AdapterSpec> =
            adapters.iter().map(|path| AdapterSpec::new(path.clone(), 1.0)).collect();
        let name = path.display().to_string();
        let choice = self.args.machine.choose(&name, self.kv_type, &specs)?;
        let model = models::load(&choice, &self.args.output)?;
        Ok(Loaded { path: path.to_owned(), adapters, choice, model })
    }

    fn documents(&mut self, paths: &[PathBuf]) -> Result<Vec<Document>, String> {
        if let Some(known) = self.documents.get(paths) {
            return Ok(known.clone());
        }
        let read = read_documents(paths).map_err(|e| format!("{e:#}"))?;
        self.documents.insert(paths.to_vec(), read.clone());
        Ok(read)
    }
}

impl Runner for SessionRunner<'_> {
    fn identity(&mut self, cell: &Cell<'_>) -> Result<String, String> {
        let mut parts = vec![self.hash(&cell.model.path, fingerprint)?, self.kv_type.name().to_owned()];
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
            let data = models::data_for(self.data.as_deref(), *task);
            task.info().files.iter().map(move |file| data.join(file.name))
        });
        for path in paths.collect::<Vec<_>>() {
            // A file that is missing may not be needed; the task says so if it is.
            if path.exists() {
                parts.push(self.hash(&path, sha256)?);
            }
        }
        Ok(parts.join(" "))
    }

    fn train(&mut self, cell: &Cell<'_>, out: &Path, control: &Control<'_>) -> Result<(), Failure> {
        let Some(recipe) = &cell.method.train else { return Ok(()) };
        // Its weights are not in memory twice.
        self.loaded = None;
        let training = Training::parse(&recipe.args, cell.method.spec.as_deref())?;
        control.note(format_args!("{}, {}: training", cell.model.name, cell.method.name));
        let machine = self.args.machine.device_and_threads();
        training.run(&cell.model.path, &recipe.data, out, machine, control).map_err(|e| {
            if control.stopped() {
                return Failure::Stopped;
            }
            Failure::Failed(super::super::in_a_line(&e))
        })
    }

    fn run(
        &mut self,
        cell: &Cell<'_>,
        trained: Option<&Path>,
        samples: &Path,
        control: &Control<'_>,
    ) -> Result<CellResult, Failure> {
        let started = Instant::now();
        let documents =
            if cell.task.is_perplexity() { self.documents(&cell.task.texts)? } else { Vec::new() };
        let (data, parallel) = (self.data.clone(), self.args.parallel);
        let loaded = self.load(cell, trained)?;
        let spec = match &cell.method.spec {
            Some(text) => Some(text.parse::<Spec>().map_err(|e| format!("rope {text}: {e}"))?),
            None => None,
        };
        let source = SessionSource::new(&loaded.model, loaded.choice.session(0, spec.as_ref()));
        let control = control.without_progress();
        let done = match cell.task.name.as_str() {
            "perplexity" | "longppl" => of_text(cell, &source, &documents, &control),
            _ => of_benchmark(cell, &source, loaded, data.as_deref(), parallel, samples, &control),
        };
        let mut result = done?.ok_or(Failure::Stopped)?;
        let digests: Vec<&str> = loaded.model.adapters().iter().map(|a| a.digest()).collect();
        result.adapter = (!digests.is_empty()).then(|| digests.join(" "));
        result.tokens_trained = cell.method.tokens.or_else(|| tokens_of(trained?));
        result.seconds = started.elapsed().as_secs_f64();
        Ok(result)
    }

    fn estimate(&mut self, cell: &Cell<'_>) -> Result<Estimate, String> {
        let texts = cell.task.texts.clone();
        let documents = if cell.task.is_perplexity() { self.documents(&texts)? } else { Vec::new() };
        let known = self.speeds.get(&cell.model.path).copied();
        let loaded = self.load(cell, None)?;
        let speed = match known {
            Some(speed) => speed,
            None => measure(loaded).map_err(|e| e.to_string())?,
        };
        let length = cell.length.or(cell.task.ctx).unwrap_or(1024);
        let long = cell.task.name == "longppl";
        let samples = cell.task.samples.or_else(|| {
            let found = tasks::find(&cell.task.name).ok()?;
            found.first()?.info().samples.map(|n| n as u64)
        });
        let tokens = match cell.task.name.as_str() {
            "perplexity" | "longppl" => {
                let texts = documents.iter().map(|d| n_tokens(loaded, d) as u64);
                let windows = cell.task.max_windows.map_or(u64::MAX, |n| n.saturating_mul(length));
                let tokens = match (cell.task.protocol.as_deref().unwrap_or("window"), cell.task.stride) {
                    // The beginning of each text.
                    ("window", _) => texts.map(|n| n.min(length)).sum::<u64>().min(windows),
                    (_, Some(stride)) => {
                        (texts.sum::<u64>() / stride.max(1)).saturating_mul(length).min(windows)
                    }
                    (_, None) => texts.sum::<u64>().min(windows),
                };
                if long {
                    tokens.saturating_mul(LONGPPL)
                } else {
                    tokens
                }
            }
            // Short prompts: what they are long is not known before they are made.
            _ if cell.length.is_none() => samples.unwrap_or(1000).saturating_mul(256),
            _ => samples.unwrap_or(20).saturating_mul(length),
        };
        let spec =
            cell.method.spec.as_ref().map(|s| s.parse::<Spec>()).transpose().map_err(|e| e.to_string())?;
        let n_ctx = usize::try_from(length).map_err(|e| e.to_string())?;
        let params = loaded.choice.session(n_ctx, spec.as_ref());
        let bytes = Session::bytes_needed(&loaded.model, &params).map_err(|e| e.to_string())?;
        let seconds = tokens as f64 / speed;
        self.speeds.insert(cell.model.path.clone(), speed);
        Ok(Estimate { tokens, bytes: bytes as u64, seconds })
    }
}

fn n_tokens(loaded: &Loaded, document: &Document) -> usize {
    match &document.content {
        ropewalk::eval::Content::Ids(ids) => ids.len(),
        ropewalk::eval::Content::Text(text) => {
            loaded.model.vocab().tokenize(text, false, false).map_or(0, |t| t.len())
        }
    }
}

/// Tokens per second of a short prompt.
fn measure(loaded: &Loaded) -> ropewalk::model::Result<f64> {
    let mut session = Session::new(&loaded.model, &loaded.choice.session(PROBE, Some(&Spec::plain())))?;
    let n_vocab = loaded.model.hparams().n_vocab;
    let tokens: Vec<_> = (0..PROBE).map(|i| (i * 37 % n_vocab.min(1000)) as ropewalk::Token).collect();
    session.append(&tokens)?;
    session.clear();
    let start = Instant::now();
    session.append(&tokens)?;
    Ok(PROBE as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

/// Tokens that an adapter was trained on, as it says.
fn tokens_of(adapter: &Path) -> Option<u64> {
    AdapterReader::open(adapter).ok()?.meta().tokens
}

fn fingerprint(path: &Path) -> anyhow::Result<String> {
    let file = gguf::File::open(path)?;
    Ok(ropewalk_core::adapter::fingerprint(&file))
}

/// A file of texts, or all files of a folder of them.
fn texts(path: &Path) -> anyhow::Result<String> {
    if !path.is_dir() {
        return sha256(path);
    }
    let found = Sources::find(&[path.to_owned()], &TextOptions::default())?;
    let digits = |file: &SourceFile| file.sha256.iter().map(|b| format!("{b:02x}")).collect::<String>();
    Ok(found.files().iter().map(digits).collect::<Vec<_>>().join(" "))
}

fn sha256(path: &Path) -> anyhow::Result<String> {
    // A pipe is not waited for.
    files::foreign::open_file(path)?;
    let (hash, _) = sha256_of(path, &Control::default())?.context("interrupted")?;
    Ok(hash)
}

fn failed(e: Error) -> Failure {
    match e {
        Error::Interrupted => Failure::Stopped,
        e => Failure::Failed(format!("{e}{}", hints::of_cell(&e))),
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
    control: &Control<'_>,
) -> Result<Option<CellResult>, Failure> {
    let task = cell.task;
    let rule = protocol::protocol(task.protocol.as_deref().unwrap_or("window")).map_err(failed)?;
    let long = task.name == "longppl";
    let params = perplexity::Params {
        stride: count(task.stride),
        max_windows: count(task.max_windows),
        seed: None,
        longppl: long.then(perplexity::longppl::Params::default),
        ..perplexity::Params::new(rule, length(cell)?)
    };
    let report = perplexity::run(source, "", documents, &params, control).map_err(failed)?;
    let Some(row) = report.results.into_iter().next().filter(|_| !report.interrupted) else {
        return Ok(None);
    };
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
        n_ctx: row.ctx as u64,
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
    Ok(Some(result))
}

fn of_benchmark(
    cell: &Cell<'_>,
    source: &SessionSource,
    loaded: &Loaded,
    data: Option<&Path>,
    parallel: usize,
    samples: &Path,
    control: &Control<'_>,
) -> Result<Option<CellResult>, Failure> {
    let found = tasks::find(&cell.task.name).map_err(|e| Failure::Failed(e.to_string()))?;
    let [task] = found[..] else {
        return Err(Failure::Failed(format!("{}: expected one task", cell.task.name)));
    };
    let chat = match cell.task.template {
        ropewalk_study::Template::Base => None,
        ropewalk_study::Template::Chat => {
            let chat = template::of(&loaded.model, control);
            Some(chat.map_err(|e| match control.stopped() {
                true => Failure::Stopped,
                false => Failure::Failed(format!("{e:#}")),
            })?)
        }
    };
    let frame = |message: &str| template::frame(chat.as_ref(), message);
    let data = models::data_for(data, task);
    let params = suite::Params {
        ctx: count(cell.task.ctx),
        samples: count(cell.task.samples),
        seed: cell.seed,
        template: if chat.is_some() { Template::Chat } else { Template::Base },
        frame: chat.is_some().then_some(&frame),
        options: cell.task.options.clone(),
        batch: parallel,
        identity: source.identity().map_err(failed)?,
        ..suite::Params::new(length(cell)?, &data)
    };
    let mut store = FileStore::open(samples).map_err(failed)?;
    let report = suite::run(source, "", task, &params, &mut store, control).map_err(failed)?;
    let Some(row) = report.results.into_iter().next().filter(|_| !report.interrupted) else {
        return Ok(None);
    };
    let settings: Vec<String> = report.options.iter().map(|(k, v)| format!("{k} {v}")).collect();
    let metric = |m: &suite::Metric| Metric {
        name: m.name.clone(),
        value: m.score,
        interval: Some((m.ci_low, m.ci_high)),
    };
    Ok(Some(CellResult {
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
        by: row
            .by
            .iter()
            .map(|b| Breakdown {
                tag: b.tag.clone(),
                value: b.value.clone(),
                score: b.score,
                samples: b.samples as u64,
            })
            .collect(),
        tokens_per_s: row.tokens_per_s,
        ..CellResult::default()
    }))
}
