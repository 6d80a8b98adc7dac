//! Adapters: what is accepted has values of the shapes it declares.

use ropewalk::adapter::{self, AdapterMeta, AdapterReader};

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
    let base = adapter::fingerprint(base().0.file());
    let meta = AdapterMeta { base: Some(base), ..AdapterMeta::default() };
    vec![std::fs::read(crate::adapter("seed-adapter.gguf", meta)).unwrap()]
}
