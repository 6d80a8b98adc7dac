//! GGUF: bytes are refused in one line, or describe tensors that lie inside them.

use crate::{accepted, model_bytes, small};
use ropewalk::DType;

/// Parses the header.
pub fn run(bytes: &[u8]) -> bool {
    accepted(gguf::parse(bytes).map(|header| {
        assert!(header.tensors.iter().all(|t| t.offset + t.n_bytes <= bytes.len()));
    }))
}

/// Small models.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![
        model_bytes(&small("llama-tiny"), DType::Q8_0),
        model_bytes(&small("qwen3-tiny"), DType::F32),
        gguf_of_every_value(),
    ]
}

/// A file without tensors, with a value of every type.
fn gguf_of_every_value() -> Vec<u8> {
    let path = crate::scratch("values.gguf");
    let _ = std::fs::remove_file(&path);
    let mut w = gguf::Writer::new();
    use gguf::Value;
    w.set("a", Value::U8(1)).set("b", Value::I8(-1)).set("c", Value::U16(1)).set("d", Value::I16(-1));
    w.set("e", 1u32).set("f", 1f32).set("g", 1u64).set("h", true).set("i", "text");
    w.set("j", vec![1e4f32, 2e4]).set("k", vec![1i32, -1]).set("l", vec![true, false]);
    w.write(&path).unwrap();
    std::fs::read(path).unwrap()
}
