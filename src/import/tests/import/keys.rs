//! Keys of config.json, against what the configuration classes of transformers know (`tests/config_keys.json`, made by
//! `tests/reference/config_keys.py`): each has a meaning, none is dropped, and one that is missing has its class's default.

use ropewalk_import::{classes, meaning, Meaning};
use serde_json::{json, Map, Value};

use crate::checkpoints::{recorded, Recorded};
use crate::Folder;

type Config = Map<String, Value>;

fn known() -> Value {
    let path = recorded().with_file_name("config_keys.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A recorded checkpoint whose config.json is changed again and again.
struct Case {
    folder: Folder,
    name: String,
    class: String,
    config: Config,
}

impl Case {
    fn of(name: &str) -> Case {
        let folder = Folder::of(name);
        let config: Config =
            serde_json::from_slice(&std::fs::read(folder.file("config.json")).unwrap()).unwrap();
        let class = config["architectures"][0].as_str().unwrap().to_owned();
        Case { folder, name: name.to_owned(), class, config }
    }
    /// One of each class.
    fn of_each_class() -> impl Iterator<Item = Case> {
        let mut seen = std::collections::BTreeSet::new();
        let all = Recorded::all().into_iter().map(|recorded| Case::of(&recorded.name));
        all.filter(move |case| seen.insert(case.class.clone()))
    }
    /// Returns everything that the import writes to the file for this config.
    fn outcome(&self, config: &Config) -> Result<String, String> {
        std::fs::write(self.folder.file("config.json"), Value::Object(config.clone()).to_string()).unwrap();
        self.folder.open().map(|c| format!("{:?}\n{:?}", c.metadata(), c.tensors()))
    }
    /// The keys that the class knows in addition to those of every class, with their defaults.
    fn keys(&self) -> Config {
        known()["classes"][&self.class]["keys"].as_object().unwrap().clone()
    }
}

fn with(config: &Config, changes: &[(&str, Value)]) -> Config {
    let mut config = config.clone();
    for (key, value) in changes {
        match value {
            // Stands for a key that is not there.
            Value::String(s) if s == "-" => drop(config.remove(*key)),
            value => drop(config.insert((*key).into(), value.clone())),
        }
    }
    config
}

#[test]
fn every_key_of_every_class_has_a_meaning() {
    let known = known();
    let listed = known["classes"].as_object().unwrap();
    let mut faults = Vec::new();
    for class in classes() {
        let Some(keys) = listed.get(class).and_then(|c| c["keys"].as_object()) else {
            faults.push(format!("{class}: not in config_keys.json"));
            continue;
        };
        for key in keys.keys().chain(known["common"].as_object().unwrap().keys()) {
            match meaning(class, key) {
                None => faults.push(format!("{class}: {key}: neither used, irrelevant nor of one value")),
                Some(
                    Meaning::Irrelevant(why) | Meaning::MustEqual(_, why) | Meaning::MustAllEqual(_, why),
                ) => {
                    assert!(!why.is_empty(), "{class}: {key}");
                }
                Some(Meaning::Used) => {}
            }
            // The default must be a value that is accepted.
            if let (Some(Meaning::MustEqual(values, _)), Some(default)) = (meaning(class, key), keys.get(key))
            {
                let values: Vec<Value> = serde_json::from_str(values).unwrap();
                let same = |v: &Value| v == default || v.as_f64().is_some() && v.as_f64() == default.as_f64();
                if !default.is_null() && !values.iter().any(same) {
                    faults.push(format!("{class}: {key}: the class's own {default} is refused"));
                }
            }
        }
    }
    for class in listed.keys().filter(|class| !classes().any(|c| c == class.as_str())) {
        faults.push(format!("{class}: in config_keys.json, but cannot be imported"));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_missing_key_has_the_default_of_its_class() {
    let mut faults = Vec::new();
    for case in Case::of_each_class() {
        let class = &known()["classes"][&case.class];
        let rope: Vec<_> =
            ["rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "rotary_emb_base"]
                .map(|key| (key, json!("-")))
                .into();
        let mut keys = case.keys();
        keys.insert("rope_theta".into(), class["rope_theta"].clone());
        for (key, default) in keys.iter().filter(|(_, default)| !default.is_null()) {
            if matches!(meaning(&case.class, key), Some(Meaning::Irrelevant(_))) {
                continue;
            }
            let without = match key.as_str() {
                "rope_theta" => with(&case.config, &rope),
                "num_experts" | "num_local_experts" => {
                    with(&case.config, &[("num_experts", json!("-")), ("num_local_experts", json!("-"))])
                }
                _ => case.config.clone(),
            };
            let missing = case.outcome(&with(&without, &[(key, json!("-"))]));
            let said = case.outcome(&with(&without, &[(key, default.clone())]));
            if missing.is_ok() != said.is_ok() || missing.is_ok() && missing != said {
                faults.push(format!(
                    "{}: {key}: {:?} if missing, {:?} at {default}",
                    case.name,
                    missing.map(|s| s.len()),
                    said.map(|s| s.len())
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Another value of the same type.
fn other(key: &str, value: &Value) -> Value {
    match (key, value) {
        ("rope_scaling" | "rope_parameters", _) => {
            json!({"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0})
        }
        ("quantization_config", _) => json!({"quant_method": "gptq"}),
        ("layer_types", Value::Array(v)) => {
            let mut types = v.clone();
            types[0] = json!(if v[0] == "full_attention" { "sliding_attention" } else { "full_attention" });
            Value::Array(types)
        }
        (_, Value::Bool(b)) => json!(!b),
        (_, Value::Number(n)) if n.is_u64() => json!(n.as_u64().unwrap() + 1),
        (_, Value::Number(n)) => json!(n.as_f64().unwrap() * 2.0 + 0.5),
        (_, Value::String(_)) => json!("other"),
        (_, Value::Array(v)) if v.is_empty() => json!([1]),
        (_, Value::Array(v)) => {
            let mut v = v.clone();
            v[0] = other("", &v[0]);
            Value::Array(v)
        }
        (_, Value::Object(_)) => json!({"other": 1}),
        (_, Value::Null) => json!(7),
    }
}

/// Keys that say something only in company: the changes that make it.
fn company(class: &str, key: &str) -> Vec<(&'static str, Value)> {
    let none = || json!("-");
    let windows = |used: bool| vec![("use_sliding_window", json!(used)), ("sliding_window", json!(64))];
    match (class, key) {
        (
            "Qwen2ForCausalLM" | "Qwen3ForCausalLM",
            "max_window_layers" | "sliding_window" | "use_sliding_window",
        ) => {
            let more = [("layer_types", none()), ("max_window_layers", json!(0))];
            windows(key != "use_sliding_window").into_iter().chain(more).collect()
        }
        ("Qwen3MoeForCausalLM", "sliding_window" | "use_sliding_window") => windows(key == "sliding_window"),
        ("SmolLM3ForCausalLM", "sliding_window" | "use_sliding_window" | "layer_types") => {
            let types = json!(["sliding_attention", "full_attention"]);
            windows(true).into_iter().chain([("layer_types", types)]).collect()
        }
        (_, "sliding_window_pattern") => {
            vec![("layer_types", none()), (("sliding_window_pattern"), json!(1))]
        }
        // What it has by itself has a base inside.
        ("Ministral3ForCausalLM", "rope_theta") => {
            let scaling =
                json!({"type": "yarn", "factor": 4.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1});
            vec![("rope_parameters", none()), ("rope_scaling", scaling)]
        }
        (_, "rope_theta" | "rope_local_base_freq" | "partial_rotary_factor" | "rope_parameters") => {
            vec![("rope_parameters", none()), ("rope_scaling", none())]
        }
        _ => Vec::new(),
    }
}

#[test]
fn no_key_is_dropped() {
    let mut faults = Vec::new();
    let common = known()["common"].as_object().unwrap().clone();
    for case in Case::of_each_class() {
        let plain = case.outcome(&case.config).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let mut keys = common.clone();
        keys.extend(case.keys());
        keys.extend(case.config.clone());
        for (key, default) in &keys {
            let Some(meaning) = meaning(&case.class, key) else { continue };
            if matches!(key.as_str(), "architectures" | "text_config") {
                continue;
            }
            let company = company(&case.class, key);
            let mut base = with(&case.config, &company);
            let before = match company.is_empty() {
                true => plain.clone(),
                false => case.outcome(&base).unwrap_or_else(|e| panic!("{}: {key}: {e}", case.name)),
            };
            let value = base.get(key).filter(|v| !v.is_null()).unwrap_or(default).clone();
            base.insert(key.clone(), other(key, &value));
            let after = case.outcome(&base);
            let held = match meaning {
                // The ids of a tokenizer that leaves them open are taken from here.
                Meaning::Irrelevant(_) if key.ends_with("_token_id") => true,
                Meaning::Irrelevant(_) => after.as_ref() == Ok(&before),
                Meaning::Used => after.as_ref() != Ok(&before),
                Meaning::MustEqual(..) | Meaning::MustAllEqual(..) => after
                    .as_ref()
                    .is_err_and(|e| e.contains(&format!("{key}: found ")) && e.contains("expected ")),
            };
            if !held {
                let after = after.map(|after| if after == before { "the same file" } else { "another file" });
                faults.push(format!("{}: {key} at {}: {meaning:?}: {after:?}", case.name, base[key]));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
}

#[test]
fn what_other_classes_know_is_refused_unless_it_changes_nothing() {
    let keys = [
        ("sliding_window", json!(64), json!(null)),
        ("use_sliding_window", json!(true), json!(false)),
        (
            "layer_types",
            json!(["sliding_attention", "full_attention"]),
            json!(["full_attention", "full_attention"]),
        ),
        ("no_rope_layers", json!([1, 0]), json!([1, 1])),
        ("attn_logit_softcapping", json!(50.0), json!(null)),
        ("final_logit_softcapping", json!(30.0), json!(null)),
        ("query_pre_attn_scalar", json!(144), json!(null)),
        ("partial_rotary_factor", json!(0.5), json!(1.0)),
        ("rotary_pct", json!(0.25), json!(1)),
        ("rope_local_base_freq", json!(10000.0), json!(null)),
        ("attention_bias", json!(true), json!(false)),
        ("mlp_bias", json!(true), json!(false)),
        ("qk_layernorm", json!(true), json!(false)),
        ("clip_qkv", json!(8.0), json!(null)),
        ("embedding_multiplier", json!(12.0), json!(1)),
        ("residual_multiplier", json!(0.22), json!(1.0)),
        ("logits_scaling", json!(8.0), json!(1.0)),
        ("logit_scale", json!(0.0625), json!(1.0)),
        ("num_local_experts", json!(8), json!(0)),
        ("kv_lora_rank", json!(512), json!(null)),
        ("quantization", json!({"bits": 4}), json!(null)),
        ("quantization_config", json!({"quant_method": "fp8"}), json!(null)),
        ("per_layer_config", json!({"0": {"head_dim": 4}}), json!(null)),
        ("is_encoder_decoder", json!(true), json!(false)),
    ];
    let mut n = 0;
    for case in Case::of_each_class() {
        for (key, changed, neutral) in &keys {
            let own = matches!(meaning(&case.class, key), Some(Meaning::Used | Meaning::Irrelevant(_)));
            // Two architectures always have biases.
            let biased =
                *key == "attention_bias" && ["gpt-oss", "gptneox"].iter().any(|n| case.name.starts_with(n));
            if biased
                || own && *key != "quantization_config"
                || case.config.contains_key("quantization_config")
            {
                continue;
            }
            n += 1;
            let error = case.outcome(&with(&case.config, &[(key, changed.clone())])).expect_err(key);
            let wanted = if *key == "quantization_config" { "quantization_config: found" } else { key };
            assert!(error.contains(wanted) && error.contains("expected"), "{}: {key}: {error}", case.name);
            // Another name for the number of experts, which contradicts the first.
            let contradicts = *key == "num_local_experts" && case.config.contains_key("num_experts");
            if !contradicts && !matches!(meaning(&case.class, key), Some(Meaning::MustEqual(..))) {
                let accepted = case.outcome(&with(&case.config, &[(key, neutral.clone())]));
                assert!(accepted.is_ok(), "{}: {key} at {neutral}: {accepted:?}", case.name);
            }
        }
    }
    assert!(n > 200, "{n}");
}

/// Kinds of scaling with all of their settings: carried, or refused by name.
#[test]
fn no_rope_scaling_is_dropped() {
    let kinds = [
        json!({"rope_type": "linear", "factor": 4.0}),
        json!({"rope_type": "dynamic", "factor": 4.0}),
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}),
        json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}),
        json!({"rope_type": "longrope", "factor": 4.0, "long_factor": [2.0], "short_factor": [1.0],
               "original_max_position_embeddings": 64}),
        json!({"rope_type": "proportional", "partial_rotary_factor": 0.5}),
    ];
    // Ministral 3 needs more numbers among the settings, and is refused without them.
    for case in Case::of_each_class().filter(|case| case.name != "ministral3") {
        let bare = [("rope_parameters", json!("-")), ("rope_scaling", json!({"rope_type": "default"}))];
        let plain = case.outcome(&with(&case.config, &bare)).unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for kind in &kinds {
            match case.outcome(&with(&case.config, &[bare[0].clone(), ("rope_scaling", kind.clone())])) {
                Ok(file) => assert!(file != plain, "{}: {kind} is dropped", case.name),
                Err(e) => assert!(e.contains("rope_scaling: found") || e.contains("_factor: found"), "{e}"),
            }
        }
    }
    // YaRN's own settings.
    let case = Case::of("qwen2");
    let yarn = |more: Value| {
        let mut scaling = kinds[2].clone();
        scaling.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        case.outcome(&with(&case.config, &[("rope_scaling", scaling)]))
    };
    let plain = yarn(json!({})).unwrap();
    for more in [
        json!({"attention_factor": 0.7}),
        json!({"mscale": 0.7, "mscale_all_dim": 1.0}),
        json!({"beta_fast": 16.0}),
        json!({"beta_slow": 2.0}),
        json!({"factor": 2.0}),
        json!({"original_max_position_embeddings": 32}),
    ] {
        assert!(yarn(more.clone()).unwrap() != plain, "{more} is dropped");
    }
    // As much as YaRN has by itself, and one alone, which transformers does not read.
    assert_eq!(yarn(json!({"mscale": 1.0})).unwrap(), plain);
    let error = yarn(json!({"truncate": false})).unwrap_err();
    assert!(error.contains("truncate: found false, expected true"), "{error}");
    let error = yarn(json!({"partial_rotary_factor": 0.5})).unwrap_err();
    assert!(error.contains("partial_rotary_factor: found 0.5, expected 1"), "{error}");
}

#[test]
fn biases_and_the_output_are_as_config_json_says() {
    for (name, key, value, wanted) in [
        ("llama", "attention_bias", true, "the checkpoint has no tensor *.self_attn.q_proj.bias"),
        ("llama-linear", "attention_bias", false, "the checkpoint has model.layers.0.self_attn.q_proj.bias"),
        ("granite", "mlp_bias", true, "the checkpoint has no tensor *.mlp.up_proj.bias"),
        ("llama", "tie_word_embeddings", true, "lm_head.weight is not the embedding"),
        ("qwen2", "tie_word_embeddings", false, "the checkpoint has no tensor of the output"),
        ("gemma2", "tie_word_embeddings", false, "expected true"),
    ] {
        let case = Case::of(name);
        let error = case.outcome(&with(&case.config, &[(key, json!(value))])).unwrap_err();
        assert!(error.contains(&format!("{key}: found {value}, expected {}", !value)), "{name}: {error}");
        assert!(error.contains(wanted), "{name}: {error}");
    }
}

#[test]
fn notes_say_what_llama_cpp_cannot_run_and_what_is_left_out() {
    for (name, wanted) in [
        ("mistral-window", "texts of up to 48 tokens"),
        ("qwen3moe-unscaled", "llama.cpp cannot run this model"),
        ("phi3", "texts of up to 128 tokens"),
    ] {
        let notes = Folder::of(name).open().unwrap().notes().join("\n");
        assert!(notes.contains(wanted), "{name}: {notes}");
    }
    let folder = Folder::of("llama");
    folder.edit("config.json", |v| v["unsloth_version"] = json!("2026.1"));
    let checkpoint = folder.open().unwrap();
    assert!(checkpoint.notes()[0].ends_with("keys that its class does not know: unsloth_version."));
    assert!(Folder::of("llama").open().unwrap().notes().is_empty());
}
