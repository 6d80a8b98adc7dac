//! Files of drawings. Each has a mark of this program, and a drawing never replaces a file without such a mark.

use std::path::Path;

use files::{Kind, Output};
use plotters::prelude::*;

use super::pen::{failed, on, svg, Drawing, BITMAP_DROP, FINENESS};
use super::{pdf, PlotError};

/// Pixels of a PNG per unit; a drawing as narrow as a column gets twice as many, enough for print.
const DENSITY: u32 = 2;
const COLUMN: u32 = 540;
/// A PNG is drawn larger by this factor and averaged down, because plotters does not smooth thick lines.
const OVERSAMPLING: u32 = 2;

/// The line after the root element of an SVG.
const SVG_MARK: &str = "<!-- drawn by ropewalk -->\n";
/// Key and value of a text chunk of a PNG.
const PNG_MARK: [&str; 2] = ["Software", "ropewalk"];
/// Signature and first chunk of a PNG, which has the size of the picture.
const PNG_START: usize = 8 + 25;

/// Extensions of file names, and the kinds of files that they select.
const FORMATS: [(&str, Kind); 3] = [
    (
        "svg",
        Kind::new("an SVG that ropewalk drew", |head| {
            let second = head.iter().position(|b| *b == b'\n').map_or(&[][..], |end| &head[end + 1..]);
            head.starts_with(b"<svg ") && second.starts_with(SVG_MARK.as_bytes())
        }),
    ),
    (
        "png",
        Kind::new("a PNG that ropewalk drew", |head| {
            head.starts_with(b"\x89PNG\r\n\x1a\n")
                && head.get(PNG_START + 4..).is_some_and(|rest| rest.starts_with(b"tEXt"))
                && head[PNG_START + 8..].starts_with(PNG_MARK.join("\0").as_bytes())
        }),
    ),
    ("pdf", Kind::new("a PDF that ropewalk drew", |head| head.starts_with(pdf::START))),
];

fn format(path: &Path) -> Result<(&'static str, Kind), PlotError> {
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
    let known = FORMATS.into_iter().find(|(name, _)| extension.eq_ignore_ascii_case(name));
    known.ok_or_else(|| PlotError::Extension(path.into()))
}

/// Checks that a plot can be written to `path`, before the work that it will show.
///
/// # Errors
/// Returns an error if the extension is unknown, or if something other than an earlier plot exists there.
pub fn check(path: impl Into<Output>) -> Result<(), PlotError> {
    let output = path.into();
    Ok(format(output.path())?.1.claim(output)?)
}

/// Draws to a file, SVG, PNG, or PDF by its extension; only an earlier drawing is replaced, unless forced, atomically.
pub(super) fn write(drawing: &impl Drawing, output: &Output) -> Result<(), PlotError> {
    let path = output.path();
    let (extension, kind) = format(path)?;
    let bytes = match extension {
        "png" => png(drawing)?,
        "pdf" => pdf::pdf(&svg(drawing)?, drawing.size(), FINENESS)?,
        _ => {
            let mut text = svg(drawing)?;
            let end = text.find('\n').map_or(text.len(), |end| end + 1);
            text.insert_str(end, SVG_MARK);
            text.into_bytes()
        }
    };
    let write = |e| files::Error::new(path, e);
    Ok(files::replace(output.clone(), &kind, |out| out.write_all(&bytes).map_err(write))?)
}

fn png(drawing: &impl Drawing) -> Result<Vec<u8>, PlotError> {
    let (width, height) = drawing.size();
    let density = if width <= COLUMN { 2 * DENSITY } else { DENSITY };
    let (width, height, n) = (width * density, height * density, OVERSAMPLING);
    let large = (width * n, height * n);
    let mut drawn = vec![0; 3 * large.0 as usize * large.1 as usize];
    let area = BitMapBackend::with_buffer(&mut drawn, large).into_drawing_area();
    on(drawing, &area, (density * n) as i32, BITMAP_DROP)?;
    drop(area);
    let mut pixels = Vec::with_capacity(3 * width as usize * height as usize);
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        pixels.extend([0, 1, 2].map(|color| {
            let at = |i: u32| 3 * ((y * n + i / n) * large.0 + x * n + i % n) as usize + color;
            ((0..n * n).map(|i| u32::from(drawn[at(i)])).sum::<u32>() / (n * n)) as u8
        }));
    }
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let [key, value] = PNG_MARK;
    encoder.add_text_chunk(key.into(), value.into()).map_err(failed)?;
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&pixels).and_then(|()| writer.finish()).map_err(failed)?;
    Ok(bytes)
}
