//! Multi-hop reasoning: triples of head, relation and tail; which entity a chain of one to five of them ends at.

use std::collections::HashSet;

use rand_chacha::ChaCha8Rng;

use super::names::{one, word, Names};
use super::{Family, Record};
use crate::random::{below, shuffle};

/// Most triples of a chain.
const HOPS: usize = 5;

pub(super) const MULTI_HOP: Family = Family { name: "multi-hop", weight: 5.0, least: HOPS, make };

/// A head has at most one tail under a relation, so a chain has one end. Triples outside the chain also have heads
/// and tails of it, and lead away from it.
fn make(n: usize, rng: &mut ChaCha8Rng) -> Record {
    let hops = 1 + below(rng, HOPS as u64) as usize;
    let relations: Vec<String> = (0..12).map(|i| format!("{}{}", word(rng, 2), (b'a' + i) as char)).collect();
    let mut names = Names::default();
    let chain: Vec<String> = (0..=hops).map(|_| names.next(rng)).collect();
    let path: Vec<&String> = (0..hops).map(|_| one(rng, &relations)).collect();
    let mut entities = chain.clone();
    let mut triples: Vec<(String, String, String)> = Vec::new();
    let mut used: HashSet<(String, String)> = HashSet::new();
    for (i, relation) in path.iter().enumerate() {
        used.insert((chain[i].clone(), (*relation).clone()));
        triples.push((chain[i].clone(), (*relation).clone(), chain[i + 1].clone()));
    }
    while triples.len() < n.max(hops) {
        // As many entities as there are triples to two of them.
        if entities.len() < 4 + n / 2 {
            entities.push(names.next(rng));
        }
        let (head, relation, tail) = (one(rng, &entities), one(rng, &relations), one(rng, &entities));
        if head != tail && used.insert((head.clone(), relation.clone())) {
            triples.push((head.clone(), relation.clone(), tail.clone()));
        }
    }
    shuffle(&mut triples, rng);
    let lines: String = triples.iter().map(|(h, r, t)| format!("The {r} of {h} is {t}.\n")).collect();
    let asked: String = path.iter().rev().map(|r| format!("the {r} of ")).collect();
    Record {
        text: format!("Facts:\n{lines}"),
        question: format!("Who is {asked}{}? Answer:", chain[0]),
        answer: format!(" {}", chain[hops]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::rng;

    /// All ends of all paths, by trying every triple at every step.
    #[test]
    fn every_path_ends_at_the_answer() {
        let mut lengths = HashSet::new();
        for seed in 0..300 {
            let record = make(5 + seed as usize % 60, &mut rng(seed, "test", 0, 0));
            let triples: Vec<[&str; 3]> = record
                .text
                .lines()
                .skip(1)
                .map(|line| {
                    let words: Vec<&str> = line.trim_end_matches('.').split(' ').collect();
                    [words[3], words[1], words[5]]
                })
                .collect();
            assert_eq!(triples.len(), 5 + seed as usize % 60);
            let asked = record.question.strip_prefix("Who is ").unwrap().split('?').next().unwrap();
            let mut words: Vec<&str> = asked.split(' ').filter(|w| !["the", "of"].contains(w)).collect();
            let mut ends = HashSet::from([words.pop().unwrap()]);
            lengths.insert(words.len());
            while let Some(relation) = words.pop() {
                let next = triples.iter().filter(|[h, r, _]| ends.contains(h) && *r == relation);
                ends = next.map(|[_, _, tail]| *tail).collect();
            }
            assert_eq!(ends, HashSet::from([record.answer.trim()]), "{seed}");
        }
        assert_eq!(lengths, HashSet::from([1, 2, 3, 4, 5]));
    }
}
