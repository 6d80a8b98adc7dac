//! State tracking: traders swap what they have, day after day; who has in the end what one had at first.

use rand_chacha::ChaCha8Rng;

use super::names::{one, Names};
use super::{Family, Record};
use crate::random::{below, shuffle};

const ITEMS: [&str; 12] = [
    "lamp",
    "rug",
    "clock",
    "kettle",
    "mirror",
    "drum",
    "compass",
    "basket",
    "lantern",
    "chair",
    "telescope",
    "chess set",
];

pub(super) const TRADES: Family = Family { name: "state tracking", weight: 1.0, least: 1, make };

fn make(n: usize, rng: &mut ChaCha8Rng) -> Record {
    let n_traders = 3 + below(rng, ITEMS.len() as u64 - 2) as usize;
    let mut names = Names::default();
    let traders: Vec<String> = (0..n_traders).map(|_| names.next(rng)).collect();
    let mut items = ITEMS;
    shuffle(&mut items, rng);
    let asked = below(rng, n_traders as u64) as usize;
    let first: String = traders.iter().zip(items).map(|(t, item)| format!("{t} has a {item}.\n")).collect();
    // Whose item each trader has, by numbers of traders.
    let mut holds: Vec<usize> = (0..n_traders).collect();
    let mut days = String::new();
    for day in 1..=n {
        let a = below(rng, n_traders as u64) as usize;
        let b = (a + 1 + below(rng, n_traders as u64 - 1) as usize) % n_traders;
        holds.swap(a, b);
        let how = one(rng, &["swapped their items", "traded what they had"]);
        days += &format!("Day {day}: {} and {} {how}.\n", traders[a], traders[b]);
    }
    let holder = holds.iter().position(|&item| item == asked).unwrap_or_default();
    Record {
        text: format!("At first:\n{first}Trades:\n{days}"),
        question: format!(
            "Who has, in the end, the {} that {} had at first? Answer:",
            items[asked], traders[asked]
        ),
        answer: format!(" {}", traders[holder]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::random::rng;

    #[test]
    fn the_answer_has_the_item_after_all_trades() {
        let mut moved = 0;
        for seed in 0..200 {
            let n = 1 + seed as usize % 50;
            let record = make(n, &mut rng(seed, "test", 0, 0));
            let mut has: HashMap<String, String> = HashMap::new();
            let mut days = 0;
            for line in record.text.lines() {
                if let Some((who, item)) = line.trim_end_matches('.').split_once(" has a ") {
                    has.insert(who.to_owned(), item.to_owned());
                } else if let Some((day, rest)) = line.split_once(": ") {
                    days += 1;
                    assert_eq!(day, format!("Day {days}"));
                    let words: Vec<&str> = rest.split(' ').collect();
                    let (a, b) = (has[words[0]].clone(), has[words[2]].clone());
                    has.insert(words[0].to_owned(), b);
                    has.insert(words[2].to_owned(), a);
                }
            }
            assert_eq!(days, n);
            let asked = record.question.strip_prefix("Who has, in the end, the ").unwrap();
            let (item, rest) = asked.split_once(" that ").unwrap();
            let holders: Vec<&String> = has.iter().filter(|(_, i)| *i == item).map(|(who, _)| who).collect();
            assert_eq!(holders, [record.answer.trim()]);
            // The question names who had it.
            let first = rest.split(' ').next().unwrap();
            assert!(record.text.contains(&format!("{first} has a {item}.")));
            moved += usize::from(first != record.answer.trim());
        }
        assert!(moved > 100, "{moved}");
    }
}
