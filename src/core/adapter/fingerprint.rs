//! A fingerprint of a model file that is quick to compute: samples of the tensors are hashed.

use std::convert::Infallible;

use sha2::{Digest, Sha256};

/// Places of a tensor that are sampled, and bytes at each.
const N_SAMPLES: usize = 8;
const SAMPLE: usize = 64;

/// SHA-256, in hex, of every tensor's name, type and shape and of samples of its bytes, in the order of
/// names. Metadata and factor tensors of rope (`rope_*`) do not count, so that a file and what `convert
/// --rope` makes of it have the same.
pub fn fingerprint(file: &gguf::File) -> String {
    let mut tensors: Vec<_> = file.tensors().iter().filter(|t| !t.name.starts_with("rope_")).collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut hash = Sha256::new();
    for t in tensors {
        hash.update((t.name.len() as u64).to_le_bytes());
        hash.update(&t.name);
        hash.update(t.dtype.raw().to_le_bytes());
        hash.update((t.shape.len() as u64).to_le_bytes());
        t.shape.iter().for_each(|n| hash.update(n.to_le_bytes()));
        let data = file.data(t);
        if data.len() <= N_SAMPLES * SAMPLE {
            let mut all = [0; N_SAMPLES * SAMPLE];
            data.copy_to(&mut all[..data.len()]);
            hash.update(&all[..data.len()]);
            continue;
        }
        for i in 0..N_SAMPLES {
            let at = (data.len() - SAMPLE) / (N_SAMPLES - 1) * i;
            let mut sample = [0; SAMPLE];
            data.slice(at..at + SAMPLE).copy_to(&mut sample);
            hash.update(sample);
        }
    }
    format!("{:x}", hash.finalize())
}

/// SHA-256, in hex, of what answers depend on and [`fingerprint`] leaves out: the metadata of the architecture, the tokenizer,
/// and conversions, and the factor tensors of rope. Names and authors do not count.
pub fn metadata_fingerprint(file: &gguf::File) -> String {
    let other = ["general.", "quantize.", "split."];
    let mut pairs: Vec<_> =
        file.metadata().iter().filter(|(key, _)| !other.iter().any(|start| key.starts_with(start))).collect();
    pairs.sort_by(|a, b| a.0.cmp(&b.0));
    let mut hash = Sha256::new();
    pairs.iter().for_each(|(key, value)| hash.update(format!("{key}={value:?}\n")));
    let mut factors: Vec<_> = file.tensors().iter().filter(|t| t.name.starts_with("rope_")).collect();
    factors.sort_by(|a, b| a.name.cmp(&b.name));
    for t in factors {
        hash.update(&t.name);
        let Ok(()) = file.data(t).each(|bytes| {
            hash.update(bytes);
            Ok::<_, Infallible>(())
        });
    }
    format!("{:x}", hash.finalize())
}
