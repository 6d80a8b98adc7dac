//! libllama as the judge: random models run in it, and files written for it are what its own flags would do.

use std::path::{Path, PathBuf};

use convert::random::{self, Shape, SHAPES};
use convert::{convert, Options};
use ggml::DType;
use llama::oracle::{Oracle, OracleParams};
use ropewalk_core::adapter::{write, AdapterFile, AdapterMeta, AdapterSpec, NewPair};
use ropewalk_core::control::Control;

use crate::lab::{of_pairs, soaks};
use crate::rounding::{two_orders, UNIT};

const N_TOKENS: usize = 200;

/// The largest difference of two logits of a tiny Llama that another order of the same sums may make: they deviate by 2, and 9,000
/// roundings lead to them in the largest (two layers of 512 with 768 between, 200 tokens, 320 logits).
const LOGITS: f64 = 2.0 * two_orders(9_000);

pub(crate) fn params() -> OracleParams {
    OracleParams {
        n_ctx: 256,
        n_batch: 256,
        n_ubatch: 256,
        n_threads: 1,
        kv: DType::F32,
        n_gpu_layers: 0,
        flash_attn: false,
        rope_scaling: None,
        rope_freq_base: 0.0,
        rope_freq_scale: 0.0,
        yarn_ext_factor: -1.0,
        yarn_attn_factor: -1.0,
        yarn_beta_fast: -1.0,
        yarn_beta_slow: -1.0,
        yarn_orig_ctx: 0,
        use_extra_bufts: true,
    }
}

/// Logits of fixed tokens, all of them, and their number in a row.
fn logits(path: &Path, params: &OracleParams) -> (Vec<f32>, usize) {
    let mut oracle = Oracle::open(path, params).unwrap();
    let tokens: Vec<i32> = (0..N_TOKENS as i32).map(|i| i * 37 % 256).collect();
    (oracle.eval(&tokens, true).unwrap(), oracle.n_vocab())
}

fn tiny(dir: &Path, shape: &str, dtype: DType) -> PathBuf {
    let path = dir.join(format!("{shape}-{dtype}.gguf"));
    random::write(&Shape::named(shape).unwrap(), dtype, 11, &path).unwrap();
    path
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn random_models_run_and_are_not_saturated() {
    let dir = tempfile::tempdir().unwrap();
    let types = [DType::F16, DType::Q8_0, DType::Q4_K];
    for (i, named) in SHAPES.iter().filter(|s| s.name.contains("tiny")).enumerate() {
        // Values are drawn before they are rounded to a type: each shape in one of them.
        for &dtype in if soaks() { &types[..] } else { &types[i % 3..][..1] } {
            let (all, n_vocab) = logits(&tiny(dir.path(), named.name, dtype), &params());
            assert_eq!((n_vocab, all.len()), (320, 320 * N_TOKENS));
            let n = all.len() as f32;
            let mean = all.iter().sum::<f32>() / n;
            let std = (all.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / n).sqrt();
            assert!((1.0..4.0).contains(&std), "{} {dtype}: logits of deviation {std}", named.name);
            let tops = all.chunks(n_vocab).map(|row| (0..n_vocab).max_by(|a, b| row[*a].total_cmp(&row[*b])));
            let tops: std::collections::BTreeSet<_> = tops.collect();
            assert!(tops.len() > 20, "{} {dtype}: only {} tokens come out on top", named.name, tops.len());
        }
    }
}

/// Factors that the model had not are those of contexts above its window; within it stock llama.cpp runs the model's own
/// frequencies. The magnitude counts in both.
#[test]
fn factors_of_longrope_are_for_long_contexts_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [out, back] = ["out.gguf", "back.gguf"].map(|name| dir.path().join(name));
    let spec = format!("longrope:factors={},attn-factor=1.2", ["4"; 32].join("/"));
    let plain = OracleParams { yarn_attn_factor: 1.2, ..params() };
    let linear = OracleParams { rope_scaling: Some("linear"), rope_freq_scale: 0.25, ..plain.clone() };
    for shape in ["llama-tiny", "granite-tiny"] {
        let tiny = tiny(dir.path(), shape, DType::F32);
        let options = Options::default().rope(Some(spec.parse().unwrap())).llama_cpp(true);
        convert(&tiny, &out, &options, &Control::default()).unwrap();
        for (n_ctx, flags) in [(256, &plain), (1024, &linear)] {
            let by_file = logits(&out, &OracleParams { n_ctx, ..params() }).0;
            let error = largest_difference(&by_file, &logits(&tiny, flags).0);
            // A factor of 4 rounds nothing.
            assert_eq!(error, 0.0, "{shape} at {n_ctx}");
            let other = if n_ctx == 256 { &linear } else { &plain };
            assert!(largest_difference(&by_file, &logits(&tiny, other).0) > 0.1, "{shape}: no effect");
        }
        // Another method takes the factors out again.
        let pi = Options::default().rope(Some("pi:factor=2".parse().unwrap()));
        convert(&out, &back, &pi, &Control::default()).unwrap();
        let again = std::fs::read(&back).unwrap();
        convert(&tiny, &back, &pi, &Control::default()).unwrap();
        assert!(again == std::fs::read(&back).unwrap(), "{shape}: something of the factors is left");
    }
}

#[test]
fn files_for_llama_cpp_are_what_its_flags_do() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let plain = params();
    let linear = OracleParams { rope_scaling: Some("linear"), rope_freq_scale: 0.25, ..params() };
    let base = OracleParams { rope_freq_base: 5e6, ..params() };
    let yarn =
        OracleParams { rope_scaling: Some("yarn"), rope_freq_scale: 0.25, yarn_orig_ctx: 512, ..params() };
    // No key says this one: it is baked into rope_freqs.weight and attn_factor.
    let baked = OracleParams { yarn_beta_fast: 20.0, yarn_beta_slow: 0.5, ..yarn.clone() };
    // No position at all: every factor is 1e30, every angle scaled to at most 2e-4.
    let nope = OracleParams { rope_scaling: Some("linear"), rope_freq_scale: 1e-6, ..params() };
    for shape in ["llama-tiny", "llama-tiny-gqa", "qwen2-tiny"] {
        let tiny = tiny(dir.path(), shape, DType::F32);
        let unscaled = logits(&tiny, &plain).0;
        for (spec, flags) in [
            ("plain", &plain),
            ("pi:factor=4", &linear),
            ("abf:base=5e6", &base),
            ("yarn:factor=4", &yarn),
            ("yarn:factor=4,beta-fast=20,beta-slow=0.5", &baked),
            ("plain:drop=1", &nope),
        ] {
            if shape == "qwen2-tiny" && (spec.contains("beta") || spec.contains("drop")) {
                continue;
            }
            let options = Options::default().rope(Some(spec.parse().unwrap())).llama_cpp(true);
            convert(&tiny, &out, &options, &Control::default()).unwrap();
            let (by_file, by_flags) = (logits(&out, &plain).0, logits(&tiny, flags).0);
            let error = largest_difference(&by_file, &by_flags);
            // Keys hold the numbers of the flags. What is baked rounds an angle of up to 200 radians twice; angles that are not 0
            // turn a score by as much of it, in both layers.
            let angles = match spec {
                _ if spec.contains("beta") => 2.0 * UNIT * N_TOKENS as f64,
                "plain:drop=1" => 2.0 * 1e-6 * N_TOKENS as f64,
                _ => 0.0,
            };
            let bound = if angles > 0.0 { LOGITS + 2.0 * angles } else { 0.0 };
            assert!(f64::from(error) <= bound, "{shape} {spec}: {error}");
            let effect = largest_difference(&by_flags, &unscaled);
            assert!(spec == "plain" || effect > 0.1, "{shape} {spec}: no effect, {effect}");
        }
    }
}

/// llama.cpp takes the length from which Mistral 3's attention temperature grows from a key of the scaling, which another
/// method replaces.
#[test]
fn a_model_keeps_its_attention_temperature_under_another_method() {
    let dir = tempfile::tempdir().unwrap();
    let (tiny, out) = (tiny(dir.path(), "mistral3-tiny", DType::F32), dir.path().join("out.gguf"));
    let none = OracleParams { rope_scaling: Some("none"), ..params() };
    let base = OracleParams { rope_freq_base: 5e6, ..none.clone() };
    let linear = OracleParams { rope_scaling: Some("linear"), rope_freq_scale: 0.5, ..params() };
    for (spec, flags) in [("plain", &none), ("abf:base=5e6", &base), ("pi:factor=2", &linear)] {
        let options = Options::default().rope(Some(spec.parse().unwrap())).llama_cpp(true);
        convert(&tiny, &out, &options, &Control::default()).unwrap();
        let error = largest_difference(&logits(&out, &params()).0, &logits(&tiny, flags).0);
        assert_eq!(error, 0.0, "{spec}");
    }
    // Here, a length of its own would change the temperature as well.
    let options =
        Options::default().rope(Some("yarn:factor=2,original=128".parse().unwrap())).llama_cpp(true);
    convert(&tiny, &out, &options, &Control::default()).unwrap();
    let file = gguf::File::open(&out).unwrap();
    assert_eq!(file.get::<u32>("mistral3.rope.scaling.original_context_length").unwrap(), 64);
    assert!(file.tensor("rope_freqs.weight").is_some());
}

/// The output of these graphs is the embedding, and llama.cpp refuses a file with another.
#[test]
fn an_output_that_llama_cpp_refuses_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (adapter, out) = (dir.path().join("a.gguf"), dir.path().join("out.gguf"));
    for shape in ["gemma2-tiny", "cohere2-tiny"] {
        let tiny = tiny(dir.path(), shape, DType::F32);
        let n_embd = Shape::named(shape).unwrap().n_embd;
        let (a, b) = (vec![0.5; n_embd], vec![0.5; 320]);
        let pair = NewPair { weight: "output.weight".into(), n_in: n_embd, n_out: 320, a: &a, b: &b };
        let (arch, _) = shape.split_once('-').unwrap();
        let file = of_pairs(1, vec![pair], AdapterMeta::default());
        write(&adapter, &AdapterFile { arch, ..file }).unwrap();
        let options = Options::default().adapters(vec![AdapterSpec::new(adapter.clone(), 1.0)]).force(true);
        let report = convert(&tiny, &out, &options, &Control::default()).unwrap();
        let why = report.no_llama_server.unwrap();
        assert!(why.contains("graph has no output.weight") && report.llama_server.is_none(), "{why}");
        assert!(Oracle::open(&out, &params()).is_err(), "{shape}");
        let e = convert(&tiny, &out, &options.llama_cpp(true), &Control::default()).unwrap_err().to_string();
        assert!(e.contains(shape) && e.contains("graph has no output.weight"), "{e}");
    }
}

#[test]
fn a_baked_sba_file_opens_and_a_spec_of_ours_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    for shape in ["llama-tiny", "llama-tiny-gqa"] {
        let tiny = tiny(dir.path(), shape, DType::F32);
        let plain = logits(&tiny, &params()).0;
        let run = |spec: &str, llama_cpp: bool| {
            let options = Options::default().rope(Some(spec.parse().unwrap())).llama_cpp(llama_cpp);
            convert(&tiny, &out, &options, &Control::default()).unwrap();
            logits(&out, &params()).0
        };
        let sba = run("sba", true);
        assert!(sba.iter().all(|x| x.is_finite()) && largest_difference(&sba, &plain) > 0.1);
        // What llama.cpp cannot say it runs as the model's own.
        assert_eq!(largest_difference(&run("harpe", false), &plain), 0.0);
        assert_eq!(largest_difference(&run("sba", false), &plain), 0.0);
    }
}
