//! Charts through plotters: one layout, for SVG and for PNG.

use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{register_font, FontTransform};

use super::axis::Span;
use super::{Chart, PlotError, Stroke};

/// Size of an SVG, in its units.
const SIZE: (u32, u32) = (960, 600);
/// Pixels of a PNG per unit.
const DENSITY: u32 = 2;
/// A PNG is drawn this much larger, then averaged down: the drawing library does not smooth thick lines.
const OVERSAMPLING: u32 = 2;

const INK: RGBColor = RGBColor(38, 38, 38);
const GRID: RGBColor = RGBColor(226, 226, 226);
const MARKER: RGBColor = RGBColor(130, 130, 130);
/// Okabe and Ito's colours, which differ for colour-blind readers too, without yellow and black.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];
/// From dark violet over green to amber: for more lines than there are colours, in order.
const RAMP: [RGBColor; 5] = [
    RGBColor(68, 1, 84),
    RGBColor(59, 82, 139),
    RGBColor(33, 145, 140),
    RGBColor(94, 201, 98),
    RGBColor(235, 170, 20),
];

/// The generic family: an SVG viewer has one, and here it is the font that comes with the program.
const FAMILY: &str = "sans-serif";

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

fn failed(e: impl std::fmt::Display) -> PlotError {
    PlotError::Draw(e.to_string())
}

pub(super) fn svg(chart: &Chart) -> Result<String, PlotError> {
    let mut out = String::new();
    chart_on(chart, &SVGBackend::with_string(&mut out, SIZE).into_drawing_area(), 1, 0)?;
    Ok(out)
}

/// A drawn chart, RGB.
pub(super) struct Bitmap {
    size: (u32, u32),
    rgb: Vec<u8>,
}

pub(super) fn bitmap(chart: &Chart) -> Result<Bitmap, PlotError> {
    let scale = DENSITY * OVERSAMPLING;
    let large = (SIZE.0 * scale, SIZE.1 * scale);
    let mut drawn = vec![0u8; large.0 as usize * large.1 as usize * 3];
    chart_on(
        chart,
        &BitMapBackend::with_buffer(&mut drawn, large).into_drawing_area(),
        scale as i32,
        BITMAP_DROP,
    )?;
    let size = (SIZE.0 * DENSITY, SIZE.1 * DENSITY);
    let (n, row) = (OVERSAMPLING as usize, large.0 as usize * 3);
    let mut rgb = Vec::with_capacity(size.0 as usize * size.1 as usize * 3);
    for y in 0..size.1 as usize {
        for x in 0..size.0 as usize {
            for c in 0..3 {
                let sum: usize = (0..n * n)
                    .map(|i| usize::from(drawn[(y * n + i / n) * row + (x * n + i % n) * 3 + c]))
                    .sum();
                rgb.push((sum / (n * n)) as u8);
            }
        }
    }
    Ok(Bitmap { size, rgb })
}

impl Bitmap {
    /// Writes a PNG; the name must end so.
    pub(super) fn save(&self, path: &Path) -> Result<(), PlotError> {
        let mut file = BitMapBackend::new(path, self.size);
        file.blit_bitmap((0, 0), self.size, &self.rgb).map_err(failed)?;
        file.present().map_err(failed)
    }
}

fn colour(i: usize, n: usize) -> RGBColor {
    if n <= COLOURS.len() {
        return COLOURS[i % COLOURS.len()];
    }
    let at = i as f64 / (n - 1) as f64 * (RAMP.len() - 1) as f64;
    let (a, t) = (at as usize, at.fract());
    let b = (a + 1).min(RAMP.len() - 1);
    let mix = |a: u8, b: u8| (f64::from(a) * (1.0 - t) + f64::from(b) * t).round() as u8;
    RGBColor(mix(RAMP[a].0, RAMP[b].0), mix(RAMP[a].1, RAMP[b].1), mix(RAMP[a].2, RAMP[b].2))
}

type Point = (i32, i32);

/// A drawing area with one unit of length.
struct Pen<'a, B: DrawingBackend> {
    area: &'a DrawingArea<B, Shift>,
    unit: i32,
    /// What vertically centred text is lowered by, in hundredths of its size: the bitmap font sets it above the middle.
    drop: i32,
}

/// [`Pen::drop`] of a bitmap; an SVG viewer centres text itself.
const BITMAP_DROP: i32 = 20;

impl<B: DrawingBackend> Pen<'_, B> {
    fn style(&self, size: i32, colour: RGBColor, anchor: (HPos, VPos)) -> TextStyle<'static> {
        (FAMILY, size * self.unit).into_font().color(&colour).pos(Pos::new(anchor.0, anchor.1))
    }
    fn text(&self, text: &str, mut at: Point, style: &TextStyle<'_>) -> Result<(), PlotError> {
        if matches!(style.pos.v_pos, VPos::Center) {
            at.1 += (style.font.get_size() * f64::from(self.drop) / 100.0).round() as i32;
        }
        self.area.draw_text(text, style, at).map_err(failed)
    }
    fn width(&self, text: &str, size: i32) -> i32 {
        let style = self.style(size, INK, (HPos::Left, VPos::Top));
        self.area.estimate_text_size(text, &style).map_or(0, |s| s.0 as i32)
    }
    /// The text, cut so that it takes at most `width`.
    fn fit(&self, text: &str, size: i32, width: i32) -> String {
        let mut chars: Vec<char> = text.chars().take(400).collect();
        if chars.len() == text.chars().count() && self.width(text, size) <= width {
            return text.into();
        }
        while !chars.is_empty() {
            chars.pop();
            let cut = chars.iter().collect::<String>() + "...";
            if self.width(&cut, size) <= width {
                return cut;
            }
        }
        String::new()
    }
    fn line(&self, points: Vec<Point>, colour: RGBColor, quarters: i32) -> Result<(), PlotError> {
        let style = colour.stroke_width((self.unit * quarters / 4).max(1) as u32);
        self.area.draw(&PathElement::new(points, style)).map_err(failed)
    }
    fn dashed(
        &self,
        points: &[Point],
        colour: RGBColor,
        quarters: i32,
        on_off: (f64, f64),
    ) -> Result<(), PlotError> {
        let (on, off) = (on_off.0 * f64::from(self.unit), on_off.1 * f64::from(self.unit));
        let mut along = 0.0;
        let mut dash: Vec<Point> = Vec::new();
        for w in points.windows(2) {
            let (dx, dy) = (f64::from(w[1].0 - w[0].0), f64::from(w[1].1 - w[0].1));
            let length = dx.hypot(dy);
            let steps = length.ceil().max(1.0) as usize;
            for i in 0..steps {
                let t = i as f64 / steps as f64;
                if (along + t * length) % (on + off) < on {
                    dash.push((w[0].0 + (dx * t).round() as i32, w[0].1 + (dy * t).round() as i32));
                } else if !dash.is_empty() {
                    self.line(std::mem::take(&mut dash), colour, quarters)?;
                }
            }
            along += length;
        }
        if dash.len() > 1 {
            self.line(dash, colour, quarters)?;
        }
        Ok(())
    }
}

fn chart_on<B: DrawingBackend>(
    chart: &Chart,
    area: &DrawingArea<B, Shift>,
    unit: i32,
    drop: i32,
) -> Result<(), PlotError> {
    font()?;
    area.fill(&WHITE).map_err(failed)?;
    let pen = Pen { area, unit, drop };
    let (width, height) = (SIZE.0 as i32 * unit, SIZE.1 as i32 * unit);
    let (xs, ys) = Span::both(chart)?;
    let (xticks, yticks) = (xs.ticks(9), ys.ticks(8));

    // Legend first: its rows decide how much height is left.
    let entries = legend(&pen, chart, width - 60 * unit);
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

    markers(&pen, chart, (left, right), (top, bottom), &px, &py)?;
    lines(&pen, chart, &px, &py)?;
    for e in entries.iter().filter(|e| e.row < 8) {
        let y = bottom + (72 + 24 * e.row) * unit;
        let swatch = [(left.min(30 * unit) + e.x, y), (left.min(30 * unit) + e.x + 28 * unit, y)];
        match e.stroke {
            Stroke::Solid => pen.line(swatch.to_vec(), e.colour, 12)?,
            Stroke::Reference => pen.dashed(&swatch, e.colour, 8, (7.0, 5.0))?,
        }
        let at = (swatch[1].0 + 8 * unit, y);
        pen.text(&e.text, at, &pen.style(14, INK, (HPos::Left, VPos::Center)))?;
    }
    area.present().map_err(failed)
}

struct Entry {
    text: String,
    x: i32,
    row: i32,
    colour: RGBColor,
    stroke: Stroke,
}

/// Legend entries in rows below the chart, where they cover nothing.
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
        pen.dashed(&[(left, y), (right, y)], MARKER, 5, (3.0, 3.0))?;
        let at = y.min(lowest_free);
        lowest_free = at - 17 * unit;
        let label = pen.fit(label, 13, 200 * unit);
        pen.text(&label, (right + 8 * unit, at), &pen.style(13, INK, (HPos::Left, VPos::Center)))?;
    }
    // Those of vertical lines stand above it; one that would touch the last is left out of the row, its line stays.
    let mut up: Vec<(i32, &str)> =
        chart.x.markers.iter().filter_map(|m| Some((px(m.at)?, m.label.as_str()))).collect();
    up.sort_by_key(|a| a.0);
    let mut free = 0;
    for (x, label) in up {
        pen.dashed(&[(x, top), (x, bottom)], MARKER, 5, (3.0, 3.0))?;
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
                (_, Stroke::Reference) => pen.dashed(&run, colour, 7, (7.0, 5.0))?,
            }
        }
    }
    Ok(())
}
