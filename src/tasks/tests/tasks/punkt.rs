//! The sentences are those that NLTK found; `tests/reference/punkt.py` recorded them.

use std::collections::BTreeMap;
use std::path::Path;

use ropewalk_tasks::internals::text::Punkt;
use serde::Deserialize;
use sha2::{Digest, Sha256};

#[derive(Deserialize)]
struct Recorded {
    texts: Vec<(String, Vec<String>)>,
    essays: BTreeMap<String, Essays>,
}

#[derive(Deserialize)]
struct Essays {
    n: usize,
    sha256: Vec<String>,
}

fn recorded() -> Recorded {
    serde_json::from_str(include_str!("../fixtures/punkt/sentences.json")).expect("sentences.json")
}

/// A published file, where `make models` puts it.
fn published(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/benchmarks");
    let path = folder.join(name);
    std::fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("{} (`make models` fetches it): {e}", path.display()))
}

fn english() -> Punkt {
    serde_json::from_str(&published(Punkt::ENGLISH.name)).expect("the parameters")
}

#[test]
fn hard_cases() {
    let punkt = english();
    for (text, sentences) in recorded().texts {
        assert_eq!(punkt.sentences(&text), sentences, "{text:?}");
    }
}

#[test]
fn all_sentences_of_the_essays() {
    let punkt = english();
    let file: serde_json::Value =
        serde_json::from_str(&published("ruler/PaulGrahamEssays.json")).expect("the essays");
    let text = file["text"].as_str().expect("text");
    // Where later NLTKs would differ.
    assert!(!text.contains(['\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}', '\u{ab}', '\u{bb}']));
    let blanks = text.split_whitespace().collect::<Vec<_>>().join(" ") + " ";
    for (name, text) in [("as_it_is", text), ("blanks", &blanks)] {
        let expected = &recorded().essays[name];
        let sentences = punkt.sentences(text);
        assert_eq!(sentences.len(), expected.n, "{name}");
        for (i, (group, hash)) in sentences.chunks(500).zip(&expected.sha256).enumerate() {
            let found: String = Sha256::digest(group.join("\0")).iter().map(|b| format!("{b:02x}")).collect();
            assert_eq!(found, *hash, "{name}: sentences {} and following: {group:#?}", 500 * i);
        }
    }
}
