//! Marks in this program's plots. A plot never replaces a file without such a mark.

use files::Kind;

/// The line after the root element of an SVG.
const SVG_MARK: &str = "<!-- drawn by ropewalk -->\n";
/// Key and value of a text chunk of a PNG.
const PNG_MARK: &[u8] = b"Software\0ropewalk";
/// Signature and first chunk of a PNG, which has the size of the picture.
const PNG_START: usize = 8 + 25;

/// SVG plots.
pub(super) const SVG: Kind = Kind::new("an SVG that ropewalk drew", |head| {
    let second = head.iter().position(|b| *b == b'\n').map_or(&[][..], |end| &head[end + 1..]);
    head.starts_with(b"<svg ") && second.starts_with(SVG_MARK.as_bytes())
});
/// PNG plots.
pub(super) const PNG: Kind = Kind::new("a PNG that ropewalk drew", |head| {
    head.starts_with(b"\x89PNG\r\n\x1a\n")
        && head.get(PNG_START + 4..).is_some_and(|rest| rest.starts_with(b"tEXt"))
        && head[PNG_START + 8..].starts_with(PNG_MARK)
});

/// PDF plots.
pub(super) const PDF: Kind =
    Kind::new("a PDF that ropewalk drew", |head| head.starts_with(super::pdf::START));

/// Marks an SVG after its first line.
pub(super) fn svg(mut text: String) -> String {
    let end = text.find('\n').map_or(text.len(), |end| end + 1);
    text.insert_str(end, SVG_MARK);
    text
}

/// Marks a PNG after its first chunk.
pub(super) fn png(mut bytes: Vec<u8>) -> Vec<u8> {
    let mut chunk = (PNG_MARK.len() as u32).to_be_bytes().to_vec();
    chunk.extend(b"tEXt");
    chunk.extend(PNG_MARK);
    let mut crc = flate2::Crc::new();
    crc.update(&chunk[4..]);
    chunk.extend(crc.sum().to_be_bytes());
    let at = PNG_START.min(bytes.len());
    bytes.splice(at..at, chunk);
    bytes
}
