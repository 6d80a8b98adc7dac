//! Ranges of axes, ticks and tick labels. `tests/eval/plot.rs` of `ropewalk` compiles this file for itself.

use super::{Axis, Chart, PlotError, Scale};

/// A scale with its range, which maps values to 0..1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span {
    scale: Scale,
    /// The ends of the range: values, or their decimal logarithms on a logarithmic scale.
    lo: f64,
    hi: f64,
}

/// Largest magnitude shown; differences of larger values could overflow.
const LIMIT: f64 = 1e150;

impl Span {
    /// The ranges of both axes, around all points that both axes can show.
    ///
    /// # Errors
    /// Returns [`PlotError::Empty`] if there is no such point.
    pub(super) fn both(chart: &Chart) -> Result<(Span, Span), PlotError> {
        let shown =
            |p: &(f64, f64)| mapped(chart.x.scale, p.0).is_some() && mapped(chart.y.scale, p.1).is_some();
        let mut points: Vec<(f64, f64)> =
            chart.series.iter().flat_map(|s| s.points.iter().copied()).filter(shown).collect();
        if points.is_empty() {
            return Err(PlotError::Empty(format!("\"{}\"", chart.title)));
        }
        let around = chart.series.iter().flat_map(|s| s.points.iter().zip(&s.bounds));
        points.extend(around.flat_map(|(p, b)| [(p.0, b.0), (p.0, b.1)]).filter(shown));
        Ok((
            Span::around(&chart.x, points.iter().map(|p| p.0), 0.0),
            Span::around(&chart.y, points.iter().map(|p| p.1), 0.05),
        ))
    }

    pub(super) fn around(axis: &Axis, values: impl Iterator<Item = f64>, pad: f64) -> Span {
        let others = axis.markers.iter().map(|m| m.at).chain(axis.shown.iter().copied());
        let all = values.chain(others).filter_map(|v| mapped(axis.scale, v));
        let (mut lo, mut hi) =
            all.fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
        // A flat line gets a range around it that is larger than rounding errors.
        let least = match axis.scale {
            Scale::Linear => (lo.abs().max(hi.abs()) * 1e-6).max(1e-12),
            Scale::Log => 0.05,
        };
        if hi - lo < least {
            let half = if axis.scale == Scale::Linear { lo.abs().max(1.0) / 2.0 } else { 0.5 };
            (lo, hi) = (lo - half, hi + half);
        }
        let room = (hi - lo) * pad;
        // Values from 0 on are counts or sizes: the axis does not go below 0.
        let floor = if axis.scale == Scale::Linear && lo >= 0.0 { 0.0 } else { f64::NEG_INFINITY };
        Span { scale: axis.scale, lo: (lo - room).max(floor), hi: hi + room }
    }

    /// The place of a value, 0 at the start of the axis and 1 at its end; `None` for one that the scale
    /// cannot show.
    pub(super) fn at(&self, value: f64) -> Option<f64> {
        mapped(self.scale, value).map(|v| (v - self.lo) / (self.hi - self.lo))
    }

    /// About `n` ticks at round values, with their labels.
    pub(super) fn ticks(&self, n: usize) -> Vec<(f64, String)> {
        let n = n.max(2) as f64;
        let decades = self.hi - self.lo;
        let values: Vec<f64> = if self.scale == Scale::Log && decades >= 2.0 {
            let step = (decades / n).ceil().max(1.0);
            every(self.lo, self.hi, step).map(|e| 10f64.powf(e)).collect()
        } else if self.scale == Scale::Log && decades >= 0.7 {
            (self.lo.floor() as i32..=self.hi.floor() as i32)
                .flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)))
                .filter(|v| self.at(*v).is_some_and(|a| (-1e-9..=1.0 + 1e-9).contains(&a)))
                .collect()
        } else {
            let (lo, hi) = match self.scale {
                Scale::Linear => (self.lo, self.hi),
                Scale::Log => (10f64.powf(self.lo), 10f64.powf(self.hi)),
            };
            let rough = (hi - lo) / n;
            let unit = 10f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * unit).into_iter().find(|s| *s >= rough * 0.999);
            every(lo, hi, step.unwrap_or(rough)).collect()
        };
        // Thousands of one axis are written alike.
        let thousand = if values.iter().any(|v| v.abs() >= 1e4) { 1e3 } else { 1e4 };
        values.into_iter().map(|v| (v, label(v, thousand))).collect()
    }
}

/// Multiples of `step` from `lo` to `hi`, at most 64.
fn every(lo: f64, hi: f64, step: f64) -> impl Iterator<Item = f64> {
    let first = (lo / step - 1e-9).ceil();
    (0..64).map(move |i| (first + f64::from(i)) * step).take_while(move |v| *v <= hi + step * 1e-9)
}

fn mapped(scale: Scale, v: f64) -> Option<f64> {
    match scale {
        Scale::Linear => (v.abs() < LIMIT).then_some(v),
        Scale::Log => (v > 1.0 / LIMIT && v < LIMIT).then(|| v.log10()),
    }
}

/// A number as a short label, in thousands from `thousand` on: 0.05, 300, 8000, 20k, 1.5M, 1e12.
fn label(v: f64, thousand: f64) -> String {
    let a = v.abs();
    let short = |x: f64| {
        let t = format!("{x:.3}");
        t.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match a {
        _ if a < 1e-12 => "0".into(),
        _ if a < 1e-3 => format!("{v:.0e}"),
        _ if a < thousand => short(v),
        _ if a < 1e6 => format!("{}k", short(v / 1e3)),
        _ if a < 1e9 => format!("{}M", short(v / 1e6)),
        _ => format!("{v:.3e}").replace(".000e", "e"),
    }
}
