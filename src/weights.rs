//! A model's tensors on the device, checked against those that the architecture asks for.
//!
//! Embeddings are read on the host, so no backend needs row lookup in every type.

use std::collections::{HashMap, HashSet};

use ggml::backend::Device;
use ggml::tensor::{Mapped, Store, StoreTensor, TensorDef};
use ggml::DType;
use llama::Token;

use crate::hparams::Hparams;
use crate::ids::TOKEN_EMBD;

/// A tensor that an architecture reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the file.
    pub name: String,
    /// Shape, `ne[0]` first.
    pub shape: Vec<usize>,
    /// True if a file must have it.
    pub required: bool,
}

/// Loaded tensors by name.
#[derive(Debug)]
pub struct Weights {
    tensors: HashMap<String, StoreTensor>,
    n_bytes: usize,
}

impl Weights {
    /// Checks every tensor against its spec and loads it: mapped on the CPU, uploaded elsewhere. The token
    /// embedding is left in the file, from where its rows are read, unless it is also the output matrix.
    ///
    /// # Errors
    /// A tensor that is missing, or of a shape or type that cannot be computed with, or that the architecture
    /// would leave out; too little memory.
    pub fn load(
        file: &gguf::File,
        hp: &Hparams,
        specs: &[TensorSpec],
        device: Device,
    ) -> Result<Weights, ggml::Error> {
        let tied = file.tensor("output.weight").is_none();
        let mut entries = Vec::new();
        for spec in specs {
            let Some(info) = file.tensor(&spec.name) else {
                if spec.required {
                    let what = format!("expected a tensor of shape {:?}, found none", spec.shape);
                    return Err(file.error(&spec.name, what).into());
                }
                continue;
            };
            let found: Vec<usize> = info.shape.iter().map(|&n| n as usize).collect();
            let trimmed = |s: &[usize]| s.iter().rposition(|&n| n != 1).map_or(0, |i| i + 1);
            if found[..trimmed(&found)] != spec.shape[..trimmed(&spec.shape)] {
                return Err(file
                    .error(&spec.name, format!("expected shape {:?}, found {found:?}", spec.shape))
                    .into());
            }
            // The biases of experts are rows of one tensor.
            let vector = spec.shape.len() == 1 || spec.name.ends_with(".bias");
            let computable = if vector { info.dtype == DType::F32 } else { info.dtype.can_dequantize() };
            if !computable {
                let wanted = if vector { "f32" } else { "a float or quantized type" };
                return Err(file
                    .error(&spec.name, format!("expected {wanted}, found {}", info.dtype.name()))
                    .into());
            }
            if spec.name == TOKEN_EMBD && !tied && !device.is_cpu() {
                continue;
            }
            let def = TensorDef::new(&spec.name, info.dtype, &spec.shape)?;
            let mapped = Mapped { file: file.shards()[info.shard].clone(), offset: info.offset };
            entries.push((def, mapped));
        }
        unused(file, hp, specs)?;
        let store = Store::from_mapped(device, entries)?;
        let tensors = store
            .defs()
            .iter()
            .enumerate()
            .map(|(index, def)| (def.name.clone(), StoreTensor { store: store.clone(), index }))
            .collect();
        Ok(Weights { tensors, n_bytes: store.n_bytes() })
    }

    /// The tensor of this name, if the file has it.
    pub fn get(&self, name: &str) -> Option<&StoreTensor> {
        self.tensors.get(name)
    }

    /// Bytes of all tensors.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }
}

/// Refuses tensors of layers and of the output that nothing would read: a model computed without one of its biases
/// is another model. Tables of angles, which old files have, say nothing that the metadata does not; layers that draft
/// further tokens change nothing in the others.
fn unused(file: &gguf::File, hp: &Hparams, specs: &[TensorSpec]) -> Result<(), ggml::Error> {
    let known: HashSet<&str> = specs.iter().map(|s| s.name.as_str()).collect();
    let drafts = |name: &str| {
        let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
        let layer = layer.and_then(|il| il.parse::<usize>().ok());
        layer.is_some_and(|il| (hp.n_layer..hp.n_layer + hp.n_draft).contains(&il))
    };
    let counts = |name: &str| {
        let computed = name.starts_with("blk.") || name.starts_with("output");
        computed && !name.contains("rot_embd") && !name.contains("rope_") && !drafts(name)
    };
    match file.tensors().iter().find(|t| counts(&t.name) && !known.contains(t.name.as_str())) {
        Some(t) => Err(file.error(&t.name, "expected no such tensor in this architecture").into()),
        None => Ok(()),
    }
}

/// Fills `out` with the embedding rows of tokens, F32 `[n_embd, T]`, read from the file.
pub fn embed(file: &gguf::File, hp: &Hparams, tokens: &[Token], out: &mut [f32]) -> Result<(), ggml::Error> {
    let info =
        file.tensor(TOKEN_EMBD).ok_or_else(|| file.error(TOKEN_EMBD, "expected a tensor, found none"))?;
    let row = info
        .dtype
        .row_bytes(hp.n_embd)
        .ok_or_else(|| file.error(TOKEN_EMBD, format!("rows of {} are not whole blocks", hp.n_embd)))?;
    let data = file.data(info);
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(hp.n_embd)) {
        let bytes =
            usize::try_from(token).ok().and_then(|t| data.get(t * row..(t + 1) * row)).ok_or_else(|| {
                ggml::Error::Argument(format!("token {token} is outside the vocabulary of {}", hp.n_vocab))
            })?;
        ggml::dtype::dequantize(info.dtype, bytes, out)?;
    }
    Ok(())
}

/// Fills `out` with the embedding rows of tokens, F32 `[n_embd, T]`, from a stored table, F32 `[n_embd,
/// n_vocab]`.
pub fn embed_stored(table: &StoreTensor, tokens: &[Token], out: &mut [f32]) -> Result<(), ggml::Error> {
    let n_embd = table.def().ne[0];
    let mut bytes = vec![0u8; n_embd * 4];
    for (&token, out) in tokens.iter().zip(out.chunks_exact_mut(n_embd)) {
        let row = usize::try_from(token).ok().and_then(|t| t.checked_mul(bytes.len()));
        let row =
            row.ok_or_else(|| ggml::Error::Argument(format!("token {token} is not in the vocabulary")))?;
        table.store.read(table.index, row, &mut bytes)?;
        ggml::dtype::dequantize(DType::F32, &bytes, out)?;
    }
    Ok(())
}
