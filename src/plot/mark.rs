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
    let sum = crc(&chunk[4..]);
    chunk.extend(sum.to_be_bytes());
    let at = PNG_START.min(bytes.len());
    bytes.splice(at..at, chunk);
    bytes
}

/// The checksum of a PNG chunk.
fn crc(bytes: &[u8]) -> u32 {
    let bit = |c: u32, _| if c & 1 == 1 { 0xedb8_8320 ^ (c >> 1) } else { c >> 1 };
    !bytes.iter().fold(!0, |c, b| (0..8).fold(c ^ u32::from(*b), bit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_png() {
        // The end of every PNG.
        assert_eq!(crc(b"IEND"), 0xae42_6082);
    }
}
