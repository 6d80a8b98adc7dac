//! Generated samples are answered by somebody who reads their text alone; prompts and scores are those of the
//! published code (`tests/reference/made.py`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use ropewalk_tasks::internals::{graphwalks, json_kv};
use ropewalk_tasks::{Answer, Ask, Encoder, Sample, Template};
use serde::Deserialize;

use crate::testing::{self, all, setup, sha256, task, Simple};

/// So many samples of a length, all of which fit it, give full marks to the right answer and none to silence.
fn samples(name: &str, length: usize, n: usize, options: &[(&str, &str)]) -> Vec<Sample> {
    let simple = Simple::default();
    let mut setup = setup(&simple, Path::new(""), length, options);
    setup.samples = Some(n);
    let samples = all(task(name), &setup).unwrap();
    assert_eq!(samples.len(), n);
    for sample in &samples {
        let Ask::Generate { max_tokens, .. } = sample.ask else { panic!("expected an answer as text") };
        let taken = simple.count(&sample.prompt).unwrap() + max_tokens;
        assert!(taken <= length, "{name}: {taken} of {length}");
        assert!(taken * 100 >= length * 85, "{name}: only {taken} of {length}");
        assert!((sample.judge)(&sample.expected).iter().all(|&score| score == 1.0));
        assert!((sample.judge)(&Answer::Text(String::new())).iter().all(|&score| score == 0.0));
    }
    samples
}

fn error(name: &str, length: usize, options: &[(&str, &str)]) -> String {
    let simple = Simple::default();
    testing::error(task(name), &setup(&simple, Path::new(""), length, options))
}

#[derive(Deserialize)]
struct OfficialKv {
    prompts: Vec<KvPrompt>,
    cases: Vec<(String, String, bool)>,
}

/// Object, shots, key, and the hash of the published prompt.
#[derive(Deserialize)]
struct KvPrompt(String, Vec<(String, String)>, String, String);

#[test]
fn json_kv_prompts_and_scores_are_the_published_ones() {
    let official: OfficialKv =
        serde_json::from_str(include_str!("../fixtures/made/json_kv.json")).expect("fixture");
    for KvPrompt(context, shots, key, hash) in official.prompts {
        let prompt = json_kv::user_prompt(&context, &shots, &key) + "\nCorresponding value:";
        assert_eq!(sha256(&prompt), hash);
    }
    assert!(official.cases.len() >= 200);
    for (said, value, right) in official.cases {
        let score = json_kv::substring_exact_match(&said, &value);
        assert_eq!(score, f64::from(u8::from(right)), "{said:?} for {value:?}");
    }
}

#[test]
fn json_kv_asks_for_a_value_of_its_object() {
    for length in [600, 4096] {
        let all = samples("json_kv", length, 24, &[]);
        assert_ne!(all[0].prompt, all[6].prompt);
        for sample in &all {
            let (object, rest) =
                sample.prompt.strip_prefix("JSON data:\n").unwrap().split_once("\n\n").unwrap();
            let pairs: serde_json::Map<String, serde_json::Value> = serde_json::from_str(object).unwrap();
            let key =
                rest.rsplit_once("\n\nKey: ").unwrap().1.strip_suffix("\nCorresponding value:").unwrap();
            assert_eq!(Answer::Text(pairs[key].as_str().unwrap().into()), sample.expected);
            let tags: BTreeMap<_, _> = sample.tags.iter().cloned().collect();
            assert_eq!(pairs.len().to_string(), tags["keys"]);
            // The shots are true, and not the question.
            let shots = rest.split("Key: ").skip(1).take(2).map(|shot| shot.split_once('\n').unwrap());
            for (shot, value) in shots {
                assert_ne!(shot, key);
                let value = value.trim().strip_prefix("Corresponding value: ").unwrap();
                assert_eq!(pairs[shot].as_str(), Some(value));
            }
            // The depth is where the key stands in the text.
            let place = object.lines().position(|line| line.contains(key)).unwrap() as f64;
            let depth: f64 = tags["depth"].parse().unwrap();
            assert!((place - depth / 100.0 * (pairs.len() - 1) as f64).abs() <= 0.5);
        }
        let depths: Vec<_> = all.iter().take(6).map(|s| s.tags[0].1.as_str()).collect();
        assert_eq!(depths, ["0", "20", "40", "60", "80", "100"]);
    }
    let one = samples("json_kv", 4096, 2, &[("depths", "100/0")]);
    assert_eq!(one[0].tags[0].1, "100");
}

#[derive(Deserialize)]
struct OfficialWalks {
    tail: String,
    cases: Vec<(String, Vec<String>, f64, bool)>,
}

#[test]
fn graphwalks_scores_are_the_published_ones() {
    let official: OfficialWalks =
        serde_json::from_str(include_str!("../fixtures/made/graphwalks.json")).expect("fixture");
    assert_eq!(official.tail, "context\n\nquestion\n\nFinal Answer:");
    assert!(official.cases.len() >= 200);
    for (said, answer, f1, exact) in official.cases {
        let scores = graphwalks::scores(&said, &answer);
        // The last bit of a number may be lost where JSON is read.
        assert!((scores[0] - f1).abs() < 2e-16, "{said:?} for {answer:?}: {} instead of {f1}", scores[0]);
        assert_eq!(scores[1], f64::from(u8::from(exact)), "{said:?} for {answer:?}");
    }
}

/// Reads the graph and the question out of the prompt, and answers by going over all edges again and again.
fn walk(prompt: &str) -> BTreeSet<String> {
    let (_, graph) = prompt.rsplit_once("The graph has the following edges:\n").unwrap();
    let (edges, question) = graph.split_once("\n\n\nOperation:\n").unwrap();
    let edges: Vec<_> = edges.lines().map(|line| line.split_once(" -> ").unwrap()).collect();
    let question = question.lines().next().unwrap().strip_suffix('.').unwrap();
    if let Some(node) = question.strip_prefix("Find the parents of node ") {
        return edges.iter().filter(|(_, to)| *to == node).map(|(from, _)| from.to_string()).collect();
    }
    let search = question.strip_prefix("Perform a BFS from node ").unwrap();
    let (start, depth) = search.split_once(" with depth ").unwrap();
    let mut distance = BTreeMap::from([(start, 0)]);
    for _ in 0..edges.len() {
        for (from, to) in &edges {
            let Some(&there) = distance.get(from) else { continue };
            let old = distance.entry(to).or_insert(usize::MAX);
            *old = (*old).min(there + 1);
        }
    }
    let depth: usize = depth.parse().unwrap();
    distance.into_iter().filter(|&(_, d)| d == depth).map(|(node, _)| node.into()).collect()
}

#[test]
fn graphwalks_answers_are_in_the_prompt() {
    let searches = ["1", "2", "3", "5", "8", "10"].map(|depth| ("graphwalks_bfs", Some(depth)));
    for (name, depth) in searches.into_iter().chain([("graphwalks_parents", None)]) {
        let options: Vec<_> = depth.map(|depth| ("depth", depth)).into_iter().collect();
        for length in [4096, 8192] {
            for sample in samples(name, length, 12, &options) {
                let prompt =
                    sample.prompt.strip_suffix("\n\nFinal Answer:").expect("the beginning of the answer");
                let answer = walk(prompt);
                let list: BTreeSet<_> =
                    graphwalks::parse_list(sample.expected.text()).into_iter().map(String::from).collect();
                assert_eq!(answer, list);
                assert!(!answer.is_empty());
            }
        }
    }
}

/// The whole prompt of a small graph with its frame, against the published wording.
#[test]
fn graphwalks_prompt_for_chat_ends_as_published() {
    let simple = Simple::default();
    let mut setup = setup(&simple, Path::new(""), 2048, &[]);
    setup.template = Template::Chat;
    let sample = task("graphwalks_parents").samples(&setup).unwrap().iter.next().unwrap().unwrap();
    assert!(sample.prompt.starts_with("You will be given a graph as a list of directed edges."));
    assert!(sample
        .prompt
        .ends_with("If the operation returns the empty set, your response should be:\nFinal Answer: []"));
}

#[test]
fn what_does_not_fit_is_an_error_that_says_what_would() {
    for (name, options) in [
        ("json_kv", &[][..]),
        ("graphwalks_bfs", &[]),
        ("graphwalks_bfs", &[("depth", "1")]),
        ("graphwalks_parents", &[]),
    ] {
        for length in [0, 100, 300] {
            let message = error(name, length, options);
            let (_, enough) = message.split_once("expected at least ").expect(&message);
            let enough: usize = enough.split(' ').next().unwrap().parse().unwrap();
            // What the message asks for is enough.
            let simple = Simple::default();
            let mut setup = setup(&simple, Path::new(""), enough, options);
            setup.samples = Some(5);
            for sample in task(name).samples(&setup).unwrap().iter {
                sample.unwrap_or_else(|e| panic!("{name} at {enough}: {e}"));
            }
        }
    }
    assert!(error("graphwalks_bfs", 4096, &[("depth", "11")]).contains("expected one of 10, 8, 5"));
    assert!(error("json_kv", 4096, &[("depths", "many")]).contains("depths: expected a count"));
}

#[test]
fn samples_depend_on_seed_and_index_alone() {
    let simple = Simple::default();
    for name in ["json_kv", "graphwalks_bfs", "graphwalks_parents"] {
        let prompts = |seed, n| -> Vec<_> {
            let mut setup = setup(&simple, Path::new(""), 4096, &[]);
            (setup.seed, setup.samples) = (seed, Some(n));
            let samples = task(name).samples(&setup).unwrap();
            samples.iter.map(|s| s.unwrap().prompt).collect()
        };
        let five = prompts(None, 5);
        assert_eq!(prompts(Some(42), 3), five[..3]);
        assert_ne!(prompts(Some(43), 1), five[..1]);
        assert_eq!(five.iter().collect::<BTreeSet<_>>().len(), 5);
    }
}
