//! Adapter files, written: so that llama.cpp loads them, too.
//!
//! What stock llama.cpp takes of them: every pair, at the scale we use. It skips tensors whose names end in `_norm.weight`
//! (with trained norms it runs another model than ours), and refuses a file with any other whole tensor (trained embeddings or
//! output), and one with a pair beside `output.weight` for a model whose output is its embedding.

use std::path::Path;

use gguf::{float, DType, Error, Result, Writer};

use super::file::{Keys, PairInfo};
use crate::hparams::keys;
use crate::ids::TOKEN_EMBD;

/// A pair to be written.
#[derive(Debug, Clone)]
pub struct NewPair<'a> {
    /// The weight, such as `blk.0.attn_q.weight`. The head of a model with tied embeddings goes by `output.weight`;
    /// `token_embd.weight`, which the graph calls it, is written so.
    pub weight: String,
    /// Width of what goes in.
    pub n_in: usize,
    /// Width of what comes out.
    pub n_out: usize,
    /// `[n_in, rank]`.
    pub a: &'a [f32],
    /// `[rank, n_out]`.
    pub b: &'a [f32],
}

/// A tensor to take the place of the model's.
#[derive(Debug, Clone)]
pub struct NewTensor<'a> {
    /// The model's tensor.
    pub name: String,
    /// Shape, `ne[0]` first.
    pub shape: Vec<usize>,
    /// Its values.
    pub values: &'a [f32],
}

/// An adapter to be written.
#[derive(Debug, Clone)]
pub struct AdapterFile<'a> {
    /// `general.architecture` of the model.
    pub arch: &'a str,
    /// Rank of every pair.
    pub rank: usize,
    /// Alpha as the user gave it: the scale is `alpha / rank`, under [`Keys::rslora`] `alpha / sqrt(rank)`.
    pub alpha: f32,
    /// Low-rank pairs.
    pub pairs: Vec<NewPair<'a>>,
    /// Tensors trained whole: norms, embeddings.
    pub whole: Vec<NewTensor<'a>>,
    /// What is to be said of its making.
    pub keys: Keys,
    /// F32, or F16 for pairs and matrices (vectors stay F32).
    pub dtype: DType,
}

/// Writes an adapter, atomically; gives its size in bytes. rsLoRA is written as the alpha that gives its scale when divided by
/// the rank, `alpha * sqrt(rank)`, because that is all llama.cpp does.
///
/// # Errors
/// A rank of 0 or beyond a weight's dimensions, an alpha of 0 (which readers take for a scale of 1) or not finite, lengths
/// that do not fit, values the type cannot hold (not finite, or too large for F16), nothing to write, the disk.
pub fn write(path: &Path, adapter: &AdapterFile<'_>) -> Result<u64> {
    let bad = |what: String| Err(Error::Argument(format!("{}: {what}", path.display())));
    let AdapterFile { rank, dtype, .. } = *adapter;
    if !matches!(dtype, DType::F32 | DType::F16) {
        return bad(format!("type: expected f32 or f16, found {dtype}"));
    }
    if adapter.pairs.is_empty() && adapter.whole.is_empty() {
        return bad("tensors: expected at least one, found none".into());
    }
    let factor = if adapter.keys.rslora { (rank as f32).sqrt() } else { 1.0 };
    let alpha = adapter.alpha * factor;
    if !alpha.is_finite() || alpha == 0.0 {
        return bad(format!("alpha: expected a finite number other than 0, found {}", adapter.alpha));
    }
    let mut writer = Writer::new();
    set_keys(&mut writer, adapter, alpha)?;
    for p in &adapter.pairs {
        let weight = if p.weight == TOKEN_EMBD { "output.weight" } else { &p.weight };
        let info = PairInfo { weight: weight.to_owned(), n_in: p.n_in, rank, n_out: p.n_out };
        let most = p.n_in.min(p.n_out);
        if rank == 0 || rank > most {
            return bad(format!("{weight}: expected a rank of 1 to {most}, found {rank}"));
        }
        add(&mut writer, path, &info.name_a(), dtype, &[p.n_in, rank], p.a)?;
        add(&mut writer, path, &info.name_b(), dtype, &[rank, p.n_out], p.b)?;
    }
    for t in &adapter.whole {
        let dtype = if t.shape.len() < 2 { DType::F32 } else { dtype };
        add(&mut writer, path, &t.name, dtype, &t.shape, t.values)?;
    }
    writer.write(path)
}

fn set_keys(writer: &mut Writer<'_>, adapter: &AdapterFile<'_>, alpha: f32) -> Result<()> {
    writer.set("general.type", "adapter");
    writer.set("general.architecture", adapter.arch);
    writer.set("adapter.type", "lora");
    writer.set(keys::LORA_ALPHA, alpha);
    let Keys { rope, n_ctx, base, steps, data, rslora } = &adapter.keys;
    writer.set(keys::LORA_RSLORA, *rslora);
    if let Some(spec) = rope {
        writer.set(keys::LORA_ROPE, spec.to_string().as_str());
    }
    if let Some(n) = *n_ctx {
        let too_large = |_| Error::Argument(format!("{}: {n} is too large", keys::LORA_N_CTX));
        writer.set(keys::LORA_N_CTX, u32::try_from(n).map_err(too_large)?);
    }
    if let Some(print) = base {
        writer.set(keys::LORA_BASE, print.as_str());
    }
    if let Some(n) = *steps {
        writer.set(keys::LORA_STEPS, n);
    }
    if let Some(text) = data {
        writer.set(keys::LORA_DATA, text.as_str());
    }
    writer.set(keys::VERSION, env!("CARGO_PKG_VERSION"));
    Ok(())
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
        values.chunks(1 << 16).try_for_each(|piece| {
            let other = || std::io::Error::other(format!("{dtype} is not a float type"));
            out.write_all(&float::encode(dtype, piece).ok_or_else(other)?)
        })
    };
    writer.tensor(name, dtype, &ne, Box::new(data))?;
    Ok(())
}
