//! Token caches: a damaged one is refused or made again, never read past its end.

use std::path::{Path, PathBuf};

use ropewalk::control::Control;
use ropewalk::data::{Corpus, Result, Separator, Sources, TextOptions};
use sha2::{Digest, Sha256};

use crate::{accepted, base, file, with_digest};

fn texts() -> PathBuf {
    let folder = crate::scratch("texts");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, text) in [("a.txt", "A rope walk is long."), ("b.txt", "So is this rope.")] {
        let path = folder.join(name);
        if !path.exists() {
            std::fs::write(path, text).unwrap();
        }
    }
    folder
}

fn open(path: &Path) -> Result<Corpus> {
    let sources = Sources::find(&[texts()], &TextOptions::default())?;
    Corpus::open(path, base().0.vocab(), &sources, &Separator::Auto, &Control::default())
}

/// Opens the cache and reads all of it.
pub fn run(bytes: &[u8]) -> bool {
    // SHA-256 over that of each 4 MiB, of which there is one here.
    let digest = |bytes: &[u8]| Sha256::digest(Sha256::digest(bytes)).into();
    let path = file("in.tokens", &with_digest(bytes, digest));
    accepted(open(&path).map(|corpus| {
        let mut tokens = Vec::new();
        for i in 0..corpus.n_documents() {
            corpus.read(corpus.range(i), &mut tokens);
            assert!(!corpus.name(i).is_empty());
            corpus.text_hash(i);
        }
        assert_eq!(tokens.len() as u64, corpus.n_tokens());
    }))
}

/// A cache of two texts.
pub fn seeds() -> Vec<Vec<u8>> {
    let path = crate::scratch("seed.tokens");
    open(&path).unwrap();
    vec![std::fs::read(path).unwrap()]
}
