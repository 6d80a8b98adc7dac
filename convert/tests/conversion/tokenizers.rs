//! Hostile tokenizers: the crate `tokenizers` panics on them, or takes all memory or time. The process that runs it ends, and
//! the program says so in one line.

use std::path::Path;
use std::time::Duration;

use ropewalk_core::apart::{Apart, Limits};
use ropewalk_import::{Checkpoint, Tokenizing};
use serde_json::{json, Value};

use crate::cli::fails;
use crate::import::folder;

/// Far more than the recorded tokenizer takes, and soon reached.
const LIMITS: Limits = Limits::new(256 << 20, 3, Duration::from_secs(120));

fn edit(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("tokenizer.json");
    let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

/// The recorded `qwen2` with a changed tokenizer: the errors with and without a forced kind.
fn open(change: impl FnOnce(&mut Value)) -> [Option<String>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(dir.path(), "qwen2");
    edit(&folder, change);
    let process = Apart::new(env!("CARGO_BIN_EXE_convert"), ["--run-tokenizer"]).with_limits(LIMITS);
    let tokenizing = Tokenizing::Apart(process);
    [None, Some("gpt-2")].map(|pre| {
        let error = Checkpoint::open(&folder, pre, Some(&tokenizing)).err()?.to_string();
        let sound = error.contains("tokenizer.json: ") && !error.contains('\n') && error.len() < 1500;
        assert!(sound, "{error}");
        Some(error)
    })
}

/// No list has its kind, so that the probe ends in a line that has one of `wanted`. With a forced kind the text is not
/// cut, which may be the only fault.
#[track_caller]
fn ends(change: impl FnOnce(&mut Value), wanted: &[&str]) {
    let [probed, _] = open(change);
    let error = probed.expect("the probe was answered");
    assert!(wanted.iter().any(|w| error.contains(w)), "found: {error}\nexpected one of: {wanted:?}");
}

/// Both ways a line that has one of `wanted`.
#[track_caller]
fn refused(change: impl FnOnce(&mut Value), wanted: &[&str]) {
    for error in open(change) {
        let error = error.expect("accepted");
        assert!(wanted.iter().any(|w| error.contains(w)), "found: {error}\nexpected one of: {wanted:?}");
    }
}

const DIED: &str = "the process for it ended without an answer";
const UNKNOWN: &str = "that llama.cpp's converter does not know";
const MEMORY: &str = "needs more than 256 MiB";
const TIME: &str = "took longer than 3 s of computing";

fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

fn split(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

fn added(v: &mut Value, id: u32, content: &str, flags: Value) {
    let mut token = json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": false});
    token.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
    v["added_tokens"].as_array_mut().unwrap().push(token);
}

#[test]
fn panics_end_the_process_alone() {
    // The second asks for 8 GiB before it panics.
    for map in [Value::Null, json!("/////w==")] {
        let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": map});
        refused(|v| v["normalizer"] = precompiled, &[DIED, MEMORY]);
    }
    // An empty one, whose first lookup is beyond its end.
    let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="});
    ends(|v| v["normalizer"] = precompiled, &[DIED]);
    let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let template = |single: Value| {
        json!({"type": "TemplateProcessing", "single": single, "pair": [sequence("A"), sequence("B")],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})
    };
    ends(|v| v["post_processor"] = template(json!([special("<x>"), sequence("A")])), &[DIED]);
    ends(|v| v["post_processor"] = template(json!([sequence("A"), sequence("B")])), &[DIED]);
    // One that only tokenizer.json has, which is decoded.
    let strip =
        |start: u64, stop: u64| json!({"type": "Strip", "content": "H", "start": start, "stop": stop});
    for (start, stop) in [(2, 2), (0, u64::MAX)] {
        refused(
            |v| {
                v["decoder"] = strip(start, stop);
                added(v, 340, "HH", json!({"special": true}));
            },
            &[DIED],
        );
    }
    ends(|v| v["pre_tokenizer"] = json!({"type": "FixedLength", "length": 0}), &[DIED]);
    // An added token that is found between the bytes of a character.
    ends(
        |v| {
            v["normalizer"] = replace("Q", "");
            added(v, 340, "Q", json!({"normalized": true}));
        },
        &[DIED],
    );
    // One takes the spaces that another begins with.
    ends(
        |v| {
            added(v, 340, "\n", json!({"rstrip": true}));
            added(v, 341, " ", json!({"lstrip": true}));
        },
        &[DIED],
    );
}

/// Only Linux has all limits.
#[cfg(target_os = "linux")]
#[test]
fn memory_and_time_have_limits() {
    let bomb = vec![replace("o", &"o".repeat(64)); 8];
    refused(|v| v["decoder"] = json!({"type": "Sequence", "decoders": bomb.clone()}), &[MEMORY]);
    ends(|v| v["normalizer"] = json!({"type": "Sequence", "normalizers": bomb}), &[MEMORY, TIME]);
    let regex = json!({"type": "Replace", "pattern": {"Regex": r"\w{60}"}, "content": "x"});
    let many = json!({"type": "Sequence", "normalizers": vec![regex; 3000]});
    refused(|v| v["normalizer"] = many, &["tokenizer.json: normalizer: ", MEMORY, TIME]);
}

/// Components that the crate accepts, and those that it refuses with their error.
#[test]
fn odd_components_end_in_a_line() {
    let components = [
        ("normalizer", json!({"type": "Replace", "pattern": {"Regex": r"\w{60}"}, "content": "x"})),
        ("normalizer", json!({"type": "Strip"})),
        ("normalizer", json!({"type": "Nope"})),
        (
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"Regex": 1}, "behavior": "Isolated", "invert": false}),
        ),
        ("pre_tokenizer", json!({"type": "Sequence", "pretokenizers": vec![split(r"\w\s"); 33]})),
        ("post_processor", json!({"type": "RobertaProcessing", "sep": ["</s>", -1], "cls": ["<s>", 0]})),
        ("decoder", json!([])),
        ("added_tokens", json!([{"id": 340}])),
    ];
    for (key, component) in components {
        let place = format!("tokenizer.json: {key}: ");
        ends(|v| v[key] = component, &[place.as_str(), UNKNOWN, DIED]);
    }
    let nested = |depth| {
        let mut cut = split("a");
        for _ in 0..depth {
            cut = json!({"type": "Sequence", "pretokenizers": [cut]});
        }
        move |v: &mut Value| v["pre_tokenizer"] = cut
    };
    ends(nested(9), &[UNKNOWN]);
    refused(nested(200), &["is not JSON: recursion limit exceeded"]);
    for regex in
        ["(", r"(?=o\K)", r"(a*)*b", r"(\w)\1", r"(?:(?:\w{9}){9}){9}", r"\p{Nope}", &r"\w".repeat(1030)]
    {
        let place = "tokenizer.json: pre_tokenizer: ";
        ends(|v| v["pre_tokenizer"] = split(regex), &[place, UNKNOWN, DIED, MEMORY, TIME]);
    }
}

#[test]
fn the_program_ends_with_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let (of, out) = (folder(dir.path(), "qwen2"), dir.path().join("not.gguf"));
    edit(&of, |v| v["normalizer"] = json!({"type": "Precompiled"}));
    let args = [of.to_str().unwrap(), "--pre", "gpt-2", "-o", out.to_str().unwrap()];
    fails(&args, 1, &["tokenizer.json: the process for it ended without an answer"]);
    edit(&of, |v| v["normalizer"] = json!({"type": "Nope"}));
    fails(&args, 1, &["tokenizer.json: normalizer: "]);
    edit(&of, |v| (v["normalizer"], v["model"]["type"]) = (Value::Null, json!("Unigram")));
    fails(&args, 1, &["tokenizer.json: model.type: found Unigram, expected BPE"]);
    assert!(!out.exists());
}
