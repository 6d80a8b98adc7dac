//! Adapters from PEFT and back. The fixtures, with the logits that transformers and PEFT computed, are of
//! `tests/reference/peft.py`.

use std::path::{Path, PathBuf};

use convert::peft::{from_peft, to_peft};
use convert::{convert, Error, Options};
use files::faults::{failing_at, walk};
use gguf::{DType, File};
use llama::oracle::{Oracle, OracleParams};
use ropewalk_core::adapter::{
    write, AdapterFile, AdapterMeta, AdapterReader, AdapterSpec, Ancestor, DataEnd, NewPair, NewTensor,
};
use ropewalk_core::control::{Control, Progress, Stop};
use safetensors::SafeTensors;
use serde_json::{json, Value};

use crate::cli::{convert as program, stderr};
use crate::lab::of_pairs;
use crate::rounding::two_orders;

pub(crate) fn fixture(arch: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/peft").join(arch)
}

pub(crate) fn base(arch: &str) -> PathBuf {
    fixture(arch).join("base.gguf")
}

/// libllama's logits of the recorded tokens, with an adapter.
fn logits(arch: &str, model: &Path, adapter: Option<&Path>) -> Vec<f64> {
    let tokens: Vec<i32> = serde_json::from_value(recorded(arch)["tokens"].clone()).unwrap();
    logits_of(model, adapter, &tokens)
}

/// libllama's logits of tokens, with an adapter.
pub(crate) fn logits_of(model: &Path, adapter: Option<&Path>, tokens: &[i32]) -> Vec<f64> {
    let params = OracleParams { kv: DType::F32, flash_attn: false, n_threads: 1, ..OracleParams::new(64) };
    let mut oracle = Oracle::open(model, &params).unwrap();
    if let Some(path) = adapter {
        oracle.lora(path, 1.0).unwrap();
    }
    oracle.eval(tokens, true).unwrap().into_iter().map(f64::from).collect()
}

fn recorded(arch: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(arch).join("logits.json")).unwrap()).unwrap()
}

fn expected(arch: &str, which: &str) -> Vec<f64> {
    let rows: Vec<Vec<f64>> = serde_json::from_value(recorded(arch)[which].clone()).unwrap();
    rows.concat()
}

pub(crate) fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// How far logits of floats may be from those recorded: 660 roundings lead to either (two layers of 32 with 48 between, 24 tokens,
/// 64 logits), and the recorded ones have six decimals.
pub(crate) fn rounded(recorded: &[f64]) -> f64 {
    let deviation = (recorded.iter().map(|x| x * x).sum::<f64>() / recorded.len() as f64).sqrt();
    deviation * two_orders(660) + 5e-7
}

#[test]
fn adapters_do_what_they_do_in_peft() {
    let dir = tempfile::tempdir().unwrap();
    let (adapter, merged) = (dir.path().join("a.gguf"), dir.path().join("m.gguf"));
    for (arch, pairs, modules) in [("llama", 15, 0), ("qwen2", 14, 3)] {
        let (plain, adapted) = (expected(arch, "plain"), expected(arch, "adapted"));
        assert!(difference(&plain, &adapted) > 0.5, "the adapter does something");
        assert!(difference(&logits(arch, &base(arch), None), &plain) < rounded(&plain));
        let report = from_peft(fixture(arch), base(arch), &adapter, &Control::default()).unwrap();
        assert_eq!((report.n_pairs, report.n_modules), (pairs, modules));
        assert_eq!(report.ranks, Some(if arch == "llama" { (2, 4) } else { (4, 4) }));
        let left_out = report.notes.iter().filter(|n| n.contains("Omitted")).count();
        assert_eq!(left_out, usize::from(arch == "llama"), "{:?}", report.notes);
        if arch == "llama" {
            let found = logits(arch, &base(arch), Some(&adapter));
            assert!(difference(&found, &adapted) < rounded(&adapted), "{}", difference(&found, &adapted));
        }
        let adapters = vec![AdapterSpec::new(adapter.clone(), 1.0)];
        convert(base(arch), &merged, &Options::default().adapters(adapters).force(true), &Control::default())
            .unwrap();
        let found = logits(arch, &merged, None);
        assert!(difference(&found, &adapted) < rounded(&adapted), "{}", difference(&found, &adapted));
    }
}

/// Names, shapes and bytes of the tensors of a folder, without those that PEFT saves along.
fn tensors(folder: &Path) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> = file
        .iter()
        .filter(|(name, _)| !name.contains("base_layer"))
        .map(|(name, t)| (name.to_owned(), t.shape().to_vec(), t.data().to_vec()))
        .collect();
    all.sort();
    all
}

#[test]
fn there_and_back_is_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (adapter, again, folder) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("new/peft"));
    // Ranks differ in one, but alphas do in the other order; rsLoRA becomes a plain alpha.
    from_peft(fixture("qwen2"), base("qwen2"), &adapter, &Control::default()).unwrap();
    to_peft(&adapter, base("qwen2"), &folder, None, &Control::default()).unwrap();
    assert!(tensors(&fixture("qwen2")) == tensors(&folder));
    let config: Value =
        serde_json::from_slice(&std::fs::read(folder.join("adapter_config.json")).unwrap()).unwrap();
    assert_eq!((&config["r"], &config["lora_alpha"]), (&json!(4), &json!(6)));
    assert_eq!(config["modules_to_save"], json!(["lm_head", "model.layers.1.input_layernorm", "model.norm"]));
    from_peft(&folder, base("qwen2"), &again, &Control::default()).unwrap();
    let same = |a: &Path, b: &Path| {
        let (a, b) = (File::open(a).unwrap(), File::open(b).unwrap());
        assert_eq!(a.tensors().len(), b.tensors().len());
        a.tensors()
            .iter()
            .all(|t| b.tensor(&t.name).is_some_and(|o| o.shape == t.shape && a.data(t) == b.data(o)))
    };
    assert!(same(&adapter, &again));

    from_peft(fixture("llama"), base("llama"), &adapter, &Control::default()).unwrap();
    to_peft(&adapter, base("llama"), &folder, None, &Control::default()).unwrap();
    from_peft(&folder, base("llama"), &again, &Control::default()).unwrap();
    assert!(same(&adapter, &again) && std::fs::read(&adapter).unwrap() == std::fs::read(&again).unwrap());
    let names: Vec<String> = tensors(&folder).into_iter().map(|t| t.0).collect();
    assert_eq!(names, tensors(&fixture("llama")).into_iter().map(|t| t.0).collect::<Vec<_>>());
    let entries = std::fs::read_dir(&folder).unwrap();
    assert_eq!(entries.count(), 2);
}

#[test]
fn what_only_our_files_say_survives() {
    let dir = tempfile::tempdir().unwrap();
    let (adapter, again, folder) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("peft"));
    let (a, b) = (vec![0.5; 32 * 2], vec![0.25; 2 * 16]);
    let norm = vec![1.5; 32];
    let meta = AdapterMeta {
        rope: Some("yarn:factor=4".parse().unwrap()),
        n_ctx: Some(512),
        base: Some("0123".into()),
        steps: Some(7),
        data: Some("novels".into()),
        rslora: false,
        attention: Some("s2".into()),
        tokens: Some(3584),
        data_end: Some(DataEnd { token: 4096, order: "0f".into() }),
        ancestors: vec![Ancestor { sha256: "ab".into(), n_ctx: Some(512), ..Ancestor::default() }],
    };
    let pairs = vec![NewPair { weight: "blk.1.attn_k.weight".into(), n_in: 32, n_out: 16, a: &a, b: &b }];
    let saved = NewTensor { name: "blk.0.ffn_norm.weight".into(), shape: vec![32], values: &norm };
    let file = AdapterFile {
        alpha: 2.5,
        modules_to_save: vec![saved],
        dtype: DType::F16,
        ..of_pairs(2, pairs, meta.clone())
    };
    write(&adapter, &file).unwrap();
    let report = to_peft(&adapter, base("llama"), &folder, None, &Control::default()).unwrap();
    let rope = report.notes.iter().find(|note| note.contains("yarn:factor=4")).unwrap();
    assert!(rope.contains(r#""rope_scaling": {"rope_type":"yarn""#), "{rope}");
    from_peft(&folder, base("llama"), &again, &Control::default()).unwrap();
    let read = AdapterReader::open(&again).unwrap();
    assert_eq!((read.meta(), read.alpha()), (&meta, 2.5));
    assert_eq!((read.pairs().len(), read.modules_to_save()[0].name.as_str()), (1, "blk.0.ffn_norm.weight"));
}

/// A copy of a fixture whose configuration or header was changed.
pub(crate) fn changed(
    dir: &Path,
    config: impl FnOnce(&mut Value),
    header: impl FnOnce(&mut Value),
) -> PathBuf {
    let read = |name: &str| std::fs::read(fixture("llama").join(name)).unwrap();
    let mut json: Value = serde_json::from_slice(&read("adapter_config.json")).unwrap();
    config(&mut json);
    let bytes = read("adapter_model.safetensors");
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut head: Value = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
    header(&mut head);
    let text = head.to_string();
    let file = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &bytes[8 + n..]].concat();
    std::fs::write(dir.join("adapter_model.safetensors"), file).unwrap();
    std::fs::write(dir.join("adapter_config.json"), json.to_string()).unwrap();
    dir.to_owned()
}

const Q: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

fn rename(head: &mut Value, to: &str) {
    let head = head.as_object_mut().unwrap();
    let entry = head.remove(Q).unwrap();
    head.insert(to.into(), entry);
}

#[test]
fn what_a_lora_file_cannot_say_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let refused = |folder: &Path, parts: &[&str]| {
        let e = from_peft(folder, base("llama"), &out, &Control::default()).unwrap_err().to_string();
        assert!(parts.iter().all(|p| e.contains(p)) && !e.contains('\n'), "{parts:?}: {e}");
        assert!(!out.exists());
    };
    for (key, value) in [
        ("peft_type", json!("IA3")),
        ("use_dora", json!(true)),
        ("lora_bias", json!(true)),
        ("alora_invocation_tokens", json!([1, 2])),
        ("lora_alpha", json!(0)),
        ("lora_alpha", json!("six")),
        ("lora_alpha", json!(1e300)),
        ("alpha_pattern", json!({"(": 1})),
        ("alpha_pattern", json!([1])),
        ("use_rslora", json!("yes")),
        ("modules_to_save", json!([1])),
        ("use_qalora", json!(true)),
        ("use_bdlora", json!({"nblocks": 2})),
        ("kasa_config", json!({})),
        ("arrow_config", json!({"top_k": 3})),
        ("monteclora_config", json!({})),
        ("layer_replication", json!([[0, 2], [1, 2]])),
        ("target_parameters", json!(["mlp.experts.down_proj"])),
        ("trainable_token_indices", json!("all")),
        ("trainable_token_indices", json!([-1])),
        ("trainable_token_indices", json!({"embed_tokens": 1})),
        ("megatron_config", json!({"a": 1})),
        ("target_modules", json!(7)),
        ("target_modules", json!([7])),
        ("exclude_modules", json!([7])),
        ("exclude_modules", json!({"a": 1})),
        ("exclude_modules", json!("(?=a)")),
        ("layers_to_transform", json!("first")),
        ("layers_to_transform", json!([-1])),
        ("ensure_weight_tying", json!("yes")),
        ("init_lora_weights", json!("pissa")),
        ("init_lora_weights", json!("pissa_niter_16")),
        ("init_lora_weights", json!("OLoRA")),
        ("init_lora_weights", json!("corda")),
        ("init_lora_weights", json!("loftq")),
        ("init_lora_weights", json!("lora_ga")),
        ("init_lora_weights", json!("zeros")),
        ("init_lora_weights", json!(1)),
    ] {
        refused(&changed(dir.path(), |c| c[key] = value, |_| {}), &["adapter_config.json", key]);
    }
    for pattern in [json!(["("]), json!([1])] {
        let change = |c: &mut Value| (c["layers_to_transform"], c["layers_pattern"]) = (json!([0]), pattern);
        refused(&changed(dir.path(), change, |_| {}), &["adapter_config.json", "layers_pattern"]);
    }
    let model = "adapter_model.safetensors";
    for (to, part) in [
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "DoRA"),
        ("base_model.model.model.layers.0.self_attn.q_proj.bias", "a bias"),
        ("base_model.model.model.layers.0.self_attn.brain.lora_B.weight", "the other half"),
        ("base_model.model.model.layers.00.self_attn.q_proj.lora_B.weight", "is not a known module"),
        ("base_model.model.model.layers.9.self_attn.q_proj.lora_B.weight", "the model has 2 layers"),
        ("q_proj.lora_B.weight", "begins with"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.default.weight", ""),
        ("base_model.model.model.layers.0.mlp.up_proj.modules_to_save.weight", "in this shape"),
        ("base_model.model.model.layers.0.self_attn.o_proj.lora_B.default.weight", "is a duplicate of"),
    ] {
        let folder = changed(dir.path(), |_| {}, |h| rename(h, to));
        match part {
            // Files of older versions name the adapter.
            "" => {
                from_peft(&folder, base("llama"), &out, &Control::default()).unwrap();
                std::fs::remove_file(&out).unwrap();
            }
            part => refused(&folder, &[model, part]),
        }
    }
    for (key, value) in [
        ("data_offsets", json!([0, u64::MAX])),
        ("data_offsets", json!([8, 4])),
        ("shape", json!([u64::MAX, 4])),
        ("shape", json!([1u64 << 40, 1u64 << 40])),
        ("shape", json!([4, 32])),
        ("dtype", json!("I64")),
        ("dtype", json!("Q9")),
    ] {
        refused(&changed(dir.path(), |_| {}, |h| h[Q][key] = value), &[model]);
    }
    let folder = changed(dir.path(), |_| {}, |_| {});
    for bytes in [&[][..], &[0xff; 8], &[0xff; 64], &4u64.to_le_bytes(), b"\x02\0\0\0\0\0\0\0{}"] {
        std::fs::write(folder.join(model), bytes).unwrap();
        refused(&folder, &[model]);
    }
    std::fs::remove_file(folder.join(model)).unwrap();
    refused(&folder, &[model]);
    std::fs::write(folder.join("adapter_model.bin"), "PK").unwrap();
    refused(&folder, &["adapter_model.bin", "save_pretrained"]);
    // A model of other shapes, and one of an architecture whose modules have other names.
    let other = dir.path().join("other.gguf");
    let shape = convert::random::Shape::named("llama-tiny").unwrap();
    convert::random::write(&shape, DType::F16, 1, &other).unwrap();
    let e = from_peft(fixture("llama"), &other, &out, &Control::default()).unwrap_err().to_string();
    assert!(e.contains("lm_head.base_layer.weight") && !e.contains('\n'), "{e}");
    let e = from_peft(fixture("qwen2"), &other, &out, &Control::default()).unwrap_err().to_string();
    assert!(e.contains("the model's [") && !e.contains('\n'), "{e}");
    let mut writer = gguf::Writer::with_metadata_of(&File::open(&base("llama")).unwrap());
    writer.set("general.architecture", "mamba");
    writer.write(&other).unwrap();
    let e = from_peft(fixture("llama"), &other, &out, &Control::default()).unwrap_err().to_string();
    assert!(e.contains("other.gguf") && !e.contains('\n'), "{e}");
}

#[test]
fn values_that_are_not_finite_are_refused_and_steps_that_fail_leave_the_old_file() {
    let dir = tempfile::tempdir().unwrap();
    let folder = changed(dir.path(), |_| {}, |_| {});
    let out = dir.path().join("out.gguf");
    from_peft(&folder, base("llama"), &out, &Control::default()).unwrap();
    let new = std::fs::read(&out).unwrap();
    let write =
        || from_peft(&folder, base("llama"), &out, &Control::default()).map(drop).map_err(|e| e.to_string());
    // An adapter too, and another one.
    let mut old = new.clone();
    *old.last_mut().unwrap() ^= 1;
    walk(&out, &old, |found| found == new, write);
    let mut bytes = std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let n = bytes.len();
    bytes[n - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(folder.join("adapter_model.safetensors"), bytes).unwrap();
    let e = from_peft(&folder, base("llama"), &out, &Control::default()).unwrap_err().to_string();
    assert!(e.contains("NaN") && e.contains("lora_") && !e.contains('\n'), "{e}");
}

#[test]
fn the_program_converts_adapters() {
    let dir = tempfile::tempdir().unwrap();
    let (out, back) = (dir.path().join("a.gguf"), dir.path().join("back"));
    let (fixture, base) = (fixture("llama"), base("llama"));
    let text = |p: &Path| p.to_str().unwrap().to_owned();
    let done = program(&[&text(&fixture), "-m", &text(&base), "-o", &text(&out), "--json"]);
    let said: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&said["n_pairs"], &said["ranks"]), (&json!(15), &json!([2, 4])), "{}", stderr(&done));
    let done = program(&["--to-peft", &text(&back), "-m", &text(&base), &text(&out)]);
    assert!(done.status.success() && stderr(&done).contains("15 pairs of ranks 2 to 4"), "{}", stderr(&done));
    assert!(back.join("adapter_config.json").exists());
    let (adapter, model, lora) = (text(&fixture), text(&base), text(&out));
    for (args, part) in [
        (&[&*adapter, "-o", &lora][..], "this is a PEFT adapter: pass its base model"),
        (&[&lora, "-m", &model, "-o", &lora], "-m expects a PEFT directory"),
        (&[&adapter, "-m", &model, "-o", &lora, "--rope", "pi"], "cannot be used"),
        (&[&adapter, "-m", &model, "-o", &model], "the output is the model"),
        (&["--to-peft", &text(&back), "-m", &model], "<IN>"),
        (&["--to-peft", &text(&back), &lora], "--model"),
    ] {
        let failed = program(args);
        assert_eq!(failed.status.code(), Some(2), "{args:?}: {}", stderr(&failed));
        assert!(stderr(&failed).contains(part), "{args:?}: {}", stderr(&failed));
    }
}

/// A folder with somebody else's file under a name of ours is left as it is; an earlier export is replaced.
#[test]
fn an_export_replaces_an_export_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [adapter, folder] = ["a.gguf", "out"].map(|name| dir.path().join(name));
    from_peft(fixture("qwen2"), base("qwen2"), &adapter, &Control::default()).unwrap();
    let names = ["adapter_model.safetensors", "adapter_config.json"];
    // One that PEFT wrote, and something that is no adapter.
    for (name, what) in names.iter().flat_map(|name| {
        let others = [std::fs::read(fixture("qwen2").join(names[0])).unwrap(), b"My thesis.\n".to_vec()];
        others.map(|what| (name, what))
    }) {
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(name), &what).unwrap();
        let said =
            to_peft(&adapter, base("qwen2"), &folder, None, &Control::default()).unwrap_err().to_string();
        assert!(said.contains(name) && said.contains("exists and is not "), "{said}");
        assert_eq!(std::fs::read(folder.join(name)).unwrap(), what, "{name}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "{name}: nothing else is written");
        to_peft(&adapter, base("qwen2"), gguf::Output::new(&folder, true), None, &Control::default())
            .unwrap();
        assert!(std::fs::read(folder.join(name)).unwrap() != what, "{name}: forced");
        std::fs::remove_dir_all(&folder).unwrap();
    }
    to_peft(&adapter, base("qwen2"), &folder, None, &Control::default()).unwrap();
    let before = names.map(|name| std::fs::read(folder.join(name)).unwrap());
    to_peft(&adapter, base("qwen2"), &folder, None, &Control::default()).unwrap();
    assert!(before == names.map(|name| std::fs::read(folder.join(name)).unwrap()));
}

#[test]
fn a_stop_leaves_no_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let [adapter, out] = ["a.gguf", "out"].map(|name| dir.path().join(name));
    let stop = Stop::default();
    let first = |_: &Progress<'_>| stop.request();
    let control = Control::default().with_stop(&stop).with_progress(&first);
    let e = from_peft(fixture("qwen2"), base("qwen2"), &out, &control).unwrap_err();
    assert!(matches!(e, Error::Interrupted), "{e}");
    from_peft(fixture("qwen2"), base("qwen2"), &adapter, &Control::default()).unwrap();
    let e = to_peft(&adapter, base("qwen2"), &out, None, &control).unwrap_err();
    assert!(matches!(e, Error::Interrupted), "{e}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Whatever step of it fails, no settings lie next to the weights of another adapter.
#[test]
fn an_export_that_fails_leaves_no_folder_that_looks_whole() {
    let dir = tempfile::tempdir().unwrap();
    let [old, new, folder] = ["old.gguf", "new.gguf", "out"].map(|name| dir.path().join(name));
    from_peft(fixture("llama"), base("llama"), &old, &Control::default()).unwrap();
    from_peft(fixture("cases/layers"), base("llama"), &new, &Control::default()).unwrap();
    let export =
        |adapter: &Path| to_peft(adapter, base("llama"), &folder, None, &Control::default()).map(drop);
    let read = || {
        let names = ["adapter_config.json", "adapter_model.safetensors"];
        let found = names.map(|name| std::fs::read(folder.join(name)).ok());
        let n_files = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!(n_files, found.iter().flatten().count(), "another file is left");
        found
    };
    let [before, after] = [&old, &new].map(|adapter| {
        export(adapter).unwrap();
        read()
    });
    assert!(before[0] != after[0] && before[1] != after[1]);
    let mut n_parts = 0;
    for n in 0.. {
        export(&old).unwrap();
        let (done, step) = failing_at(n, || export(&new));
        let found = read();
        assert!(found[0].is_none() || found == before || found == after, "{step:?}, step {n}");
        n_parts += usize::from(found[0].is_none());
        assert_eq!(done.is_ok(), step.is_none());
        if step.is_none() {
            assert!(found == after);
            break;
        }
    }
    assert!(n_parts > 0, "no step failed between the weights and the settings");
}
