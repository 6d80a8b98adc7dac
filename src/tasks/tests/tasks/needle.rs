//! Prompts and scores against those of the published code (`tests/reference/needle.py`).

use std::path::{Path, PathBuf};

use ropewalk_tasks::internals::data::read_documents;
use ropewalk_tasks::internals::needle::{scores, word_share};
use ropewalk_tasks::{Answer, Ask, Encoder, Result, Task, Template, Token};
use serde::Deserialize;

use crate::testing::{all, error, setup, sha256, task, Simple};

/// The tasks, of which the second reads JSON Lines here.
fn tasks() -> [&'static dyn Task; 3] {
    ["needle_lceg", "needle_lwm", "needle_kamradt"].map(task)
}

#[derive(Deserialize)]
struct Official {
    documents: Vec<String>,
    depths: Vec<Vec<u32>>,
    lceg: Lceg,
    lwm: Vec<Prompts>,
    kamradt: Vec<Prompts>,
}

#[derive(Deserialize)]
struct Lceg {
    prompts: Vec<Prompts>,
    scores: Vec<(String, f64)>,
}

#[derive(Deserialize)]
struct Prompts {
    length: usize,
    #[serde(default)]
    depths: Vec<u32>,
    sha256: Vec<String>,
    last: String,
    #[serde(default)]
    messages: Vec<String>,
    /// A model's answer, the number, and whether the published code calls the answer right.
    #[serde(default)]
    judged: Vec<(String, String, bool)>,
}

fn official() -> Official {
    serde_json::from_str(include_str!("../fixtures/needle/official.json")).expect("fixture")
}

/// A folder with the fixture's texts, and a JSONL file of them.
fn haystacks(official: &Official) -> (tempfile::TempDir, String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let texts = folder.path().join("texts");
    std::fs::create_dir(&texts).expect("a folder");
    let mut lines = String::new();
    for (i, text) in official.documents.iter().enumerate() {
        // Windows line ends are read as Python reads them.
        std::fs::write(texts.join(format!("{i}.txt")), text.replace('\n', "\r\n")).expect("written");
        lines += &format!("{}\n", serde_json::json!({ "text": text }));
    }
    let books = folder.path().join("books.jsonl");
    std::fs::write(&books, lines).expect("written");
    let text = |path: PathBuf| path.to_str().expect("UTF-8").to_string();
    (folder, text(texts), text(books))
}

#[test]
fn depths_are_those_of_numpy() {
    let simple = Simple::default();
    for depths in official().depths {
        let count = depths.len().to_string();
        let setup = setup(&simple, Path::new(""), 1000, &[("depths", &count)]);
        assert_eq!(setup.depths(task("needle_lceg").info().options[0]).unwrap(), depths);
    }
}

#[test]
fn lceg_prompts_are_the_published_ones() {
    let official = official();
    let (_folder, texts, _) = haystacks(&official);
    for expected in &official.lceg.prompts {
        let simple = Simple::default();
        let setup = setup(&simple, Path::new(""), expected.length, &[("haystack", &texts)]);
        let samples = all(task("needle_lceg"), &setup).unwrap();
        let depths: Vec<_> = expected.depths.iter().map(|d| ("depth", d.to_string())).collect();
        assert_eq!(samples.iter().map(|s| s.tags[0].clone()).collect::<Vec<_>>(), depths);
        assert_eq!(samples.last().unwrap().prompt, expected.last);
        let hashes: Vec<_> = samples.iter().map(|s| sha256(&s.prompt)).collect();
        assert_eq!(hashes, expected.sha256, "length {}", expected.length);
    }
}

/// A few samples see the whole text.
#[test]
fn fewer_samples_than_depths_are_spread_over_the_depths() {
    let official = official();
    let (_folder, texts, books) = haystacks(&official);
    let simple = Simple::default();
    for (name, haystack, length) in [
        ("needle_lceg", &texts, official.lceg.prompts[0].length),
        ("needle_lwm", &books, official.lwm[0].length),
    ] {
        let mut setup = setup(&simple, Path::new(""), length, &[("haystack", haystack)]);
        let mut depths = |samples| {
            setup.samples = samples;
            let samples = all(task(name), &setup).unwrap();
            samples.iter().map(|s| s.tags[0].1.parse::<u32>().unwrap()).collect::<Vec<_>>()
        };
        let whole = depths(None);
        for n in [2, 3, 5] {
            let some = depths(Some(n));
            assert_eq!((some.len(), some[0], some[n - 1]), (n, 0, 100), "{name}: {some:?}");
            assert!(some.windows(2).all(|w| w[0] < w[1]), "{name}: {some:?}");
        }
        assert_eq!(depths(Some(1)).len(), 1);
        assert_ne!(depths(Some(1)), [0]);
        assert_eq!(depths(Some(whole.len())), whole);
    }
}

#[test]
fn lceg_scores_are_the_published_ones() {
    let cases = official().lceg.scores;
    assert!(cases.len() >= 200);
    for (answer, score) in cases {
        assert_eq!(word_share(&answer), score, "{answer:?}");
    }
}

#[test]
fn lwm_prompts_and_scores_are_the_published_ones() {
    let official = official();
    let (_folder, _, books) = haystacks(&official);
    let mut judged = 0;
    for expected in &official.lwm {
        let simple = Simple::default();
        let setup = setup(&simple, Path::new(""), expected.length, &[("haystack", &books)]);
        let samples = all(task("needle_lwm"), &setup).unwrap();
        assert_eq!(samples.len(), 60);
        // Published: depth by depth, round by round; ours: haystack by haystack.
        let published = |i: usize| &samples[i % 3 * 20 + i / 3];
        assert_eq!(published(59).prompt, expected.last);
        for (i, hash) in expected.sha256.iter().enumerate() {
            assert_eq!(&sha256(&published(i).prompt), hash, "length {} sample {i}", expected.length);
        }
        for (i, (answer, number, correct)) in expected.judged.iter().enumerate() {
            let sample = published(i);
            assert_eq!(sample.expected, Answer::Text(number.clone()));
            let score = (sample.judge)(&Answer::Text(answer.clone()));
            assert_eq!(score, [f64::from(u8::from(*correct))], "{answer:?} for {number}");
            judged += 1;
        }
    }
    assert!(judged >= 200);
}

#[test]
fn kamradt_prompts_are_the_published_ones() {
    let official = official();
    let (_folder, texts, _) = haystacks(&official);
    for expected in &official.kamradt {
        let simple = Simple::default();
        let mut setup = setup(&simple, Path::new(""), expected.length, &[("haystack", &texts)]);
        for template in [Template::Base, Template::Chat] {
            setup.template = template;
            let samples = all(task("needle_kamradt"), &setup).unwrap();
            let hashes: Vec<_> = samples.iter().map(|s| sha256(&s.prompt)).collect();
            let depths: Vec<_> = samples.iter().map(|s| s.tags[0].1.clone()).collect();
            assert_eq!(depths, expected.depths.iter().map(u32::to_string).collect::<Vec<_>>());
            if template == Template::Base {
                assert_eq!(samples.last().unwrap().prompt, expected.last);
                assert_eq!(hashes, expected.sha256, "length {}", expected.length);
            } else {
                assert_eq!(hashes, expected.messages, "length {}", expected.length);
            }
        }
    }
}

#[test]
fn kamradt_scores() {
    let row = |answer| scores(answer);
    assert_eq!(row("Eat a sandwich, and sit in Dolores Park on a sunny day!"), [1.0, 1.0]);
    assert_eq!(row("It is to eat a sandwich and sit in\nDolores Park on a sunny day"), [1.0, 1.0]);
    assert_eq!(row("Sit in Dolores Park on a sunny day and eat a sandwich."), [0.0, 1.0]);
    assert_eq!(row("Meat a sandwich and sit in dolores park on a sunny days"), [0.0, 9.0 / 11.0]);
    assert_eq!(row(""), [0.0, 0.0]);
}

/// All that fits, fits: prompt and answer are within the length; expected answers get full marks, silence none.
#[test]
fn samples_fit_their_length() {
    let official = official();
    let (_folder, texts, books) = haystacks(&official);
    let simple = Simple::default();
    for (task, haystack) in tasks().into_iter().zip([&texts, &books, &texts]) {
        for length in [300, 1000, 4096] {
            let options = [("haystack", haystack.as_str()), ("depths", "0/37/100")];
            let setup = setup(&simple, Path::new(""), length, &options);
            let info = task.info();
            for sample in task.samples(&setup).unwrap().iter {
                let sample = sample.unwrap();
                let Ask::Generate { max_tokens, .. } = sample.ask else {
                    panic!("expected an answer as text")
                };
                let n = simple.count(&sample.prompt).unwrap();
                assert!(n + max_tokens <= length && max_tokens > 0, "{}: {n} + {max_tokens}", info.name);
                assert!(n > length - 210, "{}: {n} of {length}", info.name);
                assert_eq!((sample.judge)(&sample.expected)[0], info.best, "{}", info.name);
                assert_eq!((sample.judge)(&Answer::Text(String::new()))[0], 0.0, "{}", info.name);
            }
        }
    }
}

#[test]
fn rounds_of_one_text_differ_and_hold_their_needle() {
    let official = official();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one.txt");
    std::fs::write(&file, &official.documents[2]).unwrap();
    let simple = Simple::default();
    let options = [("haystack", file.to_str().unwrap()), ("depths", "50"), ("rounds", "4")];
    let setup = setup(&simple, Path::new(""), 1500, &options);
    let prompts: Vec<_> = task("needle_lwm")
        .samples(&setup)
        .unwrap()
        .iter
        .step_by(50)
        .map(|sample| sample.unwrap().prompt.split_once("USER: ").unwrap().1[..40].to_string())
        .collect();
    assert_eq!(prompts.len(), 4);
    assert!((1..4).all(|i| prompts[i] != prompts[0]));
}

#[test]
fn what_makes_no_sense_is_an_error_that_says_so() {
    let official = official();
    let (folder, texts, _) = haystacks(&official);
    let simple = Simple::default();
    let with = |length, options: &[(&'static str, &str)]| {
        error(task("needle_lceg"), &setup(&simple, folder.path(), length, options))
    };
    let haystack = ("haystack", texts.as_str());
    assert!(with(200, &[haystack]).contains("a length of 200 tokens: expected more than"));
    for wrong in ["0", "102", "x", "", "-1", "50/101", "5/", "1.5"] {
        assert!(with(1000, &[haystack, ("depths", wrong)]).contains("depths: expected a count"), "{wrong}");
    }
    for wrong in ["0", "1001", "two"] {
        let setup = setup(&simple, folder.path(), 1000, &[haystack, ("rounds", wrong)]);
        assert!(error(task("needle_lwm"), &setup).contains("rounds: expected a number"), "{wrong}");
    }
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(with(1000, &[("haystack", empty.to_str().unwrap())]).contains("expected text files, found none"));
    let bad = folder.path().join("bad.jsonl");
    std::fs::write(&bad, "{\"text\": \"a\"}\n{\"txt\": 1}\n").unwrap();
    assert!(with(1000, &[("haystack", bad.to_str().unwrap())]).contains("line 2"));
    std::fs::write(&bad, b"a\xff").unwrap();
    assert!(with(1000, &[("haystack", bad.to_str().unwrap())]).contains("not UTF-8"));
}

#[test]
fn documents_are_read_as_far_as_needed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let text = "Ä line.\r\nAnother\rone. ";
    std::fs::write(path("b.txt"), text).unwrap();
    std::fs::write(path("a.md"), "first").unwrap();
    std::fs::write(path("c.bin"), "not a\0text").unwrap();
    let unix = "Ä line.\nAnother\none. ";
    assert_eq!(read_documents(folder.path(), 1000).unwrap(), ["first", unix]);
    assert_eq!(read_documents(folder.path(), 5).unwrap(), ["first"]);
    // The first letter has two bytes: half of it is left out.
    assert!(read_documents(&path("b.txt"), 1).is_err());
    assert_eq!(read_documents(&path("b.txt"), 2).unwrap(), ["Ä"]);
    let lines = format!("{}\n\n{}\n", serde_json::json!({"text": text, "meta": 1}), r#"{"text": "second"}"#);
    std::fs::write(path("books.jsonl"), &lines).unwrap();
    assert_eq!(read_documents(&path("books.jsonl"), 1000).unwrap(), [unix, "second"]);
    assert_eq!(read_documents(&path("books.jsonl"), lines.len() as u64 - 5).unwrap(), [unix]);
    let windows = format!("{}\r\n", r#"{"text": "a"}"#).repeat(9);
    std::fs::write(path("windows.jsonl"), &windows).unwrap();
    assert_eq!(read_documents(&path("windows.jsonl"), windows.len() as u64 - 5).unwrap(), ["a"; 8]);
    // A line that ends too early is an error where nothing was cut.
    std::fs::write(path("books.jsonl"), &lines[..lines.len() - 5]).unwrap();
    assert!(read_documents(&path("books.jsonl"), 1000).unwrap_err().to_string().contains("line 3"));
}

/// A tokenizer of a model that knows lower case only.
#[derive(Default)]
struct Lower(Simple);

impl Encoder for Lower {
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        self.0.encode(&text.to_lowercase())
    }
    fn decode(&self, tokens: &[Token]) -> Result<String> {
        self.0.decode(tokens)
    }
    fn frame(&self, message: &str) -> Result<String> {
        self.0.frame(message)
    }
}

#[test]
fn a_template_that_does_not_fit_is_an_error_that_says_so() {
    let official = official();
    let (_folder, texts, books) = haystacks(&official);
    // A chat template with a long system prompt.
    let wordy = Simple::framed(0, [&".".repeat(150), ""]);
    for (task, haystack) in tasks().into_iter().zip([&texts, &books, &texts]) {
        let setup = setup(&wordy, Path::new(""), 1000, &[("haystack", haystack), ("depths", "1")]);
        let message = error(task, &setup);
        assert!(message.contains("the protocol leaves 200 tokens"), "{message}");
        let taken: usize = message.rsplit(' ').next().unwrap().parse().expect(&message);
        assert!((201..350).contains(&taken), "{message}");
    }
}

/// A tokenizer that puts a blank before all text, as SentencePiece does, and has tokens with the blank before a
/// word, "." among them.
#[derive(Default)]
struct Blank(Simple);

impl Encoder for Blank {
    fn encode(&self, text: &str) -> Result<Vec<Token>> {
        self.0.encode(&format!("\u{2581}{}", text.replace(' ', "\u{2581}")))
    }
    fn decode(&self, tokens: &[Token]) -> Result<String> {
        let text = self.0.decode(tokens)?.replace('\u{2581}', " ");
        Ok(text.strip_prefix(' ').unwrap_or(&text).into())
    }
    fn frame(&self, message: &str) -> Result<String> {
        self.0.frame(message)
    }
}

#[test]
fn needles_stand_behind_sentences_with_tokenizers_that_begin_with_a_blank() {
    let official = official();
    let (_folder, texts, books) = haystacks(&official);
    let blank = Blank::default();
    for (task, haystack) in tasks().into_iter().zip([&texts, &books, &texts]) {
        let setup =
            setup(&blank, Path::new(""), 2000, &[("haystack", haystack), ("depths", "0/25/50/75/100")]);
        for sample in task.samples(&setup).unwrap().iter.take(5) {
            let sample = sample.unwrap();
            let needle =
                if task.info().name == "needle_lwm" { "\nThe special magic" } else { "\nThe best thing" };
            let (before, _) = sample.prompt.split_once(needle).expect("the needle, whole");
            if ["25", "50", "75"].contains(&sample.tags[0].1.as_str()) {
                assert!(before.trim_end().ends_with('.'), "{:?}", &before[before.len() - 20..]);
            }
        }
    }
}

#[test]
fn a_tokenizer_that_loses_the_needle_is_an_error() {
    let official = official();
    let (_folder, texts, books) = haystacks(&official);
    let lower = Lower::default();
    for (task, haystack) in tasks().into_iter().zip([&texts, &books, &texts]) {
        let setup = setup(&lower, Path::new(""), 1000, &[("haystack", haystack)]);
        let message = error(task, &setup);
        assert!(message.contains("does not give the needle back: expected \"The "), "{message}");
        assert!(message.contains("found \"the "), "{message}");
    }
}
