//! Tokenizers of many kinds, and who runs them. Hostile ones are in the tests of `convert`, whose program runs them apart.

use ropewalk_core::apart::Apart;
use ropewalk_core::control::{Control, Stop};
use ropewalk_import::{Checkpoint, Error, Tokenizing};
use serde_json::{json, Value};

use crate::Folder;

/// The recorded `qwen2` with a change of its tokenizer, opened with and without a forced kind.
fn open(change: impl FnOnce(&mut Value)) -> [Result<Checkpoint, String>; 2] {
    let folder = Folder::of("qwen2");
    folder.edit("tokenizer.json", change);
    [None, Some("gpt-2")].map(|pre| folder.open_as(pre))
}

/// A kind that no list has, and no fault with one.
#[track_caller]
fn accepted(change: impl FnOnce(&mut Value)) -> Checkpoint {
    let [probed, forced] = open(change);
    let error = probed.unwrap_err();
    assert!(error.contains("that llama.cpp's converter does not know"), "{error}");
    forced.unwrap()
}

fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

/// Byte-level BPE has to be run; pieces are read.
#[test]
fn nobody_runs_a_tokenizer_unasked() {
    let open = |name| Checkpoint::open(&Folder::of(name).path, None, None);
    let error = open("qwen2").unwrap_err();
    assert!(matches!(error, Error::Argument(_)), "{error:?}");
    let error = error.to_string();
    assert!(error.starts_with("tokenizing: found none") && error.contains("tokenizer.json"), "{error}");
    for name in ["llama-linear", "gemma2"] {
        open(name).unwrap();
    }
}

/// Dropout and truncation are for training: the probe is cut without them.
#[test]
fn settings_of_training_do_not_change_the_kind() {
    fn hash(change: fn(&mut Value)) -> String {
        let [probed, _] = open(change);
        let error = probed.unwrap_err();
        error[error.find("(hash ").unwrap()..].to_owned()
    }
    let plain = hash(|_| {});
    assert_eq!(hash(|v| v["model"]["dropout"] = json!(1.0)), plain);
    let truncation = |v: &mut Value| {
        v["truncation"] =
            json!({"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0});
    };
    assert_eq!(hash(truncation), plain);
    assert_ne!(hash(|v| v["normalizer"] = json!({"type": "Lowercase"})), plain);
}

#[test]
fn what_llama_cpp_has_no_word_for_is_refused() {
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        for result in open(|v| v["model"][key] = json!("</w>")) {
            let error = result.unwrap_err();
            assert!(
                error.ends_with(&format!("tokenizer.json: model.{key}: found a text, expected none")),
                "{error}"
            );
        }
    }
}

/// A kind that is forced has the normalizers of llama.cpp alone; what the probe shows has been made with those of the file.
#[test]
fn normalizers_without_an_equivalent_are_refused_for_a_forced_kind() {
    let map = format!("AAQA{}AAA=", "AAAA".repeat(341));
    let mut bert = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
        "strip_accents": null, "lowercase": true});
    let named = bert.clone();
    bert.as_object_mut().unwrap().remove("type");
    for (name, normalizer) in [
        ("BertNormalizer", named),
        ("BertNormalizer", bert),
        ("Strip", json!({"type": "Strip", "strip_left": true, "strip_right": false})),
        ("Nmt", json!({"type": "Nmt"})),
        ("Precompiled", json!({"type": "Precompiled", "precompiled_charsmap": map})),
        ("Prepend of another text", json!({"type": "Prepend", "prepend": "_"})),
        ("Replace of another text", replace("``", "\"")),
        ("Replace of another text", json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": "▁"})),
    ] {
        let list = json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, normalizer]});
        for normalizer in [normalizer, list] {
            let [probed, forced] = open(|v| v["normalizer"] = normalizer);
            let error = probed.unwrap_err();
            assert!(error.contains("that llama.cpp's converter does not know"), "{error}");
            let error = forced.unwrap_err();
            let wanted = format!(
                "tokenizer.json: normalizer: found {name}, for which llama.cpp has no equivalent, expected NFC"
            );
            assert!(error.contains(&wanted), "{error}");
        }
    }
    let others = [
        json!({"type": "NFKC"}),
        json!({"type": "Lowercase"}),
        json!({"type": "StripAccents"}),
        json!({"type": "Prepend", "prepend": "▁"}),
        replace(" ", "▁"),
    ];
    accepted(|v| v["normalizer"] = json!({"type": "Sequence", "normalizers": others}));
}

/// No field has a default in the crate `tokenizers`, which transformers uses: it opens no such file either.
#[test]
fn added_tokens_need_every_field() {
    for field in ["id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"] {
        for result in open(|v| drop(v["added_tokens"][0].as_object_mut().unwrap().remove(field))) {
            let error = result.unwrap_err();
            let named =
                error.contains("tokenizer.json: added_tokens: ") && error.contains(&format!("`{field}`"));
            assert!(named, "{error}");
        }
    }
    accepted(|v| v["added_tokens"][0]["more"] = json!(1));
}

#[test]
fn more_than_a_tokenizer_has_is_refused_while_it_is_read() {
    let many = "[],".repeat(3 << 20);
    let folder = Folder::of("qwen2");
    let text = std::fs::read_to_string(folder.file("tokenizer.json")).unwrap();
    let with = |key: &str| text.replacen('{', &format!("{{\"{key}\": [{many}0],"), 1);
    std::fs::write(folder.file("tokenizer.json"), with("decoder")).unwrap();
    let error = folder.open().unwrap_err();
    assert!(error.contains("tokenizer.json: found too many values in arrays and objects"), "{error}");
    // Nobody asks for this one, whatever it holds.
    std::fs::write(folder.file("tokenizer.json"), with("notes")).unwrap();
    folder.open().unwrap();
}

#[cfg(unix)]
#[test]
fn a_process_that_never_answers_is_ended_by_a_stop() {
    let folder = Folder::of("qwen2");
    let stop = Stop::default();
    let process = Apart::new("sleep", ["1000"]).stopped_by(&Control::default().with_stop(&stop));
    let tokenizing = Tokenizing::Apart(process);
    let started = std::time::Instant::now();
    let opened = std::thread::scope(|scope| {
        let opened = scope.spawn(|| Checkpoint::open(&folder.path, None, Some(&tokenizing)));
        std::thread::sleep(std::time::Duration::from_millis(300));
        stop.request();
        opened.join().unwrap()
    });
    assert!(matches!(opened, Err(Error::Interrupted)), "{opened:?}");
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
