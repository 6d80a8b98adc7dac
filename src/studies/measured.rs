//! The result of a cell: its texts or its benchmark, measured.

use std::path::Path;

use gguf::Output;

use super::runner::{count, data_of};
use super::Settings;
use crate::chat::{Message, Template};
use crate::control::Control;
use crate::eval::stats::perplexity_interval;
use crate::eval::suite::{self, FileStore};
use crate::eval::{perplexity, protocol, Document, SessionSource};
use crate::model::{Error, Model};
use crate::study::{self, Breakdown, Bucket, Cell, CellResult, Failure, Metric};
use crate::tasks;

pub(super) fn template(cell: &Cell<'_>) -> tasks::Template {
    match cell.task.template {
        study::Template::Base => tasks::Template::Base,
        study::Template::Chat => tasks::Template::Chat,
    }
}

/// A breakdown with its depth in percent. The passkey's depths are `start` or a fraction of the text before it.
fn in_percent(mut by: Breakdown, task: &str) -> Breakdown {
    if task == "passkey" && by.tag == "depth" {
        let fraction = if by.value == "start" { Some(0.0) } else { by.value.parse::<f64>().ok() };
        // Without the rounding of the product.
        by.value = fraction.map_or(by.value, |x| ((1e8 * x).round() / 1e6).to_string());
    }
    by
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

pub(super) fn of_text(
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

pub(super) fn of_benchmark(
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
        template: template(cell),
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
        by: row.by.into_iter().map(|by| in_percent(by, &cell.task.name)).collect(),
        tokens_per_s: row.tokens_per_s,
        ..CellResult::default()
    })
}
