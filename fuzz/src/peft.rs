//! PEFT's folders: what is accepted is an adapter that our own reader accepts.

use convert::peft::{from_peft, to_peft};
use ropewalk::adapter::{AdapterMeta, AdapterReader};
use ropewalk::control::Control;

use crate::{accepted, adapter, base, replace, scratch};

/// The configuration, a zero byte, and the file of tensors.
pub fn run(bytes: &[u8]) -> bool {
    let cut = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    let folder = scratch(&format!("{:?}-peft", std::thread::current().id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (name, bytes) in [
        ("adapter_config.json", &bytes[..cut]),
        ("adapter_model.safetensors", bytes.get(cut + 1..).unwrap_or_default()),
    ] {
        replace(&folder.join(name), bytes);
    }
    let output = scratch("from-peft.gguf");
    let done = from_peft(&folder, base().1, &output, &Control::default());
    if done.is_ok() {
        AdapterReader::open(&output).unwrap();
    }
    accepted(done)
}

/// An adapter of two pairs.
pub fn seeds() -> Vec<Vec<u8>> {
    let folder = scratch("seed-peft");
    to_peft(adapter("seed-peft.gguf", AdapterMeta::default()), base().1, &folder, None, &Control::default())
        .unwrap();
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    vec![[read("adapter_config.json"), vec![0], read("adapter_model.safetensors")].concat()]
}
