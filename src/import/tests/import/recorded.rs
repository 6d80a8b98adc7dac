//! Tensors byte for byte, metadata key by key.

use gguf::{Array, DType, File, Value};
use ropewalk_core::control::Control;
use ropewalk_core::hparams::keys;
use ropewalk_import::{floats, Tensor};
use serde_json::{json, Value as Json};
use sha2::{Digest, Sha256};

use crate::checkpoints::Recorded;
use crate::Folder;

/// Keys that differ from llama.cpp's on purpose: that the base is not written for GPT-NeoX unless it is
/// another than llama.cpp's own; the second token of `eos_token_id` in generation_config.json; forms of GELU, windows, weights
/// of experts and patterns of windows that llama.cpp's converter leaves out.
const ADDED: &[(&str, &str)] = &[
    ("qwen2", "tokenizer.ggml.eot_token_id"),
    ("qwen2-window", "tokenizer.ggml.eot_token_id"),
    ("gptneox", keys::GELU),
    ("phi2-narrow", keys::GELU),
    ("phi3", keys::WINDOWS),
    ("mistral-window", keys::WINDOWS),
    ("qwen2-window", keys::WINDOWS),
    ("qwen2-window", "qwen2.rope.scaling.attn_factor"),
    ("qwen3moe-unscaled", keys::EXPERT_WEIGHTS_NORM),
    ("gemma3-windows", "gemma3.attention.sliding_window_pattern"),
    ("gemma3-every-second", "gemma3.attention.sliding_window_pattern"),
];
/// Keys in which llama.cpp's converter says something else than config.json: a Phi-2 is four times as wide as its
/// embedding; the magnitude of YaRN, under a key that llama.cpp reads only without YaRN's ramp; scores of pieces from
/// tokenizer.json, which are all alike there.
const CHANGED: &[(&str, &str)] = &[
    ("llama-linear", "tokenizer.ggml.scores"),
    ("phi2-narrow", "phi2.feed_forward_length"),
    ("qwen2-window", "qwen2.rope.scaling.yarn_attn_factor"),
];
/// Guesses from a folder's name, of which ours has the name alone.
const NOT_WRITTEN: &[&str] = &["general.basename", "general.finetune"];

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// A value as the recording has it.
fn recorded(value: &Value) -> Json {
    let short = |kind: &str, v: Vec<Json>| json!([format!("array {kind}"), v]);
    let long = |kind: &str, n: usize, bytes: Vec<u8>| json!([format!("array {kind}"), n, hex(&bytes)]);
    match value {
        Value::U32(v) => json!(["uint32", v]),
        Value::I32(v) => json!(["int32", v]),
        Value::F32(v) => json!(["float32", f64::from(*v)]),
        Value::Bool(v) => json!(["bool", v]),
        Value::String(v) => json!(["string", String::from_utf8(v.clone()).unwrap()]),
        Value::Array(Array::Bool(v)) => short("bool", v.iter().map(|b| json!(b)).collect()),
        Value::Array(Array::String(v)) => long(
            "string",
            v.len(),
            v.iter().flat_map(|s| [&(s.len() as u64).to_le_bytes(), &s[..]].concat()).collect(),
        ),
        Value::Array(Array::I32(v)) if v.len() <= 16 => short("int32", v.iter().map(|x| json!(x)).collect()),
        Value::Array(Array::I32(v)) => {
            long("int32", v.len(), v.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        Value::Array(Array::F32(v)) => {
            long("float32", v.len(), v.iter().flat_map(|x| x.to_le_bytes()).collect())
        }
        other => panic!("{other:?}"),
    }
}

fn compare(name: &str) {
    let folder = Folder::of(name);
    let checkpoint = folder.open().unwrap();
    for (dtype, number) in [(DType::F32, 0), (DType::F16, 1), (DType::BF16, 32)] {
        let path = folder.file(&format!("{}.gguf", dtype.name()));
        let encode = |_: &Tensor, to: DType, values: &[f32]| floats(to, values);
        let control = Control::default();
        checkpoint.write(number, &|_| dtype, &encode, &control, &path).unwrap().0.place().unwrap();
        let file = File::open(&path).unwrap();
        let wanted = folder.recorded.expected["types"][dtype.name()].as_object().unwrap();
        for t in file.tensors() {
            let found = json!([t.shape, t.dtype.name(), &hex(&file.data(t).to_vec().unwrap())[..16]]);
            assert_eq!(Some(&found), wanted.get(&t.name), "{name}: {}", t.name);
        }
        assert_eq!(file.tensors().len(), wanted.len(), "{name}");
        if dtype != DType::F32 {
            continue;
        }
        let keys = folder.recorded.expected["keys"].as_object().unwrap();
        let mut faults = Vec::new();
        for (key, wanted) in keys.iter().filter(|(k, _)| !NOT_WRITTEN.contains(&k.as_str())) {
            let found = file.value(key).map(recorded);
            if found.as_ref() != Some(wanted) && !CHANGED.contains(&(name, key)) {
                faults.push(format!("{key}: found {found:?}, expected {wanted}"));
            }
        }
        for (key, value) in file.metadata().iter().filter(|(k, _)| !keys.contains_key(k)) {
            if !ADDED.contains(&(name, key)) && key != "general.file_type" {
                faults.push(format!("{key}: found {}, expected none", value.describe()));
            }
        }
        assert!(faults.is_empty(), "{name}:\n{}", faults.join("\n"));
    }
}

#[test]
fn imports_are_as_recorded() {
    Recorded::all().iter().for_each(|recorded| compare(&recorded.name));
}
