//! libllama as the oracle: its forward pass on the default model, and bad files and settings refused.

use std::path::{Path, PathBuf};

use crate::fetched::{default_model, fetched};
use gguf::{DType, File, Value, Writer};
use llama::oracle::{Oracle, OracleParams};
use llama::Token;

fn params(n_ctx: u32) -> OracleParams {
    // Two threads of ggml wait for each other by spinning, which takes long where tests share the cores.
    OracleParams { n_threads: 1, ..OracleParams::new(n_ctx) }
}

/// Negative log-likelihood of `token`, nats.
fn nll(logits: &[f32], token: Token) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    sum.ln() + f64::from(max - logits[token as usize])
}

/// Negative log-likelihoods of the tokens from the second on, evaluated `step` at a time.
fn nlls(oracle: &mut Oracle, tokens: &[Token], step: usize) -> Vec<f64> {
    oracle.clear();
    let mut out = Vec::new();
    for (i, chunk) in tokens.chunks(step).enumerate() {
        oracle
            .eval_with(chunk, true, &mut |j, row| {
                if let Some(&next) = tokens.get(i * step + j + 1) {
                    out.push(nll(row, next));
                }
            })
            .unwrap();
    }
    out
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

#[test]
fn essays_have_a_plausible_perplexity_however_they_are_cut() {
    let (model, text) = (default_model(), std::fs::read_to_string(fetched("texts/essays.txt")).unwrap());
    let mut oracle = Oracle::open(&model, &OracleParams { n_batch: 300, ..params(512) }).unwrap();
    let mut tokens = oracle.tokenize(&text[..8000], false, false).unwrap();
    tokens.truncate(512);

    // More than a batch.
    let one_shot = nlls(&mut oracle, &tokens[..320], 320);
    let ppl = mean(&one_shot).exp();
    assert!((5.0..100.0).contains(&ppl), "{ppl}");
    let chunked = nlls(&mut oracle, &tokens[..200], 70);
    let (a, b) = (mean(&one_shot[..199]), mean(&chunked));
    // On processors with AMX libllama takes another product, with activations rounded otherwise, for large batches
    // than for small ones: 3.4e-3 measured, below 1e-3 elsewhere. A wrong position or a lost token is a tenth and more.
    assert!((a - b).abs() < 1e-2, "{a} {b}");

    // The last row alone is the last of all rows.
    oracle.clear();
    let all = oracle.eval(&tokens[..40], true).unwrap();
    oracle.clear();
    let last = oracle.eval(&tokens[..40], false).unwrap();
    assert_eq!((all.len(), last.len()), (40 * oracle.n_vocab(), oracle.n_vocab()));
    assert_eq!(last, all[39 * oracle.n_vocab()..]);

    assert_eq!(oracle.n_past(), 40);
    assert!(oracle.eval(&tokens[..473], true).unwrap_err().to_string().contains("513 tokens do not fit"));
    assert!(oracle.eval(&[-1], false).is_err() && oracle.eval(&[49152], false).is_err());
    assert!(oracle.eval(&[], false).is_err());
    assert_eq!(oracle.n_past(), 40, "failed calls change nothing");
}

#[test]
fn rope_settings_reach_libllama() {
    let (model, text) = (default_model(), std::fs::read_to_string(fetched("texts/essays.txt")).unwrap());
    let run = |p: &OracleParams| {
        // Repacking takes a second per model, and is in the other test.
        let mut oracle = Oracle::open(&model, &OracleParams { use_extra_bufts: false, ..p.clone() }).unwrap();
        let mut tokens = oracle.tokenize(&text[..1000], false, false).unwrap();
        tokens.truncate(48);
        mean(&nlls(&mut oracle, &tokens, 48))
    };
    let plain = run(&params(128));
    let linear = run(&OracleParams { rope_scaling: Some("linear"), rope_freq_scale: 0.25, ..params(128) });
    assert!(linear > plain + 0.2, "{linear} {plain}");
    let yarn = OracleParams {
        rope_scaling: Some("yarn"),
        rope_freq_scale: 0.25,
        yarn_orig_ctx: 8192,
        ..params(128)
    };
    let yarn = run(&yarn);
    assert!(yarn < linear && (yarn - plain).abs() > 1e-4, "{yarn} {plain}");
    let base = run(&OracleParams { rope_freq_base: 1e4, ..params(128) });
    assert!((base - plain).abs() > 1e-3, "{base} {plain}");
    for p in [
        OracleParams { kv: DType::Q8_0, ..params(128) },
        OracleParams { flash_attn: false, kv: DType::F32, ..params(128) },
    ] {
        let other = run(&p);
        assert!((other - plain).abs() < 0.05, "{p:?}: {other} {plain}");
    }
}

#[test]
fn bad_settings_are_errors_that_name_them() {
    let p = || params(128);
    let cases = [
        ("n_ctx", OracleParams { n_ctx: 0, ..p() }),
        ("n_batch", OracleParams { n_batch: 0, ..p() }),
        ("n_ubatch", OracleParams { n_ubatch: u32::MAX, ..p() }),
        ("n_threads", OracleParams { n_threads: 0, ..p() }),
        ("kv", OracleParams { kv: DType::Q2_K, ..p() }),
        ("kv", OracleParams { kv: DType::Q4_0, flash_attn: false, ..p() }),
        ("rope_scaling", OracleParams { rope_scaling: Some("ntk"), ..p() }),
        ("rope_freq_base", OracleParams { rope_freq_base: f32::NAN, ..p() }),
        ("rope_freq_scale", OracleParams { rope_freq_scale: -1.0, ..p() }),
        ("yarn_beta_fast", OracleParams { yarn_beta_fast: f32::INFINITY, ..p() }),
    ];
    for (name, p) in cases {
        let e = Oracle::open(Path::new("none.gguf"), &p).unwrap_err().to_string();
        assert!(e.starts_with(&format!("{name}: ")), "{name}: {e}");
    }
    let e = Oracle::open(Path::new("none.gguf"), &p()).unwrap_err().to_string();
    assert!(e.contains("none.gguf"), "{e}");
}

/// The default model's metadata with one key changed, and no tensors but those `keep` says.
fn altered(dir: &Path, key: &str, value: Option<Value>, keep: impl Fn(&str) -> bool) -> PathBuf {
    let file = File::open(&default_model()).unwrap();
    let mut w = Writer::new();
    for (k, v) in file.metadata() {
        w.set(k, v.clone());
    }
    match value {
        Some(v) => w.set(key, v),
        None => w.remove(key),
    };
    for t in file.tensors().iter().filter(|t| keep(&t.name)) {
        let data = file.data(t);
        w.tensor(&t.name, t.dtype, &t.shape, Box::new(move |out| data.write_to(out))).unwrap();
    }
    let path = dir.join("altered.gguf");
    w.write(gguf::Output::new(&path, true)).unwrap();
    path
}

#[test]
fn files_libllama_would_abort_on_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        ("llama.block_count", Some(Value::U32(0))),
        ("llama.block_count", Some(Value::U32(513))),
        ("llama.attention.head_count", Some(Value::U32(0))),
        ("llama.attention.head_count_kv", Some(Value::U32(2))),
        ("llama.attention.key_length", Some(Value::U32(63))),
        ("llama.rope.dimension_count", Some(Value::U32(32))),
        ("llama.rope.scaling.type", Some(Value::String(b"ntk".to_vec()))),
        ("llama.expert_count", Some(Value::U32(8))),
        ("llama.nextn_predict_layers", Some(Value::U32(99))),
        ("llama.attention.causal", Some(Value::Bool(false))),
        ("llama.attention.layer_norm_rms_epsilon", Some(Value::F32(-1.0))),
        ("llama.embedding_length", None),
        ("general.architecture", Some(Value::String(b"mamba".to_vec()))),
    ];
    for (key, value) in cases {
        let path = altered(dir.path(), key, value, |name| name == "token_embd.weight");
        let e = Oracle::open(&path, &params(128)).unwrap_err().to_string();
        assert!(e.contains(key) || e.contains("attention.value_length"), "{key}: {e}");
        assert!(e.contains("altered.gguf") && !e.contains('\n'), "{e}");
    }
    // What libllama reports itself comes through with its reason.
    let path = altered(dir.path(), "general.name", None, |name| name != "output_norm.weight");
    let e = Oracle::open(&path, &params(128)).unwrap_err().to_string();
    assert!(e.contains("altered.gguf") && e.contains("output_norm.weight"), "{e}");
    // A context beyond memory is refused before anything is allocated.
    let e = Oracle::open(&default_model(), &params(1 << 30)).unwrap_err().to_string();
    assert!(e.contains("cannot allocate"), "{e}");
}
