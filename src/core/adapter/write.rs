//! Writes adapter files that llama.cpp can also load.
//!
//! Stock llama.cpp applies every pair at the scale that we use. It ignores tensors whose names end in
//! `_norm.weight`, so with trained norms its model differs from ours. It refuses a file that replaces any
//! other tensor (trained embeddings or output) or has a network of CLEX, and one with a pair for `output.weight` if the model's output
//! matrix is its embedding.

use std::path::Path;

use gguf::{float, DType, Error, Output, Result, Writer};

use super::file::PairInfo;
use super::AdapterMeta;
use crate::hparams::keys;
use crate::ids::TOKEN_EMBD;

/// A low-rank pair to be written.
#[derive(Debug, Clone)]
pub struct NewPair<'a> {
    /// Name of the weight, such as `blk.0.attn_q.weight`. The output matrix of a model with tied embeddings
    /// is `output.weight`; `token_embd.weight` is written under that name.
    pub weight: String,
    /// Width of the input.
    pub n_in: usize,
    /// Width of the output.
    pub n_out: usize,
    /// `[n_in, rank]`.
    pub a: &'a [f32],
    /// `[rank, n_out]`.
    pub b: &'a [f32],
}

/// A tensor that replaces one of the model.
#[derive(Debug, Clone)]
pub struct NewTensor<'a> {
    /// Name of the model's tensor.
    pub name: String,
    /// Shape, `ne[0]` first.
    pub shape: Vec<usize>,
    /// Values, `ne[0]` fastest.
    pub values: &'a [f32],
}

/// An adapter to be written.
#[derive(Debug, Clone)]
pub struct AdapterFile<'a> {
    /// `general.architecture` of the model.
    pub arch: &'a str,
    /// Rank of every pair.
    pub rank: usize,
    /// Alpha as the user gave it: the factor of a pair is `alpha / rank`, with [`AdapterMeta::rslora`]
    /// `alpha / sqrt(rank)`.
    pub alpha: f32,
    /// Low-rank pairs.
    pub pairs: Vec<NewPair<'a>>,
    /// Norms and embeddings that replace those of the model, and the matrices of CLEX.
    pub modules_to_save: Vec<NewTensor<'a>>,
    /// How it was trained.
    pub meta: AdapterMeta,
    /// F32, or F16 for pairs and matrices (vectors stay F32).
    pub dtype: DType,
}

/// Writes an adapter atomically and returns its size in bytes. llama.cpp only divides alpha by the rank, so
/// for rsLoRA the alpha written is `alpha * sqrt(rank)`.
///
/// # Errors
/// A rank of 0; an alpha that is 0 (readers take it for no factor) or not
/// finite; values that do not fill the shape or that the type cannot hold (not finite, or too large for F16);
/// no tensors; errors of the disk.
pub fn write(path: impl Into<Output>, adapter: &AdapterFile<'_>) -> Result<u64> {
    let output = path.into();
    let path = output.path();
    let bad = |what: String| Err(Error::Argument(format!("{}: {what}", path.display())));
    let AdapterFile { rank, dtype, .. } = *adapter;
    if !matches!(dtype, DType::F32 | DType::F16) {
        return bad(format!("type: expected f32 or f16, found {dtype}"));
    }
    if adapter.pairs.is_empty() && adapter.modules_to_save.is_empty() {
        return bad("tensors: expected at least one, found none".into());
    }
    let factor = if adapter.meta.rslora { (rank as f32).sqrt() } else { 1.0 };
    let alpha = adapter.alpha * factor;
    if !alpha.is_finite() || alpha == 0.0 {
        return bad(format!("alpha: expected a finite number other than 0, found {}", adapter.alpha));
    }
    let mut writer = Writer::new();
    writer.set("general.type", "adapter");
    writer.set("general.architecture", adapter.arch);
    writer.set("adapter.type", "lora");
    writer.set(keys::LORA_ALPHA, alpha);
    adapter.meta.set(&mut writer)?;
    writer.set(keys::VERSION, env!("CARGO_PKG_VERSION"));
    for p in &adapter.pairs {
        let weight = if p.weight == TOKEN_EMBD { "output.weight" } else { &p.weight };
        let info = PairInfo { weight: weight.to_owned(), n_in: p.n_in, rank, n_out: p.n_out };
        if rank == 0 {
            return bad(format!("{weight}: expected a rank of at least 1, found 0"));
        }
        add(&mut writer, path, &info.name_a(), dtype, &[p.n_in, rank], p.a)?;
        add(&mut writer, path, &info.name_b(), dtype, &[rank, p.n_out], p.b)?;
    }
    for t in &adapter.modules_to_save {
        let dtype = if t.shape.len() < 2 { DType::F32 } else { dtype };
        add(&mut writer, path, &t.name, dtype, &t.shape, t.values)?;
    }
    writer.write(output)
}

fn add<'a>(
    writer: &mut Writer<'a>,
    path: &Path,
    name: &str,
    dtype: DType,
    shape: &[usize],
    values: &'a [f32],
) -> Result<()> {
    let bad = |what: String| Err(Error::Argument(format!("{}: {name}: {what}", path.display())));
    let expected = shape.iter().try_fold(1usize, |n, &m| n.checked_mul(m));
    if expected != Some(values.len()) || values.is_empty() {
        return bad(format!("expected the values of {shape:?}, found {}", values.len()));
    }
    let limit = dtype.max_abs();
    if let Some(i) = values.iter().position(|x| !x.is_finite() || x.abs() > limit) {
        return bad(format!("expected finite values up to {limit} for {dtype}, found {} at {i}", values[i]));
    }
    let ne: Vec<u64> = shape.iter().map(|&n| n as u64).collect();
    let data = move |out: &mut dyn std::io::Write| {
        values
            .chunks(1 << 16)
            .try_for_each(|chunk| out.write_all(&float::encode(dtype, chunk).map_err(std::io::Error::other)?))
    };
    writer.tensor(name, dtype, &ne, Box::new(data))?;
    Ok(())
}
