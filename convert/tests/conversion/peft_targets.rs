//! Which modules an adapter is of. Compiles the files of the library that say so, which stand alone, for itself.

#[path = "../../src/peft/errors.rs"]
mod errors;
#[path = "../../src/peft/patterns.rs"]
mod patterns;
#[path = "../../src/peft/targets.rs"]
mod targets;

use std::path::Path;

use regex::Regex;
use serde_json::{json, Value};

use errors::{refuse, shown};
use patterns::{name, Patterns};
use targets::Targets;

/// Names are matched as the regular expression would match them.
#[test]
fn names_match_as_expressions_do() {
    let modules = [
        "q_proj",
        "model.layers.3.self_attn.q_proj",
        "model.layers.13.self_attn.q_proj",
        "model.layers.3.self_attn.xq_proj",
        "modelxlayersx3xself_attnxq_proj",
        "lm_head",
        "",
        ".",
        "a.",
    ];
    let patterns = [
        "q_proj",
        r"3\.self_attn\.q_proj",
        "3.self_attn.q_proj",
        r"model\.layers\.3\.self_attn\.q_proj",
        "model.layers.3.self_attn.q_proj",
        ".q_proj",
        "..",
        "",
        ".",
        "head",
        "lm_head",
    ];
    for pattern in patterns {
        assert!(name(pattern).is_some(), "{pattern}");
        let mut own = Patterns::default();
        own.add(pattern).unwrap();
        let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{pattern})$")).unwrap();
        for module in modules {
            assert_eq!(own.find(module).is_some(), regex.is_match(module), "{pattern} of {module}");
        }
    }
    for pattern in [r"\d", "a|b", "(a)", "a*", r"a\\", "é", "[ab]", "a b"] {
        assert!(name(pattern).is_none(), "{pattern}");
    }
}

#[test]
fn what_people_write_is_compiled() {
    let mut own = Patterns::default();
    let written = [
        r".*\.layers\.\d+\.self_attn\.(q|k|v|o)_proj",
        r"layers\.(0|1|2)\.mlp\.(?:gate|up|down)_proj",
        r"\w+\.q_proj",
        "^model.*q_proj",
    ];
    for pattern in written {
        own.add(pattern).unwrap_or_else(|e| panic!("{pattern}: {e:?}"));
    }
    assert_eq!(own.find("model.layers.7.self_attn.k_proj"), Some(0));
    assert_eq!(own.find("model.layers.1.mlp.up_proj"), Some(1));
    assert_eq!(own.find("model.norm"), None);
}

/// Compares with `check_target_module_exists` of PEFT 0.21.2 (`tests/fixtures/peft/targets.json`, recorded by
/// `tests/reference/peft.py`).
#[test]
fn modules_are_those_of_peft() {
    let recorded: Value = serde_json::from_str(include_str!("../fixtures/peft/targets.json")).unwrap();
    let modules: Vec<&str> =
        recorded["modules"].as_array().unwrap().iter().map(|m| m.as_str().unwrap()).collect();
    let cases = recorded["cases"].as_array().unwrap();
    assert!(cases.len() > 10);
    for case in cases {
        let config = case["config"].as_object().unwrap();
        let saved: Vec<String> =
            serde_json::from_value(config.get("modules_to_save").cloned().unwrap_or(json!([]))).unwrap();
        let targets = Targets::read(Path::new("f"), config, &saved, &mut Vec::new()).unwrap();
        let found: Vec<&&str> = modules.iter().filter(|m| targets.has(m)).collect();
        assert_eq!(json!(found), case["targeted"], "{config:?}");
    }
}

#[test]
fn an_expression_with_lookaround_is_noted_and_takes_every_module() {
    let config = json!({"target_modules": "^(?!.*visual).*q_proj"});
    let mut notes = Vec::new();
    let all = Targets::read(Path::new("f"), config.as_object().unwrap(), &[], &mut notes).unwrap();
    assert!(all.has("model.layers.0.mlp.up_proj") && notes[0].contains("lookaround"), "{notes:?}");
}
