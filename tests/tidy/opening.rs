//! Files are opened by one crate: it refuses pipes and devices, and bounds what it reads.

use super::reading::first_names;
use super::{check, sources};

/// Sources that read the system's own files, whose paths nobody names.
const SYSTEM: &[&str] = &[
    "ggml/llama/src/quantize/interrupt.rs",
    "ggml/src/limits.rs",
    "ggml/src/machine.rs",
    "src/core/apart.rs",
    "src/core/signals.rs",
];

#[test]
fn files_are_opened_by_one_crate() {
    let (mut faults, mut system) = (Vec::new(), 0);
    for source in sources() {
        let p = source.path.as_str();
        let library = ["src/", "convert/src/", "python/"].iter().any(|f| p.starts_with(f))
            || p.starts_with("ggml/") && p.contains("/src/");
        let test = p.contains("/tests/") || p.ends_with("tests.rs");
        if !library || test || p.starts_with("ggml/files/") {
            continue;
        }
        let tests = source.code.find("\nmod tests {").unwrap_or(source.code.len());
        let mut calls =
            vec!["fs::read", "fs::read_to_string", "fs::File::open", "File::options", "OpenOptions"];
        let imports = |at: usize| first_names(&source.code, at + "std::fs::".len());
        // GGUF files also have a type of this name.
        if source.words("std::fs::").any(|at| imports(at).iter().any(|name| name == "File")) {
            calls.push("File::open");
        }
        let opens = |at: &usize| *at < tests && !source.code[..*at].ends_with("gguf::");
        let found: Vec<usize> = calls.iter().flat_map(|call| source.words(call)).filter(opens).collect();
        if SYSTEM.contains(&p) {
            system += usize::from(!found.is_empty());
            continue;
        }
        faults.extend(found.iter().map(|at| format!("{p}:{}", source.line_of(*at))));
    }
    check("Open what a user or a file names with files::foreign, and append with files::append.", faults);
    assert_eq!(system, SYSTEM.len(), "SYSTEM of tests/tidy/opening.rs names a source that opens nothing");
}
