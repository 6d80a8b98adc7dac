//! Patterns that texts are cut at, bounded in what they take to compile and to run.

use fancy_regex::{Regex, RegexBuilder};
use tokenizers::tokenizer::pattern::Pattern;
use tokenizers::Offsets;

use crate::error::shown;
use crate::Result;

use super::part::Part;

/// Bytes of a pattern; the longest known has 1,100.
const MAX_PATTERN: usize = 4096;
/// Regular expressions of a file.
const MAX_REGEXES: usize = 32;
/// Parts of all regular expressions of a file (classes, escapes, points, groups), each times the largest counted
/// repetition of its expression. The Unicode class `\w` takes some 100 KB when it is compiled.
const MAX_PARTS: usize = 1024;
/// The largest counted repetition, such as 3 in `\p{N}{1,3}`.
const MAX_REPEAT: usize = 64;
/// Compiled bytes of what has neither lookaround nor references in a pattern.
const MAX_COMPILED: usize = 4 << 20;
/// Cache of the automaton that is made while it runs.
const MAX_CACHE: usize = 1 << 20;
/// Steps back in the search for one match.
const MAX_STEPS: usize = 20_000;

/// Limits on all patterns of a file together.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    regexes: usize,
    parts: usize,
}

/// A pattern of a Split.
#[derive(Debug)]
pub(super) enum Cut {
    Text(String),
    Regex { regex: Box<Regex>, place: String },
}

impl Patterns {
    /// Reads `{"String": ..}` or `{"Regex": ..}`.
    pub(super) fn read(&mut self, part: &Part<'_>) -> Result<Cut> {
        let entries = part.entries(1)?;
        match entries.first() {
            Some(("String", text)) => Ok(Cut::Text(text.short(MAX_PATTERN)?.to_owned())),
            Some(("Regex", text)) => self.regex(text),
            _ => Err(part.wrong("an object with String or Regex")),
        }
    }

    fn regex(&mut self, part: &Part<'_>) -> Result<Cut> {
        let text = part.short(MAX_PATTERN)?;
        self.regexes += 1;
        if self.regexes > MAX_REGEXES {
            return Err(
                part.error(format!("found more than {MAX_REGEXES} regular expressions, expected fewer"))
            );
        }
        self.parts += weight(text).map_err(|what| part.error(what))?;
        if self.parts > MAX_PARTS {
            let what = format!(
                "found {} classes, escapes and groups times repetitions up to this regular expression, expected at most {MAX_PARTS}",
                self.parts
            );
            return Err(part.error(what));
        }
        let regex = RegexBuilder::new(text)
            .backtrack_limit(MAX_STEPS)
            .delegate_size_limit(MAX_COMPILED)
            .delegate_dfa_size_limit(MAX_CACHE)
            .build()
            .map_err(|e| {
                part.error(format!("is not a usable regular expression: {}", shown(&e.to_string())))
            })?;
        Ok(Cut::Regex { regex: Box::new(regex), place: part.place.clone() })
    }
}

/// The parts of an expression that take room when it is compiled, times its largest counted repetition. It is an upper
/// bound: what stands in a class counts as if it stood outside.
fn weight(text: &str) -> Result<usize, String> {
    let (mut parts, mut most) = (1usize, 1usize);
    // What stands before repeats something already: a group, or a counted repetition.
    let mut wrapped = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                let escaped = rest.chars().next();
                rest = &rest[escaped.map_or(0, char::len_utf8)..];
                // What stands in their braces is no repetition.
                if escaped.is_some_and(|c| "pPxuUkg".contains(c)) && rest.starts_with('{') {
                    rest = rest.find('}').map_or("", |end| &rest[end + 1..]);
                }
                (parts, wrapped) = (parts + 1, false);
            }
            '[' | '.' => (parts, wrapped) = (parts + 1, false),
            '(' => {
                (parts, wrapped) = (parts + 1, false);
                let flags = rest.strip_prefix('?').unwrap_or("");
                let end = flags.find(|c: char| !c.is_ascii_alphabetic() && c != '-').unwrap_or(flags.len());
                // In this mode spaces and comments may stand anywhere.
                if flags[..end].contains('x') && flags[end..].starts_with([':', ')']) {
                    return Err(format!("found (?{}, expected no flag x", &flags[..end]));
                }
            }
            ')' => wrapped = true,
            '*' | '+' | '?' => {}
            '{' => match repetition(rest) {
                Some((_, _)) if wrapped => {
                    return Err(
                        "found a counted repetition of a group or of another repetition, expected none"
                            .into(),
                    );
                }
                Some((n, after)) => {
                    if n > MAX_REPEAT {
                        return Err(format!(
                            "found a repetition of {n} times, expected at most {MAX_REPEAT}"
                        ));
                    }
                    (most, rest, wrapped) = (most.max(n), after, true);
                }
                None => wrapped = false,
            },
            _ => wrapped = false,
        }
    }
    Ok(parts * most)
}

/// The largest number of `n}`, `n,}`, `,m}` or `n,m}`, and what comes behind it.
fn repetition(text: &str) -> Option<(usize, &str)> {
    let (inside, after) = text.split_once('}')?;
    let digits = |t: &str| t.bytes().all(|b| b.is_ascii_digit() || b == b' ');
    let (low, high) = inside.split_once(',').unwrap_or((inside, ""));
    if inside.is_empty() || !digits(low) || !digits(high) {
        return None;
    }
    let number = |t: &str| match t.trim() {
        "" => 0,
        // More digits than a number has are a large one.
        t => t.parse().unwrap_or(usize::MAX),
    };
    Some((number(low).max(number(high)), after))
}

impl Pattern for &Cut {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        match self {
            Cut::Text(text) => literal(text, inside),
            Cut::Regex { regex, place } => {
                let mut out = Vec::new();
                for found in regex.find_iter(inside) {
                    let found = found.map_err(|e| format!("{place}: {e}"))?;
                    out.push((found.start(), found.end()));
                }
                pieces(inside, out.into_iter())
                    .ok_or_else(|| format!("{place}: finds matches that overlap").into())
            }
        }
    }
}

/// A text that is searched for as it is.
pub(super) struct Literal<'a>(pub(super) &'a str);

impl Pattern for Literal<'_> {
    fn find_matches(&self, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        literal(self.0, inside)
    }
}

fn literal(text: &str, inside: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
    let found = inside.match_indices(text).map(|(at, found)| (at, at + found.len()));
    pieces(inside, found).ok_or_else(|| "matches overlap".into())
}

/// Matches and what is between them, which together are the text. `None` for matches that are not in order, of which
/// the crate would cut a piece that ends before it begins.
fn pieces(inside: &str, found: impl Iterator<Item = Offsets>) -> Option<Vec<(Offsets, bool)>> {
    if inside.is_empty() {
        return Some(vec![((0, 0), false)]);
    }
    let mut out = Vec::new();
    let mut before = 0;
    for (start, end) in found {
        if start < before || end < start {
            return None;
        }
        if before != start {
            out.push(((before, start), false));
        }
        out.push(((start, end), true));
        before = end;
    }
    if before != inside.len() {
        out.push(((before, inside.len()), false));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_are_in_order() {
        let of = |found: &[Offsets]| pieces("abcd", found.iter().copied());
        assert_eq!(of(&[(1, 1), (1, 2)]).unwrap().len(), 4);
        assert!(of(&[(2, 1)]).is_none() && of(&[(0, 2), (1, 3)]).is_none());
    }

    #[test]
    fn parts_of_expressions_are_counted() {
        for (text, n) in [
            ("abc", 1),
            (r"\w+", 2),
            (r"\p{N}{1,3}", 6),
            (r"[\p{L}\p{N}]{60}", 240),
            (r"\x{60}", 2),
            (r"\{60}", 2),
            (r"a{x}", 1),
            (r"\h{7,}", 14),
            (r"a{,9}", 9),
        ] {
            assert_eq!(weight(text), Ok(n), "{text}");
        }
        for text in [
            r"\w{65}",
            r"(\w){2}",
            r"\w{2}{2}",
            r"\w{2}?{2}",
            r"(?:a)+{2}",
            "(?x)a",
            "(?i-x:a)",
            r"a{99999999999999999999999}",
        ] {
            assert!(weight(text).is_err(), "{text}");
        }
    }
}
