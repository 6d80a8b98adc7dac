//! Scores of lm-evaluation-harness 0.4.13: `acc`, `acc_norm` and `exact_match` with its filters
//! (`lm_eval/api/task.py`, `lm_eval/api/metrics.py`, `lm_eval/filters/extraction.py`).

use super::python::{argmax, lower, stored, strip};
use crate::metrics::python::{is_punctuation, is_word};
use crate::Answer;

/// The choice of the largest log-likelihood, and that of the largest one per character of the choice.
///
/// The published description of `acc_norm` divides by bytes; the code divides by Python's `len` of the text,
/// and so does this. The delimiter before the choice does not count.
pub(super) fn chosen(answer: &Answer, lengths: &[usize]) -> Option<(usize, usize)> {
    match answer {
        Answer::Choices(found) if found.len() == lengths.len() => {
            let per_char = found.iter().zip(lengths).map(|(l, &n)| l.sum / n as f64);
            Some((argmax(found.iter().map(|l| l.sum))?, argmax(per_char)?))
        }
        _ => None,
    }
}

/// Answers of the `exact_match` metric, with what a task has it leave out before texts are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    /// TriviaQA: case and punctuation.
    Names,
    /// NQ: also the articles "the", "an" and "a" before a blank.
    NamesWithoutArticles,
    /// GSM8K: case, commas, dollar signs, all up to "#### ", a full stop at the end.
    Number,
}

/// Returns true if the prediction is one of the references, by the rules of a task.
pub(super) fn exact_match(rules: Rules, prediction: &str, references: &[String]) -> bool {
    let clean = |text: &str| match rules {
        Rules::Names => stored(text).to_owned(),
        Rules::NamesWithoutArticles => stored(&without_articles(text)).to_owned(),
        Rules::Number => bare_number(text),
    };
    // The prediction is repeated for each reference, so an array of it alone has the same width.
    let mut found = [clean(prediction)];
    let mut wanted: Vec<_> = references.iter().map(|r| clean(r)).collect();
    lower(&mut found);
    lower(&mut wanted);
    let punctuation = |c: char| rules != Rules::Number && is_punctuation(c);
    let [found] = found.map(|t| t.replace(punctuation, ""));
    wanted.iter().any(|w| stored(&w.replace(punctuation, "")) == stored(&found))
}

/// `re.sub(r"\b(?:The |the |An |A |The |a |an )", "", text)`.
fn without_articles(text: &str) -> String {
    const ARTICLES: [&str; 6] = ["The ", "the ", "An ", "A ", "a ", "an "];
    let mut out = String::new();
    let mut rest = text;
    let mut in_word = false;
    while let Some(c) = rest.chars().next() {
        let article = ARTICLES.iter().find_map(|a| rest.strip_prefix(a)).filter(|_| !in_word);
        if let Some(after) = article {
            rest = after;
            in_word = false;
            continue;
        }
        out.push(c);
        in_word = is_word(c);
        rest = &rest[c.len_utf8()..];
    }
    out
}

/// GSM8K's expressions to leave out, one after another: `,`, `\$`, `(?s).*#### ` and `\.$`.
fn bare_number(text: &str) -> String {
    let text = stored(text).replace(',', "");
    let text = stored(&text).replace('$', "");
    let text = stored(text.rsplit_once("#### ").map_or(text.as_str(), |(_, after)| after));
    // Python's `$` is the end of the text or the line feed that ends it.
    let (line, end) = text.strip_suffix('\n').map_or((text, ""), |line| (line, "\n"));
    let text = match text.strip_suffix('.') {
        Some(text) => text.to_owned(),
        None => format!("{}{end}", line.strip_suffix('.').unwrap_or(line)),
    };
    stored(&text).to_owned()
}

/// Result of GSM8K's filters where they find no number.
const INVALID: &str = "[invalid]";

fn in_number(c: char) -> bool {
    c.is_ascii_digit() || c == '.' || c == ','
}

/// Length of the number at the beginning of a text: `-?[0-9.,]+`; 0 for none.
fn number_len(text: &str) -> usize {
    let unsigned = text.strip_prefix('-').unwrap_or(text);
    match unsigned.find(|c| !in_number(c)).unwrap_or(unsigned.len()) {
        0 => 0,
        n => text.len() - unsigned.len() + n,
    }
}

/// The filter `strict-match` of `gsm8k`: the first `#### (\-?[0-9\.\,]+)`.
pub(super) fn after_hashes(text: &str) -> &str {
    let number = |(at, mark): (usize, &str)| {
        let rest = &text[at + mark.len()..];
        Some(&rest[..number_len(rest)]).filter(|n| !n.is_empty())
    };
    text.match_indices("#### ").find_map(number).unwrap_or(INVALID)
}

/// The filter `strict-match` of `gsm8k_cot`: the first `The answer is (\-?[0-9\.\,]+).`, whose last dot
/// stands for any character but a line feed.
pub(super) fn after_phrase(text: &str) -> &str {
    let number = |(at, mark): (usize, &str)| {
        let rest = &text[at + mark.len()..];
        let len = number_len(rest);
        if len > 0 && rest[len..].chars().next().is_some_and(|c| c != '\n') {
            return Some(&rest[..len]);
        }
        // The number gives its own last character away, where it can do without.
        let shorter = &rest[..len.saturating_sub(1)];
        Some(shorter).filter(|n| number_len(n) == n.len() && !n.is_empty())
    };
    text.match_indices("The answer is ").find_map(number).unwrap_or(INVALID)
}

/// The filter `flexible-extract`: the last of `(-?[$0-9.,]{2,})|(-?[0-9]+)`.
pub(super) fn last_number(text: &str) -> &str {
    let mut last = INVALID;
    let mut rest = text;
    while let Some(at) = rest.find(|c| c == '-' || c == '$' || in_number(c)) {
        let here = &rest[at..];
        let unsigned = here.strip_prefix('-').unwrap_or(here);
        let run = unsigned.find(|c| c != '$' && !in_number(c)).unwrap_or(unsigned.len());
        let is_match = run >= 2 || run == 1 && unsigned.starts_with(|c: char| c.is_ascii_digit());
        let len = if is_match { here.len() - unsigned.len() + run } else { 1 };
        if is_match {
            last = &here[..len];
        }
        rest = &here[len..];
    }
    strip(last)
}
