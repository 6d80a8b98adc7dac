//! Checkpoints of each family and the tokenizers that they go with, as `tests/reference/checkpoints.py` recorded them.

use std::path::{Path, PathBuf};

use serde_json::Value;

pub(crate) struct Recorded {
    pub(crate) name: String,
    /// What transformers and llama.cpp's converter made of it.
    pub(crate) expected: Value,
}

/// The folder of all, from whichever crate of the workspace.
pub(crate) fn recorded() -> PathBuf {
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    above.map(|dir| dir.join("src/import/tests/checkpoints")).find(|dir| dir.is_dir()).unwrap()
}

fn entries(folder: PathBuf) -> impl Iterator<Item = std::fs::DirEntry> {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap())
}

impl Recorded {
    pub(crate) fn all() -> Vec<Recorded> {
        let names = entries(recorded()).map(|entry| entry.file_name().into_string().unwrap());
        let mut names: Vec<String> = names.filter(|name| name != "tokenizers").collect();
        assert!(names.len() >= 28, "{names:?}");
        names.sort();
        names.iter().map(|name| Recorded::of(name)).collect()
    }

    pub(crate) fn of(name: &str) -> Recorded {
        let expected = std::fs::read(recorded().join(name).join("expected.json")).unwrap();
        Recorded { name: name.to_owned(), expected: serde_json::from_slice(&expected).unwrap() }
    }

    fn tokenizer(&self) -> &str {
        self.expected["tokenizer"].as_str().unwrap()
    }

    /// The kind of BPE that the recordings were made with: no list has their tokenizers.
    pub(crate) fn pre(&self) -> Option<&'static str> {
        self.tokenizer().starts_with("bpe").then_some("gpt-2")
    }

    /// Makes a folder with the checkpoint and its tokenizer.
    pub(crate) fn copy(&self, to: &Path) {
        std::fs::create_dir(to).unwrap();
        let tokenizer = recorded().join("tokenizers").join(self.tokenizer());
        for entry in entries(recorded().join(&self.name)).chain(entries(tokenizer)) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}
