//! Metadata that lies: one key at a time, and keys at random.

use convert::random::Shape;
use gguf::{Array, Value, Writer};
use proptest::prelude::*;

use crate::{common, rewritten, survives, text, with_key};

/// Values of a key that must be refused, and what the error names in addition to key and file. More are in
/// `tests/rope/hparams.rs`, which reads the same numbers without a model around them.
#[test]
fn hostile_values_are_refused_by_key() {
    let u = Value::U32;
    let f = Value::F32;
    for (i, (key, value, holds)) in [
        ("llama.block_count", u(2), "blk.1."),
        ("llama.block_count", u(u32::MAX), "4294967295"),
        ("llama.block_count", Value::U64(u64::MAX), "18446744073709551615"),
        ("llama.block_count", Value::I32(-1), "llama.block_count"),
        ("llama.block_count", f(1.0), "llama.block_count"),
        ("llama.embedding_length", u(128), "[64, 260]"),
        ("llama.feed_forward_length", u(1 << 24), "ffn"),
        ("llama.attention.head_count", u(3), "attn_q"),
        ("llama.attention.head_count", u(1 << 24), "llama.attention.head_count"),
        ("llama.attention.head_count_kv", u(0), "found 0"),
        ("llama.attention.key_length", u(0), "found 0"),
        ("llama.attention.key_length", u(33), "llama.attention"),
        ("llama.rope.dimension_count", u(0), "found 0"),
        ("llama.rope.dimension_count", u(34), "llama.rope.dimension_count"),
        ("llama.rope.freq_base", f(0.5), "above 1"),
        ("llama.rope.freq_base", f(1e31), "1e30"),
        ("llama.rope.freq_base", text("1e4"), "llama.rope.freq_base"),
        ("llama.rope.scaling.type", text("magic"), "magic"),
        ("llama.rope.scaling.factor", f(f32::NAN), "NaN"),
        ("llama.rope.scaling.factor", f(-4.0), "-4"),
        ("llama.context_length", u(u32::MAX), "4294967295"),
        ("general.architecture", text("nonesuch"), "llama, mistral3"),
        ("general.architecture", text("a\nb\u{1b}[2J"), r#"a\nb\u{1b}[2J"#),
        ("general.architecture", text("qwen2"), "qwen2."),
        ("general.architecture", u(3), "general.architecture"),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(vec![b"a".to_vec(); 3])), "found 3"),
        ("tokenizer.ggml.tokens", u(3), "tokenizer.ggml.tokens"),
        ("tokenizer.ggml.model", text("nonesuch"), "nonesuch"),
        ("tokenizer.ggml.model", text("a\nb\u{1b}[2J"), r#"a\nb\u{1b}[2J"#),
        ("tokenizer.ggml.bos_token_id", u(9999), "tokenizer.ggml.bos_token_id"),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1; 7])), "tokenizer.ggml.token_type"),
        ("ropewalk.rope.spec", text("yarm:factor=2"), "yarm"),
        ("ropewalk.rope.spec", text("harpe:bases=1/2/3"), "harpe"),
        ("split.count", Value::U16(3), "split"),
        ("ropewalk.windows", u(8), "ropewalk.windows: expected an array of integers"),
        ("ropewalk.windows", text("8"), "ropewalk.windows: expected an array of integers"),
        (
            "ropewalk.windows",
            Value::Array(Array::F32(vec![8.0])),
            "ropewalk.windows: expected an array of integers",
        ),
        ("ropewalk.windows", Value::Array(Array::I32(vec![-1])), "ropewalk.windows"),
        ("ropewalk.windows", Value::Array(Array::U32(vec![])), "expected 1 entries, one per layer, found 0"),
        ("ropewalk.windows", Value::Array(Array::U32(vec![8; 4096])), "found 4096"),
        ("ropewalk.windows", Value::Array(Array::U64(vec![u64::MAX])), "18446744073709551615"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = with_key(&format!("value-{i}"), key, value.clone());
        let e = survives(&path).unwrap_or_else(|| panic!("{key} = {value:?} is taken"));
        assert!(e.contains(holds), "{key} = {value:?}: expected {holds:?} in {e}");
        assert!(e.starts_with(&format!("{}: ", path.display())), "{e}");
        std::fs::remove_file(path).unwrap();
    }
}

/// The key of ours that only mixtures of experts read.
#[test]
fn weights_of_experts_are_normalised_or_not() {
    let model = common::scratch("hostile-mixture.gguf");
    convert::random::write(&Shape::named("qwen3moe-tiny").unwrap(), gguf::DType::F32, 7, &model).unwrap();
    let key = "ropewalk.expert_weights_norm";
    let hostile =
        [Value::U32(0), Value::F32(f32::NAN), text("false"), Value::Array(Array::Bool(vec![false]))];
    for value in hostile.into_iter().chain([Value::Bool(false)]) {
        let path = common::scratch("hostile-mixture-key.gguf");
        common::rewritten(&model, &path, &[], |writer| {
            writer.set(key, value.clone());
        });
        match (survives(&path), value) {
            (None, Value::Bool(_)) => {}
            (Some(e), _) if e.starts_with(&format!("{}: ", path.display())) && e.contains(key) => {}
            (said, value) => panic!("{value:?}: {said:?}"),
        }
        std::fs::remove_file(path).unwrap();
    }
    std::fs::remove_file(model).unwrap();
}

#[test]
fn missing_keys_are_named() {
    for key in ["general.architecture", "llama.block_count", "tokenizer.ggml.model"] {
        let without = |w: &mut Writer<'_>| {
            w.remove(key);
        };
        let path = rewritten(&format!("missing-{key}"), without, |_| None);
        let e = survives(&path).unwrap_or_else(|| panic!("without {key} it is taken"));
        assert!(e.contains(key) && e.contains(&path.display().to_string()), "{key}: {e}");
        std::fs::remove_file(path).unwrap();
    }
}

/// Extreme numbers that are legal: computed with, or refused for what they do; a base this small or large still rotates.
#[test]
fn extreme_values_do_no_harm() {
    for (i, (key, value)) in [
        ("llama.rope.freq_base", Value::F32(1.0 + f32::EPSILON)),
        ("llama.rope.freq_base", Value::F32(1e30)),
        ("llama.rope.freq_base", Value::F32(f32::MIN_POSITIVE)),
        ("llama.rope.freq_base", Value::F32(f32::MAX)),
        ("llama.rope.dimension_count", Value::U32(2)),
        ("llama.rope.dimension_count", Value::U32(4)),
        ("llama.rope.scaling.factor", Value::F32(1e-30)),
        ("llama.rope.scaling.factor", Value::F32(1e30)),
        ("llama.context_length", Value::U32(i32::MAX as u32)),
        ("llama.context_length", Value::U32(1)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e38)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-38)),
        ("ropewalk.rope.spec", text("yarn:factor=1000000,original=1")),
        ("ropewalk.rope.spec", text("harpe:bases=1e30")),
        ("ropewalk.rope.spec", text("sba:factor=1e6,original=2147483647")),
        ("ropewalk.rope.spec", text("ntk:factor=1000000,original=1")),
        ("general.alignment", Value::U32(1)),
        ("general.alignment", Value::U32(1 << 16)),
        ("tokenizer.chat_template", text("{% for i in range(1000000000) %}{{ i }}{% endfor %}")),
        ("general.file_type", Value::U32(u32::MAX)),
        ("general.name", text("a\nb\u{1b}[31mc")),
        ("tokenizer.ggml.model", text("no_vocab")),
    ]
    .into_iter()
    .enumerate()
    {
        let path = with_key(&format!("extreme-{i}"), key, value.clone());
        let e = survives(&path);
        println!("{key} = {value:?}: {e:?}");
        std::fs::remove_file(path).unwrap();
    }
}

fn hostile_value() -> impl Strategy<Value = Value> {
    let n =
        || prop_oneof![Just(0u64), Just(u64::MAX), 0u64..300, (0u32..64).prop_map(|s| 1 << s), any::<u64>()];
    let x = || prop_oneof![any::<f32>(), Just(f32::NAN), Just(0.0), -1e3f32..1e6];
    prop_oneof![
        n().prop_map(|n| Value::U32(n as u32)),
        n().prop_map(Value::U64),
        n().prop_map(|n| Value::I32(n as i32)),
        n().prop_map(|n| Value::U8(n as u8)),
        x().prop_map(Value::F32),
        x().prop_map(|x| Value::F64(x.into())),
        any::<bool>().prop_map(Value::Bool),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::String),
        "(plain|pi|ntk|yarn|sba|harpe|dynamic-ntk)(:(factor|original|bases|base|hi|stride)=[0-9e./]{1,9}){0,1}"
            .prop_map(|s| text(&s)),
        prop::collection::vec(n().prop_map(|n| n as u32), 0..9).prop_map(|v| Value::Array(Array::U32(v))),
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..300)
            .prop_map(|v| Value::Array(Array::String(v))),
        prop::collection::vec(x(), 0..300).prop_map(|v| Value::Array(Array::F32(v))),
        prop::collection::vec(-2i32..9, 260).prop_map(|v| Value::Array(Array::I32(v))),
    ]
}

/// Every key the loader reads, but for the alignment, which a writer wants to be true.
const KEYS: [&str; 37] = [
    "general.architecture",
    "general.name",
    "llama.vocab_size",
    "llama.context_length",
    "llama.embedding_length",
    "llama.block_count",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.key_length",
    "llama.attention.value_length",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.rope.scale_linear",
    "llama.rope.scaling.type",
    "llama.rope.scaling.factor",
    "llama.rope.scaling.original_context_length",
    "llama.rope.scaling.attn_factor",
    "llama.rope.scaling.yarn_ext_factor",
    "llama.rope.scaling.yarn_beta_fast",
    "tokenizer.ggml.model",
    "tokenizer.ggml.pre",
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.scores",
    "tokenizer.ggml.merges",
    "tokenizer.ggml.bos_token_id",
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.add_bos_token",
    "tokenizer.ggml.precompiled_charsmap",
    "tokenizer.chat_template",
    "ropewalk.rope.spec",
    "ropewalk.orig.context_length",
    "ropewalk.orig.rope_freqs",
    "split.count",
    "split.no",
];

/// A model and its keys cost this little; nothing in a file of 100 kB may ask for more.
const BOUND: u64 = 1 << 30;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn keys_at_random(edits in prop::collection::vec((prop::sample::select(&KEYS[..]), hostile_value()), 1..4)) {
        let path = rewritten(
            "keys-at-random",
            |w| {
                for (key, value) in edits {
                    w.set(key, value);
                }
            },
            |_| None,
        );
        let peak_memory = || ggml::machine::peak_memory().unwrap_or(0);
        let before = peak_memory();
        survives(&path);
        prop_assert!(peak_memory().saturating_sub(before) < BOUND, "memory rose from {before} to {}", peak_memory());
    }
}
