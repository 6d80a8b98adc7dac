//! Draws distance maps: color bands up to the original context, and another hue beyond it.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::FontTransform;

use super::look::ramp;
use super::map::{Cell, Map, Panel};
use super::pen::{failed, Drawing, Pen, Point, INK, MARKER};
use super::PlotError;

/// Side of a panel in units, and in cells.
pub(super) const SIDE: i32 = 300;
const CELLS: usize = 96;
/// Margins around the panels, the gaps between them, and the width of the color scale, in units.
pub(super) const LEFT: i32 = 82;
pub(super) const TOP: i32 = 66;
pub(super) const GAP: i32 = 84;
/// Space between rows of panels: names of an axis, and titles.
const ROWS: i32 = 50 + TOP;
pub(super) const SCALE: i32 = 150;
const BOTTOM: i32 = 86;
/// Numbers of color bands within the original context and beyond it.
const BANDS: i32 = 16;
const BEYOND: i32 = 4;
/// Color of keys that are not seen.
const UNSEEN: RGBColor = RGBColor(224, 224, 224);

/// The upper left corner of panel `i`, in units. There are two panels in a row, so that a map of more can be read on a
/// page.
pub(super) fn corner(i: usize) -> Point {
    let (column, row) = ((i % 2) as i32, (i / 2) as i32);
    (LEFT + column * (SIDE + GAP), TOP + row * (SIDE + ROWS))
}

/// The lower right corner of `n` panels, in units.
pub(super) fn end(n: usize) -> Point {
    let (right, below) = (corner(n.clamp(1, 2) - 1), corner(n.max(1) - 1));
    (right.0 + SIDE, below.1 + SIDE)
}

impl Drawing for Map {
    fn size(&self) -> (u32, u32) {
        let (right, below) = end(self.panels.len());
        ((right + SCALE) as u32, (below + BOTTOM) as u32)
    }

    fn draw<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError> {
        let cells: Vec<_> = self.panels.iter().map(|p| p.cells(CELLS, CELLS)).collect();
        // The largest distance of all, in trained windows: where the scale ends.
        let largest = self.panels.iter().zip(&cells).fold(1.0f64, |end, (p, cells)| {
            let all = cells.iter().flatten();
            all.fold(end, |end, c| if let Cell::At(d) = c { end.max(windows(*d, p)) } else { end })
        });
        let unit = pen.unit;
        for (n, (panel, cells)) in self.panels.iter().zip(&cells).enumerate() {
            let (x, y) = corner(n);
            let at = (x * unit, y * unit);
            let paint = |c: &Cell| match c {
                Cell::Later => None,
                Cell::Unseen => Some(UNSEEN),
                Cell::At(d) => Some(colour(band(windows(*d, panel), largest))),
            };
            let colours: Vec<Vec<_>> = cells.iter().map(|row| row.iter().map(paint).collect()).collect();
            title(pen, &panel.title, at)?;
            fill(pen, &colours, at)?;
            frame(pen, panel.n, panel.trained, at)?;
        }
        vertical_name(pen, "query, tokens", self.panels.len())?;
        let (right, below) = end(self.panels.len());
        scale(pen, self, largest, ((right + 24) * unit, TOP * unit))?;
        if !cells.iter().flatten().flatten().any(|c| *c == Cell::Unseen) {
            return Ok(());
        }
        let (x, y) = (LEFT * unit, (below + 66) * unit);
        let swatch = [(x, y - 6 * unit), (x + 20 * unit, y + 6 * unit)];
        pen.area.draw(&Rectangle::new(swatch, UNSEEN.filled())).map_err(failed)?;
        let style = pen.style(13, INK, (HPos::Left, VPos::Center));
        pen.text("earlier key that the query does not see", (x + 28 * unit, y), &style)
    }
}

/// A distance in multiples of the original context.
fn windows(d: i32, panel: &Panel) -> f64 {
    f64::from(d) / f64::from(panel.trained)
}

/// The color band of a distance, which is in multiples of the original context. Bands from `BANDS` on are beyond that
/// context.
fn band(distance: f64, end: f64) -> i32 {
    if distance <= 1.0 {
        ((distance * f64::from(BANDS)) as i32).clamp(0, BANDS - 1)
    } else {
        let beyond = (distance - 1.0) / (end - 1.0).max(1e-9);
        BANDS + ((beyond * f64::from(BEYOND)) as i32).clamp(0, BEYOND - 1)
    }
}

fn colour(band: i32) -> RGBColor {
    if band < BANDS {
        return ramp((f64::from(band) + 0.5) / f64::from(BANDS));
    }
    let t = f64::from(band - BANDS) / f64::from(BEYOND - 1);
    let mix = |a: f64, b: f64| (a + (b - a) * t).round() as u8;
    RGBColor(mix(226.0, 96.0), mix(72.0, 0.0), mix(60.0, 24.0))
}

/// Writes the name of the vertical axis of all `n` panels, left of each row.
pub(super) fn vertical_name<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    name: &str,
    n: usize,
) -> Result<(), PlotError> {
    let mut sideways = pen.style(14, INK, (HPos::Center, VPos::Top));
    sideways.font = sideways.font.transform(FontTransform::Rotate270);
    (0..n)
        .step_by(2)
        .try_for_each(|i| pen.text(name, (12 * pen.unit, (corner(i).1 + SIDE / 2) * pen.unit), &sideways))
}

/// Writes the title above a panel, such as a spec, on up to three lines, broken between parameters.
pub(super) fn title<B: DrawingBackend>(pen: &Pen<'_, B>, title: &str, at: Point) -> Result<(), PlotError> {
    const SIZE: i32 = 13;
    let lines = pen.wrap(title, SIZE, (SIDE + GAP - 16) * pen.unit, 3);
    let style = pen.style(SIZE, INK, (HPos::Left, VPos::Top));
    for (n, line) in lines.iter().enumerate() {
        let up = (lines.len() - n) as i32 * 18 + 6;
        pen.text(line, (at.0, at.1 - up * pen.unit), &style)?;
    }
    Ok(())
}

/// Fills the cells that have a color. Equal neighbors in a row are one rectangle, which grows down while the rows
/// below repeat it.
pub(super) fn fill<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    cells: &[Vec<Option<RGBColor>>],
    at: Point,
) -> Result<(), PlotError> {
    let side = SIDE * pen.unit;
    let place = |k: usize, of: usize| (i64::from(side) * k as i64 / of.max(1) as i64) as i32;
    // From column, to column, color, from row.
    let mut open: Vec<(usize, usize, RGBColor, usize)> = Vec::new();
    let close = |(x0, x1, colour, y0): (usize, usize, RGBColor, usize), y1: usize| {
        let columns = cells.first().map_or(0, Vec::len);
        let corner = |x, y| (at.0 + place(x, columns), at.1 + place(y, cells.len()));
        let (right, below) = corner(x1, y1);
        let corners = [corner(x0, y0), (right + pen.seam(), below + pen.seam())];
        pen.area.draw(&Rectangle::new(corners, colour.filled())).map_err(failed)
    };
    for (y, row) in cells.iter().enumerate() {
        let mut runs: Vec<(usize, usize, RGBColor, usize)> = Vec::new();
        for (x, cell) in row.iter().enumerate() {
            let Some(colour) = *cell else { continue };
            match runs.last_mut() {
                Some(run) if run.1 == x && run.2 == colour => run.1 = x + 1,
                _ => runs.push((x, x + 1, colour, y)),
            }
        }
        let same = |a: &(usize, usize, RGBColor, usize), b: &(usize, usize, RGBColor, usize)| {
            (a.0, a.1, a.2) == (b.0, b.1, b.2)
        };
        for was in &open {
            match runs.iter_mut().find(|r| same(r, was)) {
                Some(run) => run.3 = was.3,
                None => close(*was, y)?,
            }
        }
        open = runs;
    }
    open.into_iter().try_for_each(|run| close(run, cells.len()))
}

/// Draws the frame, ticks at quarters, the names of the axes, and a line at the original context.
pub(super) fn frame<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    n: i32,
    trained: i32,
    (x, y): Point,
) -> Result<(), PlotError> {
    let (unit, side) = (pen.unit, SIDE * pen.unit);
    let corners = vec![(x, y), (x, y + side), (x + side, y + side)];
    pen.line(corners, INK, 5)?;
    let under = pen.style(13, INK, (HPos::Center, VPos::Top));
    let left_of = pen.style(13, INK, (HPos::Right, VPos::Center));
    let quarters = if n < 8 { 1 } else { 4 };
    for q in 0..=quarters {
        let label = (i64::from(n) * i64::from(q) / i64::from(quarters)).to_string();
        let along = side * q / quarters;
        pen.line(vec![(x + along, y + side), (x + along, y + side + 4 * unit)], INK, 4)?;
        pen.text(&label, (x + along, y + side + 8 * unit), &under)?;
        pen.line(vec![(x - 4 * unit, y + along), (x, y + along)], INK, 4)?;
        pen.text(&label, (x - 8 * unit, y + along), &left_of)?;
    }
    let name = pen.style(14, INK, (HPos::Center, VPos::Top));
    pen.text("key, tokens", (x + side / 2, y + side + 28 * unit), &name)?;
    if trained < n {
        let at = y + (i64::from(side) * i64::from(trained) / i64::from(n)) as i32;
        pen.dashed(&[(x, at), (x + side, at)], MARKER, 5, (3, 3))?;
        // The label is right of the diagonal, where no cell is drawn.
        let room = x + side - (x + at - y) - 8 * unit;
        let label = format!("original context {trained}");
        if pen.width(&label, 13) <= room {
            let style = pen.style(13, INK, (HPos::Right, VPos::Bottom));
            pen.text(&label, (x + side, at - 5 * unit), &style)?;
        }
    }
    Ok(())
}

/// Draws the color scale, with distances growing upward.
fn scale<B: DrawingBackend>(pen: &Pen<'_, B>, map: &Map, end: f64, (x, y): Point) -> Result<(), PlotError> {
    let unit = pen.unit;
    let (wide, foot) = (20 * unit, y + SIDE * unit);
    let bands = if end > 1.0 { BANDS + BEYOND } else { BANDS };
    let edge = |b: i32| foot - (SIDE - 40) * unit * b / bands;
    for b in 0..bands {
        let corners = [(x, edge(b + 1)), (x + wide, edge(b) + pen.seam())];
        pen.area.draw(&Rectangle::new(corners, colour(b).filled())).map_err(failed)?;
    }
    let trained = map.panels.iter().map(|p| p.trained).collect::<Vec<_>>();
    let same = trained.windows(2).all(|w| w[0] == w[1]);
    let number = |windows: f64| match trained.first() {
        Some(t) if same => format!("{:.0}", windows * f64::from(*t)),
        _ => format!("{windows:.2} x original"),
    };
    let style = pen.style(13, INK, (HPos::Left, VPos::Center));
    let mark = |b: i32, label: &str| {
        pen.line(vec![(x + wide, edge(b)), (x + wide + 4 * unit, edge(b))], INK, 4)?;
        pen.text(&pen.fit(label, 13, 96 * unit), (x + wide + 8 * unit, edge(b)), &style)
    };
    for q in 0..=4 {
        mark(BANDS * q / 4, &number(f64::from(q) / 4.0))?;
    }
    pen.line(vec![(x, edge(BANDS)), (x + wide, edge(BANDS))], INK, 6)?;
    pen.text("original context", (x + wide + 8 * unit, edge(BANDS) + 17 * unit), &style)?;
    if end > 1.0 {
        mark(bands, &number(end))?;
        pen.text("never trained", (x + wide + 8 * unit, (edge(BANDS) + edge(bands)) / 2), &style)?;
    }
    let head = pen.style(13, INK, (HPos::Left, VPos::Top));
    pen.text("distance shown,", (x, y - 2 * unit), &head)?;
    pen.text("tokens", (x, y + 14 * unit), &head)
}
