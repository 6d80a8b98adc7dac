//! Attribute inclusion: entities with five attributes that each has and up to fifteen that it may have; which one
//! has exactly those given, all of those given and more, or only some of those given.

use rand_chacha::ChaCha8Rng;

use super::names::{one, Names};
use super::{Family, Record};
use crate::random::{below, shuffle, subset};

const OWN: [(&str, [&str; 6]); 5] = [
    ("colour", ["red", "blue", "green", "white", "black", "yellow"]),
    ("shape", ["round", "square", "flat", "oval", "long", "pointed"]),
    ("material", ["wood", "steel", "glass", "clay", "wool", "paper"]),
    ("size", ["tiny", "small", "medium", "large", "huge", "giant"]),
    ("origin", ["north", "south", "east", "west", "island", "mountain"]),
];
const OPTIONAL: [&str; 15] = [
    "waterproof",
    "foldable",
    "painted",
    "hollow",
    "engraved",
    "scented",
    "magnetic",
    "polished",
    "striped",
    "fragile",
    "antique",
    "woven",
    "portable",
    "sharp",
    "soft",
];

pub(super) const ATTRIBUTES: Family = Family { name: "attribute inclusion", weight: 3.0, least: 2, make };

/// Attributes as bits: six for the values of each own one, then the optional ones.
type Set = u64;

fn draw(rng: &mut ChaCha8Rng) -> Set {
    let own = (0..OWN.len()).map(|i| 1 << (6 * i as u64 + below(rng, 6))).sum::<Set>();
    let n = 1 + below(rng, 10);
    own + subset(rng, OPTIONAL.len() as u64, n).into_iter().map(|i| 1 << (30 + i)).sum::<Set>()
}

fn words(set: Set, rng: &mut ChaCha8Rng) -> String {
    let word = |bit: usize| match bit.checked_sub(30) {
        Some(i) => OPTIONAL[i].to_owned(),
        None => format!("{} {}", OWN[bit / 6].0, OWN[bit / 6].1[bit % 6]),
    };
    let mut list: Vec<String> = (0..45).filter(|bit| set >> bit & 1 == 1).map(word).collect();
    shuffle(&mut list, rng);
    list.join(", ")
}

/// Adds or takes away bits one by one in a random order.
fn steps(bits: Set, rng: &mut ChaCha8Rng) -> Vec<Set> {
    let mut list: Vec<Set> = (0..45).map(|b| 1 << b).filter(|b| bits & b != 0).collect();
    shuffle(&mut list, rng);
    list
}

fn make(n: usize, rng: &mut ChaCha8Rng) -> Record {
    let kind = below(rng, 3);
    let answer = below(rng, n as u64) as usize;
    let mut sets: Vec<Set> = (0..n).map(|_| draw(rng)).collect();
    // Anyone else with the attributes that the question asks for is drawn again, with another attribute.
    let own = sets[answer];
    let all_optional: Set = ((1 << 15) - 1) << 30;
    let query = match kind {
        0 => own,
        1 => {
            let parts = steps(own, rng);
            let n = 3 + below(rng, parts.len() as u64 - 3) as usize;
            parts[..n].iter().sum()
        }
        _ => {
            let parts = steps(all_optional & !own, rng);
            let n = 1 + below(rng, parts.len() as u64) as usize;
            own + parts[..n].iter().sum::<Set>()
        }
    };
    let fits = |set: Set| match kind {
        0 => set == query,
        1 => set & query == query,
        _ => set & query == set,
    };
    for i in (0..n).filter(|&i| i != answer) {
        while fits(sets[i]) {
            sets[i] = draw(rng);
        }
    }
    let mut names = Names::default();
    let named: Vec<String> = (0..n).map(|_| names.next(rng)).collect();
    let lines: String =
        named.iter().zip(&sets).map(|(name, set)| format!("{name}: {}.\n", words(*set, rng))).collect();
    let ask = match kind {
        0 => "has exactly these attributes",
        1 => "has all of these attributes, and others",
        _ => "has no attributes but some of these",
    };
    let lead = one(rng, &["Which entity", "Which one"]);
    Record {
        text: format!("Entities and their attributes:\n{lines}"),
        question: format!("{lead} {ask}: {}? Answer:", words(query, rng)),
        answer: format!(" {}", named[answer]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::random::rng;

    #[test]
    fn one_entity_is_meant() {
        let mut kinds = [0; 3];
        for seed in 0..600 {
            let record = make(2 + seed as usize % 70, &mut rng(seed, "test", 0, 0));
            let set = |text: &str| -> HashSet<String> {
                text.trim_end_matches('.').split(", ").map(str::to_owned).collect()
            };
            let (ask, query) = record.question.split_once(": ").unwrap();
            let query = set(query.split('?').next().unwrap());
            let kind =
                ["exactly", "all of", "no attributes but"].iter().position(|k| ask.contains(k)).unwrap();
            kinds[kind] += 1;
            let fits = |of: &HashSet<String>| match kind {
                0 => *of == query,
                1 => of.is_superset(&query) && of.len() > query.len(),
                _ => of.is_subset(&query) && of.len() < query.len(),
            };
            let mut found = Vec::new();
            for line in record.text.lines().skip(1) {
                let (name, list) = line.split_once(": ").unwrap();
                let of = set(list);
                assert!((6..=15).contains(&of.len()), "five own attributes and 1 to 10 others: {line}");
                if fits(&of) {
                    found.push(name.to_owned());
                }
            }
            assert_eq!(found, [record.answer.trim()], "{seed}: {}", record.question);
        }
        assert!(kinds.iter().all(|n| (150..250).contains(n)), "{kinds:?}");
    }
}
