//! Adapters: what is accepted has values of the shapes it declares.

use ropewalk::adapter::{self, AdapterFile, AdapterMeta, AdapterReader, NewTensor};
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
    if let Some(net) = reader.clex_net(0.5, ggml::dtype::dequantize_tensor)? {
        assert_eq!((net.up().len(), net.down().len()), (net.n_pairs() * net.n_hidden(), net.up().len()));
    }
    Ok(())
}

/// An adapter of two pairs, with and without a network of CLEX.
pub fn seeds() -> Vec<Vec<u8>> {
    let base = adapter::fingerprint(base().0.file());
    let meta = AdapterMeta { base: Some(base), ..AdapterMeta::default() };
    let pairs = std::fs::read(crate::adapter("seed-adapter.gguf", meta.clone())).unwrap();
    let spec = "clex:max-factor=4,param-factor=2,step=0.1,act=tanh,log-scale=false,original=64";
    let values = [0.25f32; 64];
    let matrix =
        |name: &str, shape: [usize; 2]| NewTensor { name: name.into(), shape: shape.into(), values: &values };
    let clex = AdapterFile {
        arch: "llama",
        rank: 1,
        alpha: 1.0,
        pairs: Vec::new(),
        modules_to_save: vec![matrix("clex.up.weight", [4, 16]), matrix("clex.down.weight", [16, 4])],
        meta: AdapterMeta { rope: Some(spec.parse().unwrap()), ..meta },
        dtype: DType::F32,
    };
    let path = crate::scratch("seed-clex.gguf");
    adapter::write(&path, &clex).unwrap();
    vec![pairs, std::fs::read(path).unwrap()]
}
