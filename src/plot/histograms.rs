//! Charts of training data: lengths of documents, and distances between tokens.

use ropewalk_core::text::count;

use super::{Axis, Chart, Scale, Series};
use crate::data::{DistanceBin, Inspection, LengthBin};

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
            title: "Tokens by length of their document".to_owned(),
            x: Axis::new("tokens of a document", Scale::Log).mark(found.ctx as f64, "context"),
            y: Axis::new("tokens, %", Scale::Linear),
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
    let mut series = vec![Series::new("as trained on", distances(&found.distances))];
    let before = found.distances_before.as_ref();
    series.extend(before.map(|bins| Series::new("before the method", distances(bins))));
    charts.push((
        "distances",
        Chart {
            title: format!("Pairs of tokens of one document, {} sequences", count(found.inspected as u64)),
            x: Axis::new("distance, tokens", Scale::Log),
            y: Axis::new("pairs at a distance", Scale::Log),
            series,
        },
    ));
    charts
}
