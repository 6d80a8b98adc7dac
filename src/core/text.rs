//! The one place where bytes of texts become texts, so that a file has the same tokens in every command.
//!
//! A byte-order mark at the start of a file is removed. Line ends (`\r\n`, and `\r` alone) become `\n`, as in Python's
//! text files, and so do escaped ones in a JSON field of a document. Bytes that are not UTF-8 are an error with the
//! place of the first one, or become U+FFFD if the caller asks for it. UTF-16 and UTF-32, known by their marks, are
//! rejected by name: read as bytes, they would be a different text.

/// A number of bytes, as `12.30 MiB`.
pub fn bytes(n: u64) -> String {
    if n < 1024 {
        return format!("{n} B");
    }
    let exponent = n.ilog2() / 10;
    let unit = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][exponent as usize - 1];
    format!("{:.2} {unit}", n as f64 / (1u64 << (10 * exponent)) as f64)
}

/// Bytes in hexadecimal, two lower-case digits for each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The number of bytes that a text such as `12GiB`, `8GB`, or `4096` stands for.
///
/// # Errors
/// No such text, or none of more than 0 and less than 10^18 bytes.
pub fn parse_bytes(text: &str) -> Result<usize, String> {
    let units =
        [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("GB", 1_000_000_000), ("MB", 1_000_000)];
    let split = |(unit, factor): (&str, i32)| text.strip_suffix(unit).map(|number| (number, factor));
    let (number, factor) = units.into_iter().find_map(split).unwrap_or((text, 1));
    match number.trim().parse::<f64>() {
        Ok(n) if n > 0.0 && n * f64::from(factor) < 1e18 => Ok((n * f64::from(factor)) as usize),
        _ => Err("expected a size such as 12GiB".to_owned()),
    }
}

/// Formats a count with its digits in groups of three: `12,345`.
pub fn count(n: u64) -> String {
    match n / 1000 {
        0 => n.to_string(),
        thousands => format!("{},{:03}", count(thousands), n % 1000),
    }
}

/// The number of units per second; 0 where no time has passed.
pub fn per_second(n: usize, seconds: f64) -> f64 {
    if seconds > 0.0 {
        n as f64 / seconds
    } else {
        0.0
    }
}

/// Why bytes are no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotText {
    /// The offset of the first byte that is not UTF-8.
    #[error("not UTF-8: bad byte at offset {0}")]
    Byte(u64),
    /// The encoding that the byte-order mark names.
    #[error("{0} by its byte-order mark: expected UTF-8")]
    Encoding(&'static str),
}

/// Treatment of bytes that are not UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Invalid {
    /// They are an error.
    Refuse,
    /// They become U+FFFD.
    Replace,
}

/// A text, and whether bytes of it were replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The text.
    pub text: String,
    /// True if bytes became U+FFFD.
    pub replaced: bool,
}

/// The text of a whole file.
///
/// # Errors
/// Bytes in another encoding; bytes that are not UTF-8, where they are refused.
pub fn decode(bytes: Vec<u8>, invalid: Invalid) -> Result<Decoded, NotText> {
    let Decoded { text, replaced } = decode_line(bytes, 0, invalid)?;
    Ok(Decoded { text: unix_lines(text), replaced })
}

/// The text of a line at `offset` of a file, with its line end as it is: JSON takes either.
pub fn decode_line(mut bytes: Vec<u8>, offset: u64, invalid: Invalid) -> Result<Decoded, NotText> {
    let mut mark = 0;
    if offset == 0 {
        if let Some(name) = other_encoding(&bytes) {
            return Err(NotText::Encoding(name));
        }
        mark = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        bytes.drain(..mark);
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Decoded { text, replaced: false }),
        Err(e) if invalid == Invalid::Replace => {
            Ok(Decoded { text: String::from_utf8_lossy(e.as_bytes()).into_owned(), replaced: true })
        }
        Err(e) => Err(NotText::Byte(offset + (mark + e.utf8_error().valid_up_to()) as u64)),
    }
}

/// The encoding that a file's first bytes name, if it is another than UTF-8.
pub fn other_encoding(head: &[u8]) -> Option<&'static str> {
    // The longer marks first: that of UTF-32 begins with that of UTF-16.
    let marks: [(&[u8], _); 4] = [
        (b"\xff\xfe\0\0", "UTF-32"),
        (b"\0\0\xfe\xff", "UTF-32"),
        (b"\xff\xfe", "UTF-16"),
        (b"\xfe\xff", "UTF-16"),
    ];
    marks.into_iter().find(|(mark, _)| head.starts_with(mark)).map(|(_, name)| name)
}

/// The text with `\n` at the end of each line.
pub fn unix_lines(text: String) -> String {
    if text.contains('\r') {
        return text.replace("\r\n", "\n").replace('\r', "\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_unit() {
        for (text, n) in [("12GiB", 12 << 30), ("0.5 MiB", 1 << 19), ("8GB", 8_000_000_000), ("4096", 4096)] {
            assert_eq!(parse_bytes(text), Ok(n), "{text}");
        }
        for bad in ["", "0", "-1GiB", "GiB", "12TiB", "1e30"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn bytes_for_people() {
        for (n, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (3 << 29, "1.50 GiB")] {
            assert_eq!(super::bytes(n), text);
        }
        assert_eq!(super::bytes(u64::MAX), "16.00 EiB");
    }

    #[test]
    fn counts_for_people() {
        for (n, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (123_456, "123,456"), (1_000_000, "1,000,000")]
        {
            assert_eq!(count(n), text);
        }
    }

    #[test]
    fn bytes_become_text_in_one_way() {
        let text = |text: &str| Ok((text.to_owned(), false));
        let of = |bytes: &[u8], invalid| decode(bytes.to_vec(), invalid).map(|d| (d.text, d.replaced));
        for (bytes, expected) in [
            (&b""[..], text("")),
            (b"a\nb\n", text("a\nb\n")),
            (b"a\r\nb\rc\n\r\n", text("a\nb\nc\n\n")),
            (b"\xef\xbb\xbfa", text("a")),
            (b"\xef\xbb\xbf", text("")),
            // One mark, at the start: anywhere else it is a character.
            (b"\xef\xbb\xbf\xef\xbb\xbfa", text("\u{feff}a")),
            (b"a\xef\xbb\xbf", text("a\u{feff}")),
            (b"ab\xff", Err(NotText::Byte(2))),
            (b"\xef\xbb\xbfab\xffc", Err(NotText::Byte(5))),
            (b"ab\xc3", Err(NotText::Byte(2))),
            // A surrogate, and more bytes than a character needs.
            (b"\xed\xa0\x80", Err(NotText::Byte(0))),
            (b"\xc0\x80", Err(NotText::Byte(0))),
            (b"\xff\xfea\0", Err(NotText::Encoding("UTF-16"))),
            (b"\xfe\xff\0a", Err(NotText::Encoding("UTF-16"))),
            (b"\xff\xfe\0\0a\0\0\0", Err(NotText::Encoding("UTF-32"))),
            (b"\0\0\xfe\xff", Err(NotText::Encoding("UTF-32"))),
        ] {
            assert_eq!(of(bytes, Invalid::Refuse), expected, "{bytes:?}");
        }
        assert_eq!(of(b"a\xff\r\n", Invalid::Replace), Ok(("a\u{fffd}\n".to_owned(), true)));
        assert_eq!(of(b"\xff\xfea\0", Invalid::Replace), Err(NotText::Encoding("UTF-16")));
    }

    #[test]
    fn a_line_keeps_its_end_and_counts_from_the_start_of_the_file() {
        let of = |bytes: &[u8], offset| decode_line(bytes.to_vec(), offset, Invalid::Refuse).map(|d| d.text);
        assert_eq!(of(b"\xef\xbb\xbf{}\r\n", 0), Ok("{}\r\n".to_owned()));
        assert_eq!(of(b"\xef\xbb\xbf{}", 9), Ok("\u{feff}{}".to_owned()));
        assert_eq!(of(b"{\xff}", 9), Err(NotText::Byte(10)));
        assert_eq!(of(b"\xff\xfe", 9), Err(NotText::Byte(9)));
    }
}
