//! Similarity retrieval: objects with lists of random strings; which one has all of some given ones.

use rand_chacha::ChaCha8Rng;

use super::names::{one, Names};
use super::{Family, Record};
use crate::random::{below, subset};

/// Strings of an object, and of a question.
const LISTED: u64 = 6;
const ASKED: u64 = 3;

pub(super) const STRINGS: Family = Family { name: "similarity retrieval", weight: 1.0, least: 2, make };

/// Strings are shared: each is in several lists, so that an object with one or two of those asked for is not yet
/// the answer.
fn make(n: usize, rng: &mut ChaCha8Rng) -> Record {
    let pool: Vec<String> = (0..n as u64 + 2 * LISTED).map(|i| string(rng, i)).collect();
    let mut names = Names::default();
    let mut objects: Vec<(String, Vec<String>)> = (0..n)
        .map(|_| {
            let list = subset(rng, pool.len() as u64, LISTED);
            (names.next(rng), list.into_iter().map(|i| pool[i as usize].clone()).collect())
        })
        .collect();
    let answer = below(rng, n as u64) as usize;
    let asked: Vec<String> =
        subset(rng, LISTED, ASKED).into_iter().map(|i| objects[answer].1[i as usize].clone()).collect();
    // Others that have all of them lose one, for a string that nobody else has.
    for (i, (_, list)) in objects.iter_mut().enumerate().filter(|(i, _)| *i != answer) {
        if asked.iter().all(|a| list.contains(a)) {
            let lost = one(rng, &asked);
            let fresh = string(rng, (pool.len() + i) as u64);
            list.iter_mut().filter(|s| *s == lost).for_each(|s| s.clone_from(&fresh));
        }
    }
    let lines: String =
        objects.iter().map(|(name, list)| format!("{name}: {}.\n", list.join(", "))).collect();
    Record {
        text: format!("Objects and their strings:\n{lines}"),
        question: format!("Which object has all of {}? Answer:", asked.join(", ")),
        answer: format!(" {}", objects[answer].0),
    }
}

/// Letters and a number, which makes it the only one.
fn string(rng: &mut ChaCha8Rng, number: u64) -> String {
    let letters: String = (0..4).map(|_| char::from(b'a' + below(rng, 26) as u8)).collect();
    format!("{letters}{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::rng;

    #[test]
    fn one_object_has_all_strings() {
        let mut partly = 0;
        for seed in 0..300 {
            let record = make(2 + seed as usize % 60, &mut rng(seed, "test", 0, 0));
            let asked =
                record.question.strip_prefix("Which object has all of ").unwrap().split('?').next().unwrap();
            let asked: Vec<&str> = asked.split(", ").collect();
            assert_eq!(asked.len(), ASKED as usize);
            let count = |line: &str| {
                let list: Vec<&str> =
                    line.split_once(": ").unwrap().1.trim_end_matches('.').split(", ").collect();
                assert_eq!(list.len(), LISTED as usize);
                asked.iter().filter(|a| list.contains(a)).count()
            };
            let all = |line: &&str| count(line) == asked.len();
            let found: Vec<&str> = record.text.lines().skip(1).filter(all).collect();
            assert_eq!(found.len(), 1, "{seed}");
            assert_eq!(found[0].split(':').next().unwrap(), record.answer.trim());
            partly += record.text.lines().skip(1).filter(|l| (1..3).contains(&count(l))).count();
        }
        assert!(partly > 1000, "others have some of them: {partly}");
    }
}
