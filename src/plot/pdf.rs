//! PDF files of one page, from the SVG that plotters draws: its shapes, and its text in the built-in font.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;

use plotters::prelude::*;

use super::pen::{failed, FAMILY};
use super::PlotError;

/// Points per unit: a chart is as wide as a column of a paper, 240 points.
const POINTS: f64 = 0.5;
/// The first lines; the second marks the file as drawn by this program, and as binary.
pub(super) const START: &[u8] = b"%PDF-1.4\n%drawn by ropewalk \xe2\xe3\xcf\xd3\n";
/// Ascent plus descent of the built-in font, in thousandths of its em. Plotters gives sizes as such heights.
const HEIGHT: f64 = 1121.0;
/// Plotters divides a size by 1.24 for an SVG. Text is as large here as in a PNG.
const LARGER: f64 = 1240.0 / HEIGHT;

/// A page of `width` x `height` units from an SVG with `fineness` coordinates per unit.
pub(super) fn pdf(svg: &str, (width, height): (u32, u32), fineness: u32) -> Result<Vec<u8>, PlotError> {
    let mut page = Page { out: String::new(), opacities: BTreeSet::new(), widths: widths()? };
    let scale = POINTS / f64::from(fineness);
    let (wide, high) = (f64::from(width) * POINTS, f64::from(height) * POINTS);
    let _ = writeln!(page.out, "{scale} 0 0 -{scale} 0 {high} cm");
    // Plotters writes an element on each line, and a text on the line after its tag.
    let mut lines = svg.lines();
    while let Some(line) = lines.next() {
        match line.split(' ').next() {
            Some("<rect") => page.rectangle(line),
            Some("<circle") => page.circle(line),
            Some("<polyline" | "<polygon") => page.paint(line, &path(line)),
            Some("<text") => page.text(line, lines.next().unwrap_or_default()),
            _ => {}
        }
    }
    page.finish(wide, high)
}

struct Page {
    /// The operators.
    out: String,
    /// Opacities in use, in percent.
    opacities: BTreeSet<u32>,
    /// Widths of the characters from 32 to 255, in thousandths of the size of the font.
    widths: Vec<u32>,
}

impl Page {
    fn opacity(&mut self, tag: &str) {
        let percent = (number(tag, "opacity") * 100.0).round().clamp(0.0, 100.0) as u32;
        self.opacities.insert(percent);
        let _ = write!(self.out, "/G{percent} gs ");
    }

    /// Fills and strokes a path in the colors of its tag.
    fn paint(&mut self, tag: &str, path: &str) {
        self.opacity(tag);
        if let Some(fill) = colour(tag, "fill") {
            let _ = writeln!(self.out, "{fill} rg {path}f");
        }
        if let Some(stroke) = colour(tag, "stroke") {
            let width = number(tag, "stroke-width").max(1.0);
            let _ = writeln!(self.out, "{stroke} RG {width} w {path}S");
        }
    }

    fn rectangle(&mut self, tag: &str) {
        let [x, y, wide, high] = ["x", "y", "width", "height"].map(|name| number(tag, name));
        self.paint(tag, &format!("{x} {y} {wide} {high} re "));
    }

    fn circle(&mut self, tag: &str) {
        let [x, y, r] = ["cx", "cy", "r"].map(|name| number(tag, name));
        // How far the control points of a quarter lie.
        let k = 0.5523 * r;
        let mut path = format!("{} {y} m ", x + r);
        for (a, b) in [
            ((1.0, 0.0), (0.0, 1.0)),
            ((0.0, 1.0), (-1.0, 0.0)),
            ((-1.0, 0.0), (0.0, -1.0)),
            ((0.0, -1.0), (1.0, 0.0)),
        ] {
            let _ = write!(
                path,
                "{} {} {} {} {} {} c ",
                x + a.0 * r + b.0 * k,
                y + a.1 * r + b.1 * k,
                x + b.0 * r + a.0 * k,
                y + b.1 * r + a.1 * k,
                x + b.0 * r,
                y + b.1 * r
            );
        }
        self.paint(tag, &path);
    }

    fn text(&mut self, tag: &str, text: &str) {
        let bytes: Vec<u8> = unescaped(text).chars().map(latin).collect();
        let size = number(tag, "font-size") * LARGER;
        let wide: u32 = bytes.iter().filter_map(|b| self.widths.get(usize::from(*b) - 32)).sum();
        let wide = f64::from(wide) / 1000.0 * size;
        let right = match attribute(tag, "text-anchor") {
            "middle" => -wide / 2.0,
            "end" => -wide,
            _ => 0.0,
        };
        // From the place to the base line: capitals hang from it, are centered on it, or stand above it.
        let down = match attribute(tag, "dy") {
            "0.76em" => 0.69 * size,
            "0.5ex" => 0.33 * size,
            _ => -0.22 * size,
        };
        let turn = match attribute(tag, "transform").starts_with("rotate(270") {
            true => "0 -1 1 0 0 0 cm ",
            false => "",
        };
        let (x, y) = (number(tag, "x"), number(tag, "y"));
        let fill = colour(tag, "fill").unwrap_or_else(|| "0 0 0".to_owned());
        let codes: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        self.opacity(tag);
        let _ = writeln!(
            self.out,
            "q 1 0 0 1 {x} {y} cm {turn}{fill} rg BT /F {size:.2} Tf 1 0 0 -1 {right:.2} {down:.2} Tm <{codes}> Tj ET Q"
        );
    }

    /// The file.
    fn finish(self, wide: f64, high: f64) -> Result<Vec<u8>, PlotError> {
        let font = epaint_default_fonts::UBUNTU_LIGHT;
        let state = |percent: &u32| {
            let share = f64::from(*percent) / 100.0;
            format!("/G{percent} << /ca {share} /CA {share} >> ")
        };
        let states: String = self.opacities.iter().map(state).collect();
        let widths: Vec<String> = self.widths.iter().map(u32::to_string).collect();
        let objects = [
            b"<< /Type /Catalog /Pages 2 0 R >>".to_vec(),
            b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>".to_vec(),
            format!(
                "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {wide} {high}] /Contents 4 0 R \
                 /Resources << /Font << /F 5 0 R >> /ExtGState << {states}>> >> >>"
            )
            .into_bytes(),
            stream("", self.out.as_bytes())?,
            format!(
                "<< /Type /Font /Subtype /TrueType /BaseFont /Ubuntu-Light /FirstChar 32 /LastChar 255 \
                 /Widths [{}] /FontDescriptor 6 0 R /Encoding /WinAnsiEncoding >>",
                widths.join(" ")
            )
            .into_bytes(),
            b"<< /Type /FontDescriptor /FontName /Ubuntu-Light /Flags 32 /FontBBox [-167 -189 3480 962] \
              /ItalicAngle 0 /Ascent 932 /Descent -189 /CapHeight 693 /StemV 60 /FontFile2 7 0 R >>"
                .to_vec(),
            stream(&format!("/Length1 {} ", font.len()), font)?,
        ];
        let mut out = START.to_vec();
        let mut end = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
        for (n, object) in (1..).zip(&objects) {
            let _ = writeln!(end, "{:010} 00000 n ", out.len());
            out.extend(format!("{n} 0 obj\n").into_bytes());
            out.extend(object);
            out.extend(b"\nendobj\n");
        }
        let _ = write!(
            end,
            "trailer\n<< /Size {} /Root 1 0 R >>\nstartxref\n{}\n%%EOF\n",
            objects.len() + 1,
            out.len()
        );
        out.extend(end.into_bytes());
        Ok(out)
    }
}

/// A compressed stream.
fn stream(more: &str, bytes: &[u8]) -> Result<Vec<u8>, PlotError> {
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(bytes).map_err(failed)?;
    let packed = packed.finish().map_err(failed)?;
    let head = format!("<< {more}/Filter /FlateDecode /Length {} >>\nstream\n", packed.len());
    Ok([head.as_bytes(), packed.as_slice(), b"\nendstream".as_slice()].concat())
}

fn widths() -> Result<Vec<u32>, PlotError> {
    let wide = |byte: u8| {
        let text = char::from(byte).to_string();
        (FAMILY, HEIGHT).into_font().box_size(&text).map(|size| size.0).map_err(failed)
    };
    (32..=255).map(wide).collect()
}

/// The code of a character in the font's encoding, that of `?` if it has none.
fn latin(c: char) -> u8 {
    u8::try_from(u32::from(c)).ok().filter(|code| matches!(code, 32..=126 | 160..=255)).unwrap_or(b'?')
}

/// The value of an attribute; empty if there is none.
fn attribute<'a>(tag: &'a str, name: &str) -> &'a str {
    let start = format!(" {name}=\"");
    let rest = tag.split_once(start.as_str()).map_or("", |(_, rest)| rest);
    rest.split_once('"').map_or("", |(value, _)| value)
}

fn number(tag: &str, name: &str) -> f64 {
    attribute(tag, name).parse().unwrap_or(0.0)
}

/// The three shares of a color; `None` if there is none.
fn colour(tag: &str, name: &str) -> Option<String> {
    let hex = attribute(tag, name).strip_prefix('#')?;
    let share = |at: usize| Some(f64::from(u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?) / 255.0);
    Some(format!("{:.3} {:.3} {:.3}", share(0)?, share(2)?, share(4)?))
}

/// The operators of the path through the points of a tag.
fn path(tag: &str) -> String {
    let mut out = String::new();
    for (x, y) in attribute(tag, "points").split_whitespace().filter_map(|point| point.split_once(',')) {
        let operator = if out.is_empty() { 'm' } else { 'l' };
        let _ = write!(out, "{x} {y} {operator} ");
    }
    out
}

fn unescaped(text: &str) -> String {
    let marks = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    marks.iter().fold(text.to_owned(), |text, (mark, c)| text.replace(mark, c))
}
