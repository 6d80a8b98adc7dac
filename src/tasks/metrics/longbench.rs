//! The metrics of LongBench's `metrics.py` for its English sets (THUDM/LongBench at 2e00731; LCEG's copy at
//! 2ce672d gives the same scores).

use super::{difflib, normalize_answer, python, token_f1};

pub use super::rouge::rouge_l as rouge_score;

/// F1 of words after [`normalize_answer`].
pub fn qa_f1_score(prediction: &str, gold: &str) -> f64 {
    let (prediction, gold) = (normalize_answer(prediction), normalize_answer(gold));
    let words = |text| python::split(text).collect::<Vec<_>>();
    token_f1(&words(&prediction), &words(&gold))
}

/// One over the number of class names found in the answer, if the right one is among them.
///
/// Names that are part of the right name do not count. The official loop removes them from the list that it
/// walks over, so that the name after each removed one is not looked at, and stays. (LCEG's copy goes on to
/// choose the most similar name where none is found, but asks `em_match_list != 0` of a list, which is always
/// true.)
pub fn classification_score(prediction: &str, gold: &str, all_classes: &[String]) -> f64 {
    let mut found: Vec<&str> =
        all_classes.iter().map(String::as_str).filter(|name| prediction.contains(name)).collect();
    let mut i = 0;
    while let Some(&name) = found.get(i) {
        if gold.contains(name) && name != gold {
            // `list.remove` takes the first of equal entries.
            let first = found.iter().position(|n| *n == name).unwrap_or(i);
            found.remove(first);
        }
        i += 1;
    }
    if found.contains(&gold) {
        1.0 / found.len() as f64
    } else {
        0.0
    }
}

/// The share of numbers in the answer that are the right one.
pub fn count_score(prediction: &str, gold: &str) -> f64 {
    let (mut n, mut right) = (0_usize, 0_usize);
    for number in python::numbers(prediction) {
        n += 1;
        right += usize::from(number == gold);
    }
    if n == 0 {
        0.0
    } else {
        right as f64 / n as f64
    }
}

/// The number of the first "Paragraph N" in a gold answer; `None` is where the official code fails.
pub fn paragraph(gold: &str) -> Option<&str> {
    gold.match_indices("Paragraph ").find_map(|(at, words)| {
        let rest = &gold[at + words.len()..];
        let end = rest.find(|c| !python::is_digit(c)).unwrap_or(rest.len());
        (end > 0).then(|| &rest[..end])
    })
}

/// The share of numbers in the answer that are the one of the gold answer's paragraph; 0 where it has none.
pub fn retrieval_score(prediction: &str, gold: &str) -> f64 {
    paragraph(gold).map_or(0.0, |number| count_score(prediction, number))
}

/// Similarity ([`difflib::ratio`]) of the line of code and the answer's first line without any of "`", "#"
/// and "//"; of the empty text where there is none.
pub fn code_sim_score(prediction: &str, gold: &str) -> f64 {
    let mut lines = prediction.trim_start_matches('\n').split('\n');
    let line = lines.find(|line| !line.contains(['`', '#']) && !line.contains("//"));
    difflib::ratio(line.unwrap_or(""), gold)
}
