//! Imported tokenizers against the packages `tokenizers` and `sentencepiece`, on 10,000 strings of all of Unicode:
//! `tests/reference/tokens.py` makes both sides of the comparison, but for our half of one.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use llama::vocab::Vocab;
use ropewalk_import::{Checkpoint, Tokenizing};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{json, Value};

use crate::lab::soaks;

/// Strings recorded.
const N: usize = 10_000;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokens")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(fixtures().join(name)).unwrap()
}

/// SplitMix64; numbers below `n` from the upper half of each output.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((((z ^ (z >> 31)) >> 32) * n as u64) >> 32) as usize
    }
}

/// The string of a number, as the script makes it.
fn string(pools: &[Vec<Value>], i: usize) -> String {
    let mut random = Random(i as u64);
    let mut out = String::new();
    for _ in 0..=random.below(12) {
        let pool = &pools[random.below(pools.len())];
        match &pool[random.below(pool.len())] {
            Value::String(text) => out.push_str(text),
            range => {
                let at = |i: usize| range[i].as_u64().unwrap() as usize;
                let code = at(0) + random.below(at(1) - at(0) + 1);
                out.push(char::from_u32(code as u32).unwrap());
            }
        }
    }
    out
}

/// The highest byte of FNV-1a over the ids.
fn checksum(ids: &[i32]) -> u8 {
    let bytes = ids.iter().flat_map(|id| id.to_le_bytes());
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01B3));
    (hash >> 56) as u8
}

/// The vocabulary of a folder with such a tokenizer and the weights of next to nothing.
fn imported(n_tokens: usize, files: &[(&str, Vec<u8>)], pre: Option<&str>) -> Vocab {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 2, "num_attention_heads": 1,
        "num_hidden_layers": 1, "intermediate_size": 2, "vocab_size": n_tokens, "tie_word_embeddings": true});
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let zeros = vec![0u8; n_tokens * 2 * 4];
    let tensor = |shape: Vec<usize>| {
        let n: usize = shape.iter().product();
        TensorView::new(Dtype::F32, shape, &zeros[..n * 4]).unwrap()
    };
    let weights = [
        ("model.embed_tokens.weight", tensor(vec![n_tokens, 2])),
        ("model.layers.0.input_layernorm.weight", tensor(vec![2])),
    ];
    safetensors::serialize_to_file(weights, None, &dir.path().join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(dir.path(), pre, Some(&Tokenizing::Trusted)).unwrap();
    Vocab::from_metadata(dir.path(), checkpoint.metadata()).unwrap()
}

/// Kinds whose pattern libllama leaves to the standard library, which takes seconds for a thousand strings; and how many of
/// the strings they are compared on here. All were compared when they were recorded.
const SLOW: &[&str] = &["gpt-4o", "tekken", "deepseek-v3"];
const N_SLOW: usize = 200;
/// How many the others are compared on in `make test`; in `make soak` all.
const N_SHORT: usize = 4_000;

/// Which strings libllama is known to cut otherwise, and why.
struct Known {
    /// Not in NFC, which no GGUF file asks for: libllama takes texts as they are.
    denormal: HashSet<usize>,
    /// With marks, which libllama's patterns of words by case leave out.
    marked: HashSet<usize>,
}

impl Known {
    fn explains(&self, kind: &Value, i: usize, text: &str) -> bool {
        let by_case = ["gpt-4o", "tekken"].contains(&kind["pre"].as_str().unwrap_or_default());
        // Letters since Unicode 16, which libllama's tables do not have.
        let new = text.contains(|c| ('\u{16d40}'..='\u{16d79}').contains(&c));
        new || kind["normalizer"] == json!({"type": "NFC"}) && self.denormal.contains(&i)
            || by_case && self.marked.contains(&i)
    }
}

/// One tokenizer.
struct Job<'a> {
    name: String,
    kind: &'a Value,
    vocab: Vocab,
    recorded: &'a [u8],
}

#[test]
fn imported_tokenizers_cut_texts_as_their_own_libraries_do() {
    let cases: Value = serde_json::from_slice(&read("cases.json")).unwrap();
    let pools: Vec<Vec<Value>> = serde_json::from_value(cases["pools"].clone()).unwrap();
    let numbers = |key: &str| serde_json::from_value(cases[key].clone()).unwrap();
    let known = Known { denormal: numbers("denormal"), marked: numbers("marked") };
    let strings: Vec<String> = (0..N).map(|i| string(&pools, i)).collect();
    let streams = read("streams.bin");
    let mut recorded = streams.chunks(N);
    let tokenizer: Value = serde_json::from_slice(&read("tokenizer.json")).unwrap();
    let n_tokens = tokenizer["model"]["vocab"].as_object().unwrap().len();
    let mut jobs: Vec<Job<'_>> = Vec::new();
    for kind in cases["kinds"].as_array().unwrap() {
        let mut tokenizer = tokenizer.clone();
        for key in ["pre_tokenizer", "normalizer"] {
            tokenizer[key] = kind[key].clone();
        }
        let pre = kind["pre"].as_str().unwrap();
        let vocab = imported(n_tokens, &[("tokenizer.json", tokenizer.to_string().into_bytes())], Some(pre));
        jobs.push(Job { name: pre.to_owned(), kind, vocab, recorded: recorded.next().unwrap() });
    }
    for kind in cases["pieces"].as_array().unwrap() {
        let name = kind[0].as_str().unwrap().to_owned();
        let config = json!({"add_prefix_space": kind[1]}).to_string().into_bytes();
        let files = [("tokenizer.model", read(&format!("{name}.model"))), ("tokenizer_config.json", config)];
        let vocab = imported(1200, &files, None);
        jobs.push(Job { name, kind, vocab, recorded: recorded.next().unwrap() });
    }
    assert!(recorded.next().is_none());
    // What transformers writes of such models: no tokenizer.model.
    let pieces = ["llama", "gemma"].map(|name| (name, read(&format!("pieces/{name}.bin"))));
    for (name, recorded) in &pieces {
        let files = [("tokenizer.json", read(&format!("pieces/{name}.json")))];
        let vocab = imported(1200, &files, None);
        jobs.push(Job { name: format!("{name}, tokenizer.json"), kind: &Value::Null, vocab, recorded });
    }
    let mut faults = Vec::new();
    for Job { name, kind, vocab, recorded } in &jobs {
        let all = if soaks() { N } else { N_SHORT };
        let n = if SLOW.contains(&name.as_str()) { N_SLOW } else { all };
        let mut explained = 0;
        for (i, (text, wanted)) in strings.iter().zip(*recorded).enumerate().take(n) {
            let ids = vocab.tokenize(text, false, false).unwrap();
            if checksum(&ids) == *wanted {
                continue;
            }
            if known.explains(kind, i, text) {
                explained += 1;
                continue;
            }
            let piece = |&t: &i32| String::from_utf8_lossy(&vocab.piece(t, true).unwrap()).into_owned();
            faults.push(format!("{name}: {text:?}: {:?}", ids.iter().map(piece).collect::<Vec<_>>()));
        }
        println!("{name}: {explained} of {n} are known to be cut otherwise");
    }
    assert!(faults.is_empty(), "{} texts\n{}", faults.len(), faults[..faults.len().min(20)].join("\n"));
}
