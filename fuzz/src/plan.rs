//! Plans of studies.

use ropewalk_study::{Known, Plan, MAX_CELLS};

use crate::{accepted, file};

/// Stands for the registry of benchmarks.
pub(crate) fn find(name: &str) -> Result<Vec<Known>, String> {
    let known =
        |name: &str, has_length| Known { name: name.into(), has_length, options: vec!["ruler".to_owned()] };
    match name {
        "vt" => Ok(vec![known("vt", true)]),
        "piqa" => Ok(vec![known("piqa", false)]),
        "both" => Ok(vec![known("vt", true), known("piqa", false)]),
        _ => Err("expected vt, piqa or both".into()),
    }
}

/// Reads the plan and walks through its cells.
pub fn run(bytes: &[u8]) -> bool {
    accepted(Plan::read(&file("plan.toml", bytes), &find).map(|plan| {
        assert!(!plan.is_empty() && plan.len() <= MAX_CELLS);
        assert_eq!(plan.cells().take(1000).count(), plan.len().min(1000));
    }))
}

/// A short plan, and one with everything in it.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![SHORT.into(), FULL.into()]
}

const SHORT: &str = r#"title = "a"
models = [{ name = "m", path = "m.gguf" }]
methods = [{ name = "plain", spec = "plain" }]
tasks = [{ name = "vt", lengths = [512] }]
"#;

const FULL: &str = r#"title = "b"
lengths = [512, 1024]
samples = 3
seeds = [1, 2]
texts = ["t.txt"]
data = "d"
template = "chat"
[[models]]
name = "m"
path = "m.gguf"
[[methods]]
name = "yarn"
spec = "yarn:factor=2"
adapters = ["a.gguf"]
kind = "exact"
trained = "trained"
tokens = 1000
parameters = "lora"
models = ["m"]
[[methods]]
name = "tuned"
spec = "pi:factor=2"
train = { args = ["--steps", "3"], data = ["t.txt"] }
[[tasks]]
name = "both"
samples = 2
[[tasks]]
name = "perplexity"
label = "ppl"
protocol = "sliding"
stride = 256
max_windows = 4
"#;
