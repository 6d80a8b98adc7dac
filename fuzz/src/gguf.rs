//! GGUF: bytes are refused in one short line, or describe tensors that lie inside them and apart from each other.

use crate::{accepted, model_bytes, small};
use ropewalk::DType;

/// Parses the header.
pub fn run(bytes: &[u8]) -> bool {
    let parsed = gguf::parse(bytes);
    assert!(parsed.as_ref().err().is_none_or(|defect| defect.to_string().len() < 1000));
    accepted(parsed.map(|header| {
        let mut ends = Vec::new();
        for t in &header.tensors {
            assert!(t.offset.is_multiple_of(header.alignment) && t.offset + t.n_bytes <= bytes.len());
            let row = t.dtype.row_bytes(t.shape[0] as usize).unwrap();
            assert_eq!(t.n_bytes, row * t.shape[1..].iter().product::<u64>() as usize);
            ends.push((t.offset, t.offset + t.n_bytes));
        }
        ends.sort_unstable();
        assert!(ends.windows(2).all(|two| two[0].1 <= two[1].0), "tensors overlap");
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
