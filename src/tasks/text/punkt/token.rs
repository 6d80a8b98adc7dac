//! Words as Punkt cuts them, and what it asks of them.

use super::is_python_space;

/// The kind of all numbers.
pub(super) const NUMBER: &str = "##number##";

/// A word or punctuation, and what is known of it.
pub(super) struct Token<'t> {
    pub(super) text: &'t str,
    /// In lower case; [`NUMBER`] for numbers.
    kind: String,
    pub(super) ends_sentence: bool,
    pub(super) abbreviation: bool,
    pub(super) ellipsis: bool,
}

impl<'t> Token<'t> {
    pub(super) fn new(text: &'t str) -> Token<'t> {
        let kind = if is_number(text) { NUMBER.to_owned() } else { text.to_lowercase() };
        Token { text, kind, ends_sentence: false, abbreviation: false, ellipsis: false }
    }

    /// Joins the token with the following one: its full stop does not end a sentence.
    pub(super) fn joins(&mut self) {
        self.ends_sentence = false;
        self.abbreviation = true;
    }

    /// The kind without a last full stop.
    pub(super) fn kind_without_stop(&self) -> &str {
        self.kind.strip_suffix('.').filter(|kind| !kind.is_empty()).unwrap_or(&self.kind)
    }

    /// The kind without a full stop that ends a sentence.
    pub(super) fn kind_without_last_stop(&self) -> &str {
        if self.ends_sentence {
            self.kind_without_stop()
        } else {
            &self.kind
        }
    }

    /// One letter and a full stop.
    pub(super) fn is_initial(&self) -> bool {
        let mut chars = self.text.chars();
        let letter = chars.next().is_some_and(|c| (c.is_alphanumeric() && !c.is_ascii_digit()) || c == '_');
        letter && chars.as_str() == "."
    }

    pub(super) fn starts_upper(&self) -> bool {
        self.text.chars().next().is_some_and(char::is_uppercase)
    }

    pub(super) fn starts_lower(&self) -> bool {
        self.text.chars().next().is_some_and(char::is_lowercase)
    }
}

/// `^-?[\.,]?\d[\d,\.-]*\.?$`
fn is_number(text: &str) -> bool {
    let text = text.strip_prefix('-').unwrap_or(text);
    let text = text.strip_prefix(['.', ',']).unwrap_or(text);
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b',' | b'.' | b'-'))
}

/// Characters that do not occur within words.
pub(super) fn splits_words(c: char) -> bool {
    matches!(c, ')' | '"' | ';' | '}' | ']' | '*' | ':' | '@' | '\'' | '(' | '{' | '[' | '!' | '?')
}

/// Characters that a word does not begin with.
fn begins_no_word(c: char) -> bool {
    matches!(c, '(' | '"' | '`' | '{' | '[' | ':' | ';' | '&' | '#' | '*' | '@' | ')' | '}' | ']' | '-' | ',')
}

/// The words and the punctuation of a line.
pub(super) fn words(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start_matches(is_python_space);
        let first = rest.chars().next()?;
        let length = match dashes_or_dots(rest) {
            0 if begins_no_word(first) => first.len_utf8(),
            0 => word(rest, first.len_utf8()),
            n => n,
        };
        let (token, behind) = rest.split_at(length);
        rest = behind;
        Some(token)
    })
}

/// Length of the word at the beginning, which has at least `shortest` bytes.
fn word(text: &str, shortest: usize) -> usize {
    let ends = |rest: &str| match rest.chars().next() {
        None => true,
        Some(c) => is_python_space(c) || splits_words(c) || dashes_or_dots(rest) > 0,
    };
    let (_, tail) = text.split_at(shortest);
    tail.char_indices()
        .find(|&(at, c)| {
            let rest = &tail[at..];
            ends(rest) || c == ',' && ends(&rest[1..])
        })
        .map_or(text.len(), |(at, _)| shortest + at)
}

/// Length of the dashes (`--`), the dots (`..`) or the spaced dots (`. . .`) at the beginning; 0 for none.
fn dashes_or_dots(text: &str) -> usize {
    for sign in ['-', '.'] {
        let n = text.len() - text.trim_start_matches(sign).len();
        if n >= 2 {
            return n;
        }
    }
    // Dots with one space each, and a last one without.
    let mut rest = text;
    let mut pairs = 0;
    let mut length = 0;
    while let Some(behind) = rest.strip_prefix('.') {
        let dot = text.len() - behind.len();
        if pairs >= 2 {
            length = dot;
        }
        let Some(space) = behind.chars().next().filter(|&c| is_python_space(c)) else { break };
        rest = &behind[space.len_utf8()..];
        pairs += 1;
    }
    length
}
