//! Folders as people have them: tokenizers by their files, templates and special tokens in the order of transformers, sizes
//! that disagree.

#[path = "../../general/size.rs"]
mod size;

use gguf::{Array, Value};
use serde_json::{json, Value as Json};

use crate::checkpoints::recorded;
use crate::Folder;

fn key<'a>(checkpoint: &'a ropewalk_import::Checkpoint, name: &str) -> Option<&'a Value> {
    checkpoint.metadata().iter().find(|(key, _)| key == name).map(|(_, value)| value)
}

fn text(checkpoint: &ropewalk_import::Checkpoint, name: &str) -> Option<String> {
    match key(checkpoint, name)? {
        Value::String(text) => Some(String::from_utf8(text.clone()).unwrap()),
        other => panic!("{}", other.describe()),
    }
}

fn number(checkpoint: &ropewalk_import::Checkpoint, name: &str) -> Option<u32> {
    match key(checkpoint, name)? {
        Value::U32(n) => Some(*n),
        other => panic!("{}", other.describe()),
    }
}

fn texts(checkpoint: &ropewalk_import::Checkpoint) -> Vec<String> {
    let Some(Value::Array(Array::String(tokens))) = key(checkpoint, "tokenizer.ggml.tokens") else {
        panic!("no tokens")
    };
    tokens.iter().map(|t| String::from_utf8_lossy(t).into_owned()).collect()
}

/// A folder with pieces in tokenizer.json and no tokenizer.model.
fn pieces(change: impl FnOnce(&mut Json)) -> Folder {
    let folder = Folder::of("llama-linear");
    folder.edit("tokenizer.json", change);
    folder
}

#[test]
fn tokenizers_are_known_by_their_files() {
    let folder = Folder::of("phi4");
    let wanted = folder.open().unwrap().metadata().to_vec();
    for class in ["GPT2Tokenizer", "GPT2TokenizerFast", "TokenizersBackend", "PreTrainedTokenizerFast", ""] {
        folder.edit("tokenizer_config.json", |v| v["tokenizer_class"] = json!(class));
        assert_eq!(folder.open().unwrap().metadata(), wanted, "{class}");
    }
    folder.edit("tokenizer_config.json", |v| _ = v.as_object_mut().unwrap().remove("tokenizer_class"));
    assert_eq!(folder.open().unwrap().metadata(), wanted);
    // llama.cpp wants the key of merges even where there are none.
    let none = Folder::of("phi4");
    none.edit("tokenizer.json", |v| v["model"]["merges"] = json!([]));
    let checkpoint = none.open_as(Some("gpt-4o")).unwrap();
    assert!(checkpoint.metadata().iter().any(|(key, _)| key == "tokenizer.ggml.merges"));
    // A file of tiktoken next to a BPE of bytes.
    std::fs::write(folder.file("tokenizer.model"), "IQ== 0\nIg== 1\n").unwrap();
    assert_eq!(folder.open().unwrap().metadata(), wanted);
    // Pieces in a family of bytes, and without tokenizer.model in families that have one.
    for family in ["qwen3", "gemma2", "gemma3", "phi3", "mistral"] {
        let folder = Folder::of(family);
        let from = recorded().join("tokenizers/byte-fallback");
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(from.join(name), folder.file(name)).unwrap();
        }
        for name in ["tokenizer.model", "added_tokens.json"] {
            _ = std::fs::remove_file(folder.file(name));
        }
        let checkpoint = folder.open_as(None).unwrap();
        assert_eq!(text(&checkpoint, "tokenizer.ggml.model").as_deref(), Some("llama"), "{family}");
        assert_eq!(texts(&checkpoint).len(), 344, "{family}: as many as rows");
        assert_eq!(texts(&checkpoint)[343], "[PAD343]");
    }
    let folder = Folder::of("qwen3");
    std::fs::rename(folder.file("tokenizer.json"), folder.file("vocab.json")).unwrap();
    std::fs::write(folder.file("merges.txt"), "").unwrap();
    let error = folder.open().unwrap_err();
    assert!(
        error.contains("has no tokenizer.json, expected one; it has vocab.json and merges.txt"),
        "{error}"
    );
}

#[test]
fn merges_become_scores_or_are_refused() {
    let folder = pieces(|_| {});
    let checkpoint = folder.open().unwrap();
    let Some(Value::Array(Array::F32(scores))) = key(&checkpoint, "tokenizer.ggml.scores") else { panic!() };
    let tokens = texts(&checkpoint);
    let score = |text: &str| scores[tokens.iter().position(|t| t == text).unwrap()];
    assert_eq!((score("▁t"), score("e▁"), score("s▁")), (0.0, -1.0, -2.0), "the place of the merge");
    let older = pieces(|v| {
        let merges = v["model"]["merges"].as_array_mut().unwrap();
        merges.iter_mut().filter(|merge| merge.is_array()).for_each(|merge| {
            *merge = json!(format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
        });
        merges.insert(0, json!("#version: 0.2"));
    });
    assert_eq!(
        key(&older.open().unwrap(), "tokenizer.ggml.scores"),
        key(&checkpoint, "tokenizer.ggml.scores")
    );
    let merges = |list: Json| move |v: &mut Json| v["model"]["merges"] = list;
    for (change, wanted) in [
        (
            Box::new(merges(json!([["▁", "t"], ["e", "▁"]]))) as Box<dyn FnOnce(&mut Json)>,
            "found no merge that makes it",
        ),
        (Box::new(merges(json!([["▁", "zz"]]))), "not a token"),
        // Each cut of a token is looked up.
        (
            Box::new(|v: &mut Json| {
                let vocab = v["model"]["vocab"].as_object_mut().unwrap();
                let last = vocab.keys().next_back().unwrap().clone();
                let id = vocab.remove(&last).unwrap();
                vocab.insert("a".repeat(1 << 20), id);
            }),
            "found 1048576 bytes, expected at most 1024",
        ),
        (Box::new(|v: &mut Json| v["normalizer"] = json!({"type": "NFKC"})), "normalizer: found NFKC"),
        (
            Box::new(|v: &mut Json| {
                v["pre_tokenizer"] = json!({"type": "Digits", "individual_digits": true})
            }),
            "pre_tokenizer: found Digits",
        ),
        (
            Box::new(|v: &mut Json| v["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "▁"})),
            "found Metaspace with split",
        ),
    ] {
        let error = pieces(change).open().unwrap_err();
        assert!(error.contains("tokenizer.json: ") && error.contains(wanted), "{error}");
    }
    // What is put before a text.
    let metaspace = |scheme: &str| {
        let scheme =
            json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false});
        pieces(|v| (v["normalizer"], v["pre_tokenizer"]) = (Json::Null, scheme)).open().unwrap()
    };
    let prefix = "tokenizer.ggml.add_space_prefix";
    assert_eq!(key(&metaspace("always"), prefix), None);
    assert_eq!(key(&metaspace("never"), prefix), Some(&Value::Bool(false)));
    let first = metaspace("first");
    assert!(
        first.notes().iter().any(|n| n.contains("before the first word of a text alone")),
        "{:?}",
        first.notes()
    );
}

#[test]
fn templates_have_the_order_of_transformers() {
    let (plain, named) = ("tokenizer.chat_template", "tokenizer.chat_template.tool_use");
    // What `AutoTokenizer.from_pretrained(folder).chat_template` is in transformers 5.24: files go first.
    let folder = Folder::of("qwen3");
    let config = |value: Json| folder.edit("tokenizer_config.json", |v| v["chat_template"] = value);
    let found = || {
        let checkpoint = folder.open().unwrap();
        (text(&checkpoint, plain), text(&checkpoint, named))
    };
    let some = |text: &str| Some(text.to_owned());
    std::fs::write(folder.file("chat_template.json"), r#"{"chat_template": "processor"}"#).unwrap();
    config(Json::Null);
    assert_eq!(found(), (some("processor"), None));
    config(json!("config"));
    assert_eq!(found(), (some("config"), None));
    config(json!([{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]));
    assert_eq!(found(), (some("a"), some("b")));
    config(json!({"default": "c", "tool_use": "d"}));
    assert_eq!(found(), (some("c"), some("d")));
    std::fs::write(folder.file("chat_template.jinja"), "file").unwrap();
    assert_eq!(found(), (some("file"), None));
    std::fs::create_dir(folder.file("additional_chat_templates")).unwrap();
    std::fs::write(folder.file("additional_chat_templates/tool_use.jinja"), "tools").unwrap();
    std::fs::write(folder.file("additional_chat_templates/README"), "none").unwrap();
    assert_eq!(found(), (some("file"), some("tools")));
    // Then config's has no say, even where there is no other default.
    std::fs::remove_file(folder.file("chat_template.jinja")).unwrap();
    assert_eq!(found(), (None, some("tools")));
    std::fs::create_dir(folder.file("additional_chat_templates/folder.jinja")).unwrap();
    assert!(folder.open().unwrap_err().contains("is not a regular file"));
    std::fs::remove_dir(folder.file("additional_chat_templates/folder.jinja")).unwrap();
    for i in 0..70 {
        std::fs::write(folder.file(&format!("additional_chat_templates/{i}.jinja")), "x").unwrap();
    }
    assert!(folder.open().unwrap_err().contains("found more than 64 templates"));
    std::fs::remove_dir_all(folder.file("additional_chat_templates")).unwrap();
    for wrong in [json!(1), json!([1]), json!([{"name": "default"}]), json!({"default": []})] {
        config(wrong);
        assert!(folder.open().unwrap_err().contains("tokenizer_config.json: chat_template: found "));
    }
}

#[test]
fn neutral_scaling_in_config_is_none() {
    let folder = Folder::of("llama-linear");
    let of = |scaling: Json| {
        folder.edit("config.json", |v| v["rope_scaling"] = scaling);
        let checkpoint = folder.open()?;
        Ok::<_, String>(text(&checkpoint, "llama.rope.scaling.type"))
    };
    for (scaling, wanted) in [
        (json!({"type": "linear", "factor": 2.0}), Some("linear")),
        (json!({"type": "linear", "factor": 1}), None),
        (json!({"type": "linear", "factor": 0.0}), None),
        (json!({"type": "dynamic", "factor": 1.0}), None),
        (json!({"type": "yarn", "factor": 1.0}), None),
        (json!({"type": "", "factor": 0}), None),
        (json!({"type": "none", "factor": 8.0}), None),
        (json!({"type": null, "factor": null}), None),
        (json!({"rope_type": null, "type": "linear", "factor": 4}), Some("linear")),
        (json!({"rope_type": "default"}), None),
        (json!({}), None),
        (Json::Null, None),
    ] {
        assert_eq!(of(scaling.clone()).unwrap().as_deref(), wanted, "{scaling}");
    }
    assert!(of(json!({"type": "dynamic", "factor": 2.0}))
        .unwrap_err()
        .contains("found rope scaling \"dynamic\""));
}

#[test]
fn special_tokens_are_found_in_every_form() {
    let (eos, bos) = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.bos_token_id");
    let folder = Folder::of("qwen3");
    let tokens = texts(&folder.open().unwrap());
    let normal = tokens.iter().position(|t| t == "A").unwrap() as u32;
    let config = |change: &dyn Fn(&mut Json)| folder.edit("tokenizer_config.json", |v| change(v));
    for form in [json!("A"), json!({"content": "A", "lstrip": false, "__type": "AddedToken"})] {
        config(&|v| v["eos_token"] = form.clone());
        assert_eq!(number(&folder.open().unwrap(), eos), Some(normal), "a token that is not an added one");
    }
    // special_tokens_map.json has the last word, but where there is an added_tokens_decoder none.
    config(&|v| _ = v.as_object_mut().unwrap().remove("added_tokens_decoder"));
    std::fs::write(
        folder.file("special_tokens_map.json"),
        r#"{"eos_token": {"content": "B"}, "bos_token": "C"}"#,
    )
    .unwrap();
    let of = |text: &str| tokens.iter().position(|t| t == text).map(|i| i as u32);
    let checkpoint = folder.open().unwrap();
    assert_eq!((number(&checkpoint, eos), number(&checkpoint, bos)), (of("B"), of("C")));
    config(&|v| v["added_tokens_decoder"] = json!({}));
    assert_eq!(number(&folder.open().unwrap(), eos), Some(normal));
    std::fs::write(folder.file("special_tokens_map.json"), "[]").unwrap();
    config(&|v| _ = v.as_object_mut().unwrap().remove("added_tokens_decoder"));
    assert!(folder
        .open()
        .unwrap_err()
        .contains("special_tokens_map.json: found an array of 0, expected an object"));
}

#[test]
fn ends_of_texts_are_read_as_a_number_or_a_list() {
    let ends = |folder: &Folder| {
        let checkpoint = folder.open()?;
        let of = |kind: &str| number(&checkpoint, &format!("tokenizer.ggml.{kind}_token_id"));
        Ok::<_, String>((["eos", "eot", "eom"].map(of), checkpoint.notes().join(" ")))
    };
    let folder = Folder::of("qwen2");
    folder.edit("tokenizer_config.json", |v| v["eos_token"] = Json::Null);
    folder.edit("config.json", |v| v["eos_token_id"] = json!(2));
    for (value, wanted) in [
        (json!(2), [Some(2), None, None]),
        (json!(1), [Some(2), Some(1), None]),
        (json!([2, 1]), [Some(2), Some(1), None]),
        (json!([1, 3, 2]), [Some(2), Some(1), Some(3)]),
        (json!([]), [Some(2), None, None]),
        (Json::Null, [Some(2), None, None]),
        (json!(-1), [Some(2), None, None]),
    ] {
        folder.edit("generation_config.json", |v| v["eos_token_id"] = value.clone());
        assert_eq!(ends(&folder).unwrap().0, wanted, "{value}");
    }
    folder.edit("generation_config.json", |v| v["eos_token_id"] = json!([1, 3, 4, 5]));
    let (_, notes) = ends(&folder).unwrap();
    assert!(notes.contains("left out: 4, 5."), "{notes}");
    for wrong in [json!("</s>"), json!([1, "x"]), json!([-1, 2]), json!(344), json!({"a": 1}), json!(1.5)] {
        folder.edit("generation_config.json", |v| v["eos_token_id"] = wrong.clone());
        assert!(
            ends(&folder).unwrap_err().contains("generation_config.json: eos_token_id: found"),
            "{wrong}"
        );
    }
    // Without that file transformers takes config.json's.
    std::fs::remove_file(folder.file("generation_config.json")).unwrap();
    folder.edit("config.json", |v| v["eos_token_id"] = json!([2, 1]));
    assert_eq!(ends(&folder).unwrap().0, [Some(2), Some(1), None]);
}

/// The repository that a folder names, for exports of adapters. A path on somebody's disk is none.
#[test]
fn the_repository_is_noted() {
    let folder = Folder::of("llama");
    for (name, wanted) in [
        ("org/model-1.5", Some("org/model-1.5")),
        ("model", None),
        ("/data/org/model", None),
        ("./model", None),
        ("../model", None),
        ("org/", None),
        ("", None),
    ] {
        folder.edit("config.json", |v| v["_name_or_path"] = json!(name));
        assert_eq!(text(&folder.open().unwrap(), "ropewalk.source").as_deref(), wanted, "{name}");
    }
}

#[test]
fn names_are_written_as_titles() {
    let folder = Folder::of("llama");
    // What `Metadata.id_to_title` gives.
    for (name, wanted) in [
        ("tiny-model", "Tiny Model"),
        ("Qwen2.5-0.5b-instruct", "Qwen2.5 0.5b Instruct"),
        ("smollm2-v1.5", "Smollm2 v1.5"),
        (" a--b ", "A B"),
    ] {
        folder.edit("config.json", |v| v["_name_or_path"] = json!(name));
        assert_eq!(text(&folder.open().unwrap(), "general.name").as_deref(), Some(wanted));
    }
}

#[test]
fn parameters_are_counted_in_two_digits() {
    // What `model_weight_count_rounded_notation` gives.
    for (n, wanted) in
        [(38_000, "38K"), (134_515_008, "135M"), (1_711_376_384, "1.7B"), (999, "1.0K"), (12, "0.01K")]
    {
        assert_eq!(size::rounded(n), wanted);
    }
}

/// How a model is sampled from, in the forms that vLLM, llama.cpp and versions of transformers write.
#[test]
fn sampling_is_read_in_every_form() {
    let folder = Folder::of("qwen2");
    let of = |key: &str, value: Json| {
        folder.edit("generation_config.json", |v| *v = json!({ key: value }));
        let checkpoint = folder.open()?;
        let found = checkpoint.metadata().iter().find(|(k, _)| k.starts_with("general.sampling."));
        Ok::<_, String>(
            found.map(|(key, value)| (key["general.sampling.".len()..].to_owned(), value.clone())),
        )
    };
    let (int, float) = (gguf::Value::I32, gguf::Value::F32);
    for (key, value, name, wanted) in [
        ("top_k", json!(20), "top_k", int(20)),
        ("top_k", json!(20.0), "top_k", int(20)),
        ("top_k", json!(0), "top_k", int(0)),
        ("top_k", json!(-1), "top_k", int(0)),
        ("top_k", json!(-1.0), "top_k", int(0)),
        ("penalty_last_n", json!(-1), "penalty_last_n", int(-1)),
        ("top_p", json!(1), "top_p", float(1.0)),
        ("min_p", json!(0), "min_p", float(0.0)),
        ("temperature", json!(1), "temp", float(1.0)),
        ("temperature", json!(0.0), "temp", float(0.0)),
        ("repetition_penalty", json!(1.05), "penalty_repeat", float(1.05)),
    ] {
        assert_eq!(of(key, value.clone()).unwrap(), Some((name.to_owned(), wanted)), "{key}: {value}");
    }
    for key in ["top_k", "top_p", "temperature", "repetition_penalty", "do_sample", "stop_strings"] {
        assert_eq!(of(key, Json::Null).unwrap(), None, "{key}");
    }
    for (key, value) in
        [("top_k", json!(-2)), ("top_k", json!("20")), ("top_k", json!(0.5)), ("temperature", json!(true))]
    {
        let e = of(key, value.clone()).unwrap_err();
        assert!(e.contains(&format!("generation_config.json: {key}: found ")), "{key}: {value}: {e}");
    }
}

#[test]
fn sizes_that_disagree_become_one_number_or_an_error() {
    // Fewer tokens than rows: unused ones.
    let folder = Folder::of("llama");
    folder.edit("config.json", |v| v["vocab_size"] = json!(342));
    let opened = folder.open();
    let rows = 344;
    match opened {
        Ok(checkpoint) => {
            assert_eq!(texts(&checkpoint).len(), rows);
            assert_eq!(number(&checkpoint, "llama.vocab_size"), Some(rows as u32));
        }
        // A token's id is beyond it.
        Err(error) => assert!(error.contains("expected below vocab_size 342"), "{error}"),
    }
    // More tokens than rows.
    let folder = Folder::of("llama-linear");
    folder.edit("tokenizer.json", |v| {
        let list = v["added_tokens"].as_array_mut().unwrap();
        list.push(json!({"id": 332, "content": "<more>", "special": true, "normalized": false}));
    });
    let error = folder.open().unwrap_err();
    assert!(
        error.contains("found 333 tokens in the tokenizer's files, expected at most the 332 rows"),
        "{error}"
    );
}
