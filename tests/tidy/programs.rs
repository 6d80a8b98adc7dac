//! Unit tests stand where a program runs them: for a library or a program with some, Cargo compiles all of it a second time.

use std::path::Path;

use super::{check, packages, root, sources};

/// Files that another crate's test program compiles with their tests.
const ELSEWHERE: &[&str] = &["ggml/processor/src/lib.rs"];

#[test]
fn unit_tests_stand_where_they_are_run() {
    let packages = packages();
    let targets = packages.iter().flat_map(|package| package["targets"].as_array().unwrap());
    let without = targets.filter(|target| {
        let kind = target["kind"][0].as_str().unwrap();
        target["test"] == false && (kind == "lib" || kind == "bin")
    });
    let folders: Vec<String> = without
        .map(|target| {
            let file = Path::new(target["src_path"].as_str().unwrap()).strip_prefix(root()).unwrap();
            match file.to_str().unwrap() {
                // The library of this folder has unit tests.
                "src/main.rs" => "src/cli/".to_owned(),
                file => format!("{}/", file.rsplit_once('/').unwrap().0),
            }
        })
        .collect();
    assert!(folders.len() > 8, "{folders:?}");
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| !s.path.contains("/tests/") && !ELSEWHERE.contains(&&*s.path)) {
        if folders.iter().any(|folder| source.path.starts_with(folder)) {
            faults.extend(
                source.words("#[cfg(test)]").map(|at| format!("{}:{}", source.path, source.line_of(at))),
            );
        }
    }
    check("Cargo.toml says `test = false`, so nobody runs these: move them into the crate's tests/.", faults);
}
