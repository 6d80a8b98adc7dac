//! A template's text, rewritten into what minijinja reads as Jinja2 does.

use minijinja::{Error, ErrorKind};

/// The beginning of `{% generation %}`, with which transformers marks the assistant's text for training masks, as a scope.
pub(super) const GENERATION: &str = "with __generation = 1";

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
    let mut raw = false;
    for (i, part) in text.split("{%").enumerate() {
        out.push_str(if i > 0 { "{%" } else { "" });
        let inner = part.split_once("%}").filter(|_| i > 0).map_or("", |(inner, _)| inner);
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match word {
            "generation" if !raw => out.push_str(&part.replacen(word, GENERATION, 1)),
            "endgeneration" if !raw => out.push_str(&part.replacen(word, "endwith", 1)),
            // minijinja takes the end of the line behind it away, and Jinja2 does not.
            "raw" if !raw && !inner.ends_with('-') && part[inner.len()..].starts_with("%}\n") => {
                let (tag, behind) = part.split_at(inner.len() + 2);
                out.extend([tag, "\n", behind]);
            }
            _ => out.push_str(part),
        }
        raw = word == "raw" || raw && word != "endraw";
    }
    out
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
