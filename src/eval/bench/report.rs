//! The report of a bench: statistics, the work behind a test and the floor under its time, as Markdown and as
//! JSON.

use std::fmt::Write;

use rayon::prelude::*;
use ropewalk_core::text::{bytes, count};
use serde::{Serialize, Serializer};
use serde_json::{json, Value as Json};

use super::{Clock, Contender, Test};
use crate::model::Model;
use crate::session::SessionParams;

/// The samples of one test by one contender.
#[derive(Debug, Clone)]
pub struct Row {
    contender: usize,
    /// Name of the engine.
    pub engine: &'static str,
    /// The rope spec in force.
    pub rope: String,
    label: String,
    /// The test.
    pub test: Test,
    /// Tokens per second, one for each repetition.
    pub samples: Vec<f64>,
}
impl Row {
    /// A row without samples; `i` is the contender's index.
    pub(super) fn new(i: usize, contender: &Contender, test: &Test) -> Self {
        let (engine, rope, label) = (contender.name, contender.rope.clone(), contender.label.clone());
        Row { contender: i, engine, rope, label, test: *test, samples: Vec::new() }
    }
}

/// Mean of a sample; 0 of none.
pub fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len().max(1) as f64
}

/// Standard deviation of a sample (n - 1).
pub fn stddev(x: &[f64]) -> f64 {
    if x.len() < 2 {
        return 0.0;
    }
    let m = mean(x);
    (x.iter().map(|v| (v - m).powi(2)).sum::<f64>() / (x.len() - 1) as f64).sqrt()
}

/// Median of a sample; NaN of none.
pub fn median(x: &[f64]) -> f64 {
    let mut sorted = x.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The least that a model's tests cost.
#[derive(Debug, Clone, Default)]
pub struct Work {
    /// Elements of the matrices that a token passes through.
    pub layer_elements: f64,
    /// Elements of the output matrix, which only tokens whose logits are wanted pass through.
    pub output_elements: f64,
    /// Bytes of both: what writing one token reads.
    pub weight_bytes: f64,
    /// Bytes of keys and values for one position.
    pub kv_bytes: f64,
    /// Multiply-adds of attention for one query and one key, over all layers, times 2.
    pub attention_flops: f64,
}
impl Work {
    fn of(model: &Model, settings: &SessionParams) -> Work {
        let hp = model.hparams();
        let (mut w, mut embd) = (Work::default(), (0.0, 0.0));
        for t in model.file().tensors().iter().filter(|t| t.shape.len() >= 2) {
            // Of a stack of experts a token passes through some.
            let part = match hp.experts {
                Some(experts) if t.name.contains("_exps.") => experts.n_used as f64 / experts.n_expert as f64,
                _ => 1.0,
            };
            let (n, size) = (part * t.n_elements() as f64, part * t.n_bytes as f64);
            match t.name.as_str() {
                "token_embd.weight" => embd = (n, size),
                "output.weight" => (w.output_elements, w.weight_bytes) = (n, w.weight_bytes + size),
                _ => (w.layer_elements, w.weight_bytes) = (w.layer_elements + n, w.weight_bytes + size),
            }
        }
        if w.output_elements == 0.0 {
            // Tied: the embedding is the output matrix too.
            (w.output_elements, w.weight_bytes) = (embd.0, w.weight_bytes + embd.1);
        }
        for layer in (0..hp.n_layer).filter_map(|il| hp.attention_of(il)) {
            let row = settings.kv_type.row_bytes(layer.n_embd_kv()).unwrap_or(0);
            w.kv_bytes += (2 * row) as f64;
            w.attention_flops += (4 * layer.n_embd_q()) as f64;
        }
        w
    }
    /// Floating-point operations of a test.
    pub fn flops(&self, test: &Test) -> f64 {
        let (n, d) = (test.n_tokens() as f64, test.depth as f64);
        let pairs = n * d + n * (n + 1.0) / 2.0;
        let outputs = if test.n_prompt > 0 { 1.0 } else { n };
        2.0 * (n * self.layer_elements + outputs * self.output_elements) + self.attention_flops * pairs
    }
    /// Bytes that writing one token reads, in the middle of the test.
    pub fn bytes_per_token(&self, test: &Test) -> f64 {
        self.weight_bytes + self.kv_bytes * (test.depth as f64 + test.n_gen as f64 / 2.0)
    }
}

/// Floating-point operations of a text of `n` tokens, with the logits of all.
pub(crate) fn flops_of_text(model: &Model, n: usize) -> f64 {
    Work::of(model, &SessionParams::new(0)).flops(&Test { n_prompt: 0, n_gen: n, depth: 0 })
}

/// Bytes per second that the cores together read from memory: the best of five passes over a block that no
/// cache holds.
pub fn memory_bandwidth() -> f64 {
    let block = vec![1u64; 1 << 25];
    (0..5)
        .map(|_| {
            let started = std::time::Instant::now();
            let sum: u64 =
                block.par_chunks(1 << 16).map(|c| c.iter().fold(0u64, |a, b| a.wrapping_add(*b))).sum();
            std::hint::black_box(sum);
            (block.len() * 8) as f64 / started.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max)
}

/// Everything measured. It serializes to the JSON of the command line.
#[derive(Debug)]
pub struct Report {
    model: String,
    device: String,
    settings: SessionParams,
    clock: Clock,
    work: Work,
    n_elements: u64,
    /// Measured on the CPU only.
    bandwidth: Option<f64>,
    /// One row for each test of each contender.
    pub rows: Vec<Row>,
    /// True if the work was stopped. Unfinished tests are missing then.
    pub interrupted: bool,
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.json().serialize(to)
    }
}

impl Report {
    pub(super) fn new(
        name: &str,
        model: &Model,
        (settings, clock): (&SessionParams, Clock),
        rows: Vec<Row>,
        interrupted: bool,
    ) -> Self {
        Report {
            model: name.to_owned(),
            device: model.device().to_owned(),
            settings: settings.clone(),
            clock,
            work: Work::of(model, settings),
            n_elements: model.file().tensors().iter().map(|t| t.n_elements() as u64).sum(),
            bandwidth: (model.device() == "cpu").then(memory_bandwidth),
            rows,
            interrupted,
        }
    }

    /// Returns true if the others are compared with libllama instead of the first method.
    fn is_against_libllama(&self) -> bool {
        self.rows.iter().any(|r| r.engine == "libllama")
    }

    /// Median speed against that of the reference in the same test; `None` for the reference.
    fn ratio(&self, row: &Row) -> Option<f64> {
        let against_libllama = self.is_against_libllama();
        let is_reference =
            |r: &&Row| if against_libllama { r.engine == "libllama" } else { r.contender == 0 };
        let mut same_test = self.rows.iter().filter(|r| r.test.name() == row.test.name());
        let reference = same_test.find(is_reference).filter(|r| r.contender != row.contender)?;
        Some(median(&row.samples) / median(&reference.samples))
    }

    /// A median speed as a part of the one that memory allows, for tests that write token by token.
    fn of_floor(&self, test: &Test, speed: f64) -> Option<f64> {
        let bandwidth = self.bandwidth.filter(|_| test.n_gen > 0)?;
        Some(speed * self.work.bytes_per_token(test) / bandwidth)
    }

    /// Floating-point operations per second, in thousands of millions, at a median speed.
    fn gflops(&self, test: &Test, speed: f64) -> f64 {
        self.work.flops(test) / (test.n_tokens() as f64 / speed) / 1e9
    }

    fn json(&self) -> Json {
        let row = |r: &Row| {
            let speed = median(&r.samples);
            json!({
                "task": "bench",
                "test": r.test.name(),
                "n_prompt": r.test.n_prompt,
                "n_gen": r.test.n_gen,
                "depth": r.test.depth,
                "length": r.test.depth + r.test.n_tokens(),
                "engine": r.engine,
                "rope": r.rope,
                "avg_ts": mean(&r.samples),
                "stddev_ts": stddev(&r.samples),
                "median_ts": speed,
                "samples_ts": r.samples,
                "finished": true,
                "ratio": self.ratio(r),
                "gflops": self.gflops(&r.test, speed),
                "bytes_per_token": (r.test.n_gen > 0).then(|| self.work.bytes_per_token(&r.test)),
                "of_memory_bandwidth": self.of_floor(&r.test, speed),
            })
        };
        json!({
            "model": self.model,
            "rope": self.rows.first().map(|r| r.rope.clone()),
            "device": self.device,
            "n_ctx": self.settings.n_ctx,
            "n_batch": self.settings.n_batch,
            "n_ubatch": self.settings.n_ubatch,
            "threads": self.settings.n_threads,
            "kv": self.settings.kv_type.name(),
            "clock": self.clock.name(),
            "math": self.settings.math.name(),
            "weight_bytes": self.work.weight_bytes,
            "parameters": self.n_elements,
            "memory_bandwidth": self.bandwidth,
            "interrupted": self.interrupted,
            "results": self.rows.iter().map(row).collect::<Vec<Json>>(),
        })
    }

    /// A markdown table, below the facts needed to read it.
    pub fn text(&self) -> String {
        let mut s = String::new();
        let set = &self.settings;
        let _ = writeln!(
            s,
            "{}: {} parameters, {} of weights read for each token; device {}, {} threads, {} cache, batches \
             {}/{}, context {}, math {}, {} time",
            self.model,
            count(self.n_elements),
            bytes(self.work.weight_bytes as u64),
            self.device,
            set.n_threads,
            set.kv_type.name(),
            set.n_batch,
            set.n_ubatch,
            count(set.n_ctx as u64),
            set.math,
            self.clock.name(),
        );
        if let Some(b) = self.bandwidth {
            let _ = writeln!(
                s,
                "Memory reads at {:.1} GB/s here, which limits decoding at depth 0 to {:.1} tokens/s.",
                b / 1e9,
                b / self.work.weight_bytes
            );
        }
        let against = if self.is_against_libllama() { "x libllama" } else { "x first" };
        let _ = writeln!(
            s,
            "\n| test | engine | rope | tokens/s | median | {against} | work \
            |\n|---|---|---|---|---|---|---|"
        );
        self.rows.iter().for_each(|r| s += &self.table_row(r));
        s
    }

    fn table_row(&self, r: &Row) -> String {
        let (test, engine, label) = (r.test.name(), r.engine, &r.label);
        let speed = median(&r.samples);
        let ratio = self.ratio(r).map_or_else(|| "-".to_owned(), |x| format!("{x:.3}"));
        let work = match self.of_floor(&r.test, speed) {
            Some(part) => format!(
                "{:.1} GB/s, {:.0} % of memory's",
                speed * self.work.bytes_per_token(&r.test) / 1e9,
                100.0 * part
            ),
            None => format!("{:.0} GFLOP/s", self.gflops(&r.test, speed)),
        };
        let (mean, stddev) = (mean(&r.samples), stddev(&r.samples));
        format!("| {test} | {engine} | {label} | {mean:.2} ± {stddev:.2} | {speed:.2} | {ratio} | {work} |\n")
    }
}
