//! Folders that are damaged or hostile: one line that says what is wrong, and no file.

use gguf::DType;
use ropewalk_core::control::Control;
use ropewalk_import::{floats, Tensor};
use serde_json::{json, Value};

use crate::Folder;

#[track_caller]
fn refused(folder: &Folder, wanted: &str) {
    let error = folder.open().err().unwrap_or_else(|| panic!("accepted, expected: {wanted}"));
    assert!(error.contains(wanted), "found: {error}\nexpected: {wanted}");
    assert!(!error.contains('\n') && error.len() < 1500, "{error}");
}

/// A safetensors file with this header and so many bytes of data.
fn safetensors(header: &str, n_data: usize) -> Vec<u8> {
    joined(header, &vec![0; n_data])
}

fn joined(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// The header of a file, and its data.
fn parts(file: &[u8]) -> (Value, Vec<u8>) {
    let n = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&file[8..8 + n]).unwrap(), file[8 + n..].to_vec())
}

#[test]
fn headers_of_weights() {
    let folder = Folder::of("olmo2");
    let path = folder.file("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let entry = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"x.weight":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    let two = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
        "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
    let nested = format!("{{\"x\":{}", "[".repeat(100_000));
    let cases = [
        (Vec::new(), "found 0 bytes, expected a safetensors header"),
        (vec![1; 7], "found 7 bytes, expected a safetensors header"),
        (vec![0xff; 64], "found a header of 18446744073709551615 bytes, expected at most 56"),
        (whole[..whole.len() - 1].to_vec(), "expected at most the file's"),
        (whole[..100].to_vec(), "found a header of"),
        (safetensors("{", 0), "is not JSON"),
        (safetensors("[]", 0), "found an array of 0, expected an object"),
        (safetensors(&nested, 0), "is not JSON: recursion limit exceeded"),
        (safetensors(r#"{"x": 1}"#, 0), "x: expected an object"),
        (safetensors(&entry("I64", "[1]", "[0,8]"), 8), "found type I64, expected F32, F16 or BF16"),
        (safetensors(&entry("F32", "[0]", "[0,0]"), 8), "expected 1 to 4 dimensions of at least 1"),
        (safetensors(&entry("F32", "[]", "[0,4]"), 8), "expected 1 to 4 dimensions of at least 1"),
        (safetensors(&entry("F32", "[1,1,1,1,1]", "[0,4]"), 8), "expected 1 to 4 dimensions of at least 1"),
        (safetensors(&entry("F32", "[-1]", "[0,4]"), 8), "shape: expected an array of whole numbers"),
        (
            safetensors(&entry("F32", "[4611686018427387904,4611686018427387904]", "[0,8]"), 8),
            "found 8 bytes of data, expected those of f32",
        ),
        (
            safetensors(&entry("F32", "[2]", "[0,9]"), 8),
            "found data from 0 to 9, expected at most the file's 8",
        ),
        (safetensors(&entry("F32", "[2]", "[8,0]"), 8), "found data from 8 to 0"),
        (safetensors(&entry("F32", "[1]", "[0,8]"), 8), "found 8 bytes of data, expected those of f32 [1]"),
        (safetensors(&entry("F32", "[1]", "[0]"), 8), "found 1 data offsets, expected 2"),
        (safetensors(two, 12), "b: data overlaps that of a"),
        (safetensors("{}", 0), "found no tensor of layer 0, expected 2 layers"),
        (
            safetensors(&entry("F32", "[2]", "[0,8]"), 8),
            "x.weight: is not a known tensor of this architecture",
        ),
    ];
    for (bytes, wanted) in cases {
        std::fs::write(&path, bytes).unwrap();
        refused(&folder, wanted);
    }
    std::fs::remove_file(&path).unwrap();
    refused(&folder, "found no model.safetensors");
    std::fs::create_dir(&path).unwrap();
    refused(&folder, "is not a regular file");
}

#[test]
fn indexes() {
    const INDEX: &str = "model.safetensors.index.json";
    let set = |file: &str| {
        let folder = Folder::of("llama");
        folder.edit(INDEX, |v| v["weight_map"]["lm_head.weight"] = json!(file));
        folder
    };
    let outside = "expected the name of a .safetensors file in this folder";
    for path in [
        "../model.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "..\\x.safetensors",
        INDEX,
        "",
        "C:x.safetensors",
    ] {
        refused(&set(path), outside);
    }
    refused(&set("other.safetensors"), "lists other.safetensors, which is missing");
    refused(
        &set("model-00002-of-00003.safetensors"),
        "lm_head.weight: listed for model-00002-of-00003.safetensors, which lacks it",
    );
    let folder = Folder::of("llama");
    folder.edit(INDEX, |v| v["weight_map"]["lm_head.weight"] = json!(7));
    refused(&folder, outside);
    folder.edit(INDEX, |v| v["weight_map"] = json!({}));
    refused(&folder, "weight_map: found 0 files, expected 1 to 1024");
    folder.edit(INDEX, |v| *v = json!({}));
    refused(&folder, "weight_map: found none, expected an object");
    let folder = Folder::of("llama");
    folder.edit(INDEX, |v| v["weight_map"]["absent"] = json!("model-00001-of-00003.safetensors"));
    refused(&folder, "absent: listed for model-00001-of-00003.safetensors, which lacks it");
    let folder = Folder::of("llama");
    folder.edit(INDEX, |v| {
        v["weight_map"].as_object_mut().unwrap().remove("lm_head.weight");
    });
    refused(&folder, "lm_head.weight: found in a file, but not listed");
    let folder = Folder::of("llama");
    let first = "model-00001-of-00003.safetensors";
    std::fs::copy(folder.file(first), folder.file("copy.safetensors")).unwrap();
    folder.edit(INDEX, |v| v["weight_map"]["lm_head.weight"] = json!("copy.safetensors"));
    refused(&folder, "expected once");
    // Without an index, the names tell how many there are.
    let folder = Folder::of("llama");
    std::fs::remove_file(folder.file(INDEX)).unwrap();
    assert!(folder.open().is_ok());
    std::fs::remove_file(folder.file("model-00003-of-00003.safetensors")).unwrap();
    refused(&folder, "found 2 files of weights, expected 3");
}

#[cfg(unix)]
#[test]
fn links_in_a_circle_and_pipes() {
    let folder = Folder::of("llama");
    let path = folder.file("model-00002-of-00003.safetensors");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    refused(&folder, "model-00002-of-00003.safetensors");
    let folder = Folder::of("qwen3");
    let path = folder.file("config.json");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&path, &path).unwrap();
    refused(&folder, "config.json");
}

#[test]
fn numbers_in_config() {
    // Folder, key, value, error.
    let cases = r#"
olmo2 | num_hidden_layers | 1000000000 | found 1000000000, expected at most 4096
olmo2 | num_hidden_layers | -1 | found -1, expected a whole number
olmo2 | num_hidden_layers | 2.5 | found 2.5, expected a whole number
olmo2 | num_hidden_layers | "many" | found "many", expected a whole number
olmo2 | num_hidden_layers | 3 | found no tensor of layer 2, expected 3 layers
olmo2 | num_hidden_layers | 1 | found layer 1, expected 1 layers
olmo2 | num_hidden_layers | null | num_hidden_layers: found none
olmo2 | vocab_size | 2000000000 | expected at most the 344 rows of the embedding
olmo2 | vocab_size | 5000000000 | expected a whole number from 0 to 2147483647
olmo2 | vocab_size | 3 | expected below vocab_size 3
olmo2 | hidden_size | 64 | found 64, but an embedding of shape [32, 344]
olmo2 | num_attention_heads | 0 | found 0, expected at least 1
olmo2 | rms_norm_eps | 1e300 | expected a finite number that an f32 holds
olmo2 | max_position_embeddings | [1] | found an array of 1, expected a whole number
olmo2 | quantization_config | {"quant_method": "gptq"} | quantized by "gptq"
olmo2 | architectures | [] | architectures: found none
olmo2 | architectures | ["BertModel"] | found "BertModel", which cannot be imported
olmo2 | rope_parameters | {"rope_type": "spiral"} | found rope scaling "spiral"
olmo2 | rope_parameters | {"rope_type": "yarn"} | factor: found none
olmo2 | rope_parameters | "no" | found "no", expected an object
llama | num_attention_heads | 5 | found 32 rows, expected a multiple of 10
llama | num_attention_heads | 2147483647 | expected a multiple of 4294967294
llama | head_dim | 2000000000 | head_dim: found 2000000000, expected at most 65536
gptneox | num_attention_heads | 7 | expected a multiple of 21
gptneox | hidden_act | "relu" | hidden_act: found "relu", expected a form of GELU
gpt-oss | swiglu_limit | 8.0 | swiglu_limit: found 8, expected 7
gpt-oss | layer_types | ["full_attention"] | found 1 entries, expected num_hidden_layers = 2
gpt-oss | quantization_config | {"quant_method": "fp8"} | quantized by "fp8"
gpt-oss | num_experts_per_tok | -1 | found -1, expected a whole number
phi3 | rope_scaling | {"type": "longrope", "long_factor": [1.0]} | found 1 factors, expected 4
phi3 | rope_scaling | {"type": "longrope", "long_factor": [1, 1, 1, 1, 1]} | at most 4 finite
qwen3moe | num_local_experts | 5 | found 4 experts for blk.0.ffn_down_exps.weight, expected 5
qwen3moe | num_local_experts | 0 | expected 0
qwen35 | linear_num_value_heads | 5 | expected a multiple of linear_num_key_heads = 2
qwen35 | linear_num_value_heads | 6 | found 64 rows, expected 80
qwen35 | linear_num_key_heads | 0 | expected a multiple of linear_num_key_heads = 0
qwen35 | linear_num_key_heads | 1 | found 64 rows, expected 48
qwen35 | linear_value_head_dim | 4 | found 4, expected linear_key_head_dim = 8
qwen35 | attn_output_gate | false | attn_output_gate: expected true
qwen35 | layer_types | ["full_attention"] | found 1 entries, expected num_hidden_layers = 3
qwen35 | rope_parameters | {"mrope_section": [1, -1]} | expected whole numbers of 0 or more
"#;
    for case in cases.trim().lines() {
        let [name, key, value, wanted]: [&str; 4] = case.split(" | ").collect::<Vec<_>>().try_into().unwrap();
        let folder = Folder::of(name);
        folder.edit("config.json", |v| v[key] = serde_json::from_str(value).unwrap());
        refused(&folder, wanted);
    }
    let folder = Folder::of("olmo2");
    std::fs::write(folder.file("config.json"), "{\"rms_norm_eps\": 1e999}").unwrap();
    refused(&folder, "config.json: is not JSON: number out of range");
    std::fs::write(folder.file("config.json"), b"{\"a\": \"\xff\"}").unwrap();
    refused(&folder, "config.json: is not JSON");
    std::fs::remove_file(folder.file("config.json")).unwrap();
    refused(&folder, "no config.json; expected");
}

type Change = fn(&mut Value);

#[test]
fn tokenizers() {
    let cases: [(&str, Change, &str); 12] = [
        ("qwen3", |v| v["model"]["vocab"]["zz"] = json!(70), "id 70: found"),
        (
            "qwen3",
            |v| v["model"]["vocab"]["zz"] = json!(344),
            "token \"zz\": found id 344, expected below vocab_size 344",
        ),
        ("qwen3", |v| v["model"]["vocab"]["zz"] = json!(-1), "tokenizer.json: "),
        ("qwen3", |v| v["model"]["vocab"] = json!([]), "tokenizer.json: "),
        ("qwen3", |v| v["model"]["type"] = json!("Unigram"), "found Unigram, expected BPE"),
        ("qwen3", |v| v["model"]["merges"] = json!([1, 2]), "tokenizer.json: "),
        ("qwen3", |v| v["model"]["merges"] = json!(["zz qq"]), "tokenizer.json: "),
        ("qwen3", |v| v["added_tokens"] = json!([1]), "tokenizer.json: "),
        (
            "qwen3",
            |v| v["added_tokens"][0]["id"] = json!(5000),
            "found id 5000, expected below vocab_size 344",
        ),
        ("llama-linear", |v| v["model"]["vocab"]["zz"] = json!(70), "token \"zz\": found id 70"),
        ("llama-linear", |v| v["model"]["vocab"]["zz"] = json!(1u64 << 60), "expected each id below"),
        (
            "llama-linear",
            |v| v["normalizer"] = json!({"type": "BertNormalizer", "lowercase": true}),
            "normalizer: found BertNormalizer, which a vocabulary of pieces",
        ),
    ];
    for (name, change, wanted) in cases {
        let folder = Folder::of(name);
        folder.edit("tokenizer.json", change);
        refused(&folder, wanted);
    }
    let folder = Folder::of("qwen3");
    let pre = |pre| folder.open_as(pre).unwrap_err();
    assert!(pre(None).contains("that llama.cpp's converter does not know"), "{}", pre(None));
    assert!(pre(Some("qwen9")).starts_with("pre: unknown kind of tokenizer \"qwen9\"; known: "));
    std::fs::remove_file(folder.file("tokenizer.json")).unwrap();
    refused(&folder, "has no tokenizer.json, expected one");

    let folder = Folder::of("gemma2");
    let wrong = folder.open_as(Some("gpt-2")).unwrap_err();
    assert_eq!(wrong, "pre gpt-2: this tokenizer is not byte-level BPE, so the setting does not apply");
    // Field 1 of length 9: text "ab", score 1.5; then field 1 with a type; then an unknown field.
    let model = b"\x0a\x09\x0a\x02ab\x15\x00\x00\xc0\x3f\x0a\x05\x0a\x01c\x18\x03\x1a\x01z";
    let parts = [1, 3, 10, 13, 17, 20].map(|cut| &model[..cut]);
    let others = [
        &b""[..],
        b"\xff\xff",
        b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        // Not UTF-8, and an endless number.
        b"\x0a\x04\x0a\x02\xff\xfe",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
    ];
    for bytes in parts.into_iter().chain(others) {
        std::fs::write(folder.file("tokenizer.model"), bytes).unwrap();
        refused(&folder, "tokenizer.model: is not a SentencePiece model");
    }
    std::fs::remove_file(folder.file("tokenizer.model")).unwrap();
    refused(&folder, "has no tokenizer.model, expected one");

    let folder = Folder::of("qwen2");
    folder.edit("generation_config.json", |v| v["eos_token_id"] = json!([2, 344]));
    refused(&folder, "eos_token_id: found 344, expected ids below 344");
}

#[test]
fn tensors_that_do_not_belong() {
    let folder = Folder::of("cohere2");
    let path = folder.file("model.safetensors");
    let (mut header, mut data) = parts(&std::fs::read(&path).unwrap());
    let at = data.len();
    header["model.layers.0.self_attn.q_proj.bias"] =
        json!({"dtype": "F32", "shape": [1], "data_offsets": [at, at + 4]});
    for (value, accepted) in [(0f32, true), (1.0, false)] {
        data.truncate(at);
        data.extend(value.to_le_bytes());
        std::fs::write(&path, joined(&header.to_string(), &data)).unwrap();
        assert_eq!(folder.open().is_ok(), accepted, "{value}");
    }
    refused(&folder, "found a bias that is not zero");
}

#[test]
fn experts_in_blocks() {
    let name = "model.layers.0.mlp.experts.down_proj";
    let blocks = format!("{name}_blocks");
    let folder = Folder::of("gpt-oss");
    let path = folder.file("model.safetensors");
    let (header, data) = parts(&std::fs::read(&path).unwrap());
    let bytes = |key: &str, i: usize| header[key]["data_offsets"][i].as_u64().unwrap();
    // 4 experts of 64 rows and one block.
    assert_eq!(bytes(&blocks, 1) - bytes(&blocks, 0), 4 * 64 * 16);
    let changes: [(Change, &str); 6] = [
        (|h| drop(h.as_object_mut().unwrap().remove("NAME_scales")), "expected the scales of these blocks"),
        (|h| drop(h.as_object_mut().unwrap().remove("NAME_blocks")), "is not a known tensor of experts"),
        (|h| h["NAME_blocks"]["shape"] = json!([4, 64, 2, 8]), "expected experts, rows, blocks and 16"),
        (
            |h| h["NAME_blocks"]["shape"] = json!([4, 32, 2, 16]),
            "found shape [4, 64, 1], expected [4, 32, 2]",
        ),
        (
            |h| {
                h["NAME_blocks"]["dtype"] = json!("F16");
                h["NAME_blocks"]["shape"] = json!([4, 64, 1, 8]);
            },
            "found f16, expected bytes (U8)",
        ),
        (
            |h| {
                // A norm in bytes.
                h["model.norm.weight"]["dtype"] = json!("U8");
                h["model.norm.weight"]["shape"] = json!([128]);
            },
            "model.norm.weight: found type U8, expected F32, F16 or BF16",
        ),
    ];
    for (change, wanted) in changes {
        let text = header.to_string().replace(name, "NAME");
        let mut changed = serde_json::from_str(&text).unwrap();
        change(&mut changed);
        let text = changed.to_string().replace("NAME", name);
        std::fs::write(&path, joined(&text, &data)).unwrap();
        refused(&folder, wanted);
    }
}

#[test]
fn the_file_appears_only_when_it_is_whole() {
    let folder = Folder::of("qwen3");
    let path = folder.file("model.safetensors");
    let (header, mut data) = parts(&std::fs::read(&path).unwrap());
    let last = header["model.layers.1.mlp.up_proj.weight"]["data_offsets"][1].as_u64().unwrap() as usize;
    // The largest bfloat16.
    data[last - 2..last].copy_from_slice(&0x7f7fu16.to_le_bytes());
    std::fs::write(&path, joined(&header.to_string(), &data)).unwrap();
    let checkpoint = folder.open().unwrap();
    let out = folder.path.parent().unwrap().join("out");
    std::fs::create_dir(&out).unwrap();
    let file = out.join("x.gguf");
    let mut marked = gguf::Writer::new();
    marked.set("ropewalk.version", "1").set("general.name", "before");
    marked.write(&file).unwrap();
    let before = std::fs::read(&file).unwrap();
    let encode = |_: &Tensor, to: DType, values: &[f32]| floats(to, values);
    let write = |control: &Control<'_>| checkpoint.write(1, &|_| DType::F16, &encode, control, &file);
    let error = write(&Control::default()).unwrap_err().to_string();
    assert!(error.contains("blk.1.ffn_up.weight: found 3.3895314e38, which f16 cannot hold"), "{error}");
    let stop = ropewalk_core::control::Stop::default();
    stop.request();
    assert_eq!(write(&Control::default().with_stop(&stop)).unwrap_err().to_string(), "interrupted");
    assert_eq!(std::fs::read(&file).unwrap(), before);
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);
}
