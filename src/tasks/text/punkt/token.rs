//! Words as Punkt cuts them, and what it asks of them.

use super::is_python_space;

/// The kind of all numbers.
pub(super) const NUMBER: &str = "##number##";

/// The version of NLTK whose regular expressions are followed.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) enum Nltk {
    /// Up to 3.9, with Python's `re`. Only ASCII digits make a number.
    #[default]
    Re,
    /// 3.10, with the package `regex`: typographic quotes are punctuation, and other digits make numbers.
    Regex,
}

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
    pub(super) fn new(nltk: Nltk, text: &'t str) -> Token<'t> {
        let kind = if nltk.is_number(text) { NUMBER.to_owned() } else { text.to_lowercase() };
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
    pub(super) fn is_initial(&self, nltk: Nltk) -> bool {
        let mut chars = self.text.chars();
        let letter = |c: char| match nltk {
            Nltk::Re => c.is_alphanumeric() && !c.is_ascii_digit(),
            Nltk::Regex => c.is_alphabetic(),
        };
        chars.next().is_some_and(|c| letter(c) || c == '_') && chars.as_str() == "."
    }

    pub(super) fn starts_upper(&self) -> bool {
        self.text.chars().next().is_some_and(char::is_uppercase)
    }

    pub(super) fn starts_lower(&self) -> bool {
        self.text.chars().next().is_some_and(char::is_lowercase)
    }
}

impl Nltk {
    /// `^-?[\.,]?\d[\d,\.-]*\.?$`
    fn is_number(self, text: &str) -> bool {
        let text = text.strip_prefix('-').unwrap_or(text);
        let text = text.strip_prefix(['.', ',']).unwrap_or(text);
        let digit = |c: char| match self {
            Nltk::Re => c.is_ascii_digit(),
            Nltk::Regex => c.is_numeric(),
        };
        text.starts_with(digit) && text.chars().all(|c| digit(c) || matches!(c, ',' | '.' | '-'))
    }

    pub(super) fn is_space(self, c: char) -> bool {
        match self {
            Nltk::Re => is_python_space(c),
            Nltk::Regex => c.is_whitespace(),
        }
    }

    pub(super) fn trim_start(self, text: &str) -> &str {
        text.trim_start_matches(|c: char| self.is_space(c))
    }

    /// Typographic quotes, where they are punctuation.
    pub(super) fn is_quote(self, c: char) -> bool {
        self == Nltk::Regex && "\u{2018}\u{2019}\u{201c}\u{201d}\u{ab}\u{bb}".contains(c)
    }

    /// Characters that do not occur within words.
    pub(super) fn splits_words(self, c: char) -> bool {
        matches!(c, ')' | '"' | ';' | '}' | ']' | '*' | ':' | '@' | '\'' | '(' | '{' | '[' | '!' | '?')
            || self.is_quote(c)
    }

    /// The words and the punctuation of a line.
    pub(super) fn words(self, line: &str) -> impl Iterator<Item = &str> {
        let mut rest = line;
        std::iter::from_fn(move || {
            rest = self.trim_start(rest);
            let first = rest.chars().next()?;
            let length = match self.dashes_or_dots(rest) {
                // A word does not begin with one of these.
                0 if "(\"`{[:;&#*@)}]-,".contains(first) => first.len_utf8(),
                0 => self.word(rest, first.len_utf8()),
                n => n,
            };
            let (token, behind) = rest.split_at(length);
            rest = behind;
            Some(token)
        })
    }

    /// Length of the word at the beginning, which has at least `shortest` bytes.
    fn word(self, text: &str, shortest: usize) -> usize {
        let ends = |rest: &str| match rest.chars().next() {
            None => true,
            Some(c) => self.is_space(c) || self.splits_words(c) || self.dashes_or_dots(rest) > 0,
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
    fn dashes_or_dots(self, text: &str) -> usize {
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
            let Some(space) = behind.chars().next().filter(|&c| self.is_space(c)) else { break };
            rest = &behind[space.len_utf8()..];
            pairs += 1;
        }
        length
    }
}
