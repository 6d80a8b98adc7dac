//! Runs the benchmarks of [`ropewalk_tasks`]: makes the samples of a task, prompts the model, scores the answers, and
//! averages.
//!
//! Every sample becomes a [`Record`] in a [`Store`] as soon as it is scored. If the store already has the record of a
//! sample, the model is not prompted again, so a stopped run resumes.

mod ask;
mod encoder;
mod outcome;
mod paired;
mod report;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use ropewalk_core::remedy::Remedy;
use ropewalk_tasks::{Ask, Encoder as _, Info, Sample, Samples, Setup, Task, Template};
use sha2::{Digest, Sha256};

use super::{invalid, open, under_each, LmSource, Sources};
use crate::control::Control;
use crate::model::{Error, Result};
use crate::rope::Spec;

pub use ask::encode_pair;
pub use encoder::{Frame, TaskEncoder};
pub use outcome::Outcome;
pub use paired::{paired, Paired};
pub use report::{means, GroupMean, Metric, Report, Row};
pub use store::{FileStore, Record, Store, Unkept};

/// Contexts of tasks that have no length are whole multiples of this, so that few samples more do not change
/// the context.
const ROUND: usize = 256;

ropewalk_core::setters! {
    /// The settings of a run: lengths, samples, prompts, data.
    #[derive(Clone)]
    pub struct Params<'a> {
        /// Lengths in tokens, prompt and answer together; tasks without lengths ignore them.
        pub lengths: Vec<usize>,
        /// The context size to plan methods for, if it is larger than the samples need. Short tasks are then measured as
        /// the model runs at this context.
        pub ctx: Option<usize>,
        /// Samples per length; `None` is the protocol's number.
        pub samples: Option<usize>,
        /// Seed; `None` is the protocol's.
        pub seed: Option<u64>,
        /// Plain text, or the model's chat template.
        pub template: Template,
        /// Renders a user message in the chat template; required for [`Template::Chat`].
        pub frame: Option<Frame<'a>>,
        /// Settings of tasks, by name.
        pub options: BTreeMap<String, String>,
        /// The directory of published data.
        pub data: &'a Path,
        /// Maximum number of prompts answered together.
        pub batch: usize,
        /// Identifies everything else that determines the answers: model, adapters, KV cache type. Records with another
        /// identity are not used.
        pub identity: String,
    }
}

impl<'a> Params<'a> {
    /// The protocol's own samples and seed, as plain text.
    pub fn new(lengths: Vec<usize>, data: &'a Path) -> Self {
        Params {
            lengths,
            ctx: None,
            samples: None,
            seed: None,
            template: Template::Base,
            frame: None,
            options: BTreeMap::new(),
            data,
            batch: 8,
            identity: String::new(),
        }
    }
}

/// The directory of a task's published data.
type DataOf<'a> = &'a dyn Fn(&dyn Task) -> PathBuf;

ropewalk_core::setters! {
    /// Tasks to measure, each under all methods.
    pub struct Several<'a> {
        /// The tasks.
        pub tasks: Vec<&'static dyn Task>,
        /// The methods; `None` is what the file declares.
        pub specs: Vec<Option<Spec>>,
        /// The directory of a task's published data; `None` is that of `params` for all.
        pub data: Option<DataOf<'a>>,
        /// The settings of all; the sources give the identity.
        pub params: Params<'a>,
    }
}

impl<'a> Several<'a> {
    /// These tasks, under what the file declares.
    pub fn new(tasks: Vec<&'static dyn Task>, params: Params<'a>) -> Self {
        Several { tasks, specs: vec![None], data: None, params }
    }
}

/// Measures tasks, the first under all methods, then the next, up to a report that was stopped. Adds the reports.
///
/// # Errors
/// Those of [`run`], and of [`SessionSource::identity`](super::SessionSource::identity); `reports` then has those before it.
pub fn run_all(
    sources: Sources<'_>,
    model: &str,
    how: &Several<'_>,
    store: &mut dyn Store,
    reports: &mut Vec<Report>,
    control: &Control<'_>,
) -> Result<()> {
    for &task in &how.tasks {
        let data = how.data.map_or_else(|| how.params.data.to_owned(), |of| of(task));
        under_each(&how.specs, sources, reports, control, |source| {
            let params = Params { data: &data, identity: source.identity()?, ..how.params.clone() };
            run(source, model, task, &params, &mut *store, control)
        })?;
        if control.stopped() {
            break;
        }
    }
    Ok(())
}

/// Measures one task. `model` is only copied to the report. Progress is counted in tokens of prompts.
///
/// # Errors
/// Returns an error if a task that needs a length has none, if the task rejects its settings or data, if a sample
/// does not fit the context (with the length that would fit), or if the model or the store fails. An interrupted run
/// is not an error: see [`Report::interrupted`].
pub fn run(
    source: &dyn LmSource,
    model: &str,
    task: &dyn Task,
    params: &Params<'_>,
    store: &mut dyn Store,
    control: &Control<'_>,
) -> Result<Report> {
    let info = task.info();
    if info.has_length && params.lengths.is_empty() {
        return Err(Error::argument("lengths", format!("at least one for {}", info.name), "none"));
    }
    for (name, n) in [("samples", params.samples), ("parallel", Some(params.batch))] {
        if n == Some(0) {
            return Err(Error::argument(name, "at least 1", 0));
        }
    }
    let encoder = TaskEncoder::new(source, params.template, params.frame)?;
    let lengths: Vec<Option<usize>> =
        if info.has_length { params.lengths.iter().copied().map(Some).collect() } else { vec![None] };
    let mut report = Report::new(model, info, params);
    for length in lengths {
        let setup = Setup {
            length,
            samples: params.samples,
            seed: params.seed,
            template: params.template,
            options: params.options.clone(),
            data: params.data,
            encoder: &encoder,
            control: *control,
        };
        let made = match task.samples(&setup) {
            Err(ropewalk_tasks::Error::Interrupted) => None,
            samples => Some(samples.map_err(|e| of_task(info, length, e))?),
        };
        let row = match made {
            Some(samples) if !control.stopped() => {
                let cell = Cell { source, info, length, params, encoder: &encoder, control };
                cell.run(samples, store)?
            }
            _ => None,
        };
        report.interrupted |= row.as_ref().is_none_or(|row| row.interrupted);
        report.results.extend(row);
        if report.interrupted {
            break;
        }
    }
    if let Some(row) = report.results.first() {
        report.rope.clone_from(&row.rope);
    }
    Ok(report)
}

fn of_task(info: &Info, length: Option<usize>, e: ropewalk_tasks::Error) -> Error {
    let what = match length {
        Some(length) => format!("{} at {length} tokens: {e}", info.name),
        None => format!("{}: {e}", info.name),
    };
    match e {
        ropewalk_tasks::Error::Interrupted => Error::Interrupted,
        ropewalk_tasks::Error::Missing { name, .. } => Error::Avoidable { what, remedy: Remedy::Data(name) },
        _ => invalid(what),
    }
}

/// One task at one length.
struct Cell<'a> {
    source: &'a dyn LmSource,
    info: &'a Info,
    length: Option<usize>,
    params: &'a Params<'a>,
    encoder: &'a TaskEncoder<'a>,
    control: &'a Control<'a>,
}

/// A sample as the model reads it.
struct Ready {
    sample: Sample,
    prompt: Vec<crate::Token>,
    endings: Vec<Vec<crate::Token>>,
    hash: String,
    /// Index of the sample.
    index: usize,
}

impl Ready {
    /// Tokens of context that it needs.
    fn need(&self) -> usize {
        let answer = match &self.sample.ask {
            Ask::Generate { max_tokens, .. } => *max_tokens,
            Ask::Choose(_) => self.endings.iter().map(Vec::len).sum(),
        };
        self.prompt.len().saturating_add(answer)
    }
}

impl Cell<'_> {
    /// `None` when stopped before the first sample.
    fn run(&self, samples: Samples<'_>, store: &mut dyn Store) -> Result<Option<Row>> {
        let (n, beyond) = (samples.n, samples.beyond);
        let bos = if samples.counts_bos { 0 } else { self.encoder.n_bos() };
        let made = samples.iter.map(|s| self.ready(s.map_err(|e| of_task(self.info, self.length, e))?));
        // Where the length is not given it is that of the longest sample.
        let (n_ctx, mut made): (usize, Box<dyn Iterator<Item = Result<Ready>> + '_>) = match self.length {
            Some(length) => (length.saturating_add(bos).saturating_add(beyond), Box::new(made)),
            None => {
                let all = match made.collect::<Result<Vec<Ready>>>() {
                    Err(Error::Interrupted) => return Ok(None),
                    all => all?,
                };
                let need = all.iter().map(Ready::need).max().unwrap_or(1);
                (need.next_multiple_of(ROUND), Box::new(all.into_iter().map(Ok)))
            }
        };
        let n_ctx = n_ctx.max(self.params.ctx.unwrap_or(0));
        let setup = self.setup(n_ctx);
        let mut lm = None;
        let start = Instant::now();
        let (mut records, mut places, mut seen) = (Vec::new(), Vec::new(), 0);
        let (mut asked_tokens, mut seconds) = (0, 0.0);
        let mut waiting: Vec<Ready> = Vec::new();
        let mut interrupted = false;
        loop {
            let next = if self.control.stopped() { None } else { made.next() };
            let next = match next {
                Some(Err(Error::Interrupted)) => None,
                next => next.transpose()?,
            };
            interrupted |= self.control.stopped();
            if let Some(mut ready) = next {
                ready.index = seen;
                seen += 1;
                if let Some(record) = store.get(&setup, &ready.sample.id, &ready.hash) {
                    records.push(record);
                    places.push(ready.index);
                    continue;
                }
                if ready.need() > n_ctx {
                    return Err(self.too_long(&ready, n_ctx));
                }
                if lm.is_none() {
                    let batch = self.params.batch.min(n).max(1);
                    lm = Some(open(self.source, n_ctx, batch, self.control)?);
                }
                waiting.push(ready);
                let full = waiting.len() >= lm.as_ref().map_or(1, |lm| lm.n_seq());
                let alone = matches!(waiting[0].sample.ask, Ask::Choose(_));
                if !full && !alone {
                    continue;
                }
            } else if waiting.is_empty() || interrupted {
                break;
            }
            let Some(lm) = lm.as_deref_mut() else { break };
            let began = Instant::now();
            let batch = std::mem::take(&mut waiting);
            let Some(answers) = super::uninterrupted(ask::ask(lm, self.encoder, &batch))? else {
                interrupted = true;
                break;
            };
            seconds += began.elapsed().as_secs_f64();
            for (ready, answer) in batch.iter().zip(answers) {
                asked_tokens += ready.prompt.len();
                let record = Record::new(&setup, self.info, self.length, ready, &answer);
                store.put(&record)?;
                records.push(record);
                places.push(ready.index);
            }
            let percent = report::mean(&records) * 100.0;
            let (done, name) = (records.len(), self.info.name);
            let at = self.length.map_or_else(String::new, |l| format!(" at {l}"));
            let what = format_args!("{name}{at}: sample {done}/{n}, score {percent:.1}");
            let each = records.iter().map(|r| r.prompt_tokens).sum::<usize>() / done.max(1);
            self.control.report(what, (each * done) as u64, (each * n.max(done)) as u64);
        }
        if records.is_empty() {
            return Ok(None);
        }
        // Those out of the store came first; intervals follow from the order.
        let mut placed: Vec<_> = places.into_iter().zip(records).collect();
        placed.sort_by_key(|(place, _)| *place);
        let records: Vec<Record> = placed.into_iter().map(|(_, record)| record).collect();
        let rope = match &lm {
            Some(lm) => lm.rope(),
            None => self.source.rope_at(n_ctx)?,
        };
        let interrupted = interrupted && records.len() < n;
        let speed = super::per_second(asked_tokens, seconds);
        let mut row = Row::new(self.info, self.length, records, n, rope, n_ctx);
        row.tokens_per_s = speed;
        row.seconds = start.elapsed().as_secs_f64();
        row.interrupted = interrupted;
        Ok(Some(row))
    }

    fn ready(&self, sample: Sample) -> Result<Ready> {
        let hash = format!("{:x}", Sha256::digest(sample.prompt.as_bytes()));
        let (prompt, endings) = match &sample.ask {
            Ask::Generate { .. } => (self.encoder.prompt(&sample.prompt)?, Vec::new()),
            Ask::Choose(choices) => encode_pair(self.encoder, &sample.prompt, choices)?,
        };
        if prompt.is_empty() || endings.iter().any(Vec::is_empty) {
            let (name, id) = (self.info.name, &sample.id);
            return Err(invalid(format!("{name}: sample {id}: the prompt, or a choice, has no tokens")));
        }
        Ok(Ready { sample, prompt, endings, hash, index: 0 })
    }

    fn too_long(&self, ready: &Ready, n_ctx: usize) -> Error {
        let (name, id, need) = (self.info.name, &ready.sample.id, ready.need());
        invalid(format!(
            "{name}: sample {id} needs {need} tokens, {} of them the prompt, and the context is {n_ctx}: \
             expected a length of at least {need}",
            ready.prompt.len()
        ))
    }

    /// A hash of all but the prompt that determines the answers. The context does: methods are worked out for it.
    fn setup(&self, n_ctx: usize) -> String {
        let p = self.params;
        let template = match p.template {
            Template::Base => "base",
            Template::Chat => "chat",
        };
        let parts = serde_json::json!([
            p.identity,
            self.info.name,
            self.info.source,
            self.length,
            n_ctx,
            p.seed,
            template,
            p.options,
        ]);
        format!("{:x}", Sha256::digest(parts.to_string().as_bytes()))
    }
}
