//! Heat maps of attention, query by key, with a panel for each setting.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};

use super::look::ramp;
use super::map_draw::{corner, end, fill, frame, title, vertical_name, SCALE, SIDE, TOP};
use super::pen::{failed, Drawing, Pen, Point, INK};
use super::PlotError;

/// Maximum number of cells along the side of a panel.
const CELLS: usize = 192;
const BOTTOM: i32 = 60;
/// Color steps from 0 to 1.
const BANDS: i32 = 32;

/// Maps of one text, two in a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Heat {
    /// The panels, row by row.
    pub panels: Vec<HeatPanel>,
    /// Label above the color scale, on up to two lines.
    pub scale: String,
}

/// One map: values of squares on and below the diagonal.
#[derive(Debug, Clone, PartialEq)]
pub struct HeatPanel {
    /// Title above the panel.
    pub title: String,
    /// Number of tokens in the text.
    pub tokens: usize,
    /// Original context, in tokens. If the text is longer, a line shows its end.
    pub trained: usize,
    /// For each square of queries, its squares of keys: values from 0 to 1, or from -1 to 1 in a map of
    /// differences.
    pub rows: Vec<Vec<f32>>,
    /// True if the values are differences.
    pub difference: bool,
}

impl HeatPanel {
    /// Subtracts `a` from `b`, square by square.
    pub fn difference(title: impl Into<String>, b: &HeatPanel, a: &HeatPanel) -> HeatPanel {
        let rows = b.rows.iter().zip(&a.rows);
        let rows = rows.map(|(b, a)| b.iter().zip(a).map(|(b, a)| b - a).collect()).collect();
        HeatPanel { title: title.into(), rows, difference: true, ..b.clone() }
    }

    /// At most `rows` x `columns` cells. If several squares fall into one cell, it has the value farthest from 0.
    /// Cells above the diagonal are `None`.
    fn cells(&self, rows: usize, columns: usize) -> Vec<Vec<Option<f32>>> {
        let n = self.rows.len();
        let (rows, columns) = (rows.min(n), columns.min(n));
        let mut cells = vec![vec![None; columns]; rows];
        for (r, row) in self.rows.iter().enumerate() {
            for (c, &value) in row.iter().enumerate() {
                let cell: &mut Option<f32> = &mut cells[r * rows / n][c * columns / n];
                if cell.is_none_or(|before| value.abs() > before.abs()) {
                    *cell = Some(value);
                }
            }
        }
        cells
    }

    fn text(&self, width: usize, height: usize) -> String {
        let last = self.tokens.to_string();
        let gutter = last.len().max("query".len()) + 1;
        let cells = self.cells(height, width.saturating_sub(gutter + 1).max(1));
        let meaning = match self.difference {
            false => "tenths of the scale; # its end; . less than a twentieth",
            true => "tenths of the scale: 1 to # more, a to j less; . less than a twentieth",
        };
        let mut out = format!("{}\n{meaning}\n{:>2$}\n", self.title, "query", gutter - 1);
        let rows = cells.len();
        for (r, row) in cells.iter().enumerate() {
            let quarter = (r + 1) * 4 / rows > r * 4 / rows;
            let label = if quarter { (self.tokens * (r + 1) / rows).to_string() } else { String::new() };
            let drawn: String = row.iter().map(|v| v.map_or(' ', letter)).collect();
            out += format!("{label:>0$} \u{2502}{drawn}", gutter - 1).trim_end();
            out.push('\n');
        }
        let columns = cells.first().map_or(0, Vec::len);
        out + &format!("{:gutter$}\u{2514}{}\n{:gutter$} key 0..{last}\n", "", "\u{2500}".repeat(columns), "")
    }
}

fn letter(value: f32) -> char {
    let tenths = (value.abs() * 10.0).round().min(10.0) as u8;
    match tenths {
        0 => '.',
        _ if value < 0.0 => char::from(b'a' + tenths - 1),
        10 => '#',
        _ => char::from(b'0' + tenths),
    }
}

fn colour(value: f32, difference: bool) -> RGBColor {
    let banded = (f64::from(value) * f64::from(BANDS)).round() / f64::from(BANDS);
    if !difference {
        return ramp(banded);
    }
    let strength = banded.abs().min(1.0);
    // No difference is gray: a cell without a value is white.
    let mix = |end: u8| (232.0 + (f64::from(end) - 232.0) * strength).round() as u8;
    let (r, g, b) = if banded < 0.0 { (24, 78, 160) } else { (178, 24, 43) };
    RGBColor(mix(r), mix(g), mix(b))
}

impl Heat {
    /// The maps as text, one below the other, at most `width` columns wide; `height` is the number of rows of each.
    pub fn text(&self, width: usize, height: usize) -> String {
        let (width, height) = (width.clamp(24, 400), height.clamp(4, 100));
        self.panels.iter().map(|p| p.text(width, height)).collect::<Vec<_>>().join("\n")
    }
}

impl Drawing for Heat {
    fn size(&self) -> (u32, u32) {
        let (right, below) = end(self.panels.len());
        ((right + SCALE) as u32, (below + BOTTOM) as u32)
    }

    fn draw<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError> {
        let unit = pen.unit;
        for (i, panel) in self.panels.iter().enumerate() {
            let (x, y) = corner(i);
            let at = (x * unit, y * unit);
            let paint = |v: &Option<f32>| v.map(|v| colour(v, panel.difference));
            let cells = panel.cells(CELLS, CELLS);
            let colours: Vec<Vec<_>> = cells.iter().map(|row| row.iter().map(paint).collect()).collect();
            let tokens = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
            title(pen, &panel.title, at)?;
            fill(pen, &colours, at)?;
            frame(pen, tokens(panel.tokens), tokens(panel.trained), at)?;
        }
        vertical_name(pen, "query, tokens", self.panels.len())?;
        let at = ((end(self.panels.len()).0 + 24) * unit, TOP * unit);
        scale(pen, &self.scale, self.panels.iter().any(|p| p.difference), at)
    }
}

/// Draws the scale of values, and next to it the scale of differences, if there are any.
fn scale<B: DrawingBackend>(
    pen: &Pen<'_, B>,
    name: &str,
    difference: bool,
    (x, y): Point,
) -> Result<(), PlotError> {
    let unit = pen.unit;
    let style = pen.style(13, INK, (HPos::Left, VPos::Center));
    let head = pen.style(13, INK, (HPos::Left, VPos::Top));
    for (n, line) in pen.wrap(name, 13, (SCALE - 28) * unit, 2).iter().enumerate() {
        pen.text(line, (x, y + (16 * n as i32 - 2) * unit), &head)?;
    }
    let height = if difference { SIDE / 2 - 50 } else { SIDE - 40 };
    let bar = |top: i32, from: f32, difference: bool| -> Result<(), PlotError> {
        let edge = |band: i32| top + height * unit * band / BANDS;
        for band in 0..BANDS {
            let value = 1.0 + (from - 1.0) * (band as f32 + 0.5) / BANDS as f32;
            let corners = [(x, edge(band)), (x + 20 * unit, edge(band + 1) + pen.seam())];
            pen.area.draw(&Rectangle::new(corners, colour(value, difference).filled())).map_err(failed)?;
        }
        for (band, value) in [(0, 1.0), (BANDS / 2, (1.0 + from) / 2.0), (BANDS, from)] {
            let more = if band == 0 && !difference { " or more" } else { "" };
            pen.text(&format!("{value}{more}"), (x + 28 * unit, edge(band)), &style)?;
        }
        Ok(())
    };
    bar(y + 38 * unit, 0.0, false)?;
    if difference {
        let at = y + SIDE / 2 * unit;
        pen.text("difference", (x, at + 4 * unit), &head)?;
        bar(at + 34 * unit, -1.0, true)?;
    }
    Ok(())
}
