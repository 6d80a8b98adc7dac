//! The report of a task: scores with their intervals, by length and by the tags of samples.

use std::collections::{BTreeMap, HashMap};

use ropewalk_study::Breakdown;
use ropewalk_tasks::{Group, Info, Template};
use serde::Serialize;

use super::super::stats::interval;
use super::super::table::table;
use super::store::Record;
use super::Params;

/// Result of a run. It serializes to the JSON of the command line.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The model's file.
    pub model: String,
    /// The active method spec, at the first length.
    pub rope: String,
    /// The task.
    pub task: String,
    /// One entry per length; a single entry for a task without lengths.
    pub results: Vec<Row>,
    /// The metric of the score.
    pub metric: String,
    /// The protocol.
    pub source: String,
    /// `base` or `chat`.
    pub template: &'static str,
    /// The requested seed; `null` is the protocol's.
    pub seed: Option<u64>,
    /// Active settings.
    pub options: BTreeMap<String, String>,
    /// The score of random choices, in percent.
    pub chance: Option<f64>,
    /// True if the run was stopped. Lengths can then be missing, and the last length can lack samples.
    pub interrupted: bool,
}

/// One length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Requested length in tokens, prompt and answer together.
    pub length: Option<usize>,
    /// Mean of the task's metric, in percent.
    pub score: f64,
    /// The same from 0 to 1, if that metric is the accuracy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Lower end of the score's 95% interval ([`interval`]).
    pub ci_low: f64,
    /// Upper end of that interval.
    pub ci_high: f64,
    /// Number of samples scored.
    pub samples: usize,
    /// Prompt tokens per second; the time includes answers. Samples from the file of an earlier run do not count.
    pub tokens_per_s: f64,
    /// Number of samples planned for this run.
    pub samples_planned: usize,
    /// Mean number of tokens in a prompt, rounded.
    pub tokens: usize,
    /// Context size, in tokens.
    pub n_ctx: usize,
    /// Every metric of the task.
    pub metrics: Vec<Metric>,
    /// Scores by the values of the tags in [`Info::groups`], if samples have more than one value.
    pub by: Vec<Breakdown>,
    /// The active method spec at this length.
    pub rope: String,
    /// Wall time in seconds.
    pub seconds: f64,
    /// True if samples are missing because the run was stopped.
    pub interrupted: bool,
    /// The samples.
    #[serde(skip)]
    pub records: Vec<Record>,
}

/// The mean of one metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metric {
    /// Name of the metric.
    pub name: String,
    /// Mean, in percent.
    pub score: f64,
    /// Lower end of the 95% interval.
    pub ci_low: f64,
    /// Upper end of that interval.
    pub ci_high: f64,
    /// Method of the interval: `wilson` or `bootstrap`.
    pub interval: &'static str,
}

/// Mean of the first metric, 0 to 1.
pub(super) fn mean(records: &[Record]) -> f64 {
    let values = records.iter().filter_map(|r| r.scores.values().next()?.as_f64());
    values.sum::<f64>() / records.len().max(1) as f64
}

impl Metric {
    fn new(name: &str, records: &[Record]) -> Metric {
        let values: Vec<f64> = records.iter().map(|r| r.score(name)).collect();
        let score = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let (interval, (low, high)) = interval(&values);
        Metric {
            name: name.into(),
            score: 100.0 * score,
            ci_low: 100.0 * low,
            ci_high: 100.0 * high,
            interval,
        }
    }
}

impl Row {
    pub(super) fn new(
        info: &Info,
        length: Option<usize>,
        records: Vec<Record>,
        samples_planned: usize,
        rope: String,
        n_ctx: usize,
    ) -> Row {
        let metrics: Vec<Metric> = info.metrics.iter().map(|name| Metric::new(name, &records)).collect();
        let headline = metrics.first().cloned().unwrap_or_else(|| Metric::new("", &records));
        let tokens: usize = records.iter().map(|r| r.prompt_tokens).sum();
        Row {
            length,
            score: headline.score,
            accuracy: (headline.name == "accuracy").then(|| mean(&records)),
            ci_low: headline.ci_low,
            ci_high: headline.ci_high,
            samples: records.len(),
            tokens_per_s: 0.0,
            samples_planned,
            tokens: (tokens + records.len() / 2) / records.len().max(1),
            n_ctx,
            metrics,
            by: breakdowns(&records, &headline.name, info.groups),
            rope,
            seconds: 0.0,
            interrupted: false,
            records,
        }
    }
}

fn breakdowns(records: &[Record], metric: &str, groups: &[&str]) -> Vec<Breakdown> {
    // Sums first; in the order in which values come up.
    let mut found: Vec<Breakdown> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    let mut n_values: HashMap<&str, usize> = HashMap::new();
    for record in records {
        for (tag, value) in record.tags.iter().filter(|(tag, _)| groups.contains(&tag.as_str())) {
            let value = value.as_str().unwrap_or_default();
            let at = *places.entry((tag, value)).or_insert_with(|| {
                *n_values.entry(tag).or_default() += 1;
                found.push(Breakdown { tag: tag.clone(), value: value.into(), score: 0.0, samples: 0 });
                found.len() - 1
            });
            found[at].score += record.score(metric);
            found[at].samples += 1;
        }
    }
    found.retain(|b| n_values.get(b.tag.as_str()).is_some_and(|n| *n > 1));
    found.iter_mut().for_each(|b| b.score *= 100.0 / b.samples as f64);
    // The values of one tag together, whatever the order of tags in the records.
    found.sort_by(|a, b| a.tag.cmp(&b.tag));
    found
}

impl Report {
    pub(super) fn new(model: &str, info: &Info, params: &Params<'_>) -> Report {
        let option = |opt: &&ropewalk_tasks::Opt| {
            let value = params.options.get(opt.name).map_or(opt.default, String::as_str);
            (opt.name.to_owned(), value.to_owned())
        };
        Report {
            model: model.into(),
            rope: String::new(),
            task: info.name.into(),
            results: Vec::new(),
            metric: info.metrics.first().copied().unwrap_or_default().into(),
            source: info.source.into(),
            template: match params.template {
                Template::Base => "base",
                Template::Chat => "chat",
            },
            seed: params.seed,
            options: info.options.iter().map(option).collect(),
            chance: info.chance.map(|x| 100.0 * x),
            interrupted: false,
        }
    }

    /// The report as text: the setup and a Markdown table.
    pub fn text(&self) -> String {
        let mut out = format!("model     {}\nrope      {}\n", self.model, self.rope);
        out += &format!("task      {}, {}\n", self.task, self.metric);
        let settings: Vec<String> = self.options.iter().map(|(k, v)| format!("{k} {v}")).collect();
        let seed = self.seed.map(|s| format!("seed {s}"));
        let parts = std::iter::once(self.source.clone())
            .chain([format!("template {}", self.template)])
            .chain(settings)
            .chain(seed)
            .chain(self.chance.map(|x| format!("chance {x:.1} %")));
        out += &format!("protocol  {}\n\n", parts.collect::<Vec<_>>().join(", "));
        let others: Vec<&str> =
            self.results.first().map_or_else(Vec::new, |r| r.metrics[1..].iter().map(|m| &*m.name).collect());
        let cells = |r: &Row| {
            let length = r.length.map_or_else(|| "-".to_owned(), |l| l.to_string());
            let mut cells = vec![
                length,
                format!("{:.2}", r.score),
                format!("{:.1}-{:.1}", r.ci_low, r.ci_high),
                r.samples.to_string(),
            ];
            cells.extend(r.metrics.iter().skip(1).map(|m| format!("{:.2}", m.score)));
            cells.extend([r.tokens.to_string(), format!("{:.1}", r.tokens_per_s)]);
            cells
        };
        let headers: Vec<&str> = ["length", "score", "95 % interval", "samples"]
            .into_iter()
            .chain(others)
            .chain(["tokens", "tok/s"])
            .collect();
        out += &table(&headers, self.results.iter().map(cells));
        if self.interrupted {
            out += "\ninterrupted: the figures cover the completed part\n";
        }
        out
    }
}

/// The plain mean of a group's tasks at one length.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupMean {
    /// The group.
    pub group: String,
    /// The requested method spec, or the active one.
    pub rope: String,
    /// Requested length, in tokens.
    pub length: Option<usize>,
    /// Mean of the tasks' scores, in percent.
    pub score: f64,
    /// Tasks in the mean.
    pub tasks: usize,
}

/// Means over a group's tasks, for each length that all of them have; empty if tasks are missing.
pub fn means(group: &Group, reports: &[Report]) -> Vec<GroupMean> {
    let of_group: Vec<&Report> = reports.iter().filter(|r| group.tasks.contains(&&*r.task)).collect();
    if of_group.len() != group.tasks.len() {
        return Vec::new();
    }
    let Some(first) = of_group.first() else { return Vec::new() };
    let mean = |row: &Row| {
        let of_length = of_group.iter().filter_map(|r| r.results.iter().find(|x| x.length == row.length));
        let scores: Vec<f64> = of_length.map(|row| row.score).collect();
        (scores.len() == of_group.len()).then(|| GroupMean {
            group: group.name.into(),
            rope: row.rope.clone(),
            length: row.length,
            score: scores.iter().sum::<f64>() / scores.len() as f64,
            tasks: scores.len(),
        })
    };
    first.results.iter().filter_map(mean).collect()
}
