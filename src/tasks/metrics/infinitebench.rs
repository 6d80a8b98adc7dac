//! The metrics of InfiniteBench: `src/compute_scores.py` of OpenBMB/InfiniteBench at 88b3daa.

use super::chinese::normalize_zh_answer;
use super::longbench::qa_f1_score;
use super::rouge::{common, Ids};
use super::{f1_of, python, shared, token_f1};

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
    best(golds, |gold| summary_lcs(gold, prediction))
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

/// `_summary_level_lcs`: for each sentence of the summary, the words that its longest common subsequences with
/// the sentences of the answer cover; each word of either text counts once.
fn summary_lcs(gold: &str, prediction: &str) -> f64 {
    let (gold, prediction) = (gold.to_lowercase(), prediction.to_lowercase());
    let mut ids = Ids::default();
    let [gold, prediction] = [&gold, &prediction].map(|text| {
        // The words of `rouge_score` are runs of ASCII letters and digits.
        let between = |c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit();
        let lines = text.split('\n').map(|line| line.split(between).filter(|word| !word.is_empty()));
        lines.map(|words| ids.number(words)).collect::<Vec<_>>()
    });
    let mut covered = Vec::new();
    for sentence in &gold {
        let mut is_covered = vec![false; sentence.len()];
        for other in &prediction {
            common(other, sentence, usize::MAX, |_, at| is_covered[at] = true);
        }
        covered.extend(sentence.iter().zip(is_covered).filter_map(|(&word, is)| is.then_some(word)));
    }
    let prediction = prediction.concat();
    f1_of(shared(&covered, &prediction), prediction.len(), gold.iter().map(Vec::len).sum())
}
