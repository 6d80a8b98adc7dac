//! The chart of perplexity by position.

use super::{Axis, Chart, Scale, Series};
use crate::eval::perplexity::{Bucket, Report};
use crate::eval::protocol::protocol;
use crate::eval::stats::perplexity_interval;
use crate::rope::Spec;

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
    let mut x = Axis::new(format!("position in the {whole}, tokens"), Scale::Linear);
    if longest > n_ctx_orig {
        x = x.mark(n_ctx_orig as f64, format!("original context {n_ctx_orig}"));
    }
    Chart { title, x, y: Axis::new("perplexity", Scale::Log), series }
}
