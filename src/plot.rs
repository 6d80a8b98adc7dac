//! Charts as SVG, PNG, PDF, and text: those of the crate `ropewalk-plot`, and those of reports and of training data.

use ropewalk_core::text::count;
pub use ropewalk_plot::{
    check, rope, Axis, Chart, Grid, Heat, HeatPanel, Map, Marker, PlotError, Scale, Series, Stroke,
};

use crate::data::{DistanceBin, Inspection, LengthBin};
use crate::eval::perplexity::{Bucket, Report};
use crate::eval::protocol::protocol;
use crate::eval::stats::perplexity_interval;
use crate::eval::suite::{self, Outcome};
use crate::rope::Spec;

/// An axis of tokens, with a marker at the original context if the values go beyond it.
fn tokens(label: impl Into<String>, longest: usize, n_ctx_orig: usize) -> Axis {
    let axis = Axis::new(label, Scale::Linear);
    match longest > n_ctx_orig {
        true => axis.mark(n_ctx_orig as f64, format!("original context {n_ctx_orig}")),
        false => axis,
    }
}

/// Perplexity by position: a line for each method and length, with 95% intervals. `specs` are the methods of the
/// reports as they were given; `None` is the file's.
pub fn perplexity(specs: &[Option<Spec>], reports: &[Report], n_ctx_orig: usize) -> Chart {
    let interval = |b: &Bucket| {
        let known = b.value.ppl_stderr.and_then(|e| perplexity_interval(b.value.ppl, e));
        known.unwrap_or((f64::NAN, f64::NAN))
    };
    let (mut series, mut known) = (Vec::new(), false);
    for (spec, report) in specs.iter().zip(reports) {
        let name = spec.as_ref().map_or_else(|| report.rope.clone(), ToString::to_string);
        for row in &report.results {
            let middle = |b: &Bucket| (b.start + b.end) as f64 / 2.0;
            let points = row.buckets.iter().map(|b| (middle(b), b.value.ppl)).collect();
            let bounds: Vec<(f64, f64)> = row.buckets.iter().map(interval).collect();
            known |= bounds.iter().any(|b| b.0.is_finite());
            let name =
                if report.results.len() > 1 { format!("{name}, ctx {}", row.ctx) } else { name.clone() };
            series.push(Series::new(name, points).between(bounds));
        }
    }
    let title = reports
        .first()
        .map_or_else(String::new, |r| format!("{}: perplexity by position ({})", r.model, r.protocol));
    let title = if known { format!("{title}, 95% intervals") } else { title };
    let longest = reports.iter().flat_map(|r| &r.results).map(|r| r.ctx).max().unwrap_or(0);
    let restarts = reports.first().is_some_and(|r| protocol(r.protocol).is_ok_and(|p| p.restarts));
    let whole = if restarts { "document" } else { "window" };
    let x = tokens(format!("position in the {whole}, tokens"), longest, n_ctx_orig);
    Chart { title, x, y: Axis::new("perplexity", Scale::Log), series }
}

/// A heat map of each report whose samples have depths.
pub fn depths(outcome: &Outcome) -> Vec<Grid> {
    outcome
        .reports
        .iter()
        .zip(&outcome.methods)
        .filter_map(|(report, method)| depth_map(report, method))
        .collect()
}

/// A heat map of a report whose samples have depths: lengths across, depths down.
fn depth_map(report: &suite::Report, method: &str) -> Option<Grid> {
    let at = |row: &suite::Row| row.by.iter().filter(|b| b.tag == "depth").cloned().collect::<Vec<_>>();
    let mut rows: Vec<String> = Vec::new();
    for depth in report.results.iter().flat_map(at) {
        if !rows.contains(&depth.value) {
            rows.push(depth.value);
        }
    }
    if rows.is_empty() {
        return None;
    }
    rows.sort_by(|a, b| a.parse().unwrap_or(0.0f64).total_cmp(&b.parse().unwrap_or(0.0)));
    let score =
        |depth: &String, row: &suite::Row| at(row).iter().find(|b| b.value == *depth).map(|b| b.score);
    let scores = rows.iter().map(|d| report.results.iter().map(|row| score(d, row)).collect()).collect();
    let columns = report.results.iter().map(|r| r.length.map_or_else(|| "-".into(), |l| l.to_string()));
    Some(Grid {
        title: format!("{}: {} ({method})", report.model, report.task),
        x: "length, tokens".into(),
        y: "depth".into(),
        columns: columns.collect(),
        rows,
        scores,
    })
}

/// Scores by length: a line for each report, with 95% intervals.
pub fn scores(outcome: &Outcome, n_ctx_orig: usize) -> Chart {
    let mut tasks: Vec<&str> = outcome.reports.iter().map(|r| r.task.as_str()).collect();
    let mut methods: Vec<&str> = outcome.methods.iter().map(String::as_str).collect();
    tasks.dedup();
    methods.dedup();
    let (mut series, mut longest) = (Vec::new(), 0);
    for (report, method) in outcome.reports.iter().zip(&outcome.methods) {
        let rows = || report.results.iter().filter_map(|row| Some((row.length?, row)));
        let points: Vec<(f64, f64)> = rows().map(|(length, row)| (length as f64, row.score)).collect();
        longest = rows().map(|(length, _)| length).fold(longest, usize::max);
        if points.is_empty() {
            continue;
        }
        let name = match (tasks.len() > 1, methods.len() > 1) {
            (true, true) => format!("{}, {method}", report.task),
            (true, false) => report.task.clone(),
            (false, _) => method.clone(),
        };
        let bounds = rows().map(|(_, row)| (row.ci_low, row.ci_high)).collect();
        series.push(Series::new(name, points).between(bounds));
    }
    let model = outcome.reports.first().map_or("", |r| r.model.as_str());
    let what = if let [task] = tasks[..] { format!("{task}, score") } else { "score".to_owned() };
    let under = if let [method] = methods[..] { format!(" ({method})") } else { String::new() };
    Chart {
        title: format!("{model}: {what} by length{under}, 95% intervals"),
        x: tokens("length, tokens", longest, n_ctx_orig),
        y: Axis::new("score, percent", Scale::Linear).showing([0.0, 100.0]),
        series,
    }
}

/// The histograms of training data, each with the end of its file name: `lengths`, and `distances` if any were counted.
pub fn histograms(found: &Inspection) -> Vec<(&'static str, Chart)> {
    let lengths = |bins: &[LengthBin]| {
        let all: u64 = bins.iter().map(|b| b.tokens).sum();
        let middle = |b: &LengthBin| (b.start as f64 * b.end as f64).sqrt();
        bins.iter().map(|b| (middle(b), 100.0 * b.tokens as f64 / all.max(1) as f64)).collect::<Vec<_>>()
    };
    let mut series = vec![Series::new("texts", lengths(&found.lengths))];
    series.extend(found.drawn.as_ref().map(|bins| Series::new("trained on", lengths(bins))));
    let mut charts = vec![(
        "lengths",
        Chart {
            title: "Tokens by document length".to_owned(),
            x: Axis::new("document length, tokens", Scale::Log).mark(found.ctx as f64, "context"),
            y: Axis::new("tokens, percent", Scale::Linear).showing([0.0]),
            series,
        },
    )];
    if found.distances.iter().all(|b| b.pairs == 0) {
        return charts;
    }
    // Pairs for each distance, for bins are as wide as they are far.
    let distances = |bins: &[DistanceBin]| {
        let point = |b: &DistanceBin| {
            let last = (b.end - 1).max(b.start);
            ((b.start as f64 * last as f64).sqrt(), b.pairs as f64 / (b.end - b.start) as f64)
        };
        bins.iter().map(point).collect::<Vec<_>>()
    };
    let mut series = vec![Series::new("training", distances(&found.distances))];
    let before = found.distances_before.as_ref();
    series.extend(before.map(|bins| Series::new("before the method", distances(bins))));
    charts.push((
        "distances",
        Chart {
            title: format!("Token pairs within a document (sequences: {})", count(found.inspected as u64)),
            x: Axis::new("distance, tokens", Scale::Log),
            y: Axis::new("pairs per distance", Scale::Log),
            series,
        },
    ));
    charts
}
