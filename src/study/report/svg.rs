//! Charts as inline SVG. Colors are CSS variables of the page; everything can be read without a pointer.

use std::fmt::Write as _;

use super::page::{escape, perplexity};

const WIDTH: f64 = 760.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 184.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// Height of a label's line.
const LINE: f64 = 16.0;
/// Colors, and dashes that tell lines of one color apart.
const COLOURS: usize = 7;
const DASHES: usize = 3;

/// A line: its name, its place among colors, its points, and intervals: place, low and high end. They are bars on an axis
/// of percent, and a band on a logarithmic one.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) colour: usize,
    pub(super) points: Vec<(f64, f64)>,
    pub(super) intervals: Vec<(f64, f64, f64)>,
}

pub(super) struct Lines<'a> {
    pub(super) title: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
    /// Marks of the x axis: place and text.
    pub(super) ticks: Vec<(f64, String)>,
    /// From 0 to 100 in place of a logarithmic axis.
    pub(super) percent: bool,
    pub(super) series: Vec<Series>,
}

/// Values of a logarithmic axis; what lies outside is drawn at its ends.
const LOG: std::ops::RangeInclusive<f64> = 1e-9..=1e120;

/// Marks of a logarithmic axis within a range.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = match (high / low).log10() {
        d if d < 0.35 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        d if d < 1.2 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
        d if d < 3.0 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let every = decades.clone().count().div_ceil(12).max(1);
    let all = decades.step_by(every).flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)));
    all.filter(|x| (low..=high).contains(x)).collect()
}

/// The points of a line that have a place in a chart.
fn placed(points: &[(f64, f64)]) -> impl Iterator<Item = (f64, f64)> + '_ {
    points.iter().copied().filter(|(x, y)| x.is_finite() && y.is_finite())
}

impl Series {
    /// The intervals that have a place in a chart.
    fn known(&self) -> impl Iterator<Item = (f64, f64, f64)> + '_ {
        let all = self.intervals.iter().copied();
        all.filter(|(x, low, high)| x.is_finite() && low.is_finite() && high.is_finite())
    }
}

impl Lines<'_> {
    pub(super) fn svg(&self) -> String {
        let height = 330f64.max(self.series.len() as f64 * LINE + TOP + BOTTOM + 8.0);
        let (right, bottom) = (WIDTH - RIGHT, height - BOTTOM);
        let points = || self.series.iter().flat_map(|s| placed(&s.points));
        let xs = points().map(|p| p.0).chain(self.ticks.iter().map(|t| t.0).filter(|x| x.is_finite()));
        let (x0, x1) =
            xs.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), x| (f64::min(a, x), f64::max(b, x)));
        let on_axis = |y: f64| y.clamp(*LOG.start(), *LOG.end());
        let ends = self.series.iter().flat_map(Series::known).flat_map(|(_, low, high)| [low, high]);
        let ys = points().map(|p| p.1).chain(ends).map(on_axis);
        let range = ys.fold(None, |range, y| match range {
            None => Some((y, y)),
            Some((a, b)) => Some((f64::min(a, y), f64::max(b, y))),
        });
        // Without a point the axis is an empty one.
        let (low, high) = match range {
            _ if self.percent => (0.0, 100.0),
            Some((low, high)) => (low / 1.06, high * 1.06),
            None => (1.0, 10.0),
        };
        let x_at = |x: f64| {
            // Of halves: the difference of two large numbers may be infinite.
            let span = x1 / 2.0 - x0 / 2.0;
            if span > 0.0 {
                LEFT + (x / 2.0 - x0 / 2.0) / span * (right - LEFT)
            } else {
                (LEFT + right) / 2.0
            }
        };
        let y_at = |y: f64| {
            let share = if self.percent { y / 100.0 } else { (on_axis(y) / low).ln() / (high / low).ln() };
            bottom - share.clamp(0.0, 1.0) * (bottom - TOP)
        };
        let mut out = open(self.title, WIDTH, height, "lines");
        let marks: Vec<(f64, String)> = if self.percent {
            (0..=5).map(|i| (f64::from(i) * 20.0, format!("{}", i * 20))).collect()
        } else {
            let shown = |x: f64| match x {
                x if x < 10.0 => format!("{x:.1}"),
                x => perplexity(x).trim_end_matches(".00").to_owned(),
            };
            log_ticks(low, high).into_iter().map(|x| (x, shown(x))).collect()
        };
        for (y, text) in marks {
            let at = y_at(y);
            let _ = write!(out, r#"<path class="grid" d="M{LEFT:.1} {at:.1}H{right:.1}"/>"#);
            let _ = write!(
                out,
                r#"<text class="tick" x="{:.1}" y="{:.1}" text-anchor="end">{text}</text>"#,
                LEFT - 7.0,
                at + 4.0
            );
        }
        for (x, text) in self.ticks.iter().filter(|t| t.0.is_finite()) {
            let at = x_at(*x);
            let _ = write!(out, r#"<path class="axis" d="M{at:.1} {bottom:.1}v5"/>"#);
            let y = bottom + 19.0;
            let text = escape(text);
            let _ = write!(
                out,
                r#"<text class="tick" x="{at:.1}" y="{y:.1}" text-anchor="middle">{text}</text>"#
            );
        }
        let _ = write!(out, r#"<path class="axis" d="M{LEFT:.1} {bottom:.1}H{right:.1}"/>"#);
        let (middle, under) = ((LEFT + right) / 2.0, height - 6.0);
        let _ = write!(
            out,
            r#"<text class="label" x="{middle:.1}" y="{under:.1}" text-anchor="middle">{}</text>"#,
            escape(self.x)
        );
        let half = (TOP + bottom) / 2.0;
        let _ = write!(
            out,
            r#"<text class="label" transform="translate(13 {half:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
            escape(self.y)
        );
        // Before the lines, which are drawn over them.
        for series in &self.series {
            let class = class(series.colour);
            let known: Vec<(f64, f64, f64)> =
                series.known().map(|(x, low, high)| (x_at(x), y_at(low), y_at(high))).collect();
            if self.percent || known.len() < 2 {
                for (x, low, high) in known {
                    let _ = write!(out, r#"<path class="bar {class}" d="M{x:.1} {low:.1}V{high:.1}"/>"#);
                }
            } else {
                let edge = known.iter().map(|e| (e.0, e.1)).chain(known.iter().rev().map(|e| (e.0, e.2)));
                let edge: Vec<String> = edge.map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
                let _ = write!(out, r#"<path class="band {class}" d="M{}Z"/>"#, edge.join("L"));
            }
        }
        let mut ends = Vec::new();
        for series in &self.series {
            let class = class(series.colour);
            let mut path = String::new();
            let points: Vec<(f64, f64)> = placed(&series.points).collect();
            for (i, (x, y)) in points.iter().enumerate() {
                let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { 'M' } else { 'L' }, x_at(*x), y_at(*y));
            }
            let Some(&(x, y)) = points.last() else { continue };
            let _ = write!(out, r#"<path class="line {class}" d="{path}"/>"#);
            if points.len() <= 12 {
                for (x, y) in &points {
                    let _ = write!(
                        out,
                        r#"<circle class="dot {class}" cx="{:.1}" cy="{:.1}" r="3"/>"#,
                        x_at(*x),
                        y_at(*y)
                    );
                }
            }
            ends.push((x_at(x), y_at(y), series));
        }
        labels(&mut out, ends, right, bottom);
        out += "</svg>";
        out
    }
}

/// Names at the right, each at the height of its line's end if there is room.
fn labels(out: &mut String, mut ends: Vec<(f64, f64, &Series)>, right: f64, bottom: f64) {
    ends.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut places: Vec<f64> = Vec::new();
    for (_, y, _) in &ends {
        let free = places.last().map_or(TOP + 4.0, |last| last + LINE);
        places.push(y.max(free));
    }
    // Back up from the bottom.
    let mut limit = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(limit);
        limit = *place - LINE;
    }
    for ((x, y, series), place) in ends.into_iter().zip(places) {
        let class = class(series.colour);
        let (from, to) = (right + 14.0, right + 34.0);
        let _ = write!(out, r#"<path class="leader {class}" d="M{x:.1} {y:.1}L{from:.1} {place:.1}"/>"#);
        let _ = write!(out, r#"<path class="line {class}" d="M{from:.1} {place:.1}H{to:.1}"/>"#);
        let (at, base) = (to + 5.0, place + 4.0);
        let name = short(&series.name);
        // What may be wider than there is room for, in whatever font, is made to fit.
        let room = WIDTH - at - 4.0;
        let wide = name.chars().map(|c| if c.is_ascii() { 7.5 } else { 13.0 }).sum::<f64>() > room;
        let fit = if wide {
            format!(r#" textLength="{room:.0}" lengthAdjust="spacingAndGlyphs""#)
        } else {
            String::new()
        };
        let name = escape(&name);
        let _ = write!(out, r#"<text class="name" x="{at:.1}" y="{base:.1}"{fit}>{name}</text>"#);
    }
}

/// A name, cut to the room right of a chart.
fn short(name: &str) -> String {
    if name.chars().count() <= 20 {
        return name.to_owned();
    }
    name.chars().take(19).chain(['…']).collect()
}

fn class(colour: usize) -> String {
    format!("c{} d{}", colour % COLOURS, colour / COLOURS % DASHES)
}

fn open(title: &str, width: f64, height: f64, class: &str) -> String {
    let title = escape(title);
    format!(
        r#"<svg class="{class}" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="{title}"><title>{title}</title>"#
    )
}

/// A map of percentages, the figure written into every place.
pub(super) struct Heat<'a> {
    pub(super) title: &'a str,
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<String>,
    /// By row.
    pub(super) values: Vec<Vec<Option<f64>>>,
}

impl Heat<'_> {
    pub(super) fn svg(&self) -> String {
        let (left, top, wide, high) = (44.0, 22.0, 46.0, 22.0);
        let width = left + self.columns.len() as f64 * wide + 2.0;
        let height = top + self.rows.len() as f64 * high + 2.0;
        let mut out = open(self.title, width, height, "heat");
        for (i, column) in self.columns.iter().enumerate() {
            let x = left + (i as f64 + 0.5) * wide;
            let text = escape(column);
            let _ = write!(out, r#"<text class="tick" x="{x:.1}" y="15" text-anchor="middle">{text}</text>"#);
        }
        for (j, row) in self.rows.iter().enumerate() {
            let y = top + j as f64 * high;
            let (x, base, text) = (left - 6.0, y + 15.0, escape(row));
            let _ =
                write!(out, r#"<text class="tick" x="{x:.1}" y="{base:.1}" text-anchor="end">{text}</text>"#);
            for (i, value) in self.values.get(j).into_iter().flatten().enumerate() {
                let x = left + i as f64 * wide;
                let (w, h) = (wide - 2.0, high - 2.0);
                let (class, style, text) = match value.filter(|v| v.is_finite()) {
                    None => ("none", String::new(), "–".to_owned()),
                    Some(v) => {
                        let share = (v / 100.0).clamp(0.0, 1.0);
                        let class = if share > 0.55 { "full" } else { "faint" };
                        (class, format!(r#" fill-opacity="{:.2}""#, 0.06 + 0.94 * share), format!("{v:.0}"))
                    }
                };
                let _ = write!(
                    out,
                    r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" rx="2"{style}/>"#
                );
                let middle = x + w / 2.0;
                let _ = write!(
                    out,
                    r#"<text class="{class}" x="{middle:.1}" y="{:.1}" text-anchor="middle">{text}</text>"#,
                    y + 14.5
                );
            }
        }
        out += "</svg>";
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Charts are drawn from numbers of all sizes; no place in them is one that is no number.
    #[test]
    fn no_number_breaks_a_chart() {
        let odd = [
            f64::NAN,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            f64::MIN,
            f64::MIN_POSITIVE,
            0.0,
            -1.0,
            1.0,
            1e-9,
            1e300,
        ];
        let lines = |points: Vec<(f64, f64)>, tick: f64, percent: bool| {
            let intervals = points.iter().map(|&(x, y)| (x, y, y)).collect();
            let series = vec![Series { name: "a".into(), colour: 0, points, intervals }];
            Lines { title: "t", x: "x", y: "y", ticks: vec![(tick, "0".into())], percent, series }.svg()
        };
        for a in odd {
            for b in odd {
                for percent in [false, true] {
                    for points in
                        [vec![], vec![(a, b)], vec![(a, b), (b, a), (1.0, 2.0)], vec![(0.0, a), (0.0, b)]]
                    {
                        let svg = lines(points.clone(), a, percent);
                        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{points:?}: {svg}");
                    }
                }
                let values = vec![vec![Some(a), None, Some(b)]];
                let map =
                    Heat { title: "t", columns: vec!["c".into(); 3], rows: vec!["r".into()], values }.svg();
                assert!(!map.contains("NaN") && !map.contains("inf"), "{map}");
            }
        }
    }
}
