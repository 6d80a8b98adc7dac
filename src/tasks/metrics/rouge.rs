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
    let mut ids = Ids::default();
    let [hypothesis, reference] = [&hypothesis, &reference]
        .map(|text| text.iter().map(|s| ids.number(s.split(' '))).collect::<Vec<_>>());
    let distinct = |text: &[Vec<usize>]| text.iter().flatten().collect::<HashSet<_>>().len() as f64;
    let mut union = HashSet::new();
    for sentence in &reference {
        for other in &hypothesis {
            let found = |at: usize, _| {
                union.insert(sentence[at]);
            };
            if !common(sentence, other, max_steps, found) {
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

/// Numbers of words: equal words have the same one.
#[derive(Default)]
pub(super) struct Ids<'t>(HashMap<&'t str, usize>);

impl<'t> Ids<'t> {
    pub(super) fn number(&mut self, words: impl Iterator<Item = &'t str>) -> Vec<usize> {
        let mut id = |word| {
            let next = self.0.len();
            *self.0.entry(word).or_insert(next)
        };
        words.map(&mut id).collect()
    }
}

/// Gives `found` the places of the longest common subsequence of `x` and `y` that Python's packages find. The way goes from
/// the end toward the longer rest, and back in `y` where both are equal. `false` where it has more than `max_steps`.
pub(super) fn common(
    x: &[usize],
    y: &[usize],
    max_steps: usize,
    mut found: impl FnMut(usize, usize),
) -> bool {
    // The way has at least as many steps as the shorter sentence has words.
    if x.len().min(y.len()) > max_steps {
        return false;
    }
    // It goes back from the end, and sees the last rows and columns of the table only.
    let [first_row, first_column] = [x, y].map(|text| text.len().saturating_sub(max_steps).max(1));
    let width = (y.len() + 1).saturating_sub(first_column);
    // Whether the way goes back in `x`.
    let mut back = Vec::with_capacity((x.len() + 1).saturating_sub(first_row) * width);
    let mut row = vec![0_u32; y.len() + 1];
    for (i, word) in (1..).zip(x) {
        let mut diagonal = 0;
        for (j, other) in (1..).zip(y) {
            let (above, left) = (row[j], row[j - 1]);
            if i >= first_row && j >= first_column {
                back.push(above > left);
            }
            row[j] = if word == other { diagonal + 1 } else { above.max(left) };
            diagonal = above;
        }
    }
    let (mut i, mut j) = (x.len(), y.len());
    for _ in 0..=max_steps {
        if i == 0 || j == 0 {
            return true;
        }
        if x[i - 1] == y[j - 1] {
            (i, j) = (i - 1, j - 1);
            found(i, j);
        } else if back[(i - first_row) * width + (j - first_column)] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    false
}
