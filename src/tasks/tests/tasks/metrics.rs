//! Metrics against the official code, on cases recorded from it.

use std::collections::BTreeMap;

use ropewalk_tasks::metrics::{longbench, rouge};
use serde_json::Value;

fn strings(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_owned()).collect()
}

#[test]
fn equal_to_the_code_of_longbench() {
    let recorded: BTreeMap<String, Vec<(String, Value, String)>> =
        serde_json::from_str(include_str!("../fixtures/metrics/longbench.json")).unwrap();
    assert_eq!(recorded.len(), 6);
    for (metric, cases) in &recorded {
        assert!(cases.len() >= 200, "{metric} has {} cases", cases.len());
        for (at, (prediction, gold, expected)) in cases.iter().enumerate() {
            let text = || gold.as_str().unwrap();
            let found = match metric.as_str() {
                "qa_f1_score" => longbench::qa_f1_score(prediction, text()),
                "rouge_score" => longbench::rouge_score(prediction, text()),
                "retrieval_score" => longbench::retrieval_score(prediction, text()),
                "count_score" => longbench::count_score(prediction, text()),
                "code_sim_score" => longbench::code_sim_score(prediction, text()),
                "classification_score" => {
                    let classes = strings(&gold[1]);
                    longbench::classification_score(prediction, gold[0].as_str().unwrap(), &classes)
                }
                other => panic!("no metric {other}"),
            };
            let expected: f64 = expected.parse().unwrap();
            assert!(found == expected, "{metric}, case {at}: found {found:?}, expected {expected:?}");
        }
    }
}

#[test]
fn the_best_rouge_is_a_hair_below_one() {
    assert_eq!(longbench::rouge_score("Rain fell. It stopped.", "Rain fell. It stopped."), rouge::BEST);
}

#[test]
fn long_texts_do_not_take_memory_of_their_product() {
    // A table of all pairs of words would take 400 GB.
    let long = "word ".repeat(100_000);
    assert_eq!(longbench::rouge_score("other", &long), 0.0);
    assert_eq!(longbench::rouge_score("word", &format!("{long}.")), rouge::BEST);
}
