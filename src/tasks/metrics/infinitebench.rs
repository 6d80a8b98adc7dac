//! The metrics of InfiniteBench: `src/compute_scores.py` of OpenBMB/InfiniteBench at 88b3daa.

use std::collections::HashMap;

use super::chinese::normalize_zh_answer;
use super::longbench::qa_f1_score;
use super::{python, token_f1};

/// En.QA: F1 of words, the best of the answers. `qa_f1_score`.
pub fn f1(prediction: &str, golds: &[String]) -> f64 {
    best(golds, |gold| qa_f1_score(prediction, gold))
}

/// Zh.QA: F1 of characters, the best of the answers. `qa_f1_score_zh`.
pub fn f1_zh(prediction: &str, golds: &[String]) -> f64 {
    let characters = |text: &str| normalize_zh_answer(text).chars().collect::<Vec<_>>();
    let prediction = characters(prediction);
    best(golds, |gold| token_f1(&prediction, &characters(gold)))
}

/// En.Sum: F1 of `rougeLsum` of the package `rouge_score` 0.1.2 without stemming, as the `rouge` of Hugging
/// Face's `evaluate` calls it, the best of the summaries. Sentences are lines.
pub fn rouge_lsum(prediction: &str, golds: &[String]) -> f64 {
    let sentences = |text: &str| -> Vec<Vec<String>> {
        text.split('\n').filter(|line| !line.is_empty()).map(rouge_words).collect()
    };
    let prediction = sentences(prediction);
    best(golds, |gold| summary_lcs(&sentences(gold), &prediction))
}

/// En.MC: 1 for the right option. The first letter decides where it is one of the four; else the whole answer,
/// what follows "answer is" and the like, and the first word that is a letter (or "AB", "BC" and so on: the
/// official code looks the word up in "ABCD"). `label` are the option's text and its letter.
pub fn choice(prediction: &str, label: &[String]) -> f64 {
    f64::from(is_choice(prediction, label))
}

fn is_choice(prediction: &str, label: &[String]) -> bool {
    let prediction = prediction.trim_matches(python::is_space);
    let Some(first) = prediction.chars().next() else { return false };
    let is_label = |text: &str| label.iter().any(|l| l == text);
    if ('A'..='D').contains(&first) {
        return is_label(&prediction[..1]);
    }
    if is_label(prediction) {
        return true;
    }
    let mut plain = without(prediction, &['\n', '"', '\'', '.', ',', '?', '!', '{', '}']);
    while plain.contains("  ") {
        plain = plain.replace("  ", " ");
    }
    for prefix in ["answer is:", "answer:", "answer is", "option is"] {
        let Some((_, after)) = plain.split_once(prefix) else { continue };
        // One character between the words and the answer is passed over, whatever it is.
        let mut after = after.chars();
        return after.next().is_some() && label.iter().any(|l| after.as_str().starts_with(l.as_str()));
    }
    let word = python::split(&plain).find(|word| "ABCD".contains(word));
    word.is_some_and(is_label)
}

/// En.Dia: 1 where the first of the names is among the upper-cased words.
pub fn speaker(prediction: &str, names: &[String]) -> f64 {
    let plain = without(prediction, &['\n', ':', '"', '\'', '.', ',', '?', '!', '{', '}']);
    let found =
        names.first().is_some_and(|name| python::split(&plain).any(|word| word.to_uppercase() == *name));
    f64::from(found)
}

fn best(golds: &[String], score: impl Fn(&str) -> f64) -> f64 {
    golds.iter().map(|gold| score(gold)).fold(0.0, f64::max)
}

fn without(text: &str, characters: &[char]) -> String {
    text.replace(characters, " ")
}

/// The words of `rouge_score`: runs of ASCII letters and digits in the lower-cased text.
fn rouge_words(line: &str) -> Vec<String> {
    let lower = line.to_lowercase();
    let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    lower.split(|c| !is_word(c)).filter(|w| !w.is_empty()).map(str::to_owned).collect()
}

/// `_summary_level_lcs`: for each sentence of the summary, the words that its longest common subsequences with
/// the sentences of the answer cover; each word of either text counts once.
fn summary_lcs(gold: &[Vec<String>], prediction: &[Vec<String>]) -> f64 {
    let count = |text: &[Vec<String>]| text.iter().map(Vec::len).sum::<usize>();
    let (n_gold, n_prediction) = (count(gold), count(prediction));
    if n_gold == 0 || n_prediction == 0 {
        return 0.0;
    }
    let mut ids = HashMap::new();
    let mut number = |text: &[Vec<String>]| -> Vec<Vec<usize>> {
        let mut id = |word: &String| {
            let next = ids.len();
            *ids.entry(word.clone()).or_insert(next)
        };
        text.iter().map(|sentence| sentence.iter().map(&mut id).collect()).collect()
    };
    let (gold, prediction) = (number(gold), number(prediction));
    let left = |text: &[Vec<usize>]| {
        let mut counts = vec![0_usize; ids.len()];
        text.iter().flatten().for_each(|&word| counts[word] += 1);
        counts
    };
    let (mut left_gold, mut left_prediction) = (left(&gold), left(&prediction));
    let mut hits = 0;
    for sentence in &gold {
        let mut covered = vec![false; sentence.len()];
        prediction.iter().for_each(|other| cover(sentence, other, &mut covered));
        for (&word, _) in sentence.iter().zip(&covered).filter(|(_, &covered)| covered) {
            if left_gold[word] > 0 && left_prediction[word] > 0 {
                (left_gold[word], left_prediction[word]) = (left_gold[word] - 1, left_prediction[word] - 1);
                hits += 1;
            }
        }
    }
    let (precision, recall) = (hits as f64 / n_prediction as f64, hits as f64 / n_gold as f64);
    if precision + recall > 0.0 {
        2.0 * precision * recall / (precision + recall)
    } else {
        0.0
    }
}

/// Marks the words of `sentence` in the longest common subsequence with `other` that the package finds: from the
/// end, it goes toward the longer rest, and up in `sentence` where both are equal.
fn cover(sentence: &[usize], other: &[usize], covered: &mut [bool]) {
    let width = other.len() + 1;
    let mut row = vec![0_u32; width];
    // Whether the way back goes left from each place of the table.
    let mut left = vec![false; sentence.len() * width];
    for (i, word) in sentence.iter().enumerate() {
        let mut diagonal = 0;
        for j in 1..width {
            let above = row[j];
            left[i * width + j] = row[j - 1] > above;
            row[j] = if *word == other[j - 1] { diagonal + 1 } else { above.max(row[j - 1]) };
            diagonal = above;
        }
    }
    let (mut i, mut j) = (sentence.len(), other.len());
    while i > 0 && j > 0 {
        if sentence[i - 1] == other[j - 1] {
            covered[i - 1] = true;
            (i, j) = (i - 1, j - 1);
        } else if left[(i - 1) * width + j] {
            j -= 1;
        } else {
            i -= 1;
        }
    }
}
