//! Heat maps of scores: a column per length, a row per depth, and a color for each score.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::FontTransform;

use super::look::ramp;
use super::pen::{failed, Drawing, Pen, INK};
use super::PlotError;

/// Smallest and largest width of a cell, its height, and the margins, in units.
const CELL: (i32, i32) = (18, 64);
const HEIGHT: i32 = 26;
const LEFT: i32 = 86;
const TOP: i32 = 48;
/// Room for the color scale.
const RIGHT: i32 = 80;
const BOTTOM: i32 = 74;
/// Width that the cells of a usual map fill.
const WIDTH: i32 = 400;

/// A grid of scores from 0 to 100.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Title above the map.
    pub title: String,
    /// Label below the columns.
    pub x: String,
    /// Label next to the rows.
    pub y: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Names of the rows, from the top.
    pub rows: Vec<String>,
    /// For each row, the score of each column; `None` if nothing was measured.
    pub scores: Vec<Vec<Option<f64>>>,
}

impl Grid {
    /// The map as text, with percent in each cell.
    pub fn text(&self) -> String {
        let width = self.columns.iter().map(|c| c.chars().count()).max().unwrap_or(0).max(4) + 1;
        let gutter = self.rows.iter().map(|r| r.chars().count()).max().unwrap_or(0).max(self.y.len());
        let mut out = format!("{}\n{:>gutter$} |", self.title, self.y);
        self.columns.iter().for_each(|c| out += &format!("{c:>width$}"));
        out.push('\n');
        for (name, scores) in self.rows.iter().zip(&self.scores) {
            out += &format!("{name:>gutter$} |");
            for score in scores {
                let cell = score.map_or_else(|| "-".to_owned(), |s| format!("{s:.0}"));
                out += &format!("{cell:>width$}");
            }
            out.push('\n');
        }
        out
    }

    /// Height of the map and of its color scale.
    fn height(&self) -> i32 {
        self.rows.len().max(4) as i32 * HEIGHT
    }

    fn cell(&self) -> i32 {
        (WIDTH / self.columns.len().max(1) as i32).clamp(CELL.0, CELL.1)
    }

    /// Draws the scale of colors right of the cells.
    fn scale<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError> {
        const STEPS: i32 = 20;
        let unit = pen.unit;
        let x = (LEFT + self.columns.len() as i32 * self.cell() + 16) * unit;
        let head = pen.style(12, INK, (HPos::Left, VPos::Top));
        pen.text("score", (x, TOP * unit), &head)?;
        let (top, high) = ((TOP + 24) * unit, (self.height() - 32) * unit);
        let edge = |step: i32| top + high * step / STEPS;
        for step in 0..STEPS {
            let corners = [(x, edge(step)), (x + 14 * unit, edge(step + 1) + pen.seam())];
            let colour = ramp(1.0 - (f64::from(step) + 0.5) / f64::from(STEPS));
            pen.area.draw(&Rectangle::new(corners, colour.filled())).map_err(failed)?;
        }
        let style = pen.style(12, INK, (HPos::Left, VPos::Center));
        for (step, label) in [(0, "100"), (STEPS / 2, "50"), (STEPS, "0")] {
            pen.text(label, (x + 20 * unit, edge(step)), &style)?;
        }
        Ok(())
    }
}

impl Drawing for Grid {
    fn size(&self) -> (u32, u32) {
        let width = (LEFT + self.columns.len() as i32 * self.cell() + RIGHT).max(360);
        (width as u32, (TOP + self.height() + BOTTOM) as u32)
    }

    fn draw<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError> {
        let (unit, cell) = (pen.unit, self.cell());
        let width = self.size().0 as i32 - 24;
        let style = pen.style(14, INK, (HPos::Left, VPos::Top));
        for (n, line) in pen.wrap(&self.title, 14, width * unit, 2).iter().enumerate() {
            pen.text(line, (12 * unit, (8 + 18 * n as i32) * unit), &style)?;
        }
        for (r, (name, scores)) in self.rows.iter().zip(&self.scores).enumerate() {
            let y = TOP + r as i32 * HEIGHT;
            let style = pen.style(12, INK, (HPos::Right, VPos::Center));
            pen.text(name, ((LEFT - 6) * unit, (y + HEIGHT / 2) * unit), &style)?;
            for (c, score) in scores.iter().enumerate() {
                let x = LEFT + c as i32 * cell;
                let corners = [(x * unit, y * unit), ((x + cell - 1) * unit, (y + HEIGHT - 1) * unit)];
                let score = score.filter(|s| s.is_finite());
                let colour = score.map_or(RGBColor(224, 224, 224), |s| ramp((s / 100.0).clamp(0.0, 1.0)));
                pen.area.draw(&Rectangle::new(corners, colour.filled())).map_err(failed)?;
                if let Some(score) = score.filter(|_| cell >= 26) {
                    let light =
                        299 * u32::from(colour.0) + 587 * u32::from(colour.1) + 114 * u32::from(colour.2);
                    let ink = if light < 128_000 { WHITE } else { BLACK };
                    let style = pen.style(11, ink, (HPos::Center, VPos::Center));
                    let at = ((x + cell / 2) * unit, (y + HEIGHT / 2) * unit);
                    pen.text(&format!("{score:.0}"), at, &style)?;
                }
            }
        }
        let under = TOP + self.rows.len() as i32 * HEIGHT;
        // Names of columns that would touch are left out.
        let widest = self.columns.iter().map(|c| pen.width(c, 12)).max().unwrap_or(0) / unit.max(1) + 8;
        let every = (widest + cell - 1) / cell.max(1);
        let style = pen.style(12, INK, (HPos::Center, VPos::Top));
        for (c, name) in self.columns.iter().enumerate().step_by(every.max(1) as usize) {
            let x = LEFT + c as i32 * cell + cell / 2;
            pen.text(name, (x * unit, (under + 8) * unit), &style)?;
        }
        let middle = LEFT + self.columns.len() as i32 * cell / 2;
        let style = pen.style(14, INK, (HPos::Center, VPos::Top));
        pen.text(&self.x, (middle * unit, (under + 34) * unit), &style)?;
        let mut sideways = pen.style(14, INK, (HPos::Center, VPos::Top));
        sideways.font = sideways.font.transform(FontTransform::Rotate270);
        let half = TOP + self.rows.len() as i32 * HEIGHT / 2;
        pen.text(&self.y, (12 * unit, half * unit), &sideways)?;
        self.scale(pen)
    }
}
