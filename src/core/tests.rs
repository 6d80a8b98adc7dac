//! Files of other writers: names of keys, neutral values, what cannot be read, and what nobody reads.

use gguf::{Array, DType, File, Value, Writer};

use crate::hparams::{BaseFrom, Hparams};
use crate::rope::{Plan, Spec};

/// Reads a tiny model of this architecture with more keys, each less the architecture.
fn with(arch: &str, more: &[(&str, Value)]) -> Hparams {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("case.gguf");
    let mut writer = Writer::new();
    writer.set("general.architecture", text(arch));
    for (key, n) in [
        ("block_count", 2),
        ("embedding_length", 32),
        ("feed_forward_length", 64),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("context_length", 4096),
    ] {
        writer.set(&format!("{arch}.{key}"), Value::U32(n));
    }
    writer.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5));
    for (key, value) in more {
        writer.set(&format!("{arch}.{key}"), value.clone());
    }
    writer.tensor_bytes("token_embd.weight", DType::F32, &[32, 10], vec![0; 1280]).unwrap();
    writer.write(&path).unwrap();
    Hparams::from_gguf(&File::open(&path).unwrap()).unwrap()
}

fn text(s: &str) -> Value {
    Value::String(s.as_bytes().to_vec())
}

fn f(x: f32) -> Value {
    Value::F32(x)
}

fn declared(hp: &Hparams) -> Result<String, String> {
    Spec::declared(hp).map(|s| s.to_string()).map_err(|e| e.to_string())
}

#[test]
fn keys_of_ollama_mean_what_keys_of_llama_cpp_mean() {
    let shared = || {
        vec![
            ("rope.scaling.type", text("yarn")),
            ("rope.scaling.factor", f(16.0)),
            ("rope.scaling.original_context_length", Value::U32(256)),
            ("rope.freq_base", f(1e6)),
        ]
    };
    let read = |arch: &str, keys: &[(&str, f32)]| {
        let keys = keys.iter().map(|(key, x)| (*key, f(*x)));
        let hp = with(arch, &shared().into_iter().chain(keys).collect::<Vec<_>>());
        assert_eq!(hp.unread, Vec::<String>::new());
        hp
    };
    let standard = read(
        "mistral3",
        &[
            ("rope.scaling.yarn_beta_fast", 4.0),
            ("rope.scaling.yarn_beta_slow", 2.0),
            ("rope.scaling.yarn_log_multiplier", 1.0),
            ("attention.temperature_scale", 0.1),
        ],
    );
    let other = [
        ("rope.scaling.beta_fast", 4.0),
        ("rope.scaling.beta_slow", 2.0),
        ("rope.scaling.mscale", 1.0),
        ("rope.scaling.mscale_all_dim", 1.0),
        ("rope.scaling_beta", 0.1),
    ];
    assert_eq!(read("mistral3", &other), standard);
    assert_eq!(standard.attention[0].temperature.unwrap().length, 256.0);
    // llama.cpp's name goes first, and a note names the other where that says something else.
    let mut both = shared();
    both.extend([("rope.scaling.yarn_beta_fast", f(8.0)), ("rope.scaling.beta_fast", f(4.0))]);
    let hp = with("mistral3", &both);
    assert_eq!(hp.rope_scaling.yarn_beta_fast, Some(8.0));
    assert_eq!(hp.unread, ["mistral3.rope.scaling.beta_fast (f32 4)"]);
    // mscale over mscale_all_dim, as transformers computes the magnitude.
    let hp = read("llama", &[("rope.scaling.mscale", 0.5), ("rope.scaling.mscale_all_dim", 1.0)]);
    let of = |m: f64| 0.1 * m * 16f64.ln() + 1.0;
    let plan = Plan::new(&Spec::declared(&hp).unwrap(), &hp, 4096).unwrap();
    assert!((plan.kinds()[0].mscale - of(0.5) / of(1.0)).abs() < 1e-6, "{}", plan.kinds()[0].mscale);
    // Bases of Gemma 3.
    let gemma = |keys: &[(&str, Value)]| {
        let window = [("attention.sliding_window", Value::U32(512))];
        with("gemma3", &window.into_iter().chain(keys.iter().cloned()).collect::<Vec<_>>())
    };
    let of_ollama = gemma(&[("rope.global.freq_base", f(1e6)), ("rope.local.freq_base", f(2e4))]);
    let standard = gemma(&[("rope.freq_base", f(1e6)), ("rope.freq_base_swa", f(2e4))]);
    assert_eq!(of_ollama.attention, standard.attention);
    assert_eq!(of_ollama.freq_base_swa_key.as_deref(), Some("gemma3.rope.local.freq_base"));
    let width = with("llama", &[("attention.head_dim", Value::U32(16))]);
    assert_eq!((width.attention[0].n_embd_head, width.unread.len()), (16, 0));
}

#[test]
fn neutral_values_are_no_scaling() {
    let (t, s) = ("rope.scaling.type", "rope.scaling.factor");
    for (keys, wanted) in [
        (vec![(t, text(""))], "plain"),
        (vec![(t, text("")), (s, f(0.0))], "plain"),
        (vec![(t, text("")), (s, f(1.0))], "plain"),
        (vec![(t, text("")), (s, f(8.0))], "pi:factor=8"),
        (vec![(t, text("none")), (s, f(8.0))], "plain"),
        (vec![(t, text("default")), (s, f(8.0))], "plain"),
        (vec![(t, text("mrope"))], "plain"),
        (vec![(t, text("linear")), (s, f(0.0))], "plain"),
        (vec![(t, text("linear")), (s, f(1.0))], "plain"),
        (vec![(t, text("yarn")), (s, f(0.0))], "plain"),
        (vec![(t, text("yarn")), (s, f(1.0))], "plain"),
        (vec![(s, f(0.0))], "plain"),
        (vec![("rope.scale_linear", f(1.0))], "plain"),
        // A file of ollama's converter for Mistral Small 3.
        (
            vec![
                (t, text("")),
                (s, f(0.0)),
                ("rope.scaling.beta_fast", f(0.0)),
                ("rope.scaling.beta_slow", f(0.0)),
            ],
            "plain",
        ),
    ] {
        let hp = with("mistral3", &keys);
        assert_eq!(declared(&hp).as_deref(), Ok(wanted), "{keys:?}");
        assert!(hp.unread.is_empty(), "{:?}", hp.unread);
    }
}

#[test]
fn another_method_opens_what_declares_nonsense() {
    let wide = Value::Array(Array::F32(vec![1.0; 3]));
    for (key, value, wanted) in [
        ("rope.scaling.type", text("ntk-by-parts"), "ntk-by-parts"),
        ("rope.scaling.type", text("llama3"), "llama3"),
        ("rope.scaling.type", text("dynamic"), "dynamic-ntk:factor=1"),
        ("rope.scaling.type", Value::U32(3), "rope.scaling.type"),
        ("rope.scaling.type", Value::String(vec![0xff]), "rope.scaling.type"),
        ("rope.scaling.factor", f(-4.0), "-4"),
        ("rope.scaling.factor", f(f32::NAN), "NaN"),
        ("rope.scaling.factor", text("4"), "rope.scaling.factor"),
        ("rope.scaling.factor", wide.clone(), "rope.scaling.factor"),
        ("rope.scaling.attn_factor", f(-1.0), "attn_factor"),
        ("rope.scaling.yarn_beta_fast", wide, "yarn_beta_fast"),
        ("rope.scaling.beta_slow", text("\u{1b}"), "rope.scaling.beta_slow"),
        ("rope.scaling.original_context_length", Value::I32(-1), "original_context_length"),
    ] {
        for arch in ["llama", "gemma2", "olmo2"] {
            // Windows within the trained context, which no method acts on.
            let window = ("attention.sliding_window", Value::U32(512));
            let hp = with(arch, &[(key, value.clone()), window, ("block_count", Value::U32(4))]);
            let error = declared(&hp).unwrap_err();
            assert!(error.contains(wanted) && !error.contains(['\n', '\u{1b}']), "{key}: {error}");
            for spec in ["plain", "yarn:factor=2"] {
                let plan = Plan::new(&spec.parse().unwrap(), &hp, 8192).unwrap();
                assert!(plan.notes.iter().any(|n| n.contains("replaces what the file declares")), "{plan:?}");
            }
            assert!(Plan::new(&"self-extend".parse().unwrap(), &hp, 8192).is_err());
        }
    }
}

#[test]
fn keys_that_nobody_reads_are_named_with_their_values() {
    let keys = [
        ("rope.scaling.alpha", f(1000.0)),
        ("rope.wavelength", text("long\n")),
        ("attention.clamp_kqv", f(8.0)),
        ("attention.sliding_window", Value::U32(1024)),
        ("attention.biases", Value::Array(Array::F32(vec![1.0; 3]))),
        // These change nothing.
        ("attention.causal", Value::Bool(true)),
        ("attention.max_alibi_bias", f(0.0)),
        ("attention.key_length", Value::U32(8)),
        ("attention.value_length", Value::U32(8)),
        ("attention.key_length_swa", Value::U32(8)),
        ("rope.scaling.finetuned", Value::Bool(false)),
        ("rope.dimension_count", Value::U32(8)),
        ("feed_forward.kind", text("of no concern")),
        ("vision.attention.head_count", Value::U32(3)),
    ];
    let wanted = [
        "llama.rope.scaling.alpha (f32 1000)",
        "llama.rope.wavelength (string \"long\\n\")",
        "llama.attention.clamp_kqv (f32 8)",
        "llama.attention.sliding_window (u32 1024)",
        "llama.attention.biases (array of 3 f32)",
    ];
    assert_eq!(with("llama", &keys).unread, wanted);
}

#[test]
fn the_base_is_told_with_where_it_is_from() {
    let from = |arch: &str, keys: &[(&str, Value)]| with(arch, keys).base_from(0).unwrap();
    let base = [("rope.freq_base", f(5e5))];
    assert_eq!(from("llama", &base), BaseFrom::Key("llama.rope.freq_base".into()));
    assert_eq!(from("llama", &[]), BaseFrom::Guess);
    assert_eq!(from("gemma2", &[]), BaseFrom::Architecture);
    let window = ("attention.sliding_window", Value::U32(512));
    let gemma = with("gemma3", &[window.clone(), base[0].clone(), ("block_count", Value::U32(6))]);
    assert_eq!(gemma.base_from(0), Some(BaseFrom::Architecture), "10,000 in layers with a window");
    assert_eq!(gemma.base_from(1), Some(BaseFrom::Key("gemma3.rope.freq_base".into())));
}
