//! The tests of vocabularies, samplers and the oracle, one program.

use std::path::{Path, PathBuf};

mod oracle;
mod sampler;
mod vocab;
mod vocab_real;

/// A file of `models/`. Fails the test when it is missing, unless the environment says
/// ROPEWALK_SKIP_MODEL_TESTS=1 (CI never does): then `None`, and the test passes without having run.
fn models(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name);
    let skip = std::env::var("ROPEWALK_SKIP_MODEL_TESTS").is_ok_and(|v| v == "1");
    assert!(
        path.exists() || skip,
        "{} is missing: `make model` fetches it; ROPEWALK_SKIP_MODEL_TESTS=1 skips the tests that need it",
        path.display()
    );
    path.exists().then_some(path)
}
