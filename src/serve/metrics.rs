//! Counts and times in Prometheus' text form 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::backend::{Card, Done, Reason, Status};

/// Upper bounds of the buckets of times, in seconds.
const BOUNDS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0];

/// Counts since the server started.
#[derive(Default)]
pub(crate) struct Metrics(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    requests: BTreeMap<(&'static str, u16), u64>,
    finished: BTreeMap<&'static str, u64>,
    cancelled: u64,
    prompt: u64,
    cached: u64,
    /// Those of them that were read from disk.
    restored: u64,
    made: u64,
    /// Answers beyond the trained context, by plan.
    beyond: BTreeMap<usize, u64>,
    first: Times,
    gap: Times,
    queue: Times,
    prefill: Times,
}

#[derive(Default)]
struct Times {
    buckets: [u64; BOUNDS.len()],
    n: u64,
    sum: f64,
}

impl Times {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        if let Some(at) = BOUNDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[at] += 1;
        }
        self.n += 1;
        self.sum += seconds;
    }
}

impl Metrics {
    fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A request was answered with this status.
    pub(crate) fn answered(&self, endpoint: &'static str, status: u16) {
        self.change(|c| *c.requests.entry((endpoint, status)).or_default() += 1);
    }

    /// A job's first token came after this time.
    pub(crate) fn first(&self, time: Duration) {
        self.change(|c| c.first.add(time));
    }

    /// A further token came this time after the one before.
    pub(crate) fn gap(&self, time: Duration) {
        self.change(|c| c.gap.add(time));
    }

    /// A job was dropped before its end.
    pub(crate) fn cancelled(&self) {
        self.change(|c| c.cancelled += 1);
    }

    /// A job is done.
    pub(crate) fn done(&self, done: &Done, plan: usize, beyond: bool) {
        self.change(|c| {
            let finish = match done.reason {
                Reason::End => "end",
                Reason::Stop => "stop",
                Reason::Length => "length",
                Reason::Context => "context",
                Reason::Cancelled => "cancelled",
            };
            *c.finished.entry(finish).or_default() += 1;
            c.prompt += done.n_prompt as u64;
            c.cached += done.n_cached as u64;
            c.restored += done.n_restored as u64;
            c.made += done.n_made as u64;
            if beyond {
                *c.beyond.entry(plan).or_default() += 1;
            }
            c.queue.add(done.queue);
            c.prefill.add(done.prefill);
        });
    }

    /// Everything as text.
    pub(crate) fn text(&self, card: &Card, status: &Status) -> String {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = |i: usize| escaped(&card.label(i));
        let one = |n: u64| vec![(String::new(), n)];
        let mut out = String::new();
        let requests = counts
            .requests
            .iter()
            .map(|((endpoint, status), n)| (format!("{{endpoint=\"{endpoint}\",status=\"{status}\"}}"), *n));
        let finished = counts.finished.iter().map(|(name, n)| (format!("{{finish=\"{name}\"}}"), *n));
        let beyond = counts.beyond.iter().map(|(i, n)| (format!("{{plan=\"{}\"}}", plan(*i)), *n));
        let cells = status.cells.iter().enumerate().flat_map(|(i, (used, total))| {
            let name = plan(i);
            let label = |state: &str| format!("{{plan=\"{name}\",state=\"{state}\"}}");
            [(label("used"), *used as u64), (label("free"), total.saturating_sub(*used) as u64)]
        });
        let from = |tier: &str, n: u64| (format!("{{from=\"{tier}\"}}"), n);
        let cached =
            [from("memory", counts.cached.saturating_sub(counts.restored)), from("disk", counts.restored)];
        let on_disk = status.on_disk.map(|n| ("{tier=\"disk\"}".to_owned(), n));
        family(&mut out, "requests_total", "counter", "Requests answered", requests);
        family(&mut out, "finished_total", "counter", "Answers by why they ended", finished);
        family(&mut out, "cancelled_total", "counter", "Answers whose client went", one(counts.cancelled));
        family(&mut out, "running", "gauge", "Answers that run", one(status.running as u64));
        family(&mut out, "waiting", "gauge", "Answers that wait", one(status.waiting as u64));
        family(
            &mut out,
            "preempted_total",
            "counter",
            "Answers put back to be read again",
            one(status.preempted),
        );
        family(&mut out, "prompt_tokens_total", "counter", "Tokens of prompts", one(counts.prompt));
        family(&mut out, "cached_tokens_total", "counter", "Tokens of prompts that were cached", cached);
        family(&mut out, "generated_tokens_total", "counter", "Tokens of answers", one(counts.made));
        family(&mut out, "cells", "gauge", "Cells of the caches", cells);
        family(&mut out, "prefix_evictions_total", "counter", "Beginnings dropped", one(status.evicted));
        family(&mut out, "score_bytes", "gauge", "Bytes of kept scores", one(status.score_bytes));
        let reread = status.reread.iter().map(|(why, n)| (format!("{{why=\"{why}\"}}"), *n));
        family(&mut out, "reread_tokens_total", "counter", "Tokens read again", reread);
        family(&mut out, "prefix_bytes", "gauge", "Bytes of beginnings that are kept", on_disk);
        family(&mut out, "beyond_trained_total", "counter", "Answers beyond the trained context", beyond);
        times(&mut out, "time_to_first_token_seconds", "From the request to the first token", &counts.first);
        times(&mut out, "inter_token_seconds", "Between two tokens", &counts.gap);
        times(&mut out, "queue_seconds", "In the queue", &counts.queue);
        times(&mut out, "prefill_seconds", "From the start to the end of the prompt", &counts.prefill);
        let steps = status.step_buckets.iter().copied();
        histogram(&mut out, "step_seconds", "One step", steps, status.steps, status.step_seconds);
        out
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP ropewalk_{name} {help}.\n# TYPE ropewalk_{name} {kind}");
}

fn family(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    values: impl IntoIterator<Item = (String, u64)>,
) {
    head(out, name, kind, help);
    for (labels, value) in values {
        let _ = writeln!(out, "ropewalk_{name}{labels} {value}");
    }
}

fn times(out: &mut String, name: &str, help: &str, times: &Times) {
    histogram(out, name, help, BOUNDS.into_iter().zip(times.buckets), times.n, times.sum);
}

fn histogram(
    out: &mut String,
    name: &str,
    help: &str,
    buckets: impl Iterator<Item = (f64, u64)>,
    total: u64,
    sum: f64,
) {
    head(out, name, "histogram", help);
    let mut n = 0;
    for (bound, bucket) in buckets {
        n += bucket;
        let _ = writeln!(out, "ropewalk_{name}_bucket{{le=\"{bound}\"}} {n}");
    }
    let _ = writeln!(out, "ropewalk_{name}_bucket{{le=\"+Inf\"}} {total}");
    let _ = writeln!(out, "ropewalk_{name}_sum {sum}\nropewalk_{name}_count {total}");
}

/// A label's value.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
