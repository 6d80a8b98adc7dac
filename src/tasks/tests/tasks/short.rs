//! Against what lm-evaluation-harness made of the same documents (`tests/reference/short.py`).

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use ropewalk_tasks::internals::draws::Random;
use ropewalk_tasks::internals::short::{
    capitalize, mmlu_part, rows, without_wikihow, Part, Question, ReadFile, Short, ALL, ARC_CHALLENGE, FILES,
    GSM8K_COT, GSM8K_TASK, HELLASWAG_TASK, MMLU, NQ_OPEN_TASK, PIQA_TASK, TRIVIAQA_TASK,
};
use ropewalk_tasks::{
    Answer, Ask, DataFile, Encoder, Likelihood, Result, Sample, Setup, Task, Template, Token,
};
use serde_json::Value;

use crate::testing::sha256;

/// A byte is a token.
struct Bytes;

impl Encoder for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        Ok(text.bytes().map(Token::from).collect())
    }

    fn decode(&self, tokens: &[Token]) -> Result<String> {
        Ok(tokens.iter().map(|&t| t as u8 as char).collect())
    }

    fn frame(&self, message: &str) -> Result<String> {
        Ok(message.to_owned())
    }
}

fn setup(data: &Path) -> Setup<'_> {
    Setup { length: None, ..crate::testing::setup(&Bytes, data, 0, &[]) }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/short")
}

fn fixture(name: &str) -> Vec<u8> {
    let path = fixtures().join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&fixture(name)).unwrap()
}

/// Documents of our own under the names of published files.
fn own(file: &DataFile) -> Result<Vec<u8>> {
    let name = file.name.strip_prefix("short/").unwrap();
    let name = name.strip_prefix("mmlu/anatomy/").map_or(name.to_owned(), |n| format!("mmlu_{n}"));
    let name = name.replace("gsm8k_test", "gsm8k").replace("arc_challenge", "arc");
    Ok(fixture(&if name.starts_with("arc") { name } else { name.replace("_validation", "") }))
}

fn parts(task: &Short, read: ReadFile<'_>) -> Vec<Part> {
    if task.info().name != "mmlu" {
        return (task.load)(read).unwrap();
    }
    let mut files = FILES.as_chunks::<2>().0.iter();
    vec![mmlu_part(read, files.find(|[dev, _]| dev.name.contains("anatomy")).unwrap()).unwrap()]
}

fn samples(task: &Short, setup: &Setup<'_>, parts: Vec<Part>) -> Vec<Sample> {
    let samples = task.samples_from(setup, parts).unwrap();
    let n = samples.n;
    let made: Vec<_> = samples.iter.collect::<Result<_>>().unwrap();
    assert_eq!(made.len(), n);
    made
}

fn own_samples(task: &Short) -> Vec<Sample> {
    samples(task, &setup(Path::new("")), parts(task, &own))
}

/// The prompt with its choices, or with the texts that end the answer, as the record has them.
fn recorded(sample: &Sample) -> Vec<String> {
    let rest = match &sample.ask {
        Ask::Choose(choices) => choices,
        Ask::Generate { stop, .. } => stop,
    };
    std::iter::once(&sample.prompt).chain(rest).cloned().collect()
}

fn digest(sample: &Sample) -> String {
    sha256(&recorded(sample).join("\0"))
}

#[test]
fn prompts_and_choices_are_those_of_the_harness() {
    let record = json("own.json");
    for task in ALL {
        let expected = &record["tasks"][task.info().name];
        let made = own_samples(task);
        for (sample, expected) in made.iter().zip(expected["first"].as_array().unwrap()) {
            let expected: Vec<String> = serde_json::from_value(expected.clone()).unwrap();
            assert_eq!(recorded(sample), expected, "{}", task.info().name);
        }
        let expected: Vec<String> = serde_json::from_value(expected["sha256"].clone()).unwrap();
        assert!(expected.len() >= 100, "{}: {} recorded", task.info().name, expected.len());
        assert_eq!(made.iter().map(digest).collect::<Vec<_>>(), expected, "{}", task.info().name);
    }
}

/// With the published files, which `make benchmarks` fetches:
/// `cargo test --release -p ropewalk-tasks --features published short`.
#[cfg(feature = "published")]
#[test]
fn published_prompts_are_those_of_the_harness() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/benchmarks");
    let setup = Setup { samples: Some(120), ..setup(&folder) };
    let record = json("published.json");
    for task in ALL {
        let read = |file: &DataFile| file.read(&folder);
        let parts = (task.load)(&read).unwrap();
        let n: usize = parts.iter().map(|p| p.questions.len()).sum();
        let made = if task.info().name == "mmlu" {
            // The first two of each subject were recorded.
            let two = Setup { samples: Some(2), ..self::setup(&folder) };
            parts.into_iter().flat_map(|part| samples(task, &two, vec![part])).collect()
        } else {
            samples(task, &setup, parts)
        };
        let expected: Vec<String> =
            serde_json::from_value(record["tasks"][task.info().name].clone()).unwrap();
        assert_eq!(made.iter().map(digest).collect::<Vec<_>>(), expected, "{}", task.info().name);
        let sizes = BTreeMap::from([
            ("mmlu", 14_042),
            ("hellaswag", 10_042),
            ("arc_challenge", 1_172),
            ("piqa", 1_838),
            ("triviaqa", 7_993),
            ("nq_open", 3_610),
            ("gsm8k", 1_319),
            ("gsm8k_cot", 1_319),
        ]);
        assert_eq!(n, sizes[task.info().name], "{}", task.info().name);
        // Every question can be answered, and no prompt fails.
        let every = Setup { samples: None, ..self::setup(&folder) };
        for sample in task.samples(&every).unwrap().iter {
            let sample = sample.unwrap();
            assert_eq!((sample.judge)(&sample.expected)[0], 1.0, "{}: {}", task.info().name, sample.id);
        }
    }
}

#[test]
fn filters_and_exact_match_are_those_of_the_harness() {
    let record = json("scores.json");
    let mut counts = BTreeMap::new();
    for case in record["text"].as_array().unwrap() {
        let (name, targets, said, expected): (String, Vec<String>, String, Vec<f64>) =
            serde_json::from_value(case.clone()).unwrap();
        let task = ALL.iter().find(|t| t.info().name == name).unwrap();
        let question = Question { name: None, text: String::new(), choices: vec![], gold: 0, targets };
        let found = (task.judge(&question))(&Answer::Text(said.clone()));
        assert_eq!(found, expected, "{name}: {said:?} for {:?}", question.targets);
        assert_eq!(found.len(), task.info().metrics.len());
        let count = counts.entry(name).or_insert([0; 2]);
        count[usize::from(found[0] == 1.0)] += 1;
    }
    assert_eq!(counts.len(), 4);
    for (name, [wrong, right]) in counts {
        assert!(wrong + right >= 200 && wrong > 30 && right > 30, "{name}: {wrong} wrong, {right} right");
    }
}

#[test]
fn choices_are_scored_as_the_harness_does() {
    let record = json("scores.json");
    let cases = record["choices"].as_array().unwrap();
    assert!(cases.len() >= 200);
    for case in cases {
        let (choices, sums, gold, acc, acc_norm): (Vec<String>, Vec<f64>, usize, f64, f64) =
            serde_json::from_value(case.clone()).unwrap();
        let question = Question { name: None, text: String::new(), choices, gold, targets: vec![] };
        let likelihood = |&sum: &f64| Likelihood { sum, greedy: false, n_tokens: 1 };
        let answer = Answer::Choices(sums.iter().map(likelihood).collect());
        assert_eq!((HELLASWAG_TASK.judge(&question))(&answer), [acc_norm, acc], "{case}");
        assert_eq!((PIQA_TASK.judge(&question))(&answer), [acc, acc_norm], "{case}");
        assert_eq!((MMLU.judge(&question))(&answer), [acc], "{case}");
    }
}

#[test]
fn texts_of_hellaswag_are_cleaned_as_the_harness_does() {
    let record = json("scores.json");
    let cases = record["preprocess"].as_array().unwrap();
    assert!(cases.len() >= 200);
    for case in cases {
        let (text, cleaned, capitalized): (String, String, String) =
            serde_json::from_value(case.clone()).unwrap();
        assert_eq!(without_wikihow(&text), cleaned, "{text:?}");
        assert_eq!(capitalize(&text), capitalized, "{text:?}");
    }
}

#[test]
fn who_knows_gets_all_who_says_nothing_gets_nothing() {
    for task in ALL {
        for sample in own_samples(task) {
            let n = task.info().metrics.len();
            let right = (sample.judge)(&sample.expected);
            assert_eq!(right[0], 1.0, "{}: {:?}", sample.id, sample.expected);
            assert_eq!(right.len(), n);
            assert_eq!((sample.judge)(&Answer::Text(String::new())), vec![0.0; n], "{}", sample.id);
            assert_eq!((sample.judge)(&Answer::Choices(vec![])), vec![0.0; n], "{}", sample.id);
        }
    }
}

#[test]
fn random_choices_score_chance() {
    let mut random = Random::new(3);
    for task in ALL.iter().filter(|t| t.info().chance.is_some()) {
        let (mut score, mut chance, mut variance) = (0.0, 0.0, 0.0);
        for sample in own_samples(task) {
            let Ask::Choose(choices) = &sample.ask else { panic!("{} has no choices", sample.id) };
            let p = 1.0 / choices.len() as f64;
            for _ in 0..20 {
                score += (sample.judge)(&Answer::choose(choices.len(), random.below(choices.len())))[0];
                (chance, variance) = (chance + p, variance + p * (1.0 - p));
            }
        }
        assert!((score - chance).abs() < 4.0 * variance.sqrt(), "{}: {score} of {chance}", task.info().name);
    }
}

#[test]
fn chat_prompts_have_choices_without_a_blank() {
    let chat = Setup { template: Template::Chat, ..setup(Path::new("")) };
    let made = samples(&PIQA_TASK, &chat, parts(&PIQA_TASK, &own));
    for (chat, base) in made.iter().zip(own_samples(&PIQA_TASK)) {
        let (Ask::Choose(chat), Ask::Choose(base)) = (&chat.ask, base.ask) else { panic!("no choices") };
        assert_eq!(chat.iter().map(|c| format!(" {c}")).collect::<Vec<_>>(), base);
    }
}

#[test]
fn settings_are_checked() {
    let folder = Path::new("");
    let error = |task: &Short, setup: Setup<'_>| match task.samples_from(&setup, parts(task, &own)) {
        Ok(samples) => match samples.iter.collect::<Result<Vec<_>>>() {
            Ok(_) => panic!("no error"),
            Err(e) => e.to_string(),
        },
        Err(e) => e.to_string(),
    };
    let shots = |n: &str| Setup { options: [("shots".to_owned(), n.to_owned())].into(), ..setup(folder) };
    assert_eq!(error(&PIQA_TASK, shots("many")), "shots: expected a number from 0 to 1000, found \"many\"");
    assert_eq!(error(&PIQA_TASK, shots("110")), "shots: expected at most 109, found 110");
    assert_eq!(error(&ARC_CHALLENGE, shots("41")), "shots: expected at most 40, found 41");
    assert_eq!(error(&GSM8K_COT, shots("9")), "shots: expected at most 8, found 9");
    assert_eq!(error(&NQ_OPEN_TASK, shots("119")), "shots: expected at most 118, found 119");
    let short = error(&ARC_CHALLENGE, Setup { length: Some(100), ..setup(folder) });
    assert!(short.starts_with("test_0: prompt and answer have up to "), "{short}");
    assert!(short.ends_with("tokens, expected at most 100: fewer shots need fewer"), "{short}");

    let zero = samples(&NQ_OPEN_TASK, &shots("0"), parts(&NQ_OPEN_TASK, &own));
    assert!(zero[0].prompt.starts_with("Answer these questions:\n\nQ: "), "{}", zero[0].prompt);
    let few = Setup { samples: Some(3), ..setup(folder) };
    let few = samples(&TRIVIAQA_TASK, &few, parts(&TRIVIAQA_TASK, &own));
    let all = own_samples(&TRIVIAQA_TASK);
    assert_eq!(few.iter().map(digest).collect::<Vec<_>>(), all[..3].iter().map(digest).collect::<Vec<_>>());
    let seeded = Setup { seed: Some(5), ..setup(folder) };
    let seeded = samples(&TRIVIAQA_TASK, &seeded, parts(&TRIVIAQA_TASK, &own));
    assert_ne!(seeded[0].prompt, all[0].prompt);
    assert_eq!(all[0].tags, [("shots", "5: other validation questions".to_owned())]);
}

#[test]
fn of_several_subjects_some_of_each_are_taken() {
    let two = || {
        let [mut a, mut b] = [0, 0].map(|_| parts(&MMLU, &own).remove(0));
        (a.subject, b.subject) = (Some("anatomy"), Some("virology"));
        vec![a, b]
    };
    let few = Setup { samples: Some(4), ..setup(Path::new("")) };
    let ids: Vec<_> = samples(&MMLU, &few, two()).into_iter().map(|s| s.id).collect();
    assert_eq!(ids, ["anatomy/0", "anatomy/55", "virology/0", "virology/55"]);
    assert_eq!(samples(&MMLU, &setup(Path::new("")), two()).len(), 220);
}

#[test]
fn damaged_files_are_errors() {
    let with = |bytes: Vec<u8>| move |_: &DataFile| Ok(bytes.clone());
    let error = |task: &Short, bytes: Vec<u8>| match (task.load)(&with(bytes)) {
        Ok(_) => panic!("no error"),
        Err(e) => e.to_string(),
    };
    let pack = |text: &[u8]| {
        let mut out = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        out.write_all(text).unwrap();
        out.finish().unwrap()
    };
    let line = br#"{"doc": {"id": 0, "question": "q", "answer": "a"}}"#;
    assert!((GSM8K_TASK.load)(&with(pack(line))).is_ok());
    let found = error(&GSM8K_TASK, pack(b"{}"));
    assert!(found.starts_with("short/gsm8k_test.jsonl.gz: line 1: missing field `doc`"), "{found}");
    let twice = [&line[..], b"\n{\"doc\": 3}"].concat();
    let found = error(&GSM8K_TASK, pack(&twice));
    assert!(found.contains("line 2: invalid type: integer `3`"), "{found}");
    assert!(error(&GSM8K_TASK, b"this is a text, not gzip".to_vec()).contains("invalid gzip header"));
    let mut cut = pack(&[&line[..]; 99].concat());
    cut.truncate(cut.len() - 9);
    assert!(error(&GSM8K_TASK, cut).starts_with("short/gsm8k_test.jsonl.gz: "));
    // Another set under the name of this one.
    let found = error(&PIQA_TASK, fixture("nq_open.arrow"));
    assert_eq!(found, "short/piqa_validation.arrow: row 0: missing field `goal`");
}

#[test]
fn cut_off_arrow_is_an_error() {
    for name in ["mmlu_dev.arrow", "arc_validation.arrow"] {
        let bytes = fixture(name);
        assert!(rows(&bytes).is_some_and(|rows| rows.len() > 1));
        for len in 0..bytes.len() - 8 {
            assert!(rows(&bytes[..len]).is_none(), "{name}: {len} of {} bytes", bytes.len());
        }
    }
}
