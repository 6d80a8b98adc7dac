//! Draws line charts: title, axes with ticks and grid, markers, lines, and a legend below.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::FontTransform;

use super::axis::Span;
use super::pen::{failed, Drawing, Pen, Point, GRID, INK, MARKER};
use super::{Chart, PlotError, Stroke};

/// Width and height in units.
const SIZE: (u32, u32) = (960, 600);

/// The color-blind safe palette of Okabe and Ito, without yellow and black.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// A ramp from dark violet over green to amber, for charts with more lines than the palette has colors.
const RAMP: [RGBColor; 5] = [
    RGBColor(68, 1, 84),
    RGBColor(59, 82, 139),
    RGBColor(33, 145, 140),
    RGBColor(94, 201, 98),
    RGBColor(235, 170, 20),
];

fn colour(i: usize, n: usize) -> RGBColor {
    if n <= COLOURS.len() {
        return COLOURS[i % COLOURS.len()];
    }
    ramp(i as f64 / (n - 1) as f64)
}

/// The ramp's color at `place`, from 0 to 1.
pub(super) fn ramp(place: f64) -> RGBColor {
    let at = place.clamp(0.0, 1.0) * (RAMP.len() - 1) as f64;
    let (a, t) = (at as usize, at.fract());
    let b = (a + 1).min(RAMP.len() - 1);
    let mix = |a: u8, b: u8| (f64::from(a) * (1.0 - t) + f64::from(b) * t).round() as u8;
    RGBColor(mix(RAMP[a].0, RAMP[b].0), mix(RAMP[a].1, RAMP[b].1), mix(RAMP[a].2, RAMP[b].2))
}

impl Drawing for Chart {
    fn size(&self) -> (u32, u32) {
        SIZE
    }
    fn draw<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError> {
        chart_on(self, pen)
    }
}

fn chart_on<B: DrawingBackend>(chart: &Chart, pen: &Pen<'_, B>) -> Result<(), PlotError> {
    let unit = pen.unit;
    let (width, height) = (SIZE.0 as i32 * unit, SIZE.1 as i32 * unit);
    let (xs, ys) = Span::both(chart)?;
    let (xticks, yticks) = (xs.ticks(9), ys.ticks(8));

    // The legend is laid out first, because its rows decide how much height is left.
    let entries = legend(pen, chart, width - 60 * unit);
    let rows = entries.last().map_or(0, |e| e.row + 1);
    let y_labels = yticks.iter().map(|t| pen.width(&t.1, 14)).max().unwrap_or(0);
    let y_markers =
        chart.y.markers.iter().map(|m| pen.width(&m.label, 13)).max().unwrap_or(0).min(200 * unit);
    let left = 42 * unit + y_labels;
    let right = width - if y_markers > 0 { y_markers + 20 * unit } else { 28 * unit };
    let top = if chart.x.markers.is_empty() { 52 * unit } else { 70 * unit };
    let bottom = height - (64 + 24 * rows.min(8)) * unit;
    let px = |v: f64| xs.at(v).map(|a| left + (a * f64::from(right - left)).round() as i32);
    let py = |v: f64| ys.at(v).map(|a| bottom - (a * f64::from(bottom - top)).round() as i32);

    pen.text(
        &pen.fit(&chart.title, 20, width - 60 * unit),
        (left, 18 * unit),
        &pen.style(20, INK, (HPos::Left, VPos::Top)),
    )?;
    for (v, text) in &xticks {
        let Some(x) = px(*v) else { continue };
        pen.line(vec![(x, top), (x, bottom)], GRID, 4)?;
        pen.text(text, (x, bottom + 8 * unit), &pen.style(14, INK, (HPos::Center, VPos::Top)))?;
    }
    for (v, text) in &yticks {
        let Some(y) = py(*v) else { continue };
        pen.line(vec![(left, y), (right, y)], GRID, 4)?;
        pen.text(text, (left - 8 * unit, y), &pen.style(14, INK, (HPos::Right, VPos::Center)))?;
    }
    pen.line(vec![(left, top), (left, bottom), (right, bottom)], INK, 5)?;
    let middle = ((left + right) / 2, bottom + 32 * unit);
    pen.text(&chart.x.label, middle, &pen.style(15, INK, (HPos::Center, VPos::Top)))?;
    let mut sideways = pen.style(15, INK, (HPos::Center, VPos::Top));
    sideways.font = sideways.font.transform(FontTransform::Rotate270);
    pen.text(&chart.y.label, (12 * unit, (top + bottom) / 2), &sideways)?;

    markers(pen, chart, (left, right), (top, bottom), &px, &py)?;
    lines(pen, chart, &px, &py)?;
    for e in entries.iter().filter(|e| e.row < 8) {
        let y = bottom + (72 + 24 * e.row) * unit;
        let swatch = [(left.min(30 * unit) + e.x, y), (left.min(30 * unit) + e.x + 28 * unit, y)];
        match e.stroke {
            Stroke::Solid => pen.line(swatch.to_vec(), e.colour, 12)?,
            Stroke::Reference => pen.dashed(&swatch, e.colour, 8, (7, 5))?,
        }
        let at = (swatch[1].0 + 8 * unit, y);
        pen.text(&e.text, at, &pen.style(14, INK, (HPos::Left, VPos::Center)))?;
    }
    Ok(())
}

struct Entry {
    text: String,
    x: i32,
    row: i32,
    colour: RGBColor,
    stroke: Stroke,
}

/// Lays out the legend's entries in rows below the chart, where they cover no line.
fn legend<B: DrawingBackend>(pen: &Pen<'_, B>, chart: &Chart, width: i32) -> Vec<Entry> {
    let (mut x, mut row) = (0, 0);
    let mut entries = Vec::new();
    for (series, (colour, stroke)) in chart.series.iter().zip(strokes(chart)) {
        let text = pen.fit(&series.name, 14, width / 2);
        let takes = 36 * pen.unit + pen.width(&text, 14) + 24 * pen.unit;
        if x > 0 && x + takes > width {
            (x, row) = (0, row + 1);
        }
        entries.push(Entry { text, x, row, colour, stroke });
        x += takes;
    }
    entries
}

fn strokes(chart: &Chart) -> impl Iterator<Item = (RGBColor, Stroke)> + '_ {
    let n = chart.series.iter().filter(|s| s.stroke == Stroke::Solid).count();
    let mut solid = 0;
    chart.series.iter().map(move |s| match s.stroke {
        Stroke::Reference => (RGBColor(70, 70, 70), s.stroke),
        Stroke::Solid => {
            solid += 1;
            (colour(solid - 1, n), s.stroke)
        }
    })
}

fn markers<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    chart: &Chart,
    (left, right): Point,
    (top, bottom): Point,
    px: &dyn Fn(f64) -> Option<i32>,
    py: &dyn Fn(f64) -> Option<i32>,
) -> Result<(), PlotError> {
    let unit = pen.unit;
    // Labels of horizontal lines stand right of the frame, pushed apart where lines are close.
    let mut across: Vec<(i32, &str)> =
        chart.y.markers.iter().filter_map(|m| Some((py(m.at)?, m.label.as_str()))).collect();
    across.sort_by_key(|a| std::cmp::Reverse(a.0));
    let mut lowest_free = i32::MAX;
    for (y, label) in across {
        pen.dashed(&[(left, y), (right, y)], MARKER, 5, (3, 3))?;
        let at = y.min(lowest_free);
        lowest_free = at - 17 * unit;
        let label = pen.fit(label, 13, 200 * unit);
        pen.text(&label, (right + 8 * unit, at), &pen.style(13, INK, (HPos::Left, VPos::Center)))?;
    }
    // Labels of vertical lines stand above the frame; one that would touch the one before is left out.
    let mut up: Vec<(i32, &str)> =
        chart.x.markers.iter().filter_map(|m| Some((px(m.at)?, m.label.as_str()))).collect();
    up.sort_by_key(|a| a.0);
    let mut free = 0;
    for (x, label) in up {
        pen.dashed(&[(x, top), (x, bottom)], MARKER, 5, (3, 3))?;
        let label = pen.fit(label, 13, 260 * unit);
        let wide = pen.width(&label, 13);
        let from = (x - wide / 2).min(SIZE.0 as i32 * unit - wide - 8 * unit).max(free);
        if from <= x {
            pen.text(&label, (from, top - 6 * unit), &pen.style(13, INK, (HPos::Left, VPos::Bottom)))?;
            free = from + wide + 12 * unit;
        }
    }
    Ok(())
}

fn lines<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    chart: &Chart,
    px: &dyn Fn(f64) -> Option<i32>,
    py: &dyn Fn(f64) -> Option<i32>,
) -> Result<(), PlotError> {
    for (series, (colour, stroke)) in chart.series.iter().zip(strokes(chart)) {
        let places: Vec<Option<Point>> = series.points.iter().map(|p| Some((px(p.0)?, py(p.1)?))).collect();
        for run in places.split(Option::is_none) {
            let run: Vec<Point> = run.iter().flatten().copied().collect();
            match (run.len(), stroke) {
                (0, _) => {}
                (1, _) => {
                    let dot = Circle::new(run[0], 4 * pen.unit, colour.filled());
                    pen.area.draw(&dot).map_err(failed)?;
                }
                (_, Stroke::Solid) => pen.line(run, colour, 9)?,
                (_, Stroke::Reference) => pen.dashed(&run, colour, 7, (7, 5))?,
            }
        }
    }
    Ok(())
}
