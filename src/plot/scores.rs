//! Scores of benchmarks: by length, and by length and depth.

use super::{Axis, Chart, Grid, Scale, Series};
use crate::eval::suite::{Outcome, Report, Row};

/// A heat map of each report whose samples have depths.
pub fn depths(outcome: &Outcome) -> Vec<Grid> {
    outcome.reports.iter().zip(&outcome.methods).filter_map(|(report, method)| map(report, method)).collect()
}

/// A heat map of a report whose samples have depths: lengths across, depths down.
fn map(report: &Report, method: &str) -> Option<Grid> {
    let at = |row: &Row| row.by.iter().filter(|b| b.tag == "depth").cloned().collect::<Vec<_>>();
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
    let score = |depth: &String, row: &Row| at(row).iter().find(|b| b.value == *depth).map(|b| b.score);
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
    let mut x = Axis::new("length, tokens", Scale::Linear);
    if longest > n_ctx_orig {
        x = x.mark(n_ctx_orig as f64, format!("original context {n_ctx_orig}"));
    }
    Chart {
        title: format!("{model}: {what} by length{under}, 95% intervals"),
        x,
        y: Axis::new("score, percent", Scale::Linear),
        series,
    }
}
