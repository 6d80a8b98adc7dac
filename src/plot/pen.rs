//! What drawings are made with, through plotters: one layout in units, for SVG and for PNG; files written whole.

use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::PlotError;

/// Pixels of a PNG per unit.
const DENSITY: u32 = 2;
/// A PNG is drawn this much larger, then averaged down: the drawing library does not smooth thick lines.
const OVERSAMPLING: u32 = 2;

pub(super) const INK: RGBColor = RGBColor(38, 38, 38);
pub(super) const GRID: RGBColor = RGBColor(226, 226, 226);
pub(super) const MARKER: RGBColor = RGBColor(130, 130, 130);

/// Something that can be drawn.
pub(super) trait Drawing {
    /// Width and height in units.
    fn size(&self) -> (u32, u32);
    /// Draws onto white.
    fn draw<B: DrawingBackend>(&self, pen: &Pen<'_, B>) -> Result<(), PlotError>;
}

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

pub(super) fn failed(e: impl std::fmt::Display) -> PlotError {
    PlotError::Draw(e.to_string())
}

fn on<B: DrawingBackend>(
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

pub(super) fn svg(drawing: &impl Drawing) -> Result<String, PlotError> {
    let mut out = String::new();
    on(drawing, &SVGBackend::with_string(&mut out, drawing.size()).into_drawing_area(), 1, 0)?;
    Ok(out)
}

/// Draws to a file, SVG or PNG by its extension: written beside, then renamed into place.
pub(super) fn write(drawing: &impl Drawing, path: &Path) -> Result<(), PlotError> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default().to_ascii_lowercase();
    let io = |source| PlotError::Io { path: path.into(), source };
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let beside = |suffix| {
        let mut b = tempfile::Builder::new();
        b.prefix(".chart-").suffix(suffix);
        // What the user's umask allows, not the private mode of temporary files.
        #[cfg(unix)]
        b.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        b.tempfile_in(folder).map_err(io)
    };
    let file = match extension.as_str() {
        "svg" => {
            let svg = svg(drawing)?;
            let mut file = beside(".svg")?;
            file.write_all(svg.as_bytes()).map_err(io)?;
            file
        }
        "png" => {
            let image = bitmap(drawing)?;
            let file = beside(".png")?;
            image.save(file.path())?;
            file
        }
        _ => return Err(PlotError::Extension(path.into())),
    };
    file.as_file().sync_all().map_err(io)?;
    file.persist(path).map(drop).map_err(|e| io(e.error))
}

/// A picture, RGB.
struct Bitmap {
    size: (u32, u32),
    rgb: Vec<u8>,
}

fn bitmap(drawing: &impl Drawing) -> Result<Bitmap, PlotError> {
    let scale = DENSITY * OVERSAMPLING;
    let units = drawing.size();
    let large = (units.0 * scale, units.1 * scale);
    let mut drawn = vec![0u8; large.0 as usize * large.1 as usize * 3];
    on(
        drawing,
        &BitMapBackend::with_buffer(&mut drawn, large).into_drawing_area(),
        scale as i32,
        BITMAP_DROP,
    )?;
    let size = (units.0 * DENSITY, units.1 * DENSITY);
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
    fn save(&self, path: &Path) -> Result<(), PlotError> {
        let mut file = BitMapBackend::new(path, self.size);
        file.blit_bitmap((0, 0), self.size, &self.rgb).map_err(failed)?;
        file.present().map_err(failed)
    }
}

pub(super) type Point = (i32, i32);

/// A drawing area with one unit of length.
pub(super) struct Pen<'a, B: DrawingBackend> {
    pub(super) area: &'a DrawingArea<B, Shift>,
    pub(super) unit: i32,
    /// What vertically centred text is lowered by, in hundredths of its size: the bitmap font sets it above the middle.
    drop: i32,
}

/// [`Pen::drop`] of a bitmap; an SVG viewer centres text itself.
const BITMAP_DROP: i32 = 20;

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
        self.area.estimate_text_size(text, &style).map_or(0, |s| s.0 as i32)
    }
    /// The text, cut so that it takes at most `width`.
    pub(super) fn fit(&self, text: &str, size: i32, width: i32) -> String {
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
    /// A line's width is given in quarters of a unit.
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
