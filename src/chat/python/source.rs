//! A template's text, rewritten into what minijinja reads as Jinja2 does.

use minijinja::{Error, ErrorKind};

/// Line ends are `\n`, escapes in strings are Python's, and `{% generation %}` and `{% endgeneration %}`, with which
/// transformers marks the assistant's text for training masks, are a scope.
///
/// # Errors
/// Escapes that Python refuses, or that need its table of the names of characters.
pub(super) fn rewritten(template: &str) -> Result<String, Error> {
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(template.len());
    let mut rest = template.as_str();
    let mut raw = false;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = match rest.as_bytes().get(1) {
            Some(b'#') if !raw => rest.find("#}").map_or(rest.len(), |n| n + 2),
            Some(b'%') => end_of(rest, "%}"),
            Some(b'{') if !raw => end_of(rest, "}}"),
            _ => 1,
        };
        let (tag, behind) = rest.split_at(length);
        rest = behind;
        if length == 1 || tag.starts_with("{#") {
            out.push_str(tag);
            continue;
        }
        let inner = tag.get(2..tag.len().saturating_sub(2)).unwrap_or_default();
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            _ if raw => {
                raw = word != "endraw";
                if raw {
                    // No tag, but text: only its first character is sure to be no tag's.
                    out.push('{');
                    rest = &template[template.len() - rest.len() - tag.len() + 1..];
                } else {
                    out.push_str(tag);
                }
            }
            "generation" | "endgeneration" if tag.starts_with("{%") => {
                // A scope, as in transformers; `tree` writes the marks.
                let (before, after) = inner.split_once(word).unwrap_or_default();
                let tag = if word == "generation" { "with __generation = 1" } else { "endwith" };
                out.push_str(&format!("{{%{before}{tag}{after}%}}"));
            }
            _ if tag.starts_with("{{") && inner.ends_with('+') => {
                return Err(Error::new(ErrorKind::SyntaxError, "unexpected end of an expression, after +"));
            }
            _ => {
                raw = word == "raw" && tag.starts_with("{%");
                strings(tag, &mut out)?;
                // minijinja takes the end of the line behind it away, and Jinja2 does not.
                if raw && !inner.ends_with('-') && rest.starts_with('\n') {
                    out.push('\n');
                }
            }
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// Bytes of the tag that `text` begins with: up to `close` outside of strings and brackets.
fn end_of(text: &str, close: &str) -> usize {
    let (mut depth, mut at) = (0usize, 2);
    while let Some(c) = text[at..].chars().next() {
        if depth == 0 && text[at..].starts_with(close) {
            return at + close.len();
        }
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '\'' | '"' => at += end_of_string(&text[at..]) - 1,
            _ => {}
        }
        at += c.len_utf8();
    }
    text.len()
}

/// Bytes of the string that `text` begins with, its quotes included.
fn end_of_string(text: &str) -> usize {
    let mut chars = text.char_indices();
    let quote = chars.next().map(|(_, c)| c);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next();
        } else if Some(c) == quote {
            return at + 1;
        }
    }
    text.len()
}

/// Copies a tag; strings with escapes are decoded, and written with the escapes of quotes and backslashes alone.
fn strings(tag: &str, out: &mut String) -> Result<(), Error> {
    let mut rest = tag;
    while let Some(at) = rest.find(['\'', '"']) {
        out.push_str(&rest[..at]);
        let (string, behind) = rest[at..].split_at(end_of_string(&rest[at..]));
        rest = behind;
        let quote = &string[..1];
        match string.strip_prefix(quote).and_then(|s| s.strip_suffix(quote)) {
            Some(inner) if inner.contains('\\') => {
                out.push_str(quote);
                for c in decoded(inner)?.chars() {
                    if c == '\\' || quote.starts_with(c) {
                        out.push('\\');
                    }
                    out.push(c);
                }
                out.push_str(quote);
            }
            _ => out.push_str(string),
        }
    }
    out.push_str(rest);
    Ok(())
}

/// Python's `unicode-escape`.
fn decoded(text: &str) -> Result<String, Error> {
    let wrong = |what: String| Error::new(ErrorKind::BadEscape, what);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let mut chars = rest[at + 1..].chars();
        let Some(c) = chars.next() else {
            return Err(wrong("a string ends in a backslash".into()));
        };
        let simple = match c {
            'a' => Some('\x07'),
            'b' => Some('\x08'),
            'f' => Some('\x0c'),
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            'v' => Some('\x0b'),
            '\\' | '\'' | '"' => Some(c),
            _ => None,
        };
        let digits = |n: usize, radix: u32| -> &str {
            let behind = &rest[at + 1..];
            let from = usize::from(radix == 16);
            let end = behind[from..].find(|d: char| !d.is_digit(radix)).map_or(behind.len(), |n| from + n);
            &behind[from..end.min(from + n)]
        };
        let number = match (simple, c) {
            (Some(simple), _) => {
                out.push(simple);
                rest = chars.as_str();
                continue;
            }
            (_, '\n') => {
                rest = chars.as_str();
                continue;
            }
            (_, 'x' | 'u' | 'U') => {
                let n = match c {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let number = digits(n, 16);
                if number.len() < n {
                    return Err(wrong(format!(
                        "expected {n} hexadecimal digits after \\{c}, found {number:?}"
                    )));
                }
                rest = &rest[at + 2 + n..];
                u32::from_str_radix(number, 16).unwrap_or(u32::MAX)
            }
            (_, '0'..='7') => {
                let number = digits(3, 8);
                rest = &rest[at + 1 + number.len()..];
                u32::from_str_radix(number, 8).unwrap_or(u32::MAX)
            }
            (_, 'N') => return Err(wrong("\\N{..}, the name of a character, is not supported".into())),
            (_, c) => {
                out.extend(['\\', c]);
                rest = chars.as_str();
                continue;
            }
        };
        let c = char::from_u32(number);
        out.push(c.ok_or_else(|| wrong(format!("expected a character, found the number {number:#x}")))?);
    }
    out.push_str(rest);
    Ok(out)
}
