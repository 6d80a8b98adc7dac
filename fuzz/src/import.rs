//! Model folders of Hugging Face: one file of a sound folder is replaced.

use std::path::{Path, PathBuf};

use convert::{convert, Error, Options, Tokenizing};
use ropewalk::control::Control;
use ropewalk::model::{Model, ModelParams};
use ropewalk::DType;

use crate::{accepted, replace, scratch};

/// Recorded checkpoints, the tokenizers they go with, and the files of both that are replaced.
const FOLDERS: &[(&str, &str, &[&str])] = &[
    (
        "llama",
        "bpe-template",
        &[
            "config.json",
            "model.safetensors.index.json",
            "model-00001-of-00003.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        ],
    ),
    ("qwen2", "bpe", &["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]),
    ("llama-linear", "byte-fallback", &["config.json", "tokenizer.json", "model.safetensors"]),
    ("gemma2", "sentencepiece-gemma", &["config.json", "tokenizer.model", "added_tokens.json"]),
    ("phi3", "sentencepiece", &["config.json", "tokenizer_config.json"]),
    ("qwen35moe", "bpe", &["config.json"]),
    ("qwen3moe", "bpe", &["config.json", "model-00002-of-00002.safetensors"]),
    ("cohere2", "bpe", &["config.json"]),
    ("gemma3", "sentencepiece-gemma", &["config.json"]),
    ("gptneox", "bpe", &["config.json"]),
    ("gpt-oss", "bpe", &["config.json", "model.safetensors"]),
    ("granite", "bpe", &["config.json"]),
    ("ministral3", "bpe-template", &["config.json"]),
    ("olmo2", "bpe", &["config.json"]),
    ("phi2", "bpe", &["config.json"]),
    ("phi4", "bpe-gpt2", &["config.json"]),
    ("smollm3", "bpe-template", &["config.json"]),
];

fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../src/import/tests/checkpoints")
}

/// Every folder with every file of it that is replaced.
fn all() -> impl Iterator<Item = ((&'static str, &'static str), &'static str)> {
    FOLDERS.iter().flat_map(|(name, tokenizer, files)| files.iter().map(|file| ((*name, *tokenizer), *file)))
}

/// A folder of this thread with the files of a checkpoint and of a tokenizer.
fn folder(name: &str, tokenizer: &str) -> PathBuf {
    // libllama takes the name of a model, which the folder's becomes, for more than it is.
    let n = FOLDERS.iter().position(|f| f.0 == name).unwrap_or(0);
    let path = scratch(&format!("{:?}-import", std::thread::current().id())).join(format!("checkpoint-{n}"));
    if !path.is_dir() {
        std::fs::create_dir_all(&path).unwrap();
        for from in [recorded().join(name), recorded().join("tokenizers").join(tokenizer)] {
            for file in std::fs::read_dir(from).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), path.join(file.file_name())).unwrap();
            }
        }
    }
    path
}

/// The first byte chooses folder and file, the others are the file. What is imported is a GGUF file; libllama may
/// refuse the vocabulary. A tokenizer that has to be run is accepted before that: who runs it is another crate, in a
/// process that it may end.
pub fn run(bytes: &[u8]) -> bool {
    let Some((&first, bytes)) = bytes.split_first() else { return false };
    let all: Vec<_> = all().collect();
    let ((name, tokenizer), file) = all[usize::from(first) % all.len()];
    let folder = folder(name, tokenizer);
    let path = folder.join(file);
    let sound = std::fs::read(&path).unwrap();
    replace(&path, bytes);
    let output = scratch(&format!("{:?}-imported.gguf", std::thread::current().id()));
    let _ = std::fs::remove_file(&output);
    let pre = tokenizer.starts_with("bpe").then(|| "gpt-2".to_owned());
    let tokenizing = (file != "tokenizer.json").then_some(Tokenizing::Trusted);
    let options = Options::default().dtype(Some(DType::F16)).pre(pre).tokenizing(tokenizing);
    let done = convert(&folder, &output, &options, &Control::default());
    replace(&path, &sound);
    let runs = matches!(&done, Err(Error::Argument(what)) if what.starts_with("tokenizing: "));
    let done = accepted(done);
    assert_eq!(done, output.exists(), "a file without success, or the other way about");
    runs || done && {
        ropewalk::gguf::File::open(&output).unwrap();
        accepted(Model::load(&output, &ModelParams::cpu()))
    }
}

/// Each of the files as it is.
pub fn seeds() -> Vec<Vec<u8>> {
    let read = |(i, ((name, tokenizer), file)): (usize, ((&str, &str), &str))| {
        let bytes = std::fs::read(folder(name, tokenizer).join(file)).unwrap();
        [&[i as u8], &bytes[..]].concat()
    };
    all().enumerate().map(read).collect()
}
