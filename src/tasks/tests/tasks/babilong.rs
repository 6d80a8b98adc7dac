//! Text and scores against those of the published code (`tests/reference/made.py`); the answer to every generated
//! question against that of a reader who has nothing but the prompt.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use ropewalk_tasks::internals::babilong::{compare_answers, prompt, DefaultRng, Noise, GIFTS, PLACES};
use ropewalk_tasks::internals::text::Punkt;
use ropewalk_tasks::{Answer, Ask, Encoder, Sample, Task};
use serde::Deserialize;

use crate::testing::{self, all, setup, sha256, task, Simple};

#[derive(Deserialize)]
struct Official {
    books: Vec<String>,
    draws: Vec<(u64, u32, Vec<u32>)>,
    sentences: Vec<(String, Vec<String>)>,
    book_sentences: Vec<String>,
    hidden: Vec<Hidden>,
    answers: Vec<(usize, String, String, String, bool)>,
}

#[derive(Deserialize)]
struct Hidden {
    size: usize,
    samples: Vec<Made>,
    last: String,
}

#[derive(Deserialize)]
struct Made {
    facts: Vec<String>,
    question: String,
    sha256: String,
}

fn official() -> Official {
    serde_json::from_str(include_str!("../fixtures/made/babilong.json")).expect("fixture")
}

/// The task of a number, from 1 to 5.
fn qa(number: usize) -> &'static dyn Task {
    task(&format!("babilong_qa{number}"))
}

#[test]
fn draws_are_those_of_numpy() {
    let mut generators: BTreeMap<u64, DefaultRng> = BTreeMap::new();
    for (seed, n, draws) in official().draws {
        let rng = generators.entry(seed).or_insert_with(|| DefaultRng::new(seed));
        let mut found = vec![rng.choice(n)];
        found.extend((0..3).map(|_| rng.choice(n.min(100_000))));
        assert_eq!(found, draws, "seed {seed}, below {n}");
    }
}

#[test]
fn sentences_are_those_of_nltk() {
    let official = official();
    let punkt = Punkt::untrained();
    assert!(official.sentences.len() >= 200);
    for (text, sentences) in official.sentences {
        assert_eq!(punkt.sentences(&text), sentences, "{text:?}");
    }
    for (book, hash) in official.books.iter().zip(official.book_sentences) {
        assert_eq!(sha256(&punkt.sentences(book).join("\0")), hash);
    }
}

#[test]
fn hidden_facts_and_prompts_are_the_published_ones() {
    let official = official();
    let simple = Simple::default();
    let setup = setup(&simple, Path::new(""), 8000, &[]);
    for hidden in official.hidden {
        let mut noise = Noise::new(&official.books, 42);
        let mut last = String::new();
        for (i, made) in hidden.samples.iter().enumerate() {
            let context = noise.hide(&setup, &made.facts, hidden.size).unwrap();
            last = prompt(i % 5 + 1, &context, &made.question);
            assert_eq!(sha256(&last), made.sha256, "size {} sample {i}", hidden.size);
        }
        assert_eq!(last, hidden.last);
    }
}

#[test]
fn scores_are_the_published_ones() {
    let mut cases = [0; 6];
    for (task, target, said, question, right) in official().answers {
        let labels: &[&str] = if task == 5 { &GIFTS } else { &PLACES };
        assert_eq!(
            compare_answers(&target, &said, &question, labels),
            right,
            "{said:?} for {target} of {question}"
        );
        cases[task] += 1;
    }
    assert!(cases.iter().sum::<usize>() >= 200 && cases[1..].iter().all(|&n| n >= 50));
}

/// Samples of a task from the fixture's books: all fit, the right answer is right, silence is not.
fn samples(task: &dyn Task, length: usize, n: usize, seed: Option<u64>) -> Vec<Sample> {
    let folder = tempfile::tempdir().unwrap();
    for (i, book) in official().books.iter().enumerate() {
        std::fs::write(folder.path().join(format!("{i}.txt")), book).unwrap();
    }
    let simple = Simple::default();
    let options = [("background", folder.path().to_str().unwrap())];
    let mut setup = setup(&simple, Path::new(""), length, &options);
    (setup.samples, setup.seed) = (Some(n), seed);
    let samples = all(task, &setup).unwrap();
    for sample in &samples {
        let Ask::Generate { max_tokens, .. } = sample.ask else { panic!("expected an answer as text") };
        let taken = simple.count(&sample.prompt).unwrap() + max_tokens;
        assert!(taken <= length && taken + 350 > length, "{taken} of {length}");
        assert_eq!((sample.judge)(&sample.expected), [1.0]);
        assert_eq!((sample.judge)(&Answer::Text(String::new())), [0.0]);
    }
    samples
}

/// The facts of a context, as words, and the question.
fn read(prompt: &str) -> (Vec<Vec<&str>>, Vec<&str>) {
    let (_, context) = prompt.rsplit_once("<context>\n").unwrap();
    let (context, question) = context.split_once("\n</context>\n\nQuestion: ").unwrap();
    let starts = ["John ", "Mary ", "Sandra ", "Daniel ", "Bill ", "Fred ", "Jeff ", "The "];
    let known: BTreeSet<&str> = PLACES.iter().chain(&["apple", "football", "milk"]).copied().collect();
    let mut facts = Vec::new();
    for (at, _) in context.char_indices() {
        let here = &context[at..];
        let own_word = !context[..at].ends_with(char::is_alphanumeric);
        if own_word && starts.iter().any(|start| here.starts_with(start)) {
            let words: Vec<_> = here[..here.find('.').unwrap_or(here.len())].split(' ').collect();
            // Sentences of the book that begin with "The" name nothing that the tasks know.
            if words.iter().any(|word| known.contains(word)) && words.len() < 9 {
                facts.push(words);
            }
        }
    }
    (facts, question.strip_suffix('?').unwrap().split(' ').collect())
}

/// Answers by the text alone.
fn answer(facts: &[Vec<&str>], question: &[&str]) -> String {
    let mut at: HashMap<&str, &str> = HashMap::new();
    let mut holder: HashMap<&str, &str> = HashMap::new();
    let mut lies: HashMap<&str, &str> = HashMap::new();
    let mut trail: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut gifts: Vec<(&str, &str, &str)> = Vec::new();
    for fact in facts {
        let who = fact[0];
        let last = *fact.last().unwrap();
        let object = fact.iter().find(|w| ["apple", "football", "milk"].contains(w)).copied();
        match (fact[1], object) {
            ("moved" | "went" | "journeyed" | "travelled", None) => {
                at.insert(who, last);
            }
            ("got" | "took" | "grabbed" | "picked", Some(object)) => {
                lies.remove(object);
                holder.insert(object, who);
            }
            ("dropped" | "left" | "discarded" | "put", Some(object)) => {
                assert_eq!(holder.remove(object), Some(who), "{fact:?}");
                if let Some(place) = at.get(who) {
                    lies.insert(object, place);
                }
            }
            ("gave" | "handed" | "passed", Some(object)) => {
                assert_eq!(holder.insert(object, last), Some(who), "{fact:?}");
                gifts.push((who, object, last));
            }
            (_, None) if who == "The" => {}
            _ => panic!("not a fact of these tasks: {fact:?}"),
        }
        for object in ["apple", "football", "milk"] {
            let place = holder.get(object).map_or_else(|| lies.get(object), |who| at.get(who));
            if let Some(place) = place {
                let trail = trail.entry(object).or_default();
                if trail.last() != Some(place) {
                    trail.push(place);
                }
            }
        }
    }
    let gift = |wanted: &dyn Fn(&(&str, &str, &str)) -> bool| {
        *gifts.iter().rev().find(|g| wanted(g)).expect("a gift")
    };
    match *question {
        ["Where", "is", "the", object] => match holder.get(object) {
            Some(who) => at[who].into(),
            None => lies[object].into(),
        },
        ["Where", "is", who] => at[who].into(),
        ["Where", "was", "the", object, "before", "the", place] => {
            let trail = &trail[object];
            let reached = trail.iter().rposition(|p| *p == place).unwrap();
            assert_eq!(reached + 1, trail.len(), "the last move is asked for");
            trail[reached - 1].into()
        }
        ["What", "is", direction, "of", "the", place] => beside(facts, place, direction),
        ["What", "is", "the", place, direction, "of"] => beside(facts, place, opposite(direction)),
        ["What", "did", from, "give", "to", to] => gift(&|g| g.0 == from && g.2 == to).1.into(),
        ["Who", "gave", "the", object, "to", to] => gift(&|g| g.1 == object && g.2 == to).0.into(),
        ["Who", "gave", "the", object] => gift(&|g| g.1 == object).0.into(),
        ["Who", "did", from, "give", "the", object, "to"] => gift(&|g| g.0 == from && g.1 == object).2.into(),
        ["Who", "received", "the", object] => gift(&|g| g.1 == object).2.into(),
        _ => panic!("not a question of these tasks: {question:?}"),
    }
}

fn opposite(direction: &str) -> &'static str {
    match direction {
        "north" => "south",
        "south" => "north",
        "east" => "west",
        "west" => "east",
        _ => panic!("not a direction: {direction}"),
    }
}

/// Returns the place that lies in a direction of another.
fn beside(facts: &[Vec<&str>], place: &str, direction: &str) -> String {
    let found: BTreeSet<&str> = facts
        .iter()
        .filter_map(|fact| match fact[..] {
            ["The", a, "is", d, "of", "the", b] if b == place && d == direction => Some(a),
            ["The", a, "is", d, "of", "the", b] if a == place && d == opposite(direction) => Some(b),
            _ => None,
        })
        .collect();
    assert_eq!(found.len(), 1, "one answer");
    found.into_iter().next().unwrap().into()
}

#[test]
fn answers_follow_from_the_prompt() {
    for (i, task) in (1..=5).map(qa).enumerate() {
        let mut answers = BTreeSet::new();
        let mut most = 0;
        for (length, seed) in [(900, None), (3000, Some(7)), (3000, Some(8))] {
            for sample in samples(task, length, 100, seed) {
                let (facts, question) = read(&sample.prompt);
                let tags: BTreeMap<_, _> = sample.tags.iter().cloned().collect();
                assert_eq!(facts.len().to_string(), tags["facts"], "{facts:?}");
                assert_eq!(answer(&facts, &question), sample.expected.text(), "{facts:?} {question:?}");
                answers.insert(sample.expected.text().to_string());
                most = most.max(facts.len());
            }
        }
        // All labels are answers, and stories have the lengths that those of the data set have.
        assert_eq!(answers.len(), if i == 4 { 7 } else { 6 });
        assert_eq!(most <= 2, i == 3);
        assert!(if i == 0 { most == 10 } else { i == 3 || most > 20 }, "{most}");
    }
}

#[test]
fn facts_stand_anywhere_in_the_book() {
    let places: Vec<f64> = samples(qa(4), 2000, 100, None)
        .iter()
        .map(|sample| {
            let (_, context) = sample.prompt.rsplit_once("<context>\n").unwrap();
            let fact = ["north of the", "south of the", "east of the", "west of the"];
            let at = fact.iter().filter_map(|f| context.find(f)).min().unwrap();
            at as f64 / context.len() as f64
        })
        .collect();
    // The earlier one of two random places lies at a third, on average.
    let mean = places.iter().sum::<f64>() / 100.0;
    assert!((mean - 1.0 / 3.0).abs() < 0.1, "{mean}");
    assert!(places.iter().any(|&p| p < 0.05) && places.iter().any(|&p| p > 0.6));
}

#[test]
fn samples_depend_on_seed_and_number_alone() {
    for task in (1..=5).map(qa) {
        let prompts =
            |seed, n| samples(task, 1500, n, seed).into_iter().map(|s| s.prompt).collect::<Vec<_>>();
        let five = prompts(None, 5);
        assert_eq!(prompts(Some(42), 3), five[..3]);
        assert_ne!(prompts(Some(43), 1), five[..1]);
    }
}

#[test]
fn what_makes_no_sense_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("book.txt");
    let simple = Simple::default();
    let error = |length| {
        let options = [("background", file.to_str().unwrap())];
        testing::error(qa(3), &setup(&simple, Path::new(""), length, &options))
    };
    assert!(error(2000).contains("book.txt"));
    std::fs::write(&file, " \n").unwrap();
    assert!(error(2000).contains("expected text"));
    std::fs::write(&file, "Too short. Too short. ".repeat(200)).unwrap();
    assert!(error(2000).contains("expected sentences of at least 10 tokens"));
    std::fs::write(&file, &official().books[0]).unwrap();
    for length in [0, 300, 500] {
        let message = error(length);
        let (_, enough) = message.split_once("expected at least ").expect(&message);
        let enough: usize = enough.split(' ').next().unwrap().parse().unwrap();
        assert_eq!(samples(qa(3), enough, 20, None).len(), 20);
    }
}
