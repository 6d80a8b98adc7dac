//! ROUGE-L as the Python package `rouge` 1.0.1 computes it, which LongBench and LV-Eval score with.

use std::collections::{HashMap, HashSet};

use super::python;

/// The longest way that the package's reconstruction of a common subsequence can go, in steps, before Python
/// raises `RecursionError`: its limit of 1000 frames, less those of `eval.py` and the package above it.
/// LongBench's `rouge_score` catches that error and gives 0.
const MAX_STEPS: usize = 990;

/// The F1 of ROUGE-L on the level of summaries.
///
/// Sentences end at full stops; words are compared as they are. The union of the words of the longest common
/// subsequences of all pairs of sentences is a set, and so are the words it is divided by. Where the package
/// fails, LongBench scores 0: a text without a sentence, and two sentences so long that the recursion exceeds
/// Python's limit. A perfect answer gets [`BEST`], because of the 1e-8 in the package's denominator.
pub fn rouge_l(prediction: &str, gold: &str) -> f64 {
    rouge_l_within(prediction, gold, MAX_STEPS)
}

/// [`rouge_l`] for code that calls the package from another depth, which leaves other steps to it.
pub fn rouge_l_within(prediction: &str, gold: &str, max_steps: usize) -> f64 {
    let (hypothesis, reference) = (sentences(prediction), sentences(gold));
    if hypothesis.is_empty() || reference.is_empty() {
        return 0.0;
    }
    let mut ids = HashMap::new();
    let mut number = |sentences: &[String]| -> Vec<Vec<u32>> {
        let mut id = |word: &str| {
            let next = ids.len() as u32;
            *ids.entry(word.to_owned()).or_insert(next)
        };
        sentences.iter().map(|s| s.split(' ').map(&mut id).collect()).collect()
    };
    let (hypothesis, reference) = (number(&hypothesis), number(&reference));
    let distinct = |text: &[Vec<u32>]| text.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let mut union = HashSet::new();
    for sentence in &reference {
        for other in &hypothesis {
            if !common_words(sentence, other, max_steps, &mut union) {
                return 0.0;
            }
        }
    }
    let recall = union.len() as f64 / distinct(&reference);
    let precision = union.len() as f64 / distinct(&hypothesis);
    f1(precision, recall)
}

/// Score that [`rouge_l`] gives a perfect answer.
pub const BEST: f64 = 2.0 * (1.0 / (1.0 + 1.0 + 1e-8));

fn f1(precision: f64, recall: f64) -> f64 {
    2.0 * ((precision * recall) / (precision + recall + 1e-8))
}

/// The pieces between full stops, with single blanks; one of white space only has one word, the empty one.
fn sentences(text: &str) -> Vec<String> {
    text.split('.').filter(|s| !s.is_empty()).map(python::join_words).collect()
}

/// Adds the words of the longest common subsequence of `x` and `y` that the package finds; `false` where its
/// recursion fails.
fn common_words(x: &[u32], y: &[u32], max_steps: usize, into: &mut HashSet<u32>) -> bool {
    // The way has at least as many steps as the shorter sentence has words.
    if x.len().min(y.len()) > max_steps {
        return false;
    }
    // It goes back from the end, and sees the last rows and columns of the table only.
    let (first_row, first_column) =
        (x.len().saturating_sub(max_steps + 1), y.len().saturating_sub(max_steps + 1));
    let width = y.len() - first_column + 1;
    let mut table: Vec<u32> = Vec::with_capacity((x.len() - first_row + 1) * width);
    let mut row = vec![0_u32; y.len() + 1];
    for i in 0..=x.len() {
        if i > 0 {
            let mut diagonal = 0;
            for (j, word) in y.iter().enumerate() {
                let above = row[j + 1];
                row[j + 1] = if x[i - 1] == *word { diagonal + 1 } else { above.max(row[j]) };
                diagonal = above;
            }
        }
        if i >= first_row {
            table.extend_from_slice(&row[first_column..]);
        }
    }
    let at = |i: usize, j: usize| table[(i - first_row) * width + (j - first_column)];
    let (mut i, mut j) = (x.len(), y.len());
    for _ in 0..=max_steps {
        if i == 0 || j == 0 {
            return true;
        }
        if x[i - 1] == y[j - 1] {
            into.insert(x[i - 1]);
            (i, j) = (i - 1, j - 1);
        } else if at(i - 1, j) > at(i, j - 1) {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    false
}
