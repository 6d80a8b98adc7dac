//! Names of lines, at their right ends. If a name is long, letters mark the ends, and a legend below the chart has the
//! names.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::look::{look, stroke, Look};
use super::pen::{Pen, Point, INK};
use super::{Chart, PlotError, Series};

/// Most lines that are named.
const MOST: usize = 26;
/// Longest name at the end of a line, in characters. If a name is longer, letters mark the ends.
const LONGEST: usize = 18;
/// Longest name with another next to it in the legend, in characters.
const HALF: usize = 22;
/// Height of a name at the end of a line, and of a row of the legend, in units.
const LINE: i32 = 18;
const ROW: i32 = 20;
/// Size of names in the font.
const SIZE: i32 = 15;

/// The lines that are named, and the letter, stroke and color of each. A line without points only takes a color.
fn named(chart: &Chart) -> impl Iterator<Item = (char, &Series, Look)> + '_ {
    let all = ('A'..='Z').zip(&chart.series).zip(look(chart));
    all.map(|((letter, series), look)| (letter, series, look)).filter(|(_, s, _)| !s.points.is_empty())
}

fn longest(chart: &Chart) -> usize {
    chart.series.iter().take(MOST).map(|s| s.name.chars().count()).max().unwrap_or(0)
}

/// Returns true if letters mark the ends, because a name is too long.
fn lettered(chart: &Chart) -> bool {
    longest(chart) > LONGEST
}

/// Columns and rows of the legend.
fn legend_size(chart: &Chart) -> (i32, i32) {
    let n = chart.series.len().min(MOST) as i32;
    match lettered(chart) {
        false => (1, 0),
        true if longest(chart) > HALF => (1, n),
        true => (2, (n + 1) / 2),
    }
}

/// Height of the legend, in units.
pub(super) fn legend_height(chart: &Chart) -> i32 {
    legend_size(chart).1 * ROW
}

/// Height that the names at the ends need, in units.
pub(super) fn names_height(chart: &Chart) -> i32 {
    chart.series.len().min(MOST) as i32 * LINE
}

/// Width that is needed right of the frame.
pub(super) fn names_width<B: DrawingBackend>(pen: &Pen<'_, B>, chart: &Chart) -> i32 {
    let widest = match lettered(chart) {
        true => pen.width("M", SIZE),
        false => chart.series.iter().take(MOST).map(|s| pen.width(&s.name, SIZE)).max().unwrap_or(0),
    };
    widest + 36 * pen.unit
}

/// Draws names, or letters, right of the frame, each at the height of its line's end if there is room.
pub(super) fn names<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    chart: &Chart,
    right: i32,
    (top, bottom): Point,
    place: &dyn Fn((f64, f64)) -> Option<Point>,
) -> Result<(), PlotError> {
    let unit = pen.unit;
    let end = |series: &Series| series.points.iter().rev().find_map(|p| place(*p));
    let mut ends: Vec<(Point, char, &Series, Look)> = named(chart)
        .filter_map(|(letter, series, look)| Some((end(series)?, letter, series, look)))
        .collect();
    ends.sort_by_key(|e| e.0 .1);
    let mut places: Vec<i32> = Vec::new();
    for (at, ..) in &ends {
        places.push(places.last().map_or(top, |last| last + LINE * unit).max(at.1));
    }
    // Back up from the bottom.
    let mut limit = bottom;
    for place in places.iter_mut().rev() {
        *place = limit.min(*place);
        limit = *place - LINE * unit;
    }
    let style = pen.style(SIZE, INK, (HPos::Left, VPos::Center));
    for ((at, letter, series, look), y) in ends.into_iter().zip(places) {
        pen.line(vec![at, (right + 10 * unit, y)], look.colour, 2)?;
        stroke(pen, &[(right + 10 * unit, y), (right + 26 * unit, y)], look)?;
        let name = if lettered(chart) { letter.to_string() } else { pen.fit(&series.name, SIZE, 200 * unit) };
        pen.text(&name, (right + 30 * unit, y), &style)?;
    }
    Ok(())
}

/// Draws the legend, which names the line of each letter. `at` is its upper left corner.
pub(super) fn legend<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    chart: &Chart,
    at: Point,
    width: i32,
) -> Result<(), PlotError> {
    let unit = pen.unit;
    let (columns, rows) = legend_size(chart);
    if rows == 0 {
        return Ok(());
    }
    let wide = width / columns;
    let style = pen.style(SIZE, INK, (HPos::Left, VPos::Center));
    for (n, (letter, series, look)) in (0..).zip(named(chart)) {
        let (x, y) = (at.0 + n / rows * wide, at.1 + (n % rows * ROW + ROW / 2) * unit);
        stroke(pen, &[(x, y), (x + 20 * unit, y)], look)?;
        pen.text(&letter.to_string(), (x + 26 * unit, y), &style)?;
        let name = pen.fit(&series.name, SIZE, wide - 48 * unit);
        pen.text(&name, (x + 40 * unit, y), &style)?;
    }
    Ok(())
}
