//! Sentences of a text: Punkt (Kiss and Strunk 2006) without trained parameters.
//!
//! This is `nltk.PunktSentenceTokenizer().tokenize` of NLTK 3.10, which BABILong uses untrained: a full stop ends a
//! sentence unless it is part of an ellipsis, or of an initial or a number before something that does not look like
//! a beginning.

use std::ops::Range;

use crate::metrics::python;

/// White space of NLTK's regular expressions (module `regex`), which is not Python's own.
fn is_space(c: char) -> bool {
    c.is_whitespace()
}

fn is_end(c: char) -> bool {
    matches!(c, '.' | '?' | '!')
}

/// Characters that are never part of a word.
fn is_non_word(c: char) -> bool {
    const OTHERS: &str = ")\";}]*:@'({[\u{2018}\u{2019}\u{201c}\u{201d}\u{ab}\u{bb}?!";
    OTHERS.contains(c)
}

/// Closing marks that stay with the sentence they follow.
fn is_closing(c: char) -> bool {
    "\"')]}\u{2018}\u{2019}\u{201c}\u{201d}\u{ab}\u{bb}".contains(c)
}

/// The sentences of a text.
pub(super) fn sentences(text: &[char]) -> Vec<String> {
    realigned(text, &slices(text)).into_iter().map(|range| text[range].iter().collect()).collect()
}

/// A mark that may end a sentence, and what follows it.
struct Mark {
    at: usize,
    /// The end of what is looked at behind it: one character, or white space and a word.
    context_end: usize,
    /// Where the next sentence would begin.
    next: usize,
}

/// `period_context_re`.
fn marks(text: &[char]) -> impl Iterator<Item = Mark> + '_ {
    (0..text.len()).filter(|&at| is_end(text[at])).filter_map(move |at| {
        let next = *text.get(at + 1)?;
        if is_non_word(next) {
            return Some(Mark { at, context_end: at + 2, next: at + 1 });
        }
        let start = at + 1 + text[at + 1..].iter().take_while(|&&c| is_space(c)).count();
        let end = start + text[start..].iter().take_while(|&&c| !is_space(c)).count();
        (start > at + 1 && end > start).then_some(Mark { at, context_end: end, next: start })
    })
}

/// `_slices_from_text`: sentences as the marks cut them.
fn slices(text: &[char]) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let mut last_break = 0;
    let mut decide = |mark: &Mark, word: &Range<usize>| {
        if contains_break(&text[word.start..mark.context_end]) {
            out.push(last_break..mark.at + 1);
            last_break = mark.next;
        }
    };
    // Marks of one word, as in "What?!", are decided by the last of them (`_match_potential_end_contexts`).
    let mut previous: Option<(Mark, Range<usize>)> = None;
    for mark in marks(text) {
        let before = previous.as_ref().map_or(0..0, |(_, word)| word.clone());
        let ascii_space = |&c: &char| matches!(c, ' ' | '\t'..='\r');
        let start = match text[before.end..mark.at].iter().rposition(ascii_space) {
            Some(space) if space > 0 => before.end + space + 1,
            _ => before.start,
        };
        if let Some((mark, word)) = previous.take().filter(|(_, word)| word.end <= start) {
            decide(&mark, &word);
        }
        let word = start..mark.at;
        previous = Some((mark, word));
    }
    if let Some((mark, word)) = previous {
        decide(&mark, &word);
    }
    let end = text.len() - text.iter().rev().take_while(|&&c| python::is_space(c)).count();
    out.push(last_break..end.max(last_break));
    out
}

/// `_realign_boundaries`: closing marks go to the sentence before.
fn realigned(text: &[char], slices: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let mut moved = 0;
    for (i, slice) in slices.iter().enumerate() {
        let start = slice.start + moved;
        let closing = slices.get(i + 1).and_then(|next| Some((next, closing(&text[next.clone()])?)));
        if let Some((next, (marks, with_space))) = closing {
            out.push(start..next.start + marks);
            moved = with_space;
        } else {
            moved = 0;
            if start < slice.end {
                out.push(start..slice.end);
            }
        }
    }
    out
}

/// Number of closing marks a sentence begins with, and that with the white space behind them.
fn closing(sentence: &[char]) -> Option<(usize, usize)> {
    for n in 1..=sentence.len() {
        if !is_closing(sentence[n - 1]) {
            return None;
        }
        let behind = &sentence[n..];
        let spaces = behind.iter().take_while(|&&c| is_space(c)).count();
        if spaces > 0 || behind.is_empty() || behind.starts_with(&['-', '-']) {
            return Some((n, n + spaces));
        }
    }
    None
}

/// `text_contains_sentbreak`: a token ends a sentence, and another follows.
fn contains_break(context: &[char]) -> bool {
    let tokens: Vec<&[char]> = context.split(|&c| c == '\n').flat_map(words).collect();
    tokens.windows(2).any(|pair| ends_sentence(pair[0], pair[1]))
}

/// Both passes of annotation, without what training would add.
fn ends_sentence(token: &[char], next: &[char]) -> bool {
    match token {
        [] => return false,
        [c] if is_end(*c) => return true,
        [.., '.', '.'] => return false,
        [.., '.'] => {}
        _ => return false,
    }
    let initial = matches!(token, [c, '.'] if c.is_alphabetic() || *c == '_');
    if initial || is_number(token) {
        let first = next.first().copied().unwrap_or(' ');
        let punctuation = matches!(next, [';' | ':' | ',' | '.' | '!' | '?']);
        if punctuation || first.is_lowercase() || initial && first.is_uppercase() {
            return false;
        }
    }
    true
}

/// `_RE_NUMERIC`.
fn is_number(token: &[char]) -> bool {
    let token = token.strip_prefix(&['-']).unwrap_or(token);
    let token = match token {
        ['.' | ',', rest @ ..] => rest,
        all => all,
    };
    let digit = |c: &char| c.is_numeric();
    token.first().is_some_and(digit) && token.iter().all(|c| digit(c) || matches!(c, ',' | '.' | '-'))
}

/// `word_tokenize` of a line.
fn words(line: &[char]) -> Vec<&[char]> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < line.len() {
        if is_space(line[at]) {
            at += 1;
            continue;
        }
        let end = match multi(&line[at..]) {
            0 if "(\"`{[:;&#*@)}]-,".contains(line[at]) => at + 1,
            0 => (at + 1..line.len()).find(|&end| word_ends(&line[end..])).unwrap_or(line.len()),
            n => at + n,
        };
        out.push(&line[at..end]);
        at = end;
    }
    out
}

/// Length of a dash or an ellipsis at the beginning, or 0.
fn multi(text: &[char]) -> usize {
    let same = |c: char| text.iter().take_while(|&&x| x == c).count();
    if same('-') >= 2 {
        return same('-');
    }
    if same('.') >= 2 {
        return same('.');
    }
    let spaced = text.chunks_exact(2).take_while(|pair| pair[0] == '.' && is_space(pair[1])).count();
    // The last of the spaced full stops has no space of its own in the match.
    (2..=spaced).rev().find(|&n| text.get(2 * n) == Some(&'.')).map_or(0, |n| 2 * n + 1)
}

fn word_ends(behind: &[char]) -> bool {
    let ends = |text: &[char]| text.first().is_none_or(|&c| is_space(c) || is_non_word(c)) || multi(text) > 0;
    ends(behind) || behind[0] == ',' && ends(&behind[1..])
}
