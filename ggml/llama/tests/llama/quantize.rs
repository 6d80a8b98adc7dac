//! libllama's quantizer after our checks: the same bytes as the bare call, and one line where that would abort.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use gguf::{Array, DType, File, Value, Writer};
use llama::quantize::{quantize, Imatrix, Mixture, QuantizeParams, MIXTURES};
use llama_cpp_sys_2 as sys;

/// Layers, so that mixtures treat the first, the last and those between differently.
const N_LAYER: usize = 8;
const N_EMBD: u64 = 256;

fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    // Sums of uniform numbers: nearly normal.
    (0..n).map(|_| (0..4).map(|_| next()).sum()).collect()
}

fn bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        _ => ggml::dtype::quantize(dtype, values.len(), values).unwrap(),
    }
}

/// Adds sums of squares and counts of what a matrix reads to an importance matrix.
fn weigh(w: &mut Writer<'_>, name: &str, sums: &[f32], counts: &[f32]) {
    let mut add = |end: &str, shape: [usize; 2], x: &[f32]| {
        w.tensor_bytes(&format!("{name}.{end}"), DType::F32, &shape.map(|n| n as u64), bytes(DType::F32, x))
            .unwrap();
    };
    add("in_sum2", [sums.len(), 1], sums);
    add("counts", [1, counts.len()], counts);
}

/// The keys of a small llama.
fn keys(n_layer: usize) -> Writer<'static> {
    let mut w = Writer::new();
    w.set("general.architecture", "llama").set("ropewalk.rope.spec", "yarn:factor=4");
    for (key, n) in [
        ("block_count", n_layer as u32),
        ("context_length", 512),
        ("embedding_length", N_EMBD as u32),
        ("feed_forward_length", 512),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        w.set(&format!("llama.{key}"), n);
    }
    w.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    w
}

/// Keys and tensors of a model, with few rows in a layer's matrices: small types take microseconds for a value. The other matrices
/// are more than a thread quantizes at a time.
pub(super) fn model(n_layer: usize, dtype: DType) -> Writer<'static> {
    model_of(n_layer, dtype, 8)
}

/// The same, with this part of the rows that a layer's matrices have by the keys.
fn model_of(n_layer: usize, dtype: DType, part: u64) -> Writer<'static> {
    let mut w = keys(n_layer);
    let mut add = |name: String, shape: &[u64]| {
        let n = shape.iter().product::<u64>() as usize;
        let dtype = if shape.len() == 1 { DType::F32 } else { dtype };
        let data = bytes(dtype, &values(n, name.bytes().map(u64::from).sum::<u64>()));
        w.tensor_bytes(&name, dtype, shape, data).unwrap();
    };
    add("token_embd.weight".into(), &[N_EMBD, 160]);
    add("output.weight".into(), &[N_EMBD, 160]);
    add("output_norm.weight".into(), &[N_EMBD]);
    for i in 0..n_layer {
        for (role, n_in, n_out) in [
            ("attn_q", 256, 256),
            ("attn_k", 256, 128),
            ("attn_v", 256, 128),
            ("attn_output", 256, 256),
            ("ffn_gate", 256, 512),
            ("ffn_up", 256, 512),
            ("ffn_down", 512, 256),
        ] {
            add(format!("blk.{i}.{role}.weight"), &[n_in, n_out / part]);
        }
        add(format!("blk.{i}.attn_norm.weight"), &[N_EMBD]);
        add(format!("blk.{i}.ffn_norm.weight"), &[N_EMBD]);
    }
    w
}

pub(super) struct Lab(tempfile::TempDir);

impl Lab {
    pub(super) fn new() -> Lab {
        Lab(tempfile::tempdir().unwrap())
    }
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    pub(super) fn written(&self, name: &str, w: Writer<'_>) -> PathBuf {
        w.write(gguf::Output::new(self.path(name), true)).unwrap();
        self.path(name)
    }
    /// An importance matrix for every layer's matrices, one column of them far above the others.
    fn imatrix(&self, of: &Path) -> PathBuf {
        let mut w = Writer::new();
        w.set("general.type", "imatrix").set("imatrix.chunk_count", 3u32).set("imatrix.chunk_size", 512u32);
        w.set("imatrix.datasets", Value::Array(Array::String(vec![b"essays.txt".to_vec()])));
        for t in File::open(of)
            .unwrap()
            .tensors()
            .iter()
            .filter(|t| t.name.starts_with("blk.") && t.shape.len() > 1)
        {
            let mut sums: Vec<f32> = values(t.shape[0] as usize, 5).iter().map(|v| 30.0 * v * v).collect();
            sums[17] = 1e4;
            weigh(&mut w, &t.name, &sums, &[3.0]);
        }
        self.written("imatrix.gguf", w)
    }
}

pub(super) fn go(from: &Path, to: &Path, p: &QuantizeParams) -> Result<(), String> {
    quantize(from, to, p, &|_, _| true).map_err(|e| e.to_string())
}

/// llama-quantize's call, with nothing of ours in between.
fn bare(from: &Path, to: &Path, ftype: u32) {
    ggml::backend::ensure_backends();
    let c = |p: &Path| CString::new(p.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: a sound model, NUL-terminated paths, libllama's own defaults.
    unsafe {
        let mut p = sys::llama_model_quantize_default_params();
        p.ftype = ftype as sys::llama_ftype;
        assert_eq!(sys::llama_model_quantize(c(from).as_ptr(), c(to).as_ptr(), &raw const p), 0);
    }
}

#[test]
fn the_bytes_are_those_of_llama_quantize() {
    let lab = Lab::new();
    // The small types take long; they are the same call.
    let (many, one) =
        (lab.written("in.gguf", model(N_LAYER, DType::F16)), lab.written("one.gguf", model(1, DType::F16)));
    for mixture in MIXTURES.iter().filter(|m| !m.needs_imatrix) {
        let input = if mixture.name.starts_with('q') { &many } else { &one };
        let (ours, theirs) = (lab.path("ours.gguf"), lab.path("theirs.gguf"));
        go(input, &ours, &QuantizeParams::new(mixture)).unwrap();
        bare(input, &theirs, mixture.file_type);
        assert!(std::fs::read(&ours).unwrap() == std::fs::read(&theirs).unwrap(), "{}", mixture.name);
        let file = File::open(&ours).unwrap();
        assert_eq!(file.get::<u32>("general.file_type").unwrap(), mixture.file_type);
        assert_eq!(file.get::<String>("ropewalk.rope.spec").unwrap(), "yarn:factor=4");
        let main = file.tensors().iter().filter(|t| t.dtype == mixture.dtype).count();
        // Of a model without experts nothing is MXFP4.
        let n_layer = file.get::<usize>("llama.block_count").unwrap();
        assert!(main >= n_layer || mixture.name == "mxfp4_moe", "{}: {main}", mixture.name);
    }
}

/// The rule that `llama-quant.cpp` states for Q4_K_M, worked out here for eight layers.
#[test]
fn q4_k_m_gives_more_bits_to_the_layers_it_names() {
    let lab = Lab::new();
    let input = lab.written("in.gguf", model(N_LAYER, DType::F16));
    go(&input, &lab.path("out"), &QuantizeParams::new(Mixture::named("Q4_K_M").unwrap())).unwrap();
    let (old, new) = (File::open(&input).unwrap(), File::open(&lab.path("out")).unwrap());
    for t in old.tensors() {
        let found = new.tensor(&t.name).unwrap();
        // i < 8/8, i >= 7*8/8, or (i - 8/8) % 3 == 2.
        let more = ["blk.0.", "blk.3.", "blk.6.", "blk.7."].iter().any(|l| t.name.starts_with(l));
        let big = more && (t.name.contains("attn_v") || t.name.contains("ffn_down"));
        let expected = match t.shape.len() {
            1 => DType::F32,
            _ if big || t.name == "output.weight" => DType::Q6_K,
            _ => DType::Q4_K,
        };
        assert_eq!(found.dtype, expected, "{}", t.name);
        if t.shape.len() > 1 {
            let x = ggml::dtype::dequantize_tensor(&old, t).unwrap();
            let rows = ggml::dtype::quantize(expected, t.shape[0] as usize, &x).unwrap();
            assert!(new.data(found) == gguf::Bytes::from(&rows), "{}", t.name);
        }
    }
}

#[test]
fn every_mixture_can_be_written_with_an_importance_matrix() {
    let lab = Lab::new();
    let input = lab.written("in.gguf", model(1, DType::F16));
    let imatrix = Imatrix::open(&lab.imatrix(&input)).unwrap();
    assert_eq!(imatrix.entries().len(), 7);
    // libllama needs 18 s to make the tables of these types.
    let soaks = std::env::var_os("ROPEWALK_SOAK").is_some();
    let slow = |m: &Mixture| ["iq1_m", "iq1_s", "iq2_m", "iq2_s", "iq2_xs", "iq3_xxs"].contains(&m.name);
    for mixture in MIXTURES.iter().filter(|m| soaks || !slow(m)) {
        let bare = QuantizeParams::new(mixture);
        let with = QuantizeParams { imatrix: Some(imatrix.clone()), ..bare.clone() };
        go(&input, &lab.path("with"), &with).unwrap();
        let file = File::open(&lab.path("with")).unwrap();
        assert_eq!(file.get::<String>("quantize.imatrix.dataset").unwrap(), "essays.txt");
        assert_eq!(file.get::<u32>("quantize.imatrix.entries_count").unwrap(), 7);
        assert_eq!(file.get::<u32>("quantize.imatrix.chunks_count").unwrap(), 3);
        let without = go(&input, &lab.path("without"), &bare);
        assert_eq!(without.is_err(), mixture.needs_imatrix, "{}: {without:?}", mixture.name);
        if let Err(e) = without {
            assert!(e.contains("importance matrix") && !e.contains('\n'), "{e}");
        }
    }
    // The column that matters is kept better.
    let m = Mixture::named("q4_k_s").unwrap();
    let error = |imatrix: Option<Imatrix>| {
        go(&input, &lab.path("out"), &QuantizeParams { imatrix, ..QuantizeParams::new(m) }).unwrap();
        let read =
            |f: &File| ggml::dtype::dequantize_tensor(f, f.tensor("blk.0.ffn_up.weight").unwrap()).unwrap();
        let (a, b) = (read(&File::open(&input).unwrap()), read(&File::open(&lab.path("out")).unwrap()));
        a.iter().zip(&b).skip(17).step_by(256).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>()
    };
    let (with, without) = (error(Some(imatrix)), error(None));
    assert!(with < 0.5 * without, "{with} {without}");
}

#[test]
fn overrides_are_obeyed() {
    let lab = Lab::new();
    let input = lab.written("in.gguf", model(2, DType::Q8_0));
    let p = QuantizeParams {
        token_embedding: Some(DType::Q5_1),
        output: Some(DType::Q8_0),
        overrides: vec![
            (regex::Regex::new(r"blk\.1\.ffn_(up|down)").unwrap(), DType::Q6_K),
            (regex::Regex::new("ffn_down").unwrap(), DType::F16),
        ],
        ..QuantizeParams::new(Mixture::named("q4_k_s").unwrap())
    };
    go(&input, &lab.path("out"), &p).unwrap();
    let f = File::open(&lab.path("out")).unwrap();
    for (name, dtype) in [
        ("token_embd", DType::Q5_1),
        ("output", DType::Q8_0),
        ("blk.1.ffn_up", DType::Q6_K),
        ("blk.1.ffn_down", DType::Q6_K),
        ("blk.0.ffn_down", DType::F16),
        ("blk.0.ffn_up", DType::Q4_K),
    ] {
        assert_eq!(f.tensor(&format!("{name}.weight")).unwrap().dtype, dtype, "{name}");
    }
    let p = QuantizeParams {
        pure_type: true,
        leave_output: true,
        ..QuantizeParams::new(Mixture::named("q2_k").unwrap())
    };
    go(&input, &lab.path("out"), &p).unwrap();
    let f = File::open(&lab.path("out")).unwrap();
    let others = f.tensors().iter().filter(|t| t.shape.len() > 1 && t.dtype != DType::Q2_K);
    assert_eq!(
        others.map(|t| (t.name.as_str(), t.dtype)).collect::<Vec<_>>(),
        [("output.weight", DType::Q8_0)]
    );
}

#[test]
fn what_it_would_abort_on_or_leave_undone_is_one_line() {
    let lab = Lab::new();
    let q4 = || QuantizeParams::new(Mixture::named("q4_k_m").unwrap());
    let refused = |w: Writer<'_>, p: &QuantizeParams, part: &str| {
        let e = go(&lab.written("in.gguf", w), &lab.path("out"), p).unwrap_err();
        assert!(e.contains(part) && !e.contains('\n'), "{part}: {e}");
        assert!(!lab.path("out").exists());
    };
    let with = |key: &str, value: Value| {
        let mut w = model(1, DType::F16);
        w.set(key, value);
        w
    };
    for (key, value) in [
        ("general.architecture", Value::String(b"whisper".to_vec())),
        ("general.alignment", Value::U32(64)),
        ("llama.block_count", Value::U32(0)),
        ("llama.block_count", Value::U32(513)),
        ("llama.nextn_predict_layers", Value::U32(1)),
        ("llama.attention.head_count", Value::U32(0)),
        ("llama.expert_count", Value::U32(2000)),
        ("llama.expert_used_count", Value::U32(3)),
        ("llama.expert_group_count", Value::U32(3)),
        ("llama.full_attention_interval", Value::U32(0)),
        ("llama.rope.scaling.type", Value::String(b"sideways".to_vec())),
    ] {
        refused(with(key, value), &q4(), key);
    }
    let tensor = |name: &str, shape: &[u64], x: &[f32]| {
        let mut w = model(1, DType::F16);
        w.tensor_bytes(name, DType::F32, shape, bytes(DType::F32, x)).unwrap();
        w
    };
    refused(tensor("blk.0.brain.weight", &[2], &[1.0; 2]), &q4(), "blk.0.brain.weight: is not a tensor");
    refused(tensor("blk.0.ffn_up_exps.weight", &[2, 2, 1, 2], &[1.0; 8]), &q4(), "three dimensions");
    for (bad, said) in
        [(f32::NAN, "value 700 is NaN"), (1e30, "value 700 is 1"), (f32::INFINITY, "value 700 is inf")]
    {
        let mut x = vec![0.5; 1024];
        x[700] = bad;
        refused(tensor("blk.0.ffn_up_shexp.weight", &[256, 4], &x), &q4(), said);
    }
    refused(tensor("blk.0.ffn_norm_bad.weight", &[2], &[1.0; 2]), &q4(), "is not a tensor");
    refused(
        tensor("blk.0.attn_q_norm.weight", &[2], &[1.0, f32::NAN]),
        &q4(),
        "attn_q_norm.weight: value 1 is NaN",
    );
    let m = || model(1, DType::F16);
    let over = |pattern: &str, t| QuantizeParams {
        overrides: vec![(regex::Regex::new(pattern).unwrap(), t)],
        ..q4()
    };
    refused(m(), &over("nothing", DType::Q8_0), "no matrix has a name that matches nothing");
    refused(m(), &over("attn_norm", DType::Q8_0), "no matrix has a name");
    refused(m(), &over("token_embd", DType::IQ2_XXS), "without importances");
    refused(m(), &over("ffn_up", DType::I32), "i32 cannot be written");
    refused(m(), &QuantizeParams { output: Some(DType::Q8_1), ..q4() }, "q8_1 cannot be written");
    refused(m(), &QuantizeParams { output: Some(DType::Q8_0), leave_output: true, ..q4() }, "no effect");
    refused(m(), &QuantizeParams { n_threads: 0, ..q4() }, "n_threads");
    let pure = QuantizeParams::new(Mixture::named("iq2_xxs").unwrap());
    refused(m(), &pure, "importance matrix");
}

#[test]
fn damaged_importance_matrices_are_refused() {
    let lab = Lab::new();
    let input = lab.written("in.gguf", model(1, DType::F16));
    let pair = |sums: &[f32], counts: &[f32]| {
        let mut w = Writer::new();
        w.set("general.type", "imatrix");
        weigh(&mut w, "blk.0.ffn_up.weight", sums, counts);
        w
    };
    for (w, part) in [
        (Writer::new(), "general.type"),
        (pair(&[-1.0; 256], &[1.0]), "found -1"),
        (pair(&[f32::NAN; 256], &[1.0]), "found NaN"),
        (pair(&[1e30; 256], &[1.0]), "expected numbers"),
        (pair(&[1.0; 256], &[1.0, 1.0]), "one count for each"),
    ] {
        let e = Imatrix::open(&lab.written("bad.gguf", w)).unwrap_err().to_string();
        assert!(e.contains(part) && e.contains("bad.gguf") && !e.contains('\n'), "{e}");
        // One of another kind would not replace it.
        std::fs::remove_file(lab.path("bad.gguf")).unwrap();
    }
    let imatrix = Some(Imatrix::open(&lab.written("short.gguf", pair(&[1.0; 128], &[1.0]))).unwrap());
    let p = QuantizeParams { imatrix, ..QuantizeParams::new(Mixture::named("q4_k_m").unwrap()) };
    let e = go(&input, &lab.path("out"), &p).unwrap_err();
    assert!(e.contains("short.gguf: blk.0.ffn_up.weight: expected 256 numbers"), "{e}");
}

/// Extremes of weights and importances, through the quantizers that have assertions on them.
#[test]
fn no_finite_numbers_abort_the_smallest_types() {
    let lab = Lab::new();
    for (scale, importance) in
        [(0.0, 1.0), (1.0, 0.0), (65504.0, 1e12), (1e-8, 1e12), (6e4, 1e-30), (1e-7, 1e-38)]
    {
        let mut w = keys(1);
        let x: Vec<f32> = values(4 * 256, 3).iter().map(|v| (v * 2.0).clamp(-1.0, 1.0) * scale).collect();
        w.tensor_bytes("blk.0.attn_v.weight", DType::F32, &[256, 4], bytes(DType::F32, &x)).unwrap();
        let input = lab.written("in.gguf", w);
        let mut w = Writer::new();
        w.set("general.type", "imatrix");
        for t in File::open(&input).unwrap().tensors().iter().filter(|t| t.shape.len() > 1) {
            let sums: Vec<f32> = (0..t.shape[0]).map(|i| if i % 3 == 0 { importance } else { 0.0 }).collect();
            weigh(&mut w, &t.name, &sums, &[1.0]);
        }
        let imatrix = Imatrix::open(&lab.written("imatrix.gguf", w)).unwrap();
        // Its main type for the one matrix there is; the others of the mixture are main types elsewhere.
        for mixture in MIXTURES {
            let p = QuantizeParams { imatrix: Some(imatrix.clone()), ..QuantizeParams::new(mixture) };
            if let Err(e) = go(&input, &lab.path("out"), &p) {
                assert!(!e.contains('\n'), "{e}");
            }
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let lab = Lab::new();
    let input = lab.written("in.gguf", model(1, DType::F16));
    let q4 = QuantizeParams::new(Mixture::named("q4_k_m").unwrap());
    let e = go(&input, Path::new("/dev/full"), &q4).unwrap_err();
    assert!(e.contains("libllama") && !e.contains('\n'), "{e}");
    std::fs::write(lab.path("cut.gguf"), &std::fs::read(&input).unwrap()[..200_000]).unwrap();
    let e = go(&lab.path("cut.gguf"), &lab.path("out"), &q4).unwrap_err();
    assert!(e.contains("cut.gguf") && !e.contains('\n'), "{e}");
    let e = go(&input, &lab.path("no/such/folder"), &q4).unwrap_err();
    assert!(!e.contains('\n'), "{e}");
}

#[cfg(target_os = "linux")]
#[test]
fn it_can_be_ended_and_is_watched() {
    let lab = Lab::new();
    let input = lab.written("in.gguf", model_of(3, DType::F16, 1));
    let p = QuantizeParams { n_threads: 1, ..QuantizeParams::new(Mixture::named("iq4_xs").unwrap()) };
    let most = AtomicU64::new(0);
    quantize(&input, &lab.path("whole"), &p, &|done, total| {
        assert!(done <= total);
        most.fetch_max(done, Ordering::Relaxed);
        true
    })
    .unwrap();
    assert!(most.into_inner() > 0, "no progress told");
    let ended = quantize(&input, &lab.path("ended"), &p, &|done, _| done == 0);
    assert!(ended.unwrap_err().to_string().contains("interrupted"));
    let [ended, whole] = ["ended", "whole"].map(|name| lab.path(name).metadata().map_or(0, |m| m.len()));
    assert!(ended < whole, "{ended} bytes of {whole}");
}
