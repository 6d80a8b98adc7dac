//! PEFT's folders: what is accepted is an adapter that our own reader accepts.

use convert::peft::{from_peft, to_peft};
use ropewalk::adapter::{self, AdapterFile, AdapterMeta, AdapterReader, NewPair};
use ropewalk::DType;

use crate::{accepted, base, scratch};

/// The configuration, a zero byte, and the file of tensors.
pub fn run(bytes: &[u8]) -> bool {
    let cut = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let folder = scratch(&format!("{:?}-peft", std::thread::current().id()));
    std::fs::create_dir_all(&folder).unwrap();
    // New files: those before may still be mapped.
    for (name, bytes) in [
        ("adapter_config.json", &bytes[..cut]),
        ("adapter_model.safetensors", bytes.get(cut + 1..).unwrap_or_default()),
    ] {
        let path = folder.join(name);
        let _ = std::fs::remove_file(&path);
        std::fs::write(&path, bytes).unwrap();
    }
    let output = scratch("from-peft.gguf");
    let done = from_peft(&folder, base().1, &output);
    if done.is_ok() {
        AdapterReader::open(&output).unwrap();
    }
    accepted(done)
}

/// An adapter of two pairs.
pub fn seeds() -> Vec<Vec<u8>> {
    let (path, folder) = (scratch("seed-peft.gguf"), scratch("seed-peft"));
    let values = [0.25f32; 64];
    let pair = |name: &str| NewPair { weight: name.into(), n_in: 32, n_out: 32, a: &values, b: &values };
    let file = AdapterFile {
        arch: "llama",
        rank: 2,
        alpha: 4.0,
        pairs: vec![pair("blk.0.attn_q.weight"), pair("blk.0.attn_output.weight")],
        modules_to_save: Vec::new(),
        meta: AdapterMeta::default(),
        dtype: DType::F32,
    };
    adapter::write(&path, &file).unwrap();
    to_peft(&path, base().1, &folder).unwrap();
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    vec![[read("adapter_config.json"), vec![0], read("adapter_model.safetensors")].concat()]
}
