//! Adapters: what is accepted has values of the shapes it declares.

use ropewalk::adapter::{self, AdapterFile, AdapterMeta, AdapterReader, NewPair};
use ropewalk::gguf::File;
use ropewalk::DType;

use crate::{accepted, base, file};

/// Opens the adapter, compares it with a model, reads its values.
pub fn run(bytes: &[u8]) -> bool {
    accepted(read(&file("adapter.gguf", bytes)))
}

fn read(path: &std::path::Path) -> ropewalk::model::Result<()> {
    let reader = AdapterReader::open(path)?;
    let model = base().0;
    reader.check(model.file(), &adapter::fingerprint(model.file()), true)?;
    for pair in reader.pairs() {
        let a = reader.values(&pair.name_a(), ggml::dtype::dequantize_tensor)?;
        let b = reader.values(&pair.name_b(), ggml::dtype::dequantize_tensor)?;
        assert_eq!((a.len(), b.len()), (pair.n_in * pair.rank, pair.rank * pair.n_out));
        reader.pair_scale(pair, 1.0)?;
    }
    for module in reader.modules_to_save() {
        reader.module_values(module, 0.5, model.file(), ggml::dtype::dequantize_tensor)?;
    }
    Ok(())
}

/// An adapter of two pairs.
pub fn seeds() -> Vec<Vec<u8>> {
    let base = File::open(base().1).unwrap();
    let path = crate::scratch("seed-adapter.gguf");
    let values = [0.25f32; 64];
    let pair = |name: &str| NewPair { weight: name.into(), n_in: 32, n_out: 32, a: &values, b: &values };
    let file = AdapterFile {
        arch: "llama",
        rank: 2,
        alpha: 4.0,
        pairs: vec![pair("blk.0.attn_q.weight"), pair("blk.0.attn_output.weight")],
        modules_to_save: Vec::new(),
        meta: AdapterMeta { base: Some(adapter::fingerprint(&base)), ..AdapterMeta::default() },
        dtype: DType::F32,
    };
    adapter::write(&path, &file).unwrap();
    vec![std::fs::read(path).unwrap()]
}
