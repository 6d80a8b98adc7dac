//! Metrics and prompts against InfiniteBench's official code (see `tests/reference/infinitebench.py`), and what
//! users can get wrong.

use std::collections::BTreeMap;

use ropewalk_tasks::internals::infinitebench::{InfiniteBench, EN_DIA, EN_MC, EN_QA, EN_SUM, ZH_QA};
use ropewalk_tasks::metrics::infinitebench as metrics;
use ropewalk_tasks::{Answer, Encoder as _, Result, Setup, Task};

use crate::testing::{all, check_prompts, error, setup, Simple};

static ALL: &[(&InfiniteBench, &str, &str)] = &[
    (&EN_SUM, "longbook_sum_eng", include_str!("../fixtures/infinitebench/longbook_sum_eng.jsonl")),
    (&EN_QA, "longbook_qa_eng", include_str!("../fixtures/infinitebench/longbook_qa_eng.jsonl")),
    (&EN_MC, "longbook_choice_eng", include_str!("../fixtures/infinitebench/longbook_choice_eng.jsonl")),
    (&EN_DIA, "longdialogue_qa_eng", include_str!("../fixtures/infinitebench/longdialogue_qa_eng.jsonl")),
    (&ZH_QA, "longbook_qa_chn", include_str!("../fixtures/infinitebench/longbook_qa_chn.jsonl")),
];

fn data() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("infinitebench")).unwrap();
    for (_, file, records) in ALL {
        std::fs::write(folder.path().join(format!("infinitebench/{file}.jsonl")), records).unwrap();
    }
    folder
}

#[test]
fn metrics_are_those_of_the_official_code() {
    let recorded: BTreeMap<String, Vec<(String, Vec<String>, String)>> =
        serde_json::from_str(include_str!("../fixtures/infinitebench/metrics.json")).unwrap();
    assert_eq!(recorded.len(), 5);
    for (file, cases) in &recorded {
        assert!(cases.len() >= 300, "{file} has {} cases", cases.len());
        let (task, ..) = ALL.iter().find(|(_, name, _)| name == file).unwrap();
        for (at, (prediction, label, expected)) in cases.iter().enumerate() {
            let (found, expected) = ((task.score)(prediction, label), expected.parse::<f64>().unwrap());
            assert!(found == expected, "{file}, case {at}: found {found:?}, expected {expected:?}");
        }
    }
}

#[test]
fn long_summaries_do_not_take_memory_of_their_product() {
    // One line each: the largest answers that are read, and an answer of 1200 tokens.
    let gold = "word other ".repeat((1 << 16) / 11);
    let score = metrics::rouge_lsum(&"other word ".repeat(600), &[gold]);
    assert!(score > 0.0 && score < 1.0);
}

#[test]
fn prompts_are_those_of_the_official_code() {
    let (folder, recorded) = (data(), include_str!("../fixtures/infinitebench/prompts.json"));
    check_prompts(recorded, 5 * 5 * 2 * 3, |file, encoder, max| {
        let (task, ..) = ALL.iter().find(|(_, name, _)| *name == file).unwrap();
        all(*task, &setup(encoder, folder.path(), max, &[])).unwrap()
    });
}

#[test]
fn right_answers_are_those_of_the_official_code() {
    let labels: BTreeMap<String, Vec<Vec<String>>> =
        serde_json::from_str(include_str!("../fixtures/infinitebench/labels.json")).unwrap();
    for (task, file, records) in ALL {
        let found: Vec<Vec<String>> =
            records.lines().map(|line| task.golds(&serde_json::from_str(line).unwrap()).unwrap()).collect();
        assert_eq!(found, labels[*file]);
    }
}

#[test]
fn prompts_have_the_length_and_answers_come_on_top() {
    let folder = data();
    let encoder = Simple::framed(1, ["user says : ", ""]);
    let one = |length| Setup { length, samples: Some(1), ..setup(&encoder, folder.path(), 0, &[]) };
    let setup = one(Some(64));
    let found = EN_QA.samples(&setup).unwrap();
    // 40 of answer, 16 for the seam, six of the chat template.
    assert_eq!((found.n, found.beyond), (1, 62));
    let found = found.iter.collect::<Result<Vec<_>>>().unwrap();
    assert!(found[0].prompt.starts_with("user says : Read the book"));
    // One of the 64 is BOS.
    assert_eq!(encoder.count(&found[0].prompt).unwrap(), 63 + 6);

    let found = error(&EN_QA, &one(Some(1)));
    assert!(found.starts_with("length 1: expected at least 2 tokens"), "{found}");
    assert!(error(&EN_QA, &one(None)).contains("expected a length"));
}

#[test]
fn damaged_files_are_named_with_their_line() {
    let folder = data();
    let encoder = Simple::default();
    let setup = setup(&encoder, folder.path(), 4000, &[]);
    let find = |task: &InfiniteBench, lines: &str, expected: &str| {
        std::fs::write(folder.path().join(task.info().files[0].name), lines).unwrap();
        let found = error(task, &setup);
        assert!(found.contains(expected), "expected {expected:?}, found {found:?}");
    };
    let record = |answer: &str, options: &str| {
        format!(r#"{{"id": 0, "context": "c", "input": "i", "answer": {answer}, "options": {options}}}"#)
    };
    let options = r#"["a", "b", "c", "d"]"#;
    find(
        &EN_QA,
        &record("[]", "[]"),
        "longbook_qa_eng.jsonl: line 1: expected at least one `answer`, found none",
    );
    find(&EN_QA, &record("{}", "[]"), "line 1, byte ");
    find(&EN_QA, r#"{"context": "c", "answer": "a"}"#, "missing field `input`");
    find(&EN_QA, "", "expected records, one a line, found none");
    find(
        &EN_MC,
        &record(r#"["e"]"#, options),
        "line 1: expected an `answer` that is one of the options, found \"e\"",
    );
    find(&EN_MC, &record(r#"["a"]"#, r#"["a"]"#), "line 1: expected four `options`, found 1");
    let good = record(r#""d""#, options);
    find(
        &EN_MC,
        &format!("{good}\n{}", record(r#"["a", "E"]"#, options)),
        "line 2: expected an option as `answer`",
    );
    std::fs::write(folder.path().join(EN_MC.info().files[0].name), good).unwrap();
    assert_eq!(all(&EN_MC, &setup).unwrap()[0].expected, Answer::Text("D".to_owned()));
}
