//! Tests of the built-in lists of models and of data.

use std::path::Path;

use super::*;
use crate::cli::packages::PackagedSet;

const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn the_builtin_manifest_is_sound() {
    let m = Manifest::builtin().unwrap();
    let entry = m.get("smollm2").unwrap();
    assert!(entry.source.ends_with("/SmolLM2-135M-Instruct.Q4_1.gguf"));
    assert_eq!(m.get("smollm2-135m-instruct-q4_1").unwrap().sha256, entry.sha256);
    assert!(m.get("nonesuch").is_none());
}

#[test]
fn manifests_are_checked() {
    let good =
        format!("[[model]]\nname='a'\nsource='hf:o/r/f.gguf'\nsha256='{EMPTY}'\nbytes=0\nlicence='MIT'\n");
    assert!(Manifest::parse(&good, "x").is_ok());
    for (from, to, hint) in [
        ("hf:o/r/f.gguf", "hf:o/r", "hf:ORG/REPO/FILE"),
        ("e3b0", "E3B0", "64 lower-case"),
        ("bytes=0", "bytes='zero'", "line 5"),
        ("licence", "license", "unknown field"),
        ("name='a'", "", "missing field"),
        ("[[model]]", "[[model", "line 1"),
    ] {
        let e = format!("{:#}", Manifest::parse(&good.replace(from, to), "my.toml").unwrap_err());
        assert!(e.contains("my.toml") && e.contains(hint) && !e.contains('\n'), "{e}");
    }
    let twice = format!("{good}{good}");
    assert!(Manifest::parse(&twice, "x").unwrap_err().to_string().contains("duplicate"));
}

#[test]
fn the_list_of_packages_has_the_files_that_tasks_ask_for() {
    let sets = PackagedSet::all().unwrap();
    let mut found = 0;
    for file in ropewalk::tasks::TASKS.iter().flat_map(|task| task.info().files) {
        if !file.from.contains("in the Python package ") {
            continue;
        }
        let mut listed = sets.iter().flat_map(|set| &set.files);
        let listed = listed.find(|listed| listed.file == Path::new(file.name));
        let listed = listed.unwrap_or_else(|| panic!("{} is in no set", file.name));
        assert!(file.sha256.is_none_or(|sum| sum == listed.sha256), "{}", file.name);
        found += 1;
    }
    assert!(found > 130, "{found}");
    for set in &sets {
        assert!(set.files.iter().all(|listed| listed.file.starts_with(&set.name)), "{}", set.name);
    }
}
