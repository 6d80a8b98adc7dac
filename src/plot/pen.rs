//! Drawing through crate plotters: one layout in units serves SVG, PNG, and PDF.

use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::PlotError;

pub(super) const INK: RGBColor = RGBColor(38, 38, 38);
pub(super) const GRID: RGBColor = RGBColor(226, 226, 226);
pub(super) const MARKER: RGBColor = RGBColor(130, 130, 130);

/// A chart or a map, to be drawn on any backend of plotters.
pub(super) trait Drawing {
    /// Width and height in units.
    fn size(&self) -> (u32, u32);
    /// Draws on a white area.
    fn draw<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError>;
}

/// The font family. An SVG viewer takes its own sans-serif font, which may be wider; bitmaps and PDF files take
/// the font that is built in.
pub(super) const FAMILY: &str = "sans-serif";

fn font() -> Result<(), PlotError> {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let ok = REGISTERED
        .get_or_init(|| register_font(FAMILY, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).is_ok());
    if *ok {
        Ok(())
    } else {
        Err(PlotError::Draw("the built-in font cannot be read".into()))
    }
}

pub(super) fn failed(e: impl std::fmt::Display) -> PlotError {
    PlotError::Draw(e.to_string())
}

pub(super) fn on<B: DrawingBackend>(
    drawing: &impl Drawing,
    area: &DrawingArea<B, Shift>,
    unit: i32,
    drop: i32,
) -> Result<(), PlotError> {
    font()?;
    area.fill(&WHITE).map_err(failed)?;
    drawing.draw(&Pen { area, unit, drop })?;
    area.present().map_err(failed)
}

/// Coordinates of an SVG per unit. They are whole numbers: at one per unit, straight lines would have kinks.
pub(super) const FINENESS: u32 = 10;

pub(super) fn svg(drawing: &impl Drawing) -> Result<String, PlotError> {
    let (width, height) = drawing.size();
    let fine = (width * FINENESS, height * FINENESS);
    let mut out = String::new();
    on(drawing, &SVGBackend::with_string(&mut out, fine).into_drawing_area(), FINENESS as i32, 0)?;
    // The view box stays as fine as it was drawn.
    let size = |(w, h)| format!(r#"<svg width="{w}" height="{h}""#);
    Ok(out.replacen(&size(fine), &size((width, height)), 1))
}

/// The text on up to `most` lines, broken between words and parameters. The last line has the rest, even if it does not
/// fit.
pub(super) fn wrapped(text: &str, most: usize, fits: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lines = vec![String::new()];
    for piece in text.split_inclusive([',', '+', ' ']) {
        let line = lines.last().map_or("", String::as_str);
        let longer = format!("{line}{piece}");
        if line.is_empty() || lines.len() == most || fits(longer.trim_end()) {
            lines.pop();
            lines.push(longer);
        } else {
            lines.push(piece.into());
        }
    }
    lines
}

pub(super) type Point = (i32, i32);

/// A drawing area and its unit of length in pixels.
pub(super) struct Pen<'a, B: DrawingBackend> {
    pub(super) area: &'a DrawingArea<B, Shift>,
    pub(super) unit: i32,
    /// Vertically centered text is lowered by this many hundredths of its size, because plotters sets it above
    /// the middle in bitmaps.
    drop: i32,
}

/// [`Pen::drop`] of a bitmap. An SVG viewer centres text itself.
pub(super) const BITMAP_DROP: i32 = 20;

impl<B: DrawingBackend> Pen<'_, B> {
    pub(super) fn style(&self, size: i32, colour: RGBColor, anchor: (HPos, VPos)) -> TextStyle<'static> {
        (FAMILY, size * self.unit).into_font().color(&colour).pos(Pos::new(anchor.0, anchor.1))
    }
    pub(super) fn text(&self, text: &str, mut at: Point, style: &TextStyle<'_>) -> Result<(), PlotError> {
        if matches!(style.pos.v_pos, VPos::Center) {
            at.1 += (style.font.get_size() * f64::from(self.drop) / 100.0).round() as i32;
        }
        self.area.draw_text(text, style, at).map_err(failed)
    }
    pub(super) fn width(&self, text: &str, size: i32) -> i32 {
        let style = self.style(size, INK, (HPos::Left, VPos::Top));
        let width = self.area.estimate_text_size(text, &style).map_or(0, |s| s.0 as i32);
        // A bitmap is the one whose centered text is lowered.
        if self.drop == 0 {
            width * 6 / 5
        } else {
            width
        }
    }
    /// The text, at most `width` pixels wide. It is cut in its last third, because specs differ in their ends.
    pub(super) fn fit(&self, text: &str, size: i32, width: i32) -> String {
        if text.chars().count() <= 400 && self.width(text, size) <= width {
            return text.into();
        }
        let chars: Vec<char> = text.chars().collect();
        for kept in (1..chars.len().min(400)).rev() {
            let (head, tail) = (kept - kept / 3, kept / 3);
            let cut = chars[..head].iter().collect::<String>()
                + "..."
                + &chars[chars.len() - tail..].iter().collect::<String>();
            if self.width(&cut, size) <= width {
                return cut;
            }
        }
        String::new()
    }
    /// The text on up to `most` lines of at most `width` pixels, broken between words and parameters.
    pub(super) fn wrap(&self, text: &str, size: i32, width: i32, most: usize) -> Vec<String> {
        let lines = wrapped(text, most, |line| self.width(line, size) <= width);
        lines.iter().map(|line| self.fit(line.trim_end(), size, width)).collect()
    }
    /// How far rectangles of a map lie over the next ones: viewers show white lines between edges that only touch.
    pub(super) fn seam(&self) -> i32 {
        self.unit / 4
    }
    /// The style of a line that is `quarters` of a unit wide.
    fn stroke(&self, colour: RGBColor, quarters: i32) -> ShapeStyle {
        colour.stroke_width((self.unit * quarters / 4).max(1) as u32)
    }
    pub(super) fn line(&self, points: Vec<Point>, colour: RGBColor, quarters: i32) -> Result<(), PlotError> {
        self.area.draw(&PathElement::new(points, self.stroke(colour, quarters))).map_err(failed)
    }
    pub(super) fn dashed(
        &self,
        points: &[Point],
        colour: RGBColor,
        quarters: i32,
        (on, off): (i32, i32),
    ) -> Result<(), PlotError> {
        let dashes = DashedPathElement::new(
            points.to_vec(),
            on * self.unit,
            off * self.unit,
            self.stroke(colour, quarters),
        );
        self.area.draw(&dashes).map_err(failed)
    }
}
