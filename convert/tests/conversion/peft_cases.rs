//! One adapter for each way in which PEFT's configuration changes what an adapter does, with the logits that PEFT has with it
//! (`tests/reference/peft.py cases`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use convert::peft::fields::FIELDS;
use convert::peft::{from_peft, to_peft};
use convert::random::{self, Shape};
use convert::{convert, Options};
use ggml::dtype::dequantize_tensor;
use gguf::{DType, File, Value as Field, Writer};
use ropewalk_core::adapter::{
    open_all, write, AdapterFile, AdapterMeta, AdapterReader, AdapterSpec, NewPair,
};
use ropewalk_core::control::Control;
use ropewalk_core::hparams::Hparams;
use ropewalk_core::rope::{Plan, Spec};
use safetensors::SafeTensors;
use serde_json::{json, Value};

use crate::lab::of_pairs;
use crate::peft::{base, difference, fixture, logits_of, rounded};

fn json_of(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn case(name: &str) -> PathBuf {
    fixture("cases").join(name)
}

/// Writes the model with an adapter in its weights.
fn merge(model: &Path, adapter: &Path, to: &Path) {
    let adapters = vec![AdapterSpec::new(adapter.to_owned(), 1.0)];
    convert(model, to, &Options::default().adapters(adapters).force(true), &Control::default()).unwrap();
}

/// Each runs as under PEFT or is refused with the key, and what is exported of it runs the same again.
#[test]
fn adapters_of_every_kind_run_as_under_peft() {
    let refused = [
        ("no-lora-bias", "lora_bias"),
        ("no-dora", "use_dora"),
        ("no-kasa", "kasa_config"),
        ("no-rows-beside-pair", "lm_head.lora_B.weight changes the same matrix"),
    ];
    let mut n = 0;
    for entry in std::fs::read_dir(fixture("cases")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let [adapter, merged, back] = ["a.gguf", "m.gguf", "peft"].map(|file| dir.path().join(file));
        if let Some((_, key)) = refused.iter().find(|(case, _)| *case == name) {
            let model = if name.ends_with("beside-pair") { "tied" } else { "llama" };
            let e =
                from_peft(case(&name), base(model), &adapter, &Control::default()).unwrap_err().to_string();
            assert!(e.contains(key) && !e.contains('\n') && !adapter.exists(), "{name}: {e}");
            continue;
        }
        let recorded = json_of(&case(&name).join("logits.json"));
        let model = base(recorded["base"].as_str().unwrap());
        let expected: Vec<Vec<f64>> = serde_json::from_value(recorded["adapted"].clone()).unwrap();
        let expected = expected.concat();
        let tokens: Vec<i32> = serde_json::from_value(recorded["tokens"].clone()).unwrap();
        let same = |adapter: &Path, what: &str| {
            merge(&model, adapter, &merged);
            let off = difference(&logits_of(&merged, None, &tokens), &expected);
            assert!(off < rounded(&expected), "{name}: {what}: {off}");
        };
        from_peft(case(&name), &model, &adapter, &Control::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        same(&adapter, "merged");
        to_peft(&adapter, &model, &back, None, &Control::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let again = dir.path().join("b.gguf");
        from_peft(&back, &model, &again, &Control::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        same(&again, "exported and imported");
        n += 1;
    }
    assert!(n > 25, "{n}");
}

/// Of an embedding with a pair or with trained rows the file has the whole, of the size that a note tells.
#[test]
fn embeddings_with_a_pair_or_rows_are_written_whole() {
    let dir = tempfile::tempdir().unwrap();
    let [adapter, model] = ["a.gguf", "m.gguf"].map(|file| dir.path().join(file));
    for (name, on, keeps, modules) in [
        ("embedding-pair", "llama", false, &["token_embd.weight"][..]),
        ("rows-of-both", "llama", false, &["output.weight", "token_embd.weight"]),
        ("tied-embedding-pair", "tied", true, &["token_embd.weight"]),
        ("tied-embedding-ensured", "tied", false, &["token_embd.weight"]),
        ("tied-rows", "tied", false, &["token_embd.weight"]),
        ("tied-rows-of-output", "tied", false, &["output.weight"]),
    ] {
        let report = from_peft(case(name), base(on), &adapter, &Control::default()).unwrap();
        let notes = report.notes.join(" ");
        assert!(notes.contains("as a whole, 8192 bytes"), "{name}: {notes}");
        let reader = AdapterReader::open(&adapter).unwrap();
        let mut found: Vec<&str> = reader.modules_to_save().iter().map(|m| m.name.as_str()).collect();
        found.sort_unstable();
        assert_eq!((reader.keeps_output(), &found[..]), (keeps, modules), "{name}");
    }
    // With a quantized model: its own rows as they are decoded, and those of PEFT.
    convert(base("llama"), &model, &Options::default().dtype(Some(DType::Q8_0)), &Control::default())
        .unwrap();
    from_peft(case("rows"), &model, &adapter, &Control::default()).unwrap();
    let values = |path: &Path| {
        let file = File::open(path).unwrap();
        dequantize_tensor(&file, file.tensor("token_embd.weight").unwrap()).unwrap()
    };
    let (own, new) = (values(&model), values(&adapter));
    let bytes = std::fs::read(case("rows").join("adapter_model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let rows =
        tensors.tensor("base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta").unwrap();
    for (token, (own, new)) in own.chunks(32).zip(new.chunks(32)).enumerate() {
        let row = [42, 5].iter().position(|&t| t == token).map(|i| &rows.data()[i * 128..(i + 1) * 128]);
        let expected = row.map_or(own.to_vec(), |bytes| {
            bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        });
        assert_eq!(new, expected, "{token}");
    }
}

/// Rows that the configuration does not name, or not so; halves; other shapes.
#[test]
fn embeddings_that_cannot_be_computed_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, out) = (dir.path().join("peft"), dir.path().join("none"));
    let refused = |name: &str, change: &dyn Fn(&mut Value), rename: [&str; 2], part: &str| {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        let mut config = json_of(&case(name).join("adapter_config.json"));
        change(&mut config);
        std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
        let model = "adapter_model.safetensors";
        let bytes = std::fs::read(case(name).join(model)).unwrap();
        let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..8 + n].to_vec()).unwrap().replace(rename[0], rename[1]);
        let parts = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + n..]];
        std::fs::write(folder.join(model), parts.concat()).unwrap();
        let e = from_peft(&folder, base("llama"), &out, &Control::default()).unwrap_err().to_string();
        assert!(e.contains(part) && !e.contains('\n') && !out.exists(), "{part}: {e}");
    };
    let key = "trainable_token_indices";
    for (rows, part) in [
        (json!(null), "expected the tokens of model.embed_tokens, found none"),
        (json!({"lm_head": [42, 5]}), "expected the tokens of model.embed_tokens, found none"),
        (json!([42, 64]), "expected tokens below 64, each once, found 64"),
        (json!([42, 42]), "expected tokens below 64, each once, found 42"),
        (json!([42, 5, 6]), "expected [3, 32] for the model's token_embd.weight, found [2, 32]"),
        (json!([]), "expected [0, 32]"),
    ] {
        refused("rows", &|c| c[key] = rows.clone(), ["", ""], part);
    }
    let none = |_: &mut Value| {};
    let a = "embed_tokens.lora_embedding_A";
    refused("embedding-pair", &none, [a, "embed_tokens.lora_embedding_A.x"], "the other half of a pair");
    let head = |c: &mut Value| c["target_modules"] = json!(["lm_head"]);
    refused(
        "embedding-pair",
        &head,
        ["model.embed_tokens.lora_", "lm_head.lora_"],
        "lm_head is not an embedding",
    );
    refused("embedding-pair", &none, ["[4,64]", "[64,4]"], "for the model's token_embd.weight");
    refused(
        "embedding-pair",
        &|c| c[key] = json!([1, 2, 3, 4]),
        [a, "embed_tokens.token_adapter.trainable_tokens_delta"],
        "expected a pair or rows of model.embed_tokens, found both",
    );
}

/// The converter names the tensors that PEFT drops.
#[test]
fn what_peft_drops_is_left_out_with_a_note() {
    let dir = tempfile::tempdir().unwrap();
    for (name, pairs, part) in [
        ("layers", 7, "layers_to_transform"),
        ("excluded", 5, "exclude_modules"),
        ("unknown-key", 2, "lora_dtype lorap_lr_ratio"),
    ] {
        let report =
            from_peft(case(name), base("llama"), dir.path().join("a.gguf"), &Control::default()).unwrap();
        assert_eq!(report.n_pairs, pairs, "{name}");
        assert!(report.notes.iter().any(|note| note.contains(part)), "{name}: {:?}", report.notes);
    }
}

/// Every field of PEFT's configuration has a meaning, and no other key has one.
#[test]
fn every_field_has_a_meaning() {
    let recorded = json_of(&fixture("fields.json"));
    let known: BTreeSet<&str> = recorded["fields"].as_object().unwrap().keys().map(String::as_str).collect();
    let ours: Vec<&str> = FIELDS.iter().flat_map(|(fields, _)| fields.split(' ')).collect();
    assert_eq!(known.len(), ours.len(), "each once");
    assert_eq!(known, ours.into_iter().collect::<BTreeSet<_>>());
}

/// How the embedding and the output of a model that has one matrix for both are written in an adapter.
#[test]
fn a_tied_output_follows_or_keeps_the_models_own() {
    let dir = tempfile::tempdir().unwrap();
    let [adapter, merged, back] = ["a.gguf", "m.gguf", "peft"].map(|file| dir.path().join(file));
    for (name, keeps, modules, unties, exported) in [
        ("tied-embed", true, &["token_embd.weight"][..], true, &["model.embed_tokens"][..]),
        ("tied-head", false, &["output.weight"], true, &["lm_head"]),
        (
            "tied-both",
            false,
            &["output.weight", "token_embd.weight"],
            true,
            &["lm_head", "model.embed_tokens"],
        ),
        ("tied-ensured", false, &["token_embd.weight"], false, &["lm_head", "model.embed_tokens"]),
        ("tied-head-pair", true, &["token_embd.weight"], true, &["model.embed_tokens"]),
    ] {
        from_peft(case(name), base("tied"), &adapter, &Control::default()).unwrap();
        let reader = AdapterReader::open(&adapter).unwrap();
        let mut found: Vec<&str> = reader.modules_to_save().iter().map(|m| m.name.as_str()).collect();
        found.sort_unstable();
        assert_eq!((reader.keeps_output(), &found[..]), (keeps, modules), "{name}");
        merge(&base("tied"), &adapter, &merged);
        assert_eq!(File::open(&merged).unwrap().tensor("output.weight").is_some(), unties, "{name}");
        let _ = std::fs::remove_dir_all(&back);
        to_peft(&adapter, base("tied"), &back, None, &Control::default()).unwrap();
        let config = json_of(&back.join("adapter_config.json"));
        let mut saved: Vec<String> = serde_json::from_value(config["modules_to_save"].clone()).unwrap();
        saved.sort_unstable();
        assert_eq!(saved, exported, "{name}");
        let bytes = std::fs::read(back.join("adapter_model.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let whole = tensors.names().into_iter().filter(|name| !name.contains("lora_")).count();
        assert_eq!(whole, exported.len(), "{name}");
    }
    // An output of the model's own is replaced by its own name alone.
    from_peft(case("untied-both"), base("llama"), &adapter, &Control::default()).unwrap();
    assert!(!AdapterReader::open(&adapter).unwrap().keeps_output());

    // Two that differ, under a configuration that ties them.
    let folder = dir.path().join("untied");
    std::fs::create_dir(&folder).unwrap();
    let model = "adapter_model.safetensors";
    std::fs::copy(case("tied-both").join(model), folder.join(model)).unwrap();
    let mut config = json_of(&case("tied-both").join("adapter_config.json"));
    config["ensure_weight_tying"] = json!(true);
    std::fs::write(folder.join("adapter_config.json"), config.to_string()).unwrap();
    let e = from_peft(&folder, base("tied"), dir.path().join("none"), &Control::default())
        .unwrap_err()
        .to_string();
    assert!(e.contains("lm_head.weight") && e.contains("ensure_weight_tying"), "{e}");
}

/// Of two adapters one alone may say what the output is.
#[test]
fn an_embedding_that_the_output_follows_and_another_output_exclude_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let [embed, ensured, head] = ["tied-embed", "tied-ensured", "tied-head"].map(|name| {
        let to = dir.path().join(name);
        from_peft(case(name), base("tied"), &to, &Control::default()).unwrap();
        AdapterSpec::new(to, 1.0)
    });
    let model = File::open(&base("tied")).unwrap();
    open_all(&[embed.clone(), head.clone()], &model).unwrap();
    let e = open_all(&[ensured, head], &model).unwrap_err().to_string();
    assert!(e.contains("output.weight: ") && e.contains("replaces it already"), "{e}");
}

/// An export names its base model, and its targets by the ends of their names.
#[test]
fn an_export_names_its_base_and_its_targets() {
    let dir = tempfile::tempdir().unwrap();
    let [adapter, noted, other] = ["a.gguf", "noted.gguf", "other.gguf"].map(|file| dir.path().join(file));
    from_peft(fixture("llama"), base("llama"), &adapter, &Control::default()).unwrap();
    let config = |adapter: &Path, model: &Path, repository: Option<&str>| {
        let to = dir.path().join("peft");
        let _ = std::fs::remove_dir_all(&to);
        let report = to_peft(adapter, model, &to, repository, &Control::default()).unwrap();
        (json_of(&to.join("adapter_config.json")), report.notes.join(" "))
    };
    let (unknown, notes) = config(&adapter, &base("llama"), None);
    assert!(unknown["base_model_name_or_path"] == "" && notes.contains("repository is not known"), "{notes}");
    let linears = ["down_proj", "gate_proj", "k_proj", "lm_head", "o_proj", "q_proj", "up_proj", "v_proj"];
    assert_eq!(unknown["target_modules"], json!(linears));
    let (named, notes) = config(&adapter, &base("llama"), Some("org/repo-1.5"));
    assert!(
        named["base_model_name_or_path"] == "org/repo-1.5" && !notes.contains("base_model_name_or_path"),
        "{notes}"
    );
    for wrong in ["repo", "a/b/c", "/a/b", "../x", "a b/c", "org/"] {
        let e = to_peft(&adapter, base("llama"), dir.path().join("no"), Some(wrong), &Control::default())
            .unwrap_err()
            .to_string();
        assert!(e.starts_with("base: expected ORG/REPO"), "{e}");
    }
    // Noted by an import, in the adapter, and in the model's file.
    let copy = |from: &Path, key: &str, value: &str, to: &Path| {
        let file = File::open(from).unwrap();
        let mut writer = Writer::with_metadata_of(&file);
        writer.set(key, Field::String(value.into()));
        for t in file.tensors() {
            let bytes = file.floats(t).unwrap();
            let data = gguf::float::encode(DType::F32, &bytes).unwrap();
            writer.tensor(&t.name, DType::F32, &t.shape, Box::new(move |out| out.write_all(&data))).unwrap();
        }
        let _ = std::fs::remove_file(to);
        writer.write(to).unwrap();
    };
    let url = "https://hub.example/org/model";
    copy(&adapter, "general.base_model.0.repo_url", url, &noted);
    assert_eq!(config(&noted, &base("llama"), None).0["base_model_name_or_path"], "org/model");
    copy(&base("llama"), "general.source.repo_url", url, &other);
    assert_eq!(config(&adapter, &other, None).0["base_model_name_or_path"], "org/model");
    copy(&base("llama"), "ropewalk.source", "org/imported", &other);
    let (imported, notes) = config(&adapter, &other, None);
    assert_eq!(imported["base_model_name_or_path"], "org/imported");
    assert!(notes.contains("is org/imported, as recorded by an import"), "{notes}");
    // Other weights are of no repository.
    let merged = dir.path().join("merged.gguf");
    merge(&other, &adapter, &merged);
    let unknown = config(&adapter, &merged, None).0;
    assert_eq!(unknown["base_model_name_or_path"], "");

    // Layers of which not all have a pair are named one by one.
    from_peft(case("layers"), base("llama"), &adapter, &Control::default()).unwrap();
    let (config, _) = config(&adapter, &base("llama"), None);
    let targets = config["target_modules"].as_array().unwrap();
    assert_eq!((targets.len(), &targets[0]), (7, &json!("model.layers.1.mlp.down_proj")));
}

/// The rope_scaling of an export gives the positions of the training: the angles are those that transformers computes by it
/// (`tests/reference/peft.py rope`).
#[test]
fn an_export_says_its_positions_as_transformers_reads_them() {
    let recorded = json_of(&fixture("rope.json"));
    let dir = tempfile::tempdir().unwrap();
    let [adapter, folder] = ["a.gguf", "peft"].map(|file| dir.path().join(file));
    let written = folder.join("rope_scaling.json");
    let hp = Hparams::from_gguf(&File::open(&base("llama")).unwrap()).unwrap();
    let (a, b) = (vec![1.0; 32 * 4], vec![0.0; 4 * 16]);
    let cases = recorded["cases"].as_array().unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let name = case["spec"].as_str().unwrap();
        let (spec, n_ctx) = (name.parse::<Spec>().unwrap(), case["n_ctx"].as_u64().unwrap() as usize);
        let meta = AdapterMeta { rope: Some(spec.clone()), n_ctx: Some(n_ctx), ..AdapterMeta::default() };
        let pair = NewPair { weight: "blk.0.attn_v.weight".into(), n_in: 32, n_out: 16, a: &a, b: &b };
        write(&adapter, &of_pairs(4, vec![pair], meta)).unwrap();
        let report = to_peft(&adapter, base("llama"), &folder, None, &Control::default()).unwrap();
        let notes = report.notes.join(" ");
        // That of the case before is removed.
        assert_eq!(written.exists(), !case["scaling"].is_null(), "{name}: {notes}");
        if case["scaling"].is_null() {
            assert!(notes.contains("the model's own") || notes.contains("cannot express"), "{name}: {notes}");
            continue;
        }
        assert_eq!(json_of(&written), case["scaling"], "{name}");
        assert!(notes.contains(&case["scaling"].to_string()), "{name}: {notes}");
        let plan = Plan::new(&spec, &hp, n_ctx).unwrap();
        let positions = plan.main();
        let angles: Vec<f64> = serde_json::from_value(case["inv_freq"].clone()).unwrap();
        let magnitude = case["attention_scaling"].as_f64().unwrap();
        let of_case = angles.iter().chain([&magnitude]);
        let of_plan = positions.freqs.theta.iter().chain([&positions.mscale]);
        assert_eq!(angles.len(), positions.freqs.theta.len(), "{name}");
        // Angles are of f32 there, after a power and a quotient.
        assert!(of_case.zip(of_plan).all(|(a, b)| (a - b).abs() < 1e-6 * b), "{name}: {angles:?}");
    }
    // Models whose classes read more than angles there, or less.
    for (shape, spec, why) in [
        ("mistral3-tiny", "yarn:factor=2", "the model's attention temperature"),
        ("phi3-tiny", "pi:factor=2", "the class of Phi-3 has no linear scaling"),
    ] {
        let [model, other, adapter] = [shape, "other", "b.gguf"].map(|name| dir.path().join(name));
        random::write(&Shape::named(shape).unwrap(), DType::F32, 1, &model).unwrap();
        let n_embd = Shape::named(shape).unwrap().n_embd;
        let a = vec![1.0; n_embd * 4];
        let meta =
            AdapterMeta { rope: Some(spec.parse().unwrap()), n_ctx: Some(1024), ..AdapterMeta::default() };
        let pair =
            NewPair { weight: "blk.0.attn_output.weight".into(), n_in: n_embd, n_out: n_embd, a: &a, b: &a };
        let (arch, _) = shape.split_once('-').unwrap();
        write(&adapter, &AdapterFile { arch, ..of_pairs(4, vec![pair], meta) }).unwrap();
        let notes = to_peft(&adapter, &model, &other, None, &Control::default()).unwrap().notes.join(" ");
        assert!(notes.contains(why) && !other.join("rope_scaling.json").exists(), "{shape}: {notes}");
    }
    // What somebody else has under that name is left alone.
    std::fs::write(&written, "My notes.\n").unwrap();
    let e = to_peft(&adapter, base("llama"), &folder, None, &Control::default()).unwrap_err().to_string();
    assert!(e.contains("rope_scaling.json") && written.exists(), "{e}");
}
