//! Draws line charts: title, axes with ticks and grid, markers, intervals, and lines.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::FontTransform;

use super::axis::Span;
use super::look::{look, stroke};
use super::pen::{failed, Drawing, Pen, Point, GRID, INK, MARKER};
use super::{ends, Chart, PlotError};

/// Width and least height in units, without a legend: text can be read at the width of a column.
const WIDTH: i32 = 480;
const HEIGHT: i32 = 330;
/// Height above and below the frame, without a legend: a title of two lines, names of axes, ticks.
const AROUND: i32 = 138;
/// Most points of a line that are drawn as dots.
const DOTS: usize = 16;

impl Drawing for Chart {
    fn size(&self) -> (u32, u32) {
        let height = HEIGHT.max(AROUND + ends::names_height(self)) + ends::legend_height(self);
        (WIDTH as u32, height as u32)
    }
    fn draw<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError> {
        chart_on(self, pen)
    }
}

fn chart_on<B: DrawingBackend>(chart: &Chart, pen: &Pen<'_, B>) -> Result<(), PlotError> {
    let unit = pen.unit;
    let (width, height) = (WIDTH * unit, chart.size().1 as i32 * unit);
    let (xs, ys) = Span::both(chart)?;
    let (xticks, yticks) = (xs.ticks(6), ys.ticks(7));

    let title = pen.wrap(&chart.title, 16, width - 24 * unit, 2);
    let y_labels = yticks.iter().map(|t| pen.width(&t.1, 15)).max().unwrap_or(0);
    let left = 40 * unit + y_labels;
    let right = width - ends::names_width(pen, chart).min(width / 2);
    let above = if chart.x.markers.is_empty() { 14 } else { 32 };
    let top = (10 + 19 * title.len() as i32 + above) * unit;
    let bottom = height - (56 + ends::legend_height(chart)) * unit;
    let px = |v: f64| xs.at(v).map(|a| left + (a * f64::from(right - left)).round() as i32);
    let py = |v: f64| ys.at(v).map(|a| bottom - (a * f64::from(bottom - top)).round() as i32);
    let place = |p: (f64, f64)| Some((px(p.0)?, py(p.1)?));

    for (n, line) in title.iter().enumerate() {
        let at = (12 * unit, (10 + 19 * n as i32) * unit);
        pen.text(line, at, &pen.style(16, INK, (HPos::Left, VPos::Top)))?;
    }
    // Labels that would touch the one before are left out.
    let mut free = i32::MIN;
    for (v, text) in &xticks {
        let Some(x) = px(*v) else { continue };
        pen.line(vec![(x, top), (x, bottom)], GRID, 3)?;
        let half = pen.width(text, 15) / 2;
        if x - half >= free {
            pen.text(text, (x, bottom + 7 * unit), &pen.style(15, INK, (HPos::Center, VPos::Top)))?;
            free = x + half + 6 * unit;
        }
    }
    for (v, text) in &yticks {
        let Some(y) = py(*v) else { continue };
        pen.line(vec![(left, y), (right, y)], GRID, 3)?;
        pen.text(text, (left - 7 * unit, y), &pen.style(15, INK, (HPos::Right, VPos::Center)))?;
    }
    pen.line(vec![(left, top), (left, bottom), (right, bottom)], INK, 4)?;
    let middle = ((left + right) / 2, bottom + 29 * unit);
    pen.text(&chart.x.name(), middle, &pen.style(15, INK, (HPos::Center, VPos::Top)))?;
    let mut sideways = pen.style(15, INK, (HPos::Center, VPos::Top));
    sideways.font = sideways.font.transform(FontTransform::Rotate270);
    pen.text(&chart.y.name(), (10 * unit, (top + bottom) / 2), &sideways)?;

    intervals(pen, chart, &place)?;
    markers(pen, chart, (left, right), (top, bottom), &px, &py)?;
    lines(pen, chart, &place)?;
    ends::names(pen, chart, right, (top, bottom), &place)?;
    ends::legend(pen, chart, (12 * unit, bottom + 54 * unit), width - 24 * unit)
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
    // Labels of horizontal lines are above them, at the left, and move up where lines are close.
    let mut across: Vec<(i32, &str)> =
        chart.y.markers.iter().filter_map(|m| Some((py(m.at)?, m.label.as_str()))).collect();
    across.sort_by_key(|a| std::cmp::Reverse(a.0));
    let mut lowest_free = i32::MAX;
    for (y, label) in across {
        pen.dashed(&[(left, y), (right, y)], MARKER, 4, (3, 3))?;
        let at = y.min(lowest_free);
        lowest_free = at - 17 * unit;
        let label = pen.fit(label, 15, right - left - 12 * unit);
        let style = pen.style(15, INK, (HPos::Left, VPos::Bottom));
        pen.text(&label, (left + 6 * unit, at - 3 * unit), &style)?;
    }
    // Labels of vertical lines are above the frame. A label that would touch the one before is left out.
    let mut up: Vec<(i32, &str)> =
        chart.x.markers.iter().filter_map(|m| Some((px(m.at)?, m.label.as_str()))).collect();
    up.sort_by_key(|a| a.0);
    let mut free = 0;
    for (x, label) in up {
        pen.dashed(&[(x, top), (x, bottom)], MARKER, 4, (3, 3))?;
        let label = pen.fit(label, 15, 200 * unit);
        let wide = pen.width(&label, 15);
        let from = (x - wide / 2).min(WIDTH * unit - wide - 8 * unit).max(free);
        if from <= x {
            pen.text(&label, (from, top - 5 * unit), &pen.style(15, INK, (HPos::Left, VPos::Bottom)))?;
            free = from + wide + 12 * unit;
        }
    }
    Ok(())
}

/// Draws the intervals of lines as pale bands, and the interval of a point without neighbors as a bar.
fn intervals<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    chart: &Chart,
    place: &dyn Fn((f64, f64)) -> Option<Point>,
) -> Result<(), PlotError> {
    for (series, look) in chart.series.iter().zip(look(chart)) {
        let ends = series.points.iter().zip(&series.bounds);
        let ends: Vec<Option<(Point, Point)>> =
            ends.map(|(p, b)| Some((place((p.0, b.0))?, place((p.0, b.1))?))).collect();
        for run in ends.split(Option::is_none) {
            let low = run.iter().flatten().map(|e| e.0);
            let high = run.iter().rev().flatten().map(|e| e.1);
            let outline: Vec<Point> = low.chain(high).collect();
            match run.len() {
                0 => {}
                1 => pen.line(outline, look.colour, 4)?,
                _ => {
                    let band = Polygon::new(outline, look.colour.mix(0.14).filled());
                    pen.area.draw(&band).map_err(failed)?;
                }
            }
        }
    }
    Ok(())
}

fn lines<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    chart: &Chart,
    place: &dyn Fn((f64, f64)) -> Option<Point>,
) -> Result<(), PlotError> {
    for (series, look) in chart.series.iter().zip(look(chart)) {
        let places: Vec<Option<Point>> = series.points.iter().map(|p| place(*p)).collect();
        for run in places.split(Option::is_none) {
            let run: Vec<Point> = run.iter().flatten().copied().collect();
            if run.len() > 1 {
                stroke(pen, &run, look)?;
            }
            // Few points are measurements, which a reader tells from the lines between them.
            if run.len() <= DOTS {
                for at in run {
                    pen.area.draw(&Circle::new(at, 3 * pen.unit, look.colour.filled())).map_err(failed)?;
                }
            }
        }
    }
    Ok(())
}
