//! The default model: its metadata and tensors are read, and copying it gives the same bytes.

use crate::fetched::default_model;
use gguf::{DType, File, Writer};

#[test]
fn opens_and_counts() {
    let file = File::open(&default_model()).unwrap();
    assert_eq!(file.version(), 3);
    assert_eq!(file.tensors().len(), 272);
    assert_eq!(file.get::<String>("general.architecture").unwrap(), "llama");
    assert_eq!(file.get::<u32>("llama.block_count").unwrap(), 30);
    assert_eq!(file.get::<usize>("llama.attention.head_count_kv").unwrap(), 3);
    assert_eq!(file.get::<Vec<Vec<u8>>>("tokenizer.ggml.tokens").unwrap().len(), 49152);
    let embd = file.tensor("token_embd.weight").unwrap();
    assert_eq!(embd.shape, [576, 49152]);
    let total: usize = file.tensors().iter().map(|t| t.n_elements()).sum();
    assert_eq!(total, 134_515_008);
    let norm = file.tensor("output_norm.weight").unwrap();
    assert_eq!(norm.dtype, DType::F32);
    let values = file.floats(norm).unwrap();
    assert!(values.len() == 576 && values.iter().all(|v| v.is_finite() && v.abs() < 100.0));
}

#[test]
fn copying_gives_the_same_file() {
    let path = default_model();
    let file = File::open(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let copy = folder.path().join("copy.gguf");
    let mut writer = Writer::with_metadata_of(&file);
    for t in file.tensors() {
        writer.copy_tensor(&file, t).unwrap();
    }
    let n = writer.write(&copy).unwrap();
    assert_eq!(n, std::fs::metadata(&copy).unwrap().len());
    assert!(std::fs::read(&copy).unwrap() == std::fs::read(&path).unwrap(), "the copy differs");
    assert!(!files::same_file(&path, &copy).unwrap());
}
