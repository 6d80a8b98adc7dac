//! Tokenizers whose components would panic in the crate `tokenizers`, or take all memory; and sound ones of many kinds.
//! The generator of `ropewalk-fuzz` composes more of them.

use ropewalk_core::control::{Control, Stop};
use ropewalk_import::{Checkpoint, Error, Helper};
use serde_json::{json, Value};

use crate::Folder;

/// The recorded `qwen2` with a change of its tokenizer, opened with and without a forced kind.
fn open(change: impl FnOnce(&mut Value)) -> [Result<Checkpoint, String>; 2] {
    let folder = Folder::of("qwen2");
    folder.edit("tokenizer.json", change);
    [None, Some("gpt-2")].map(|pre| Checkpoint::open(&folder.path, pre).map_err(|e| e.to_string()))
}

/// Both ways the same line, which names the file.
#[track_caller]
fn refused(change: impl FnOnce(&mut Value), wanted: &str) {
    for result in open(change) {
        let error = result.err().unwrap_or_else(|| panic!("accepted, expected: {wanted}"));
        assert!(
            error.contains("tokenizer.json: ") && error.contains(wanted),
            "found: {error}\nexpected: {wanted}"
        );
        assert!(!error.contains('\n') && error.len() < 1500, "{error}");
    }
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

fn added(content: &str) -> Value {
    json!({"id": 340, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
}

#[test]
fn what_panicked_or_took_all_memory_is_refused() {
    let kinds = "expected one of NFC NFD NFKC NFKD";
    for map in [Value::Null, json!("AAAAAA=="), json!("/////w==")] {
        let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": map});
        refused(
            |v| v["normalizer"] = precompiled,
            &format!("normalizer.type: found \"Precompiled\", {kinds}"),
        );
    }
    let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let template = |single: Value| {
        json!({"type": "TemplateProcessing", "single": single, "pair": [sequence("A"), sequence("B")],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}})
    };
    refused(
        |v| v["post_processor"] = template(json!([special("<x>"), sequence("A")])),
        "post_processor.single[0].SpecialToken.id: found \"<x>\", expected one of special_tokens",
    );
    refused(
        |v| v["post_processor"] = template(json!([sequence("A"), sequence("B")])),
        "post_processor.single[1]: found sequence B, expected A",
    );
    let twice = json!({"type": "Sequence", "processors":
        [template(json!([special("<s>"), sequence("A")])), template(json!([sequence("A")]))]});
    refused(|v| v["post_processor"] = twice, "post_processor.processors[1]: found a second processor");
    refused(
        |v| {
            v["decoder"] = json!({"type": "Strip", "content": "H", "start": 2, "stop": 2});
            // One that only tokenizer.json has, which is decoded.
            v["added_tokens"].as_array_mut().unwrap().push(added("HH"));
        },
        "decoder Strip: takes 4 characters off a token of 2",
    );
    let bomb = vec![replace("o", &"o".repeat(64)); 8];
    refused(
        |v| v["decoder"] = json!({"type": "Sequence", "decoders": bomb.clone()}),
        "decoder.decoders[1]: found components that make a text up to 4096 times longer, expected at most 64 times",
    );
    refused(
        |v| v["normalizer"] = json!({"type": "Sequence", "normalizers": bomb.clone()}),
        "normalizer.normalizers[1]: found components that make a text up to 4096 times longer",
    );
    let regex = json!({"type": "Replace", "pattern": {"Regex": r"\w{60}"}, "content": "x"});
    refused(
        |v| v["normalizer"] = json!({"type": "Sequence", "normalizers": vec![regex.clone(); 3000]}),
        "normalizer.normalizers: found an array of 3000, expected an array of at most 64",
    );
    refused(
        |v| v["normalizer"] = regex.clone(),
        "normalizer.pattern: found a regular expression, expected a String",
    );
}

#[test]
fn bounds_hold_for_components_together() {
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let several = |list: Vec<Value>| json!({"type": "Sequence", "pretokenizers": list});
    for (regex, wanted) in [
        (r"\w{65}", "found a repetition of 65 times, expected at most 64"),
        (r"(?:\w{8}){8}", "found a counted repetition of a group"),
        ("(?x)a", "found (?x, expected no flag x"),
        ("", "found an empty string"),
        ("(", "is not a usable regular expression"),
        (&r"\w".repeat(1030), "found 103"),
        (&"a".repeat(5000), "found 5000 bytes, expected at most 4096"),
    ] {
        refused(|v| v["pre_tokenizer"] = split(regex), &format!("pre_tokenizer.pattern.Regex: {wanted}"));
        let place = format!("pre_tokenizer.pretokenizers[1].pretokenizers[0].pattern.Regex: {wanted}");
        refused(|v| v["pre_tokenizer"] = several(vec![split("a"), several(vec![split(regex)])]), &place);
    }
    refused(
        |v| v["pre_tokenizer"] = several(vec![split(r"\w\s"); 33]),
        "pre_tokenizer.pretokenizers[32].pattern.Regex: found more than 32 regular expressions",
    );
    let mut nested = split("a");
    for _ in 0..9 {
        nested = several(vec![nested]);
    }
    refused(|v| v["pre_tokenizer"] = nested, "found more than 8 sequences in each other");
    refused(
        |v| {
            v["normalizer"] = json!({"type": "Sequence", "normalizers": vec![json!({"type": "NFC"}); 4]});
            v["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "_"});
            v["decoder"] = json!({"type": "Sequence", "decoders": vec![json!({"type": "Fuse"}); 60]});
        },
        "decoder.decoders[56]: found more than 64 components",
    );
    refused(
        |v| v["pre_tokenizer"] = several(vec![json!({"type": "ByteLevel", "add_prefix_space": true}); 5]),
        "pre_tokenizer.pretokenizers[4]: found components that make a text up to 1024 times longer",
    );
    for (kind, section) in [
        ("FixedLength", "pre_tokenizer"),
        ("CharDelimiterSplit", "pre_tokenizer"),
        ("BertProcessing", "post_processor"),
        ("CTC", "decoder"),
        ("Strip", "normalizer"),
    ] {
        refused(
            |v| v[section] = json!({"type": kind, "length": 0}),
            &format!("{section}.type: found \"{kind}\", expected one of"),
        );
    }
    refused(
        |v| v["decoder"] = json!({"start": 1}),
        "decoder.type: found none, expected the name of a component",
    );
    refused(|v| v["decoder"] = json!([]), "decoder: found an array of 0, expected an object");
    let strip = json!({"type": "Strip", "content": " ", "start": u64::MAX, "stop": 0});
    refused(
        |v| v["decoder"] = strip,
        "decoder.start: found 18446744073709551615, expected a whole number of at most 64",
    );
}

/// Each of these once ended in a panic of the crate, beyond those of the first report.
#[test]
fn texts_that_the_crate_would_cut_wrongly_are_refused() {
    // An added token that is found between the bytes of a character.
    refused(
        |v| {
            v["normalizer"] = replace("Q", "");
            v["added_tokens"]
                .as_array_mut()
                .unwrap()
                .push(json!({"id": 340, "content": "Q", "normalized": true}));
        },
        "content: found 0 bytes after normalizing, expected 1 to 512",
    );
    // Text in front that stands for no piece of the original.
    refused(
        |v| v["normalizer"] = json!({"type": "Prepend", "prepend": ""}),
        "normalizer.prepend: found an empty string",
    );
    // One takes the spaces that another begins with.
    refused(
        |v| {
            let list = v["added_tokens"].as_array_mut().unwrap();
            list.push(json!({"id": 340, "content": "\n", "rstrip": true}));
            list.push(json!({"id": 341, "content": " ", "lstrip": true}));
        },
        "content: found white space alone that takes white space before it (lstrip)",
    );
    refused(
        |v| v["model"]["unk_token"] = json!("u".repeat(600)),
        "model.unk_token: found 600 bytes, expected at most 512",
    );
    refused(
        |v| v["added_tokens"].as_array_mut().unwrap().push(added(&"a".repeat(513))),
        "content: found 513 bytes, expected at most 512",
    );
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

/// Components of tokenizers of known models, put together as these have them.
#[test]
fn components_of_known_tokenizers_are_accepted() {
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let cuts = |mut list: Vec<Value>| {
        list.push(bytes.clone());
        json!({"type": "Sequence", "pretokenizers": list})
    };
    let llama3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let o200k = [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
    .join("|");
    let deepseek = cuts(vec![
        split(r"\p{N}{1,3}"),
        split(r"[一-龥぀-ゟ゠-ヿ]+"),
        split(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ),
    ]);
    let falcon = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Punctuation", "behavior": "Contiguous"},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        {"type": "Digits", "individual_digits": false},
        {"type": "Split", "pattern": {"Regex": "[0-9][0-9][0-9]"}, "behavior": "Isolated", "invert": false}]});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    for pre in [
        cuts(vec![split(llama3)]),
        cuts(vec![split(&o200k)]),
        cuts(vec![json!({"type": "Digits", "individual_digits": true})]),
        deepseek,
        falcon,
        metaspace,
    ] {
        for normalizer in [
            Value::Null,
            json!({"type": "NFC"}),
            json!({"type": "Sequence", "normalizers": []}),
            json!({"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}, {"type": "StripAccents"}]}),
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]}),
        ] {
            let checkpoint =
                accepted(|v| (v["pre_tokenizer"], v["normalizer"]) = (pre.clone(), normalizer.clone()));
            assert!(checkpoint.metadata().iter().any(|(key, _)| key == "tokenizer.ggml.merges"));
        }
    }
    let decoder = json!({"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]});
    accepted(|v| v["decoder"] = decoder);
    // 28,000 tokens of speech, as added tokens.
    let folder = Folder::of("qwen2");
    folder.edit("tokenizer.json", |v| {
        let list = v["added_tokens"].as_array_mut().unwrap();
        list.extend((0..28_000).map(|i| added(&format!("<custom_token_{i}>"))));
    });
    let error = Checkpoint::open(&folder.path, Some("gpt-2")).unwrap_err().to_string();
    assert!(error.contains("found id 340, which is"), "refused for its ids alone: {error}");
}

#[cfg(unix)]
#[test]
fn a_process_that_never_answers_is_ended_by_a_stop() {
    let folder = Folder::of("qwen2");
    let stop = Stop::default();
    let helper = Helper::new("sleep", ["1000"]).stopped_by(&Control::default().with_stop(&stop));
    let started = std::time::Instant::now();
    let opened = std::thread::scope(|scope| {
        let opened = scope.spawn(|| Checkpoint::open_apart(&folder.path, None, Some(&helper)));
        std::thread::sleep(std::time::Duration::from_millis(300));
        stop.request();
        opened.join().unwrap()
    });
    assert!(matches!(opened, Err(Error::Interrupted)), "{opened:?}");
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}
