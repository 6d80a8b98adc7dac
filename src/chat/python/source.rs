//! A template's text, rewritten into what minijinja reads as Jinja2 does.

use minijinja::{Error, ErrorKind};

/// The beginning of `{% generation %}`, with which transformers marks the assistant's text for training masks, as a scope.
const GENERATION: &str = "with __generation = 1";

/// Line ends are `\n`, backslashes are literal, for [`decoded`] and [`plain`], and `{% generation %}` is a scope.
pub(super) fn rewritten(template: &str) -> String {
    let mut text = String::with_capacity(template.len());
    let template = template.replace("\r\n", "\n").replace('\r', "\n");
    let mut chars = template.chars();
    while let Some(c) = chars.next() {
        match (c, chars.clone().next()) {
            ('\\', Some(next @ ('\\' | '\'' | '"'))) => {
                text.extend(['\\', '\\', '\\', next]);
                chars.next();
            }
            ('\\', _) => text.push_str("\\\\"),
            _ => text.push(c),
        }
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.as_bytes().windows(2).position(|pair| matches!(pair, b"{{" | b"{%" | b"{#")) {
        let (before, open) = rest.split_at(at);
        out.push_str(before);
        rest = open;
        let length = match open.as_bytes()[1] {
            b'#' => open[2..].find("#}").map(|n| n + 4),
            b'{' => tag_length(open, b"}}"),
            _ => tag_length(open, b"%}"),
        };
        // minijinja says what has no end.
        let Some(length) = length else { break };
        let (tag, behind) = open.split_at(length);
        rest = behind;
        let inner = tag.strip_prefix("{%").map_or("", |tag| &tag[..tag.len() - 2]);
        match word(inner) {
            name @ "generation" => out.push_str(&tag.replacen(name, GENERATION, 1)),
            name @ "endgeneration" => out.push_str(&tag.replacen(name, "endwith", 1)),
            "raw" => {
                let (raw, last) = behind.split_at(raw_length(behind));
                // Without a plus, minijinja removes the line end after this tag. Jinja2 does not.
                out.extend(["{%", inner, if inner.ends_with('-') { "" } else { "+" }, "%}", raw]);
                rest = last;
                // Nor the spaces before the next tag, if the text has no line end.
                let unsigned = last.strip_prefix("{%").filter(|tag| !tag.starts_with(['-', '+']));
                if let Some(tag) = unsigned.filter(|_| !raw.contains('\n')) {
                    out.push_str("{%+");
                    rest = tag;
                }
            }
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    out
}

/// The text of a tag, without the signs at its ends.
fn word(inner: &str) -> &str {
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    inner.strip_suffix(['-', '+']).unwrap_or(inner).trim()
}

/// The length of a tag or an expression, whose strings and brackets can hold what closes it; `None` without an end.
fn tag_length(open: &str, close: &[u8]) -> Option<usize> {
    let bytes = open.as_bytes();
    let (mut depth, mut at) = (0usize, 2usize);
    let mut quote: Option<u8> = None;
    while let Some(&byte) = bytes.get(at) {
        match (quote, byte) {
            (Some(_), b'\\') => at += 1,
            (Some(mark), _) => quote = quote.filter(|_| byte != mark),
            (None, _) if depth == 0 && bytes[at..].starts_with(close) => return Some(at + close.len()),
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        at += 1;
    }
    None
}

/// The length of the text before `{% endraw %}`, or of all text.
fn raw_length(text: &str) -> usize {
    let ends = |part: &str| part.split_once("%}").is_some_and(|(inner, _)| word(inner) == "endraw");
    let before = text.split("{%").enumerate().take_while(|(i, part)| *i == 0 || !ends(part));
    before.map(|(_, part)| part.len() + 2).sum::<usize>() - 2
}

/// The text outside of tags that is `text` in a rewritten template.
pub(super) fn plain(text: &str) -> String {
    let mut chars = text.chars();
    std::iter::from_fn(|| chars.next().map(|c| if c == '\\' { chars.next().unwrap_or(c) } else { c }))
        .collect()
}

/// A string's value: Python's `unicode-escape`.
///
/// # Errors
/// Escapes that Python refuses, or that need its table of the names of characters.
pub(super) fn decoded(text: &str) -> Result<String, Error> {
    let wrong = |what: String| Err(Error::new(ErrorKind::BadEscape, what));
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('\\') {
        out.push_str(before);
        let mut chars = behind.chars();
        let c = chars.next().unwrap_or('\\');
        rest = chars.as_str();
        let (most, radix, number) = match c {
            'x' => (2, 16, rest),
            'u' => (4, 16, rest),
            'U' => (8, 16, rest),
            '0'..='7' => (3, 8, behind),
            'N' => return wrong("\\N{..}, the name of a character, is not supported".into()),
            '\n' => continue,
            c => {
                match "abfnrtv\\'\"".find(c) {
                    Some(at) => out.push_str(&"\x07\x08\x0c\n\r\t\x0b\\'\""[at..=at]),
                    None => out.extend(['\\', c]),
                }
                continue;
            }
        };
        let n = number.find(|d: char| !d.is_digit(radix)).unwrap_or(number.len()).min(most);
        let (number, behind) = number.split_at(n);
        if radix == 16 && n < most {
            return wrong(format!("expected {most} hexadecimal digits after \\{c}, found {number:?}"));
        }
        match u32::from_str_radix(number, radix).ok().and_then(char::from_u32) {
            Some(c) => out.push(c),
            None => return wrong(format!("expected a character, found the number {number}")),
        }
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}
