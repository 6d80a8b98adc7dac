//! The prompts are those that NVIDIA's generators made; `tests/reference/ruler.py` recorded them.

use std::collections::BTreeMap;
use std::path::Path;

use ropewalk_tasks::internals::ruler::{
    hotpotqa, judge, numbered, postprocess, python_list, squad, string_match_all, string_match_part, Metric,
    ANSWER, NIAH, ZETA_2,
};
use ropewalk_tasks::{find, Answer, Ask, Encoder, Result, Setup, Token};
use serde::Deserialize;

use crate::testing::{self, all, sha256, task};

/// A tokenizer that counts tokens, and has none.
struct Fixed {
    /// Texts that a chat template puts before and after a message.
    frame: (&'static str, &'static str),
    count: fn(&str) -> usize,
}

/// Tokens of a tokenizer that both sides can have: runs of ASCII letters, runs of blanks, and other characters.
fn runs(text: &str) -> usize {
    let mut n = 0;
    let mut last = None;
    for c in text.chars() {
        let class = match c {
            'a'..='z' | 'A'..='Z' => Some('a'),
            ' ' => Some(' '),
            _ => None,
        };
        n += usize::from(class.is_none() || class != last);
        last = class;
    }
    n
}

impl Encoder for Fixed {
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        Ok(vec![0; self.count(text)?])
    }

    fn decode(&self, _: &[Token]) -> Result<String> {
        unreachable!("no task of RULER decodes")
    }

    fn frame(&self, message: &str) -> Result<String> {
        Ok(format!("{}{message}{}", self.frame.0, self.frame.1))
    }

    fn count(&self, text: &str) -> Result<usize> {
        Ok((self.count)(text))
    }
}

/// SHA-256 of a prompt, its tokens and its answers.
type RecordedSample = (String, usize, Vec<String>);

/// The recorded prompts of a version.
#[derive(Deserialize)]
struct Recorded {
    /// By task and length; nothing where the generator never ends.
    samples: BTreeMap<String, BTreeMap<String, Option<Vec<RecordedSample>>>>,
    /// First and last 300 characters of the first prompt of 4096 tokens.
    ends: BTreeMap<String, [String; 2]>,
}

fn recorded(name: &str) -> Recorded {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ruler").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The published data, where `make models` puts it.
fn data() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/benchmarks")
}

fn setup<'a>(encoder: &'a dyn Encoder, data: &'a Path, version: &str, length: usize) -> Setup<'a> {
    Setup { samples: Some(10), ..testing::setup(encoder, data, length, &[("ruler", version)]) }
}

/// Compares all recorded samples of a task.
fn check(version: &str, file: &str, name: &str, frame: (&'static str, &'static str)) {
    let recorded = recorded(file);
    let encoder = Fixed { frame, count: runs };
    let data = data();
    let task = task(name);
    for (length, samples) in &recorded.samples[name] {
        let what = format!("{name} of {length} tokens, generators of {version}");
        let mut setup = setup(&encoder, &data, version, length.parse().expect("a length"));
        setup.samples = samples.as_ref().map(Vec::len).or(setup.samples);
        let mut beyond = 0;
        let made = task
            .samples(&setup)
            .and_then(|samples| {
                beyond = samples.beyond;
                samples.iter.collect::<Result<Vec<_>>>()
            })
            .map_err(|e| e.to_string());
        let Some(samples) = samples else {
            // Upstream never ends.
            let error = made.err().unwrap_or_else(|| panic!("{what}: expected an error, found samples"));
            assert!(error.contains("expected a length of"), "{what}: {error}");
            continue;
        };
        let made = made.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(made.len(), samples.len(), "{what}");
        for (i, (sample, (hash, tokens, answers))) in made.iter().zip(samples).enumerate() {
            if (length.as_str(), i) == ("4096", 0) {
                if let Some([head, tail]) = recorded.ends.get(name) {
                    let chars: Vec<char> = sample.prompt.chars().collect();
                    assert_eq!(chars[..300].iter().collect::<String>(), *head, "{what}: its beginning");
                    assert_eq!(
                        chars[chars.len() - 300..].iter().collect::<String>(),
                        *tail,
                        "{what}: its end"
                    );
                }
            }
            assert_eq!(encoder.count(&sample.prompt).expect("tokens"), *tokens, "{what}, sample {i}: tokens");
            assert_eq!(sha256(&sample.prompt), *hash, "{what}, sample {i}");
            assert_eq!(sample.expected.text(), answers.join(", "), "{what}, sample {i}");
            assert_eq!((sample.judge)(&sample.expected), [1.0], "{what}, sample {i}");
            assert_eq!((sample.judge)(&Answer::Text(String::new())), [0.0], "{what}, sample {i}");
            let Ask::Generate { max_tokens, .. } = sample.ask else { panic!("{what}: not a text") };
            let length: usize = length.parse().expect("a length");
            assert!(tokens + max_tokens <= length + beyond, "{what}, sample {i}: {tokens} + {max_tokens}");
        }
    }
}

const BASE: (&str, &str) = ("", "");
const PLAIN: Fixed = Fixed { frame: BASE, count: runs };

/// The chat template that upstream calls "meta-chat".
const CHAT: (&str, &str) = ("[INST] ", " [/INST]");

#[test]
fn chat_template() {
    for name in ["niah_single_1", "niah_multiquery", "vt", "cwe", "fwe", "qa_1"] {
        check("2024", "2024-chat.json", name, CHAT);
        check("current", "current-chat.json", name, CHAT);
    }
}

fn check_both(name: &str) {
    check("2024", "2024.json", name, BASE);
    check("current", "current.json", name, BASE);
}

#[test]
fn niah() {
    for name in NIAH {
        check_both(name);
    }
}

#[test]
fn vt() {
    check_both("vt");
}

#[test]
fn cwe_and_fwe() {
    check_both("cwe");
    check_both("fwe");
}

#[test]
fn qa() {
    check_both("qa_1");
    check_both("qa_2");
}

/// Lengths that words and documents do not suffice for: lists stop growing in 2024, documents are repeated today.
#[test]
fn lengths_beyond_the_data() {
    check("2024", "2024-long.json", "cwe", BASE);
    check("2024", "2024-long.json", "qa_1", BASE);
    check("current", "current-long.json", "qa_1", BASE);
}

/// Where the generators would try for ever, and settings that make no sense: an error that says what would fit.
#[test]
fn lengths_that_hold_no_sample() {
    let encoder = PLAIN;
    let data = data();
    for task in find("ruler").unwrap() {
        let name = task.info().name;
        for version in ["2024", "current"] {
            for length in [0, 1, 150, 1 << 25, usize::MAX] {
                let error = testing::error(task, &setup(&encoder, &data, version, length));
                assert!(error.contains("expected a length of"), "{name}, {version}, {length}: {error}");
            }
        }
        let mut setup = setup(&encoder, &data, "2023", 4096);
        assert!(testing::error(task, &setup).contains("2023"), "{name}");
        setup.options.clear();
        setup.seed = Some(1 << 32);
        assert!(testing::error(task, &setup).contains("seed"), "{name}");
    }
}

/// A depth in per cent moves the needles and nothing else; several are those of the samples in turn.
#[test]
fn needles_stand_at_the_depth_asked_for() {
    let (encoder, data) = (PLAIN, data());
    let samples = |name: &str, version: &str, depth: Option<&str>| {
        let mut setup = setup(&encoder, &data, version, 4096);
        setup.options.extend(depth.map(|depth| ("depth".to_owned(), depth.to_owned())));
        setup.samples = Some(6);
        all(task(name), &setup)
    };
    for name in NIAH {
        for version in ["2024", "current"] {
            let drawn = samples(name, version, None).unwrap();
            assert_eq!(drawn[0].tags.len(), 1, "{name}");
            let fixed = samples(name, version, Some("0/50/100")).unwrap();
            for (i, sample) in fixed.iter().enumerate() {
                let depth = [0, 50, 100][i % 3];
                assert_eq!(sample.tags[1], ("depth", depth.to_string()), "{name}");
                assert!(encoder.count(&sample.prompt).unwrap() + ANSWER <= 4096, "{name}");
                let needle = format!(" for {} is: ", sample.tags[0].1.split(", ").next().unwrap());
                let at = sample.prompt.find(&needle).unwrap() as f64 / sample.prompt.len() as f64;
                // Sentences and lines of unlike length, the question after, and up to three needles on each side.
                assert!(
                    (at - f64::from(depth) / 100.0).abs() < 0.1,
                    "{name}, {version}: {depth} % is at {at}"
                );
            }
        }
    }
    // The same numbers and keys as where the generators put the needles.
    let (drawn, fixed) =
        ["random", "30"].map(|depth| samples("niah_single_2", "2024", Some(depth)).unwrap()).into();
    for (a, b) in drawn.iter().zip(&fixed) {
        assert_eq!((a.tags[0].clone(), a.expected.text()), (b.tags[0].clone(), b.expected.text()));
        // A blank more where a needle stands at an end.
        assert!(a.prompt.len().abs_diff(b.prompt.len()) <= 1);
    }
    assert!(drawn.iter().zip(&fixed).any(|(a, b)| a.prompt != b.prompt));
    for wrong in ["", "101", "-1", "50/", "50,60", "12.5", "middle"] {
        let error = samples("niah_single_1", "current", Some(wrong)).err().expect(wrong).to_string();
        assert!(
            error.contains("depth: expected `random`") && error.contains(&format!("{wrong:?}")),
            "{error}"
        );
    }
}

/// A tokenizer with which no text is ever too long does not make the search endless.
#[test]
fn tokenizer_without_tokens() {
    let (one_token, data) = (Fixed { frame: BASE, count: |_| 1 }, data());
    for name in NIAH.iter().chain(&["vt"]) {
        for version in ["2024", "current"] {
            let error = testing::error(task(name), &setup(&one_token, &data, version, 4096));
            assert!(error.contains("expected a tokenizer"), "{name}, {version}: {error}");
        }
    }
}

#[test]
fn metrics_are_those_of_the_official_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ruler/metrics.json");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let cases: Vec<(String, Vec<String>, String, f64, f64)> = serde_json::from_str(&text).expect("cases");
    assert!(cases.len() >= 200, "{} cases", cases.len());
    for (answer, references, processed, all, part) in cases {
        assert_eq!(postprocess(&answer), processed, "{answer:?}");
        assert!(
            (string_match_all(&processed, &references) - all).abs() < 1e-12,
            "{answer:?}: {references:?}"
        );
        assert_eq!(string_match_part(&processed, &references), part, "{answer:?}: {references:?}");
        for (metric, score) in [(string_match_all as Metric, all), (string_match_part as Metric, part)] {
            let found = judge(metric, references.clone())(&Answer::Text(answer.clone()));
            assert!((found[0] - score).abs() < 1e-12 && found.len() == 1, "{answer:?}: {references:?}");
        }
    }
}

/// The error of a task's samples.
fn error(name: &str, version: &str, change: impl Fn(&mut Setup<'_>)) -> String {
    let (encoder, data) = (PLAIN, data());
    let mut setup = setup(&encoder, &data, version, 4096);
    change(&mut setup);
    testing::error(task(name), &setup)
}

#[test]
fn errors_say_what_would_fit() {
    for (name, length) in [("cwe", 600), ("fwe", 190), ("qa_1", 300), ("qa_2", 300)] {
        for version in ["2024", "current"] {
            let error = error(name, version, |setup| setup.length = Some(length));
            let needed = error.split_once("a length of about ").expect(&error).1;
            let needed: usize = needed.split(' ').next().expect(&error).parse().expect(&error);
            assert!(needed > length && needed < 4096, "{name}: {error}");
        }
    }
}

#[test]
fn more_samples_than_questions() {
    assert!(error("qa_1", "current", |setup| setup.samples = Some(6000)).contains("5928"));
    assert!(error("qa_2", "current", |setup| setup.samples = Some(usize::MAX)).contains("7405"));
    assert!(error("cwe", "current", |setup| setup.length = None).contains("length"));
}

#[test]
fn lists_longer_than_the_vocabulary_say_what_they_need() {
    let error = error("cwe", "current", |setup| {
        setup.length = Some(400_000);
        setup.samples = Some(1);
    });
    assert!(error.contains("english_words.json") && error.contains("NVIDIA/RULER"), "{error}");
}

/// Only frequent words of 2024 leave no room for the answer.
#[test]
fn answers_are_within_the_length() {
    let (encoder, data) = (PLAIN, data());
    for version in ["2024", "current"] {
        for name in ["niah_single_1", "vt", "cwe", "fwe", "qa_1"] {
            let setup = setup(&encoder, &data, version, 4096);
            let beyond = task(name).samples(&setup).expect(name).beyond;
            assert_eq!(beyond, if (name, version) == ("fwe", "2024") { 50 } else { 0 }, "{name}, {version}");
        }
    }
}

/// Cuts runs of capitals into one to three tokens, as trained tokenizers do.
fn uneven(text: &str) -> usize {
    let capitals = |word: &&str| word.len() > 2 && word.bytes().all(|b| b.is_ascii_uppercase());
    let words = text.split(|c: char| !c.is_ascii_alphabetic()).filter(capitals);
    let more: usize = words.map(|word| word.bytes().map(usize::from).sum::<usize>() % 3).sum();
    runs(text) + more
}

/// Prompts stay within the length where draws differ in tokens.
#[test]
fn uneven_names() {
    let (encoder, data) = (Fixed { frame: BASE, count: uneven }, data());
    let task = task("vt");
    for version in ["2024", "current"] {
        for length in (2000..2480).step_by(16) {
            let mut setup = setup(&encoder, &data, version, length);
            setup.seed = Some(length as u64);
            for sample in task.samples(&setup).expect("samples").iter {
                let n = uneven(&sample.expect("a sample").prompt) + 30;
                assert!(n <= length, "{version}: {n} tokens of {length}");
            }
        }
    }
}

#[test]
fn squad_has_articles_and_hotpotqa_has_not() {
    let json = br#"{"version": "v2.0", "data": [
        {"title": "Two", "paragraphs": [
            {"context": "Water is wet.", "qas": [
                {"question": "What is wet?", "id": "1", "is_impossible": false,
                 "answers": [{"text": "Water", "answer_start": 0}, {"text": "water", "answer_start": 0}]},
                {"question": "What is dry?", "id": "2", "is_impossible": true, "answers": [],
                 "plausible_answers": [{"text": "Water", "answer_start": 0}]}]},
            {"context": "Sand is dry.", "qas": []}]},
        {"title": "One", "paragraphs": [
            {"context": "Water is wet.", "qas": [
                {"question": "How is water?", "id": "3", "is_impossible": false,
                 "answers": [{"text": "wet", "answer_start": 9}]}]}]}]}"#;
    let set = squad(json).expect("SQuAD");
    assert_eq!(set.documents, ["Sand is dry.", "Water is wet."]);
    assert_eq!(set.articles, [vec![1, 0], vec![1]]);
    let found: Vec<_> = set.questions.iter().map(|q| (q.text.as_str(), q.documents[0], q.article)).collect();
    assert_eq!(found, [("What is wet?", 1, Some(0)), ("How is water?", 1, Some(1))]);
    assert_eq!(set.questions[0].answers, ["Water", "water"]);

    let json = br#"[{"_id": "1", "question": "Who?", "answer": "Ann", "type": "bridge", "level": "hard",
        "supporting_facts": [["B", 0]], "context": [["B", ["Ann ", "is."]], ["A", []], ["B", ["Ann is."]]]}]"#;
    let set = hotpotqa(json).expect("HotpotQA");
    assert_eq!(set.documents, ["A\n", "B\nAnn is."]);
    assert_eq!(set.questions[0].documents, [1, 0, 1]);
}

#[test]
fn other_data_is_an_error() {
    for json in ["", "null", r#"{"data":[{"paragraphs":[{"context":1,"qas":[]}]}]}"#] {
        assert!(squad(json.as_bytes()).is_err(), "{json}");
        assert!(hotpotqa(json.as_bytes()).is_err(), "{json}");
    }
}

#[test]
fn lists_are_numbered_from_one() {
    assert_eq!(numbered(&["one", "two"]), "1. one 2. two");
    assert_eq!(numbered::<&str>(&[]), "");
}

#[test]
fn zeta_of_two_is_that_of_scipy() {
    // scipy.special.zeta(2.0), SciPy 1.17.1.
    assert_eq!(ZETA_2, 1.644_934_066_848_226_4);
}

#[test]
fn lists_are_written_as_python_does() {
    let list = |texts: &[&str]| python_list(&texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>());
    assert_eq!(list(&[]), "[]");
    assert_eq!(list(&["France", "it's"]), r#"['France', "it's"]"#);
    assert_eq!(list(&["'\"\\", "a\tb\n\x01é\u{a0}"]), r#"['\'"\\', 'a\tb\n\x01é\xa0']"#);
}
