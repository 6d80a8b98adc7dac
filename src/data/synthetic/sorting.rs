//! Sorting: entities with whole numbers as attributes; which has the largest or smallest of one, and how much.

use rand_chacha::ChaCha8Rng;

use super::names::{one, Names};
use super::{Family, Record};
use crate::random::below;

const KINDS: [&str; 5] = ["height", "weight", "age", "speed", "price"];

pub(super) const SORTING: Family = Family { name: "sorting", weight: 1.0, least: 2, make };

fn make(n: usize, rng: &mut ChaCha8Rng) -> Record {
    let kind = below(rng, KINDS.len() as u64) as usize;
    let largest = below(rng, 2) == 0;
    let mut names = Names::default();
    let mut entities: Vec<(String, [u64; 5])> =
        (0..n).map(|_| (names.next(rng), [0; 5].map(|_| 100 + below(rng, 99_900)))).collect();
    // The extreme value is one entity's alone: others that have it get another.
    let best = entities.iter().map(|(_, values)| values[kind]);
    let best = if largest { best.max() } else { best.min() }.unwrap_or_default();
    let holder = entities.iter().position(|(_, values)| values[kind] == best).unwrap_or_default();
    for (_, values) in entities.iter_mut().skip(holder + 1).filter(|(_, values)| values[kind] == best) {
        values[kind] = if largest { best - 1 } else { best + 1 };
    }
    let lines: String = entities
        .iter()
        .map(|(name, values)| {
            let list: Vec<String> = KINDS.iter().zip(values).map(|(kind, v)| format!("{kind} {v}")).collect();
            format!("{name}: {}.\n", list.join(", "))
        })
        .collect();
    let extreme = if largest { "largest" } else { "smallest" };
    let ask = one(rng, &["Which of these has the", "Name the one with the"]);
    Record {
        text: format!("Entities and their attributes:\n{lines}"),
        question: format!("{ask} {extreme} {}, and how much is it? Answer:", KINDS[kind]),
        answer: format!(" {}, {best}", entities[holder].0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::rng;

    #[test]
    fn the_answer_is_what_sorting_finds() {
        for seed in 0..300 {
            let record = make(2 + seed as usize % 40, &mut rng(seed, "test", 0, 0));
            let kind = KINDS.into_iter().find(|k| record.question.contains(&format!(" {k},"))).unwrap();
            let mut values: Vec<(i64, &str)> = record
                .text
                .lines()
                .skip(1)
                .map(|line| {
                    let (name, rest) = line.split_once(": ").unwrap();
                    let of = rest.split(", ").find_map(|a| a.strip_prefix(&format!("{kind} "))).unwrap();
                    (of.trim_end_matches('.').parse().unwrap(), name)
                })
                .collect();
            values.sort_unstable();
            if record.question.contains("largest") {
                values.reverse();
            }
            assert_eq!(record.answer, format!(" {}, {}", values[0].1, values[0].0));
            assert_ne!(values[0].0, values[1].0, "one alone");
        }
    }

    /// Where all values are equal at first, one entity is left with the extreme.
    #[test]
    fn ties_are_broken() {
        let record = make(5000, &mut rng(1, "test", 0, 0));
        assert_eq!(record.text.lines().count(), 5001);
    }
}
