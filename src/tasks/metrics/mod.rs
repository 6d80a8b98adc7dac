//! Metrics of published benchmarks, equal to their official Python code.
//!
//! Each is compared with that code on recorded cases (`tests/fixtures/metrics`, made by the scripts in
//! `tests/reference`). Scores are fractions: 1 is full marks.

use std::collections::HashMap;
use std::hash::Hash;

pub mod chinese;
pub mod difflib;
pub mod infinitebench;
pub mod longbench;
pub mod lveval;
pub mod python;
pub mod rouge;

/// The normalization of SQuAD's evaluation, in most question answering metrics: lower case, without ASCII
/// punctuation and the words "a", "an" and "the", single blanks between words.
///
/// `normalize_answer` of LongBench's `metrics.py`, and of LV-Eval's, InfiniteBench's and HELMET's.
pub fn normalize_answer(text: &str) -> String {
    let kept: String = text.to_lowercase().chars().filter(|&c| !python::is_punctuation(c)).collect();
    python::join_words(&without_articles(&kept))
}

/// `re.sub(r"\b(a|an|the)\b", " ", text)`.
pub fn without_articles(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let in_word = python::is_word(c);
        let end = rest.find(|c| python::is_word(c) != in_word).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        out.push_str(if matches!(run, "a" | "an" | "the") { " " } else { run });
        rest = after;
    }
    out
}

/// The F1 of two bags of tokens; 0 where they share none. `f1_score` of LongBench's `metrics.py`.
pub fn token_f1<T: Eq + Hash>(prediction: &[T], gold: &[T]) -> f64 {
    f1_of(shared(prediction, gold), prediction.len(), gold.len())
}

/// The F1 of two bags by their sizes and that of what they share.
fn f1_of(same: usize, n_prediction: usize, n_gold: usize) -> f64 {
    if same == 0 {
        return 0.0;
    }
    let (precision, recall) = (same as f64 / n_prediction as f64, same as f64 / n_gold as f64);
    (2.0 * precision * recall) / (precision + recall)
}

/// How many tokens two bags share: the size of `Counter(a) & Counter(b)`.
pub fn shared<T: Eq + Hash>(a: &[T], b: &[T]) -> usize {
    let mut counts = HashMap::new();
    for token in a {
        *counts.entry(token).or_insert(0_usize) += 1;
    }
    let take = |token: &&T| match counts.get_mut(*token) {
        Some(n) if *n > 0 => {
            *n -= 1;
            true
        }
        _ => false,
    };
    b.iter().filter(take).count()
}
