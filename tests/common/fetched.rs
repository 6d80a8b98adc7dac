//! Files that the Makefile fetches. The test programs of all crates include this one file.

#![allow(dead_code, unreachable_pub)] // Each test program uses its part.

use std::path::{Path, PathBuf};

/// A file of the folder `models/`. Panics when it is missing: a test that passed without it would prove nothing.
#[track_caller]
pub fn fetched(name: &str) -> PathBuf {
    let in_clone = |folder: &&Path| folder.join("models/manifest.toml").exists();
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find(in_clone).expect("a test runs in a clone");
    let path = root.join("models").join(name);
    assert!(path.exists(), "{} is missing: `make models` fetches it", path.display());
    path
}

/// The default model.
#[track_caller]
pub fn default_model() -> PathBuf {
    fetched("SmolLM2-135M-Instruct.Q4_1.gguf")
}
