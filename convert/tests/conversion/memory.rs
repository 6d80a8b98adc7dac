//! Files that ask for memory: sparse ones of many gigabytes that take a few blocks of the disk, and patterns that compile to
//! more than they look. The program has little memory and ends with one line.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::{json, Value};

use crate::import::folder;
use crate::limited::{limited, LITTLE};
use crate::peft::{base, changed};

/// A file that begins so and continues with zeros, which take no room on the disk.
fn sparse(path: &Path, start: &[u8], size: u64) {
    let mut file = File::create(path).unwrap();
    file.write_all(start).unwrap();
    file.set_len(size).unwrap();
}

/// Exit code and stderr of the program under a limit.
fn run(args: &[&Path], kib: u64) -> (Option<i32>, String) {
    let mut call = Command::new(env!("CARGO_BIN_EXE_convert"));
    call.args(args);
    let out = limited(&call, kib).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned())
}

/// Ends with code 1 and one line that holds each of `parts`.
#[track_caller]
fn refused(what: &str, args: &[&Path], kib: u64, parts: &[&str]) {
    let (code, said) = run(args, kib);
    assert_eq!(code, Some(1), "{what}: {said}");
    assert!(said.lines().count() == 1 && said.starts_with("error: "), "{what}: {said}");
    assert!(parts.iter().all(|part| said.contains(part)), "{what}: {parts:?}: {said}");
}

fn path(text: &str) -> &Path {
    Path::new(text)
}

/// The start of a GGUF file whose one key `some.key` has a value of this type.
fn key(kind: u32) -> Vec<u8> {
    let head = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    [&head[..], &8u64.to_le_bytes(), b"some.key", &kind.to_le_bytes()].concat()
}

fn array(kind: u32, n: u64) -> Vec<u8> {
    [&key(9)[..], &kind.to_le_bytes(), &n.to_le_bytes()].concat()
}

#[test]
fn arrays_of_sparse_gguf_files() {
    let dir = tempfile::tempdir().unwrap();
    let (model, out) = (dir.path().join("m.gguf"), dir.path().join("out.gguf"));
    let args = [model.as_path(), path("-o"), &out];
    for kind in 0..13 {
        for n in [1u64 << 27, 1 << 30] {
            let each = [1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8][kind as usize];
            sparse(&model, &array(kind, n), 4096 + n * each);
            if n * each < 512 << 20 {
                continue;
            }
            refused(&format!("{n} of type {kind}"), &args, LITTLE, &["m.gguf: "]);
            refused(&format!("{n} of type {kind}"), &args, 32 << 20, &["m.gguf: "]);
        }
    }
    for (what, start, parts) in [
        ("a string", [&key(8)[..], &(1u64 << 30).to_le_bytes()].concat(), ["some.key", "at most 536870912"]),
        ("strings", array(8, 1 << 27), ["some.key", "at most 536870912"]),
        ("small arrays", array(9, 1 << 27), ["some.key", "at most 536870912"]),
        ("no key", [&key(0)[..24], &u64::MAX.to_le_bytes()].concat(), ["name of key 0", "expected at most"]),
    ] {
        sparse(&model, &start, 2 << 30);
        refused(what, &args, 32 << 20, &parts);
    }
    // Allowed by meaning, and more than there is.
    for (kind, n) in [(0, 400 << 20), (8, 12 << 20), (12, 50 << 20)] {
        sparse(&model, &array(kind, n), 1 << 30);
        refused(
            "more than there is",
            &args,
            1200 << 10,
            &["m.gguf: key some.key: cannot allocate ", " bytes"],
        );
    }
    assert!(!out.exists());
}

#[test]
fn tensors_of_sparse_adapters() {
    let dir = tempfile::tempdir().unwrap();
    let (base, out) = (base("llama"), dir.path().join("out.gguf"));
    let prefix = "base_model.model.model";
    let large = 1u64 << 24;
    for (name, shape, part) in [
        ("layers.0.self_attn.q_proj.lora_B.weight", vec![large, 8], "suits the model's"),
        ("layers.0.self_attn.q_proj.lora_B.weight", vec![32, large], "the other half"),
        ("layers.0.self_attn.q_proj.lora_A.weight", vec![large, 32], "the other half"),
        ("layers.0.self_attn.k_proj.lora_A.weight", vec![4, large], "suits the model's"),
        ("layers.0.mlp.up_proj.lora_A.weight", vec![large, large >> 10], "suits the model's"),
        ("layers.0.mlp.up_proj.lora_A.weight", vec![1 << 30, 2], "dimension of 1073741824"),
        ("layers.0.mlp.up_proj.lora_A.weight", vec![2, 1 << 35], "dimension of 34359738368"),
        ("layers.0.input_layernorm.weight", vec![large], "suits the model's"),
        ("norm.modules_to_save.weight", vec![large, 64], "suits the model's"),
        ("embed_tokens.weight", vec![large, 32], "suits the model's"),
    ] {
        let saved = |c: &mut Value| c["modules_to_save"] = json!(["input_layernorm", "norm", "embed_tokens"]);
        let folder = changed(dir.path(), saved, |_| {});
        let bytes = 4 * shape.iter().product::<u64>();
        let header =
            json!({format!("{prefix}.{name}"): {"dtype": "F32", "shape": shape, "data_offsets": [0, bytes]}});
        let header = header.to_string();
        let start = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        sparse(&folder.join("adapter_model.safetensors"), &start, start.len() as u64 + bytes);
        let args = [&folder, path("-m"), &base, path("-o"), &out];
        // All of the file can be mapped.
        refused(name, &args, (bytes >> 10) + LITTLE, &["adapter_model.safetensors: ", name, part]);
        let (code, said) = run(&args, LITTLE);
        assert!(code == Some(1) && said.lines().count() == 1, "{name}: {code:?} {said}");
    }
    let folder = changed(dir.path(), |_| {}, |_| {});
    let args = [&folder, path("-m"), &base, path("-o"), &out];
    sparse(&folder.join("adapter_config.json"), b"{", 64 << 30);
    refused("config", &args, LITTLE, &["adapter_config.json: found more than 4194304 bytes"]);
    assert!(!out.exists());
}

#[test]
fn patterns_that_compile_to_more_than_they_look() {
    let dir = tempfile::tempdir().unwrap();
    let (base, out) = (base("llama"), dir.path().join("out.gguf"));
    let many = |n: usize, of: &dyn Fn(usize) -> String| -> Value {
        json!((0..n).map(|i| (of(i), json!(4))).collect::<serde_json::Map<_, _>>())
    };
    let few = "at most 64 patterns that are more than a name";
    for (what, key, value, part) in [
        (
            "many repetitions",
            "alpha_pattern",
            many(4000, &|i| format!(r"\w{{60}}{i}")),
            "compile to at most 262144 bytes",
        ),
        ("many alternatives", "alpha_pattern", many(65, &|i| format!("(a|b){i}")), few),
        ("long", "alpha_pattern", many(1, &|_| r"\w".repeat(1 << 20)), "patterns of at most 512 bytes"),
        ("long names", "alpha_pattern", many(9, &|i| "q".repeat(1000 + i)), "patterns of at most 512 bytes"),
        ("repeated", "alpha_pattern", many(1, &|_| r"\w{1000}".into()), "compile to at most 262144 bytes"),
        ("nested", "alpha_pattern", many(1, &|_| "(((a{9}){9}){9}){99}".into()), "compile to at most 262144"),
        (
            "nested deeply",
            "alpha_pattern",
            many(1, &|_| "(".repeat(256) + &")".repeat(256)),
            "regular expressions",
        ),
        ("many names", "alpha_pattern", many(5000, &|i| format!("q_proj{i}")), "at most 4096 patterns"),
        (
            "many ranks",
            "rank_pattern",
            many(5000, &|i| format!("q_proj{i}")),
            "at most 4096 patterns, found 5000",
        ),
        ("no ranks", "rank_pattern", json!([1]), "an object"),
        ("modules", "modules_to_save", json!(vec!["x"; 2000]), "at most 1024 names, found 2000"),
    ] {
        let folder = changed(dir.path(), |c| c[key] = value, |_| {});
        let args = [&folder, path("-m"), &base, path("-o"), &out];
        refused(what, &args, LITTLE, &["adapter_config.json: ", key, part]);
    }
    assert!(!out.exists());
    // As many as there may be, of both kinds, matched with every module.
    for of in [
        many(64, &|i| format!("(?:.*a.*p.*r.*){{2}}x{{{}}}", i + 1)),
        many(4096, &|i| format!("layers.0.self_attn.q_proj.{i}")),
    ] {
        let folder = changed(dir.path(), |c| c["alpha_pattern"] = of, |_| {});
        let args = [&folder, path("-m"), &base, path("-o"), &out];
        let (code, said) = run(&args, LITTLE);
        assert_eq!(code, Some(0), "{said}");
    }
    // Keys that PEFT compiles and this program does not need.
    let keys = |c: &mut Value| {
        c["target_modules"] = json!("(\\w{1000}){1000}");
        c["layers_to_transform"] = json!(vec![0; 100_000]);
        c["layers_pattern"] = json!("(");
    };
    let folder = changed(dir.path(), keys, |_| {});
    let args = [&folder, path("-m"), &base, path("-o"), &out];
    assert_eq!(run(&args, LITTLE).0, Some(0));
}

#[test]
fn sparse_files_and_large_numbers_in_folders() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let refused_folder = |what: &str, of: &Path, parts: &[&str]| {
        refused(what, &[of, path("--pre"), path("gpt-2"), path("-o"), &out], LITTLE, parts);
    };
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
        "model-00002-of-00003.safetensors",
    ] {
        for (start, size) in
            [(&b"{"[..], 64u64 << 30), (b"\xff\xff\xff\x01\0\0\0\0{", 40 << 20), (b"", 300 << 20)]
        {
            let root = tempfile::tempdir().unwrap();
            let of = folder(root.path(), "llama");
            sparse(&of.join(name), start, size);
            refused_folder(name, &of, &["checkpoint"]);
        }
    }
    for (key, value, part) in [
        ("num_hidden_layers", json!(i32::MAX), "expected at most"),
        ("vocab_size", json!(i32::MAX), "expected at most"),
        ("hidden_size", json!(i32::MAX), "hidden_size"),
    ] {
        let root = tempfile::tempdir().unwrap();
        let of = folder(root.path(), "llama");
        let mut config: Value =
            serde_json::from_slice(&std::fs::read(of.join("config.json")).unwrap()).unwrap();
        config[key] = value;
        std::fs::write(of.join("config.json"), config.to_string()).unwrap();
        refused_folder(key, &of, &["config.json", key, part]);
    }
    assert!(!out.exists());
}
