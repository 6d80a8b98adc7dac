//! A folder of small texts, and the vocabulary of a random model.

#![allow(unreachable_pub)] // One program: everything is reachable, and nothing is from outside.
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ropewalk::control::Control;
use ropewalk::data::{Corpus, Result, Separator, Sources, TextOptions};
use ropewalk::vocab::Vocab;
use ropewalk::{gguf, DType, Token};

/// A byte-level vocabulary.
pub fn vocab() -> &'static Vocab {
    static VOCAB: OnceLock<Vocab> = OnceLock::new();
    VOCAB.get_or_init(|| vocab_of(&crate::common::random_model("llama-tiny", DType::F32, "data")))
}

pub fn vocab_of(model: &Path) -> Vocab {
    Vocab::load(&gguf::File::open(model).unwrap()).unwrap()
}

/// The default model's, which merges bytes into words.
pub fn words() -> &'static Vocab {
    static VOCAB: OnceLock<Vocab> = OnceLock::new();
    VOCAB.get_or_init(|| vocab_of(&crate::common::default_model()))
}

pub struct World {
    dir: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        World { dir: tempfile::tempdir().unwrap() }
    }

    /// With files of these names and texts below `texts`.
    pub fn of(files: &[(&str, &str)]) -> Self {
        let world = World::new();
        files.iter().for_each(|(name, text)| world.put(name, text.as_bytes()));
        world
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub fn texts(&self) -> PathBuf {
        self.dir.path().join("texts")
    }

    /// Of a text.
    pub fn path(&self, name: &str) -> PathBuf {
        self.texts().join(name)
    }

    pub fn cache(&self) -> PathBuf {
        self.dir.path().join("cache.tokens")
    }

    /// Names of the entries next to the texts: the cache, and nothing left over.
    pub fn beside(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.retain(|n| n != "texts");
        names
    }

    pub fn sources(&self) -> Result<Sources> {
        Sources::find(&[self.texts()], &TextOptions::default())
    }

    pub fn open(&self) -> Result<Corpus> {
        self.open_with(vocab(), &Separator::Auto, &TextOptions::default())
    }

    pub fn open_with(&self, vocab: &Vocab, separator: &Separator, options: &TextOptions) -> Result<Corpus> {
        let sources = Sources::find(&[self.texts()], options)?;
        Corpus::open(self.cache(), vocab, &sources, separator, &Control::default())
    }

    pub fn corpus(&self) -> Arc<Corpus> {
        Arc::new(self.open().unwrap_or_else(|e| panic!("{e}")))
    }
}

/// The tokens of a document.
pub fn document(corpus: &Corpus, i: usize) -> Vec<Token> {
    let mut tokens = Vec::new();
    corpus.read(corpus.range(i), &mut tokens);
    tokens
}

/// Names, relative to the texts, and tokens of all documents.
pub fn everything(world: &World, corpus: &Corpus) -> Vec<(String, Vec<Token>)> {
    let base = format!("{}/", world.texts().display());
    (0..corpus.n_documents())
        .map(|i| (corpus.name(i).trim_start_matches(&base).to_owned(), document(corpus, i)))
        .collect()
}

/// The text and EOS, as the vocabulary of [`vocab`] should have it.
pub fn expected(text: &str) -> Vec<Token> {
    let mut tokens = vocab().tokenize(text, false, false).unwrap();
    tokens.extend(vocab().eos());
    tokens
}

/// The error's text.
#[track_caller]
pub fn refused<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        Err(e) => e.to_string(),
    }
}

/// A text of so many lines of words from a fixed sequence.
pub fn prose(n_lines: usize, seed: u64) -> String {
    let words =
        ["rope", "walk", "hemp", "yarn", "strand", "the", "a", "of", "tar", "long", "twist", "42", "Häuser"];
    let mut next = crate::common::xorshift(seed | 1);
    let mut text = String::new();
    for _ in 0..n_lines {
        for _ in 0..3 + next() % 12 {
            text.push_str(words[(next() % words.len() as u64) as usize]);
            text.push_str([" ", " ", ", ", "; "][(next() % 4) as usize]);
        }
        text.push_str([".\n", ".\n\n", "\n", "!\r\n"][(next() % 4) as usize]);
    }
    text
}
