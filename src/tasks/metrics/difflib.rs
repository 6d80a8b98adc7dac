//! The similarity of two texts as Python's `difflib.SequenceMatcher` and fuzzywuzzy on top of it give it.

use std::collections::HashMap;

/// `fuzz.ratio` of fuzzywuzzy 0.18.0 over 100, on `difflib` and not on `python-Levenshtein`.
///
/// The package takes the latter's matcher where it is installed. LongBench's `requirements.txt` names
/// `fuzzywuzzy` without its extra `speedup`, and none of its other packages brings it, so published figures
/// rest on `difflib`.
pub fn ratio(a: &str, b: &str) -> f64 {
    if a == b {
        return 1.0;
    }
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    if a.is_empty() || b.is_empty() {
        return 0.0;
    }
    let ratio = 2.0 * matching(&a, &b) as f64 / (a.len() + b.len()) as f64;
    (100.0 * ratio).round_ties_even() / 100.0
}

/// Characters in the matching blocks of `SequenceMatcher(None, a, b)`.
fn matching(a: &[char], b: &[char]) -> usize {
    let mut matcher = Matcher::new(a, b);
    let mut open = vec![(0, a.len(), 0, b.len())];
    let mut sum = 0;
    while let Some((a_from, a_to, b_from, b_to)) = open.pop() {
        let (i, j, size) = matcher.longest(a_from, a_to, b_from, b_to);
        if size == 0 {
            continue;
        }
        sum += size;
        if a_from < i && b_from < j {
            open.push((a_from, i, b_from, j));
        }
        if i + size < a_to && j + size < b_to {
            open.push((i + size, a_to, j + size, b_to));
        }
    }
    sum
}

struct Matcher<'a> {
    a: &'a [char],
    b: &'a [char],
    /// Where each character of `b` is, ascending; without those that are "popular".
    places: HashMap<char, Vec<usize>>,
    /// Length of the match that ends at the character of `a` looked at and at `j` of `b`, at `j + 1`; all 0
    /// between calls.
    ending: Vec<usize>,
    /// The same for the next character of `a`.
    next: Vec<usize>,
}

impl<'a> Matcher<'a> {
    fn new(a: &'a [char], b: &'a [char]) -> Matcher<'a> {
        let mut places: HashMap<char, Vec<usize>> = HashMap::new();
        for (j, &c) in b.iter().enumerate() {
            places.entry(c).or_default().push(j);
        }
        // `autojunk`: in 200 characters or more, what makes up over a hundredth of them starts no match.
        if b.len() >= 200 {
            places.retain(|_, at| at.len() <= b.len() / 100 + 1);
        }
        Matcher { a, b, places, ending: vec![0; b.len() + 1], next: vec![0; b.len() + 1] }
    }

    /// `find_longest_match`: the first of the longest matches by `a`, then by `b`, grown over popular
    /// characters on both sides.
    fn longest(&mut self, a_from: usize, a_to: usize, b_from: usize, b_to: usize) -> (usize, usize, usize) {
        let Matcher { a, b, places, ending, next } = self;
        let (mut best_i, mut best_j, mut best) = (a_from, b_from, 0);
        let mut before: &[usize] = &[];
        for i in a_from..a_to {
            let all = places.get(&a[i]).map_or(&[][..], Vec::as_slice);
            let here = &all[all.partition_point(|&j| j < b_from)..all.partition_point(|&j| j < b_to)];
            for &j in here {
                let size = ending[j] + 1;
                next[j + 1] = size;
                if size > best {
                    (best_i, best_j, best) = (i + 1 - size, j + 1 - size, size);
                }
            }
            before.iter().for_each(|&j| ending[j + 1] = 0);
            std::mem::swap(ending, next);
            before = here;
        }
        before.iter().for_each(|&j| ending[j + 1] = 0);
        while best_i > a_from && best_j > b_from && a[best_i - 1] == b[best_j - 1] {
            (best_i, best_j, best) = (best_i - 1, best_j - 1, best + 1);
        }
        while best_i + best < a_to && best_j + best < b_to && a[best_i + best] == b[best_j + best] {
            best += 1;
        }
        (best_i, best_j, best)
    }
}
