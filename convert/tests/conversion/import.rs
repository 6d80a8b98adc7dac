//! Folders of Hugging Face. What is written for each family is compared in the tests of `ropewalk-import`; here
//! it is the program, quantized types, all in one call, and that libllama runs the result.

use std::path::{Path, PathBuf};

use convert::{convert, Mixture, Options, Tokenizing};
use gguf::{DType, File};
use ropewalk_core::adapter::{write, AdapterFile, AdapterMeta, AdapterSpec, NewPair};
use ropewalk_core::control::Control;

use crate::checkpoints::Recorded;
use crate::cli::{convert as program, fails, json, stderr};
use crate::lab::of_pairs;
use crate::rounding::two_orders;

/// A recorded checkpoint of `ropewalk-import` with its tokenizer. libllama looks into the name, which comes
/// from the folder's: in a `phi3` it expects tokens that tiny tokenizers do not have.
pub(crate) fn folder(root: &Path, name: &str) -> PathBuf {
    let path = root.join("checkpoint");
    Recorded::of(name).copy(&path);
    path
}

/// Options for our own folders.
pub(crate) fn trusted() -> Options {
    Options::default().tokenizing(Some(Tokenizing::Trusted))
}

#[test]
fn a_folder_becomes_a_file_of_any_type() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let llama = folder(root, "llama");
    let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
    let (plain, quantised, twice) = (at("plain.gguf"), at("q8_0.gguf"), at("twice.gguf"));
    let llama = llama.to_str().unwrap();
    let done = json(&program(&[llama, "--pre", "gpt-2", "-o", &plain, "--json"]));
    assert_eq!((done["n_tensors"].as_u64(), done["type"].as_str()), (Some(22), None), "{done}");
    let file = File::open(Path::new(&plain)).unwrap();
    assert_eq!(file.tensor("blk.0.attn_q.weight").unwrap().dtype.name(), "bf16", "as in the checkpoint");
    assert_eq!(file.get::<u32>("general.file_type").unwrap(), 32);
    let done = json(&program(&[llama, "--pre", "gpt-2", "--type", "q8_0", "-o", &quantised, "--json"]));
    assert!(done["converted"].as_array().unwrap().len() > 10, "{done}");
    // The same as in two steps.
    let out = program(&[&plain, "--type", "q8_0", "-o", &twice, "-q"]);
    assert!(out.status.success(), "{}", stderr(&out));
    let (one, two) = (File::open(Path::new(&quantised)).unwrap(), File::open(Path::new(&twice)).unwrap());
    assert_eq!(one.tensors().len(), two.tensors().len());
    for t in one.tensors() {
        let other = two.tensor(&t.name).unwrap();
        assert!(t.dtype == other.dtype && one.data(t) == two.data(other), "{}", t.name);
    }
}

/// An adapter on two maps of the recorded `llama`, of values that are not all alike.
fn adapter(path: &Path, rope: Option<&str>) -> AdapterSpec {
    let values: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.5) / 64.0).collect();
    let pair = |name: &str| NewPair { weight: name.into(), n_in: 32, n_out: 32, a: &values, b: &values };
    let pairs = vec![pair("blk.0.attn_q.weight"), pair("blk.1.attn_output.weight")];
    let meta = AdapterMeta { rope: rope.map(|r| r.parse().unwrap()), ..AdapterMeta::default() };
    write(path, &AdapterFile { alpha: 4.0, ..of_pairs(2, pairs, meta) }).unwrap();
    AdapterSpec::new(path.to_owned(), 0.5)
}

#[test]
fn one_call_writes_what_two_calls_write() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let (llama, control) = (folder(root, "llama"), Control::default());
    let (first, one, two) = (root.join("first.gguf"), root.join("one.gguf"), root.join("two.gguf"));
    let pre = Some("gpt-2".to_owned());
    convert(&llama, &first, &trusted().pre(pre.clone()), &control).unwrap();
    let yarn = || Some("yarn:factor=4".parse().unwrap());
    let mixture = || Some(Mixture::default().name("q4_k_m".into()));
    let adapters = |rope| vec![adapter(&root.join("a.gguf"), rope)];
    let cases = [
        Options::default().mixture(mixture()),
        Options::default().rope(yarn()),
        Options::default().rope(yarn()).n_ctx(Some(900)).dtype(Some(DType::Q8_0)),
        Options::default().adapters(adapters(None)),
        Options::default().adapters(adapters(Some("pi:factor=2"))).dtype(Some(DType::F16)),
        Options::default().adapters(adapters(None)).rope(yarn()).mixture(mixture()),
        Options::default().llama_cpp(true).rope(yarn()).mixture(mixture()),
    ];
    for (i, options) in cases.into_iter().enumerate() {
        // Over the file of the case before, which may have no mark.
        let options = options.force(true);
        let report = convert(
            &llama,
            &one,
            &options.clone().pre(pre.clone()).tokenizing(Some(Tokenizing::Trusted)),
            &control,
        )
        .unwrap();
        let other = convert(&first, &two, &options, &control).unwrap();
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&two).unwrap(), "case {i}");
        assert_eq!(report.bytes, other.bytes);
        assert!(report.notes.iter().any(|note| note.contains("temporary file")), "case {i}: {report:?}");
        assert!(!format!("{report:?}").contains("/.one.gguf"), "case {i}: {report:?}");
    }
    // Nothing is left next to the files.
    assert_eq!(std::fs::read_dir(root).unwrap().count(), 5);
}

/// With a method to write as without.
#[test]
fn experts_in_mxfp4_stay_so_under_a_plain_type() {
    let dir = tempfile::tempdir().unwrap();
    let (gpt_oss, out) = (folder(dir.path(), "gpt-oss"), dir.path().join("out.gguf"));
    let recorded = Recorded::all().into_iter().find(|r| r.name == "gpt-oss").unwrap();
    let options = trusted().dtype(Some(DType::Q8_0)).pre(recorded.pre().map(str::to_owned)).force(true);
    let types = |rope: Option<&str>| {
        let options = options.clone().rope(rope.map(|rope| rope.parse().unwrap()));
        let report = convert(&gpt_oss, &out, &options, &Control::default()).unwrap();
        let file = File::open(&out).unwrap();
        let types = file.tensors().iter().map(|t| (t.name.clone(), t.dtype)).collect::<Vec<_>>();
        (types, file.get::<u32>("general.file_type").unwrap(), report.converted.len())
    };
    let plain = types(None);
    let of = |dtype| plain.0.iter().filter(|t| t.1 == dtype).count();
    assert!(of(DType::MXFP4) > 0 && of(DType::Q8_0) > 0, "{plain:?}");
    assert_eq!(plain, types(Some("yarn:factor=2")));
}

#[test]
fn an_adapter_is_merged_and_quantised_in_one_call_as_in_two() {
    let dir = tempfile::tempdir().unwrap();
    let (root, control) = (dir.path(), Control::default());
    let llama = folder(root, "llama");
    let at = |name: &str| root.join(name);
    // In F32, for a merged tensor that is to be quantized is written in that on the way.
    let base = trusted().pre(Some("gpt-2".into())).dtype(Some(DType::F32));
    convert(&llama, at("base.gguf"), &base, &control).unwrap();
    let merge = Options::default().adapters(vec![adapter(&at("a.gguf"), None)]);
    let mixture = Some(Mixture::default().name("q4_k_m".into()));
    let quantise = Options::default().mixture(mixture.clone());
    convert(at("base.gguf"), at("one.gguf"), &merge.clone().mixture(mixture), &control).unwrap();
    convert(at("base.gguf"), at("merged.gguf"), &merge, &control).unwrap();
    convert(at("merged.gguf"), at("two.gguf"), &quantise, &control).unwrap();
    let read = |name: &str| std::fs::read(at(name)).unwrap();
    assert!(read("one.gguf") == read("two.gguf"));
    convert(at("base.gguf"), at("plain.gguf"), &quantise, &control).unwrap();
    assert!(read("one.gguf") != read("plain.gguf"), "the adapter does something");
}

#[test]
fn what_a_folder_cannot_have_is_wrong_usage() {
    let dir = tempfile::tempdir().unwrap();
    let llama = folder(dir.path(), "llama");
    let llama = llama.to_str().unwrap();
    let out = dir.path().join("out.gguf");
    let out = out.to_str().unwrap();
    fails(&[llama, "-o", out], 1, &["tokenizer.json: found a tokenizer that llama.cpp's", "--pre NAME"]);
    fails(
        &[llama, "-o", out, "--pre", "x"],
        2,
        &["--pre: unknown kind of tokenizer \"x\"; known: ", " qwen2 "],
    );
    let given = [llama, "-o", out, "--pre", "gpt-2"];
    for (more, code, parts) in [
        (&["--ctx", "900"][..], 2, &["add --rope SPEC"][..]),
        (&["--rope", "yarn:factor=0.5"], 2, &["factor"]),
        // Known when the model is.
        (&["--rope", "harpe:bases=10000/20000/30000"], 1, &["bases"]),
        (&["--lora", "nowhere.gguf"], 1, &["nowhere.gguf"]),
        (&["--type", "q4_k_m", "--imatrix", "nowhere.gguf"], 1, &["nowhere.gguf"]),
    ] {
        fails(&[&given[..], more].concat(), code, parts);
    }
    fails(&[dir.path().to_str().unwrap(), "-o", out], 1, &["no config.json; expected"]);
    let weights = dir.path().join("checkpoint/model-00001-of-00003.safetensors");
    let weights = weights.to_str().unwrap();
    fails(&[llama, "-o", weights, "--pre", "gpt-2"], 2, &["the output is one of the input files"]);
    let config = Path::new(llama).join("config.json");
    let forced = [llama, "-o", config.to_str().unwrap(), "--pre", "gpt-2", "--force"];
    fails(&forced, 2, &["config.json: the output is one of the input files"]);
    assert!(!Path::new(out).exists());
    let tiny = crate::cli::tiny(dir.path());
    fails(&[tiny.to_str().unwrap(), "-o", out, "--pre", "gpt-2"], 2, &["--pre applies only to directories"]);
}

/// Settings of config.json that no key of llama.cpp can express.
#[test]
fn what_llama_cpp_cannot_read_is_said_and_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (name, note, refused) in [
        (
            "mistral-window",
            "ropewalk reads it under ropewalk.windows",
            "it has no window in this architecture, and the file's ropewalk.windows is 48 tokens",
        ),
        (
            "qwen3moe-unscaled",
            "llama.cpp cannot run this model",
            "it scales the weights of chosen experts to a sum of 1",
        ),
    ] {
        let root = dir.path().join(name);
        std::fs::create_dir(&root).unwrap();
        let folder = folder(&root, name);
        let (folder, out) = (folder.to_str().unwrap(), root.join("out.gguf"));
        let out = out.to_str().unwrap();
        let pre = if name.starts_with("qwen") { &["--pre", "gpt-2"][..] } else { &[] };
        let done = program(&[&[folder, "-o", out][..], pre].concat());
        assert!(done.status.success() && stderr(&done).contains(note), "{}", stderr(&done));
        assert!(!stderr(&done).contains("runs in ropewalk and llama.cpp"), "{}", stderr(&done));
        fails(&[&[folder, "-o", out, "--llama-cpp"][..], pre].concat(), 1, &[refused]);
        // Nor from the file.
        let other = root.join("other.gguf");
        fails(&[out, "-o", other.to_str().unwrap(), "--llama-cpp"], 1, &[refused]);
        if name == "mistral-window" {
            let done = program(&[out, "-o", other.to_str().unwrap(), "--llama-cpp", "--ctx", "48"]);
            assert!(done.status.success(), "{}", stderr(&done));
        }
    }
    let folder = folder(dir.path(), "gemma3");
    let path = folder.join("config.json");
    let text = std::fs::read_to_string(&path)
        .unwrap()
        .replace("\"attention_bias\":false", "\"attention_bias\":true");
    std::fs::write(&path, text).unwrap();
    let out = dir.path().join("out.gguf");
    let wanted = "config.json: attention_bias: found true, expected false: attention has no biases";
    fails(&[folder.to_str().unwrap(), "-o", out.to_str().unwrap()], 1, &[wanted]);
    assert!(!out.exists());
}

/// A tokenizer as large as the largest known, in a process that may have 300 MB of data. Before it was read as it streams
/// by, it took 736.
#[cfg(unix)]
#[test]
fn a_large_tokenizer_takes_little_memory() {
    const N: usize = 262_144;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let letters: Vec<String> = ('a'..='p').map(String::from).collect();
    let mut tokens = letters.clone();
    let mut from = 0;
    while tokens.len() < N {
        let to = tokens.len();
        let longer: Vec<String> =
            tokens[from..to].iter().flat_map(|t| letters.iter().map(move |l| format!("{t}{l}"))).collect();
        tokens.extend(longer);
        from = to;
    }
    tokens.truncate(N);
    let vocab: serde_json::Map<String, serde_json::Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let pair = |token: &String, at: usize| serde_json::json!([token[..at], token[at..]]);
    let merges: Vec<_> = tokens[16..].iter().flat_map(|t| [pair(t, 1), pair(t, t.len() - 1)]).collect();
    let tokenizer = serde_json::json!({"version": "1.0", "added_tokens": [],
        "model": {"type": "BPE", "vocab": vocab, "merges": merges}});
    std::fs::write(at("tokenizer.json"), tokenizer.to_string()).unwrap();
    let config = serde_json::json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 2, "num_attention_heads": 1,
        "num_hidden_layers": 1, "intermediate_size": 1, "vocab_size": N, "tie_word_embeddings": true});
    std::fs::write(at("config.json"), config.to_string()).unwrap();
    let header = serde_json::json!({
        "model.embed_tokens.weight": {"dtype": "F16", "shape": [N, 2], "data_offsets": [0, 4 * N]},
        "model.layers.0.input_layernorm.weight": {"dtype": "F16", "shape": [2], "data_offsets": [4 * N, 4 * N + 4]},
    })
    .to_string();
    let weights = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; 4 * N + 4]].concat();
    std::fs::write(at("model.safetensors"), weights).unwrap();
    let done = std::process::Command::new("sh")
        .args(["-c", "ulimit -d 300000; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_convert")])
        .arg(dir.path())
        .args(["--pre", "gpt-2", "-q", "-o"])
        .arg(at("out.gguf"))
        // Stacks count: a machine with many processors has many threads.
        .env("RAYON_NUM_THREADS", "2")
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", stderr(&done));
    let file = File::open(&at("out.gguf")).unwrap();
    let Some(gguf::Value::Array(gguf::Array::String(merges))) = file.value("tokenizer.ggml.merges") else {
        panic!("no merges")
    };
    assert_eq!(merges.len(), 2 * (N - 16));
}

/// Those with GELU, which ggml looks up in a table of F16.
const GELU: &[&str] =
    &["gemma2", "gemma3", "gemma3-windows", "gemma3-every-second", "gptneox", "phi2", "phi2-narrow"];

/// Those that libllama computes otherwise, as a note of the import says.
const NOT_IN_LLAMA_CPP: &[&str] = &["mistral-window", "qwen2-window", "qwen3moe-unscaled"];

/// How far logits of floats may be from those recorded. At most 2,300 roundings lead to either (four layers of 32 with 48 between,
/// 100 tokens, 344 logits), 5,000 with delta-nets, whose state each token changes; the recorded ones have six decimals. A
/// table of F16 rounds what it is asked and what it says to 11 bits, evenly, in up to four layers: six times the root of that.
fn limit(name: &str, recorded: &[serde_json::Value]) -> f32 {
    let squares = recorded.iter().map(|x| x.as_f64().unwrap().powi(2));
    let deviation = (squares.sum::<f64>() / recorded.len() as f64).sqrt();
    let floats = two_orders(if name.starts_with("qwen35") { 5_000 } else { 2_300 });
    let table = if GELU.contains(&name) { 6.0 * (8f64 / 3.0).sqrt() * 2f64.powi(-11) } else { 0.0 };
    (deviation * (floats + table) + 5e-7) as f32
}

/// libllama's logits from the imported file are those of transformers from the checkpoint, both in F32. It
/// tells a wrong order of rows, a wrong base or a factor left out from any other.
#[test]
fn libllama_computes_what_transformers_does() {
    let mut faults = Vec::new();
    for recorded in Recorded::all() {
        let Recorded { name, expected } = &recorded;
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(dir.path(), name);
        let mut out = dir.path().join(format!("{name}.gguf"));
        let options = trusted().dtype(Some(DType::F32)).pre(recorded.pre().map(str::to_owned));
        convert(&folder, &out, &options, &Control::default()).unwrap();
        if name == "gpt-oss" {
            // Experts in MXFP4 stay so in an import; with them, libllama rounds activations to 8 bits.
            let packed = std::mem::replace(&mut out, dir.path().join("floats.gguf"));
            let options = Options::default().dtype(Some(DType::F32));
            convert(packed, &out, &options, &Control::default()).unwrap();
        }
        let mut oracle = llama::oracle::Oracle::open(&out, &crate::oracle::params()).unwrap();
        let tokens: Vec<i32> = (0..100).map(|i| i * 37 % 300).collect();
        let found = oracle.eval(&tokens, false).unwrap();
        let wanted = expected["logits"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32);
        let largest = found.iter().zip(wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let limit = limit(name, expected["logits"].as_array().unwrap());
        if NOT_IN_LLAMA_CPP.contains(&name.as_str()) {
            assert!(largest > 1e-3, "{name}: libllama computes the same");
        } else if largest.is_nan() || largest > limit {
            faults.push(format!("{name}: differs by {largest}"));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn tokenizers_run_in_a_process_apart() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(dir.path(), "qwen2");
    let import = |tokenizing: Option<Tokenizing>, name: &str| {
        let options = Options::default().pre(Some("gpt-2".into())).tokenizing(tokenizing);
        let out = dir.path().join(name);
        let done = convert(&folder, &out, &options, &Control::default()).map_err(|e| e.to_string());
        done.map(|_| std::fs::read(&out).unwrap())
    };
    let apart = |program: &str| Some(Tokenizing::Apart(program.into()));
    let own = env!("CARGO_BIN_EXE_convert");
    let here = import(Some(Tokenizing::Trusted), "here.gguf").unwrap();
    assert!(import(apart(own), "apart.gguf").unwrap() == here);
    // No caller has it run by accident.
    let error = import(None, "not.gguf").unwrap_err();
    assert!(error.starts_with("tokenizing: found none") && !error.contains('\n'), "{error}");
    // A process that dies, and one that cannot be started.
    for (program, wanted) in [
        ("/bin/false", "tokenizer.json: the process for it ended without an answer"),
        ("/no/such/program", "tokenizer.json: cannot start a process for it: /no/such/program"),
    ] {
        let error = import(apart(program), "not.gguf").unwrap_err();
        assert!(error.contains(wanted) && !error.contains('\n'), "{error}");
    }
    // What it finds is told as if it were found here.
    let path = folder.join("tokenizer.json");
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["normalizer"] = serde_json::json!({"type": "Nope"});
    std::fs::write(&path, json.to_string()).unwrap();
    let error = import(apart(own), "not.gguf").unwrap_err();
    assert_eq!(error, import(Some(Tokenizing::Trusted), "not.gguf").unwrap_err());
    assert!(error.contains("tokenizer.json: normalizer: "), "{error}");
}
