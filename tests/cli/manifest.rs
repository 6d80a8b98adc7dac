//! The built-in lists of models and of data. This test program compiles the manifest's file for itself.

use ropewalk::tasks::TASKS;
use serde_json::Value;

#[path = "../../src/cli/manifest.rs"]
#[allow(dead_code)]
mod file;

use file::Manifest;

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
    let sets: Value = serde_json::from_str(include_str!("../../models/packages.json")).unwrap();
    let sets = sets.as_object().unwrap();
    let files: Vec<&Value> = sets.values().flat_map(|set| set["files"].as_array().unwrap()).collect();
    let mut found = 0;
    for file in TASKS.iter().flat_map(|task| task.info().files) {
        if !file.from.contains("in the Python package ") {
            continue;
        }
        let listed = files.iter().find(|listed| listed["file"] == file.name);
        let listed = listed.unwrap_or_else(|| panic!("{} is in no set", file.name));
        assert!(file.sha256.is_none_or(|sum| listed["sha256"] == sum), "{}", file.name);
        found += 1;
    }
    assert!(found > 130, "{found}");
}
