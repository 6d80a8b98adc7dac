//! Unit tests stand where a program runs them: for a library or a program with some, Cargo compiles all of it a second time.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::{check, evidence, packages, read, root, sources};

/// Files that another crate's test program compiles with their tests.
const ELSEWHERE: &[&str] = &["ggml/processor/src/lib.rs"];

#[test]
fn unit_tests_stand_where_they_are_run() {
    // Folders of libraries and programs, and whether Cargo runs the unit tests there.
    let mut folders: BTreeMap<String, bool> = BTreeMap::new();
    let packages = packages();
    for target in packages.iter().flat_map(|package| package["targets"].as_array().unwrap()) {
        if ["lib", "bin"].contains(&target["kind"][0].as_str().unwrap()) {
            let file = Path::new(target["src_path"].as_str().unwrap()).strip_prefix(root()).unwrap();
            let folder = format!("{}/", file.parent().unwrap().to_str().unwrap());
            *folders.entry(folder).or_default() |= target["test"] == true;
        }
    }
    let untested = folders.values().filter(|tested| !**tested).count();
    assert!(untested > 8, "{folders:?}");
    let mut faults = Vec::new();
    for source in sources().iter().filter(|s| !s.path.contains("/tests/") && !ELSEWHERE.contains(&&*s.path)) {
        // Some are inside others.
        let around = folders.iter().filter(|(folder, _)| source.path.starts_with(folder.as_str()));
        if around.max_by_key(|(folder, _)| folder.len()).is_some_and(|(_, tested)| !tested) {
            faults.extend(
                source.words("#[cfg(test)]").map(|at| format!("{}:{}", source.path, source.line_of(at))),
            );
        }
    }
    check("Cargo.toml says `test = false`, so nobody runs these: move them into the crate's tests/.", faults);
}

/// The Python extension is another workspace. With more units, kernels call instructions that they should inline; with
/// other settings, nothing that the program compiled serves the extension.
#[test]
fn the_extension_is_compiled_as_the_program_is() {
    let parsed = |path| read(path).parse::<toml::Table>().unwrap();
    let profile = |path| parsed(path)["profile"]["release"].as_table().unwrap().clone();
    let lock = parsed("python/ropewalk/Cargo.lock");
    let packages = lock["package"].as_array().unwrap();
    let mut expected = profile("Cargo.toml");
    let of_packages = expected["package"].as_table_mut().unwrap();
    of_packages.retain(|name, _| packages.iter().any(|package| package["name"].as_str() == Some(name)));
    assert!(of_packages.contains_key("ropewalk-kernels"), "{of_packages:?}");
    assert_eq!(profile("python/ropewalk/Cargo.toml"), expected);
}

/// Those of the package for Ray that need neither Ray nor this program. `make test-cluster` has the others.
#[test]
fn files_from_workers_are_checked() {
    for name in ["test_parts.py", "test_driver.py"] {
        evidence::passes(Command::new("python3").arg(format!("python/ropewalk-ray/tests/{name}")));
    }
}
