//! Imports beside what llama.cpp's own converter makes of the same checkpoints, recorded by
//! `tests/reference/checkpoints.py`; and folders that are damaged or hostile.

use std::path::{Path, PathBuf};

use ropewalk_import::{Checkpoint, Tokenizing};

mod folders;
mod hostile;
mod keys;
mod recorded;
mod tokenizers;

/// The kind of BPE that the recordings were made with: no list has their tokenizers.
const PRE: &str = "gpt-2";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints")
}

/// The recorded checkpoints, by name.
fn recordings() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures()).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name != "tokenizers").collect();
    assert!(names.len() >= 28, "{names:?}");
    names.sort();
    names
}

/// A checkpoint with its tokenizer, in a folder of its own.
struct Folder {
    _root: tempfile::TempDir,
    path: PathBuf,
    expected: serde_json::Value,
}

impl Folder {
    fn of(name: &str) -> Folder {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("tiny-model");
        std::fs::create_dir(&path).unwrap();
        let from = fixtures().join(name);
        let expected = std::fs::read(from.join("expected.json")).unwrap();
        let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
        let tokenizer = expected["tokenizer"].as_str().unwrap();
        for folder in [from, fixtures().join("tokenizers").join(tokenizer)] {
            for entry in std::fs::read_dir(folder).unwrap() {
                let entry = entry.unwrap();
                std::fs::copy(entry.path(), path.join(entry.file_name())).unwrap();
            }
        }
        Folder { _root: root, path, expected }
    }
    /// The kind to force, for tokenizers that have one.
    fn pre(&self) -> Option<&'static str> {
        self.expected["tokenizer"].as_str().unwrap().starts_with("bpe").then_some(PRE)
    }
    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
    /// Changes a JSON file.
    fn edit(&self, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
        let path = self.file(name);
        let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        change(&mut value);
        std::fs::write(path, value.to_string()).unwrap();
    }
    fn open(&self) -> Result<Checkpoint, String> {
        self.open_as(self.pre())
    }
    /// With a kind to force. The tokenizers are ours.
    fn open_as(&self, pre: Option<&str>) -> Result<Checkpoint, String> {
        Checkpoint::open(&self.path, pre, Some(&Tokenizing::Trusted)).map_err(|e| e.to_string())
    }
}
