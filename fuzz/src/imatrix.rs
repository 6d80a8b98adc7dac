//! Importance matrices, as libllama's quantizer is given them.

use convert::{convert, Mixture, Options};
use ropewalk::control::Control;
use ropewalk::gguf::{File, Writer};
use ropewalk::DType;

use crate::{accepted, base, file, scratch};

/// Quantizes a model by the matrix.
pub fn run(bytes: &[u8]) -> bool {
    let imatrix = Some(file("imatrix.gguf", bytes));
    let mixture = Mixture::default().name("iq4_nl".into()).imatrix(imatrix);
    let options = Options::default().mixture(Some(mixture));
    accepted(convert(base().1, scratch("weighed.gguf"), &options, &Control::default()))
}

/// One for two of the model's matrices.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut writer = Writer::new();
    writer.set("general.type", "imatrix").set("imatrix.chunk_count", 2u32);
    let base = File::open(base().1).unwrap();
    for t in base.tensors().iter().filter(|t| t.name.contains("ffn_")).filter(|t| t.shape.len() > 1).take(2) {
        let sums: Vec<u8> = (0..t.shape[0]).flat_map(|i| (i as f32 + 0.5).to_le_bytes()).collect();
        writer.tensor_bytes(&format!("{}.in_sum2", t.name), DType::F32, &[t.shape[0], 1], sums).unwrap();
        let counts = 2f32.to_le_bytes();
        writer.tensor_bytes(&format!("{}.counts", t.name), DType::F32, &[1, 1], counts).unwrap();
    }
    let path = scratch("seed-imatrix.gguf");
    let _ = std::fs::remove_file(&path);
    writer.write(&path).unwrap();
    vec![std::fs::read(path).unwrap(), older(&base)]
}

/// The same in the older format.
fn older(base: &File) -> Vec<u8> {
    let number = |n: usize| (n as i32).to_le_bytes();
    let of = base.tensors().iter().filter(|t| t.name.contains("ffn_")).filter(|t| t.shape.len() > 1).take(2);
    let mut out = number(2).to_vec();
    for t in of {
        out.extend(number(t.name.len()));
        out.extend(t.name.as_bytes());
        out.extend(number(2));
        out.extend(number(t.shape[0] as usize));
        out.extend((0..t.shape[0]).flat_map(|i| (i as f32 + 0.5).to_le_bytes()));
    }
    out.extend(number(2));
    out.extend(number(8));
    out.extend(b"text.txt");
    out
}
