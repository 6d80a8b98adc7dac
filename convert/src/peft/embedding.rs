//! Applies an adapter's low-rank pair or trained rows to an embedding. A LoRA file can hold neither for a
//! matrix that is looked up, so the import computes the new matrix from the model's own and writes it as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use gguf::{File, TensorInfo};
use ropewalk_core::adapter::target;
use ropewalk_core::ids::TOKEN_EMBD;
use ropewalk_import::{Modules, Rows, Safetensors, Stored};

use super::config::Config;
use super::{refuse, PREFIX};
use crate::merge::OUTPUT;
use crate::rows::{dequantize, zeros};
use crate::Result;

/// The key of the rows that are trained.
pub(super) const ROWS: &str = "trainable_token_indices";
/// Ends of names of tensors.
const A: &str = ".lora_embedding_A";
const B: &str = ".lora_embedding_B";
const VALUES: &str = ".token_adapter.trainable_tokens_delta";

/// A matrix that the LoRA file has as a whole.
pub(super) struct Changed<'a> {
    /// Name of the tensor in GGUF files.
    pub(super) tensor: &'static str,
    /// That of its first tensor in the folder.
    pub(super) from: &'a str,
    /// In GGUF's order.
    pub(super) shape: Vec<u64>,
    how: How<'a>,
}

enum How<'a> {
    /// `A` is rank x tokens, `B` is width x rank.
    Pair { a: &'a Stored, b: &'a Stored, factor: f32 },
    /// For tokens, their row of `values`, which are no differences.
    Rows { values: &'a Stored, of: BTreeMap<usize, usize> },
}

/// The module and the end of the name, if a tensor is part of such a change.
pub(super) fn part(name: &str) -> Option<(&str, &'static str)> {
    // Files of older versions name the adapter.
    let name = name.strip_suffix(".default").unwrap_or(name);
    [A, B, VALUES].into_iter().find_map(|end| Some((name.strip_suffix(end)?, end)))
}

pub(super) fn is_dropped(config: &Config, (module, end): (&str, &str)) -> bool {
    end != VALUES && !config.targets.has(module)
}

/// Finds the changes of a folder, and checks them against the model.
pub(super) fn read<'a>(
    tensors: &'a Safetensors,
    names: &Modules,
    config: &Config,
    base: &File,
) -> Result<Vec<Changed<'a>>> {
    let mut modules: BTreeMap<&str, BTreeMap<&str, &Stored>> = BTreeMap::new();
    for entry in tensors.tensors() {
        let found = entry.name.strip_prefix(PREFIX).and_then(part);
        if let Some((module, end)) = found.filter(|&found| !is_dropped(config, found)) {
            modules.entry(module).or_default().insert(end, entry);
        }
    }
    let mut changed: Vec<Changed<'a>> = Vec::new();
    for (module, parts) in modules {
        let Some(&first) = parts.values().next() else { continue };
        let bad = |what: String| refuse(tensors.path(), &first.name, what);
        let weight = names.tensor(module);
        let tensor = match weight.as_deref() {
            Some(TOKEN_EMBD) => TOKEN_EMBD,
            Some(OUTPUT) if parts.contains_key(VALUES) => OUTPUT,
            _ => return Err(bad(format!("{module} is not an embedding of {}", names.hparams().arch))),
        };
        let change = names.change(tensor);
        if change.rows != Rows::All || change.columns != Rows::All || change.one_more {
            return Err(bad(format!("the rows of {tensor} are in another order: merge it with PEFT")));
        }
        let own = base.tensor(target(base, tensor)).filter(|own| own.shape.len() == 2);
        let own = own.ok_or_else(|| {
            bad(format!("belongs to {tensor}, which {} does not have", base.path().display()))
        })?;
        let (width, n) = (own.shape[0], own.shape[1]);
        let fits = |entry: &Stored, expected: [u64; 2]| match entry.shape == expected {
            true => Ok(()),
            false => {
                let what = format!("expected {expected:?} for the model's {tensor}, found {:?}", entry.shape);
                Err(refuse(tensors.path(), &entry.name, what))
            }
        };
        let how = match (parts.get(A), parts.get(B), parts.get(VALUES)) {
            (Some(&a), Some(&b), None) => {
                let rank = a.shape[0];
                fits(a, [rank, n])?;
                fits(b, [width, rank])?;
                How::Pair { a, b, factor: config.scale(module, rank as usize) as f32 }
            }
            (None, None, Some(&values)) => {
                let indices = config.rows(module, n)?;
                fits(values, [indices.len() as u64, width])?;
                How::Rows { values, of: indices.into_iter().zip(0..).collect() }
            }
            (.., None) => return Err(bad("expected the other half of a pair, found none".into())),
            _ => return Err(bad(format!("expected a pair or rows of {module}, found both"))),
        };
        if let Some(other) = changed.iter().find(|other| other.tensor == tensor) {
            return Err(bad(format!("belongs to the same matrix as {}", other.from)));
        }
        changed.push(Changed { tensor, from: &first.name, shape: own.shape.clone(), how });
    }
    Ok(changed)
}

impl Changed<'_> {
    /// Returns true if an output that is the embedding follows it. Rows are tied wherever the model ties, pairs only if
    /// the config says so.
    pub(super) fn ties(&self, config: &Config) -> bool {
        matches!(self.how, How::Rows { .. }) || config.tied
    }

    pub(super) fn is_rows(&self) -> bool {
        matches!(self.how, How::Rows { .. })
    }

    pub(super) fn note(&self, base: &File) -> String {
        let what = if self.is_rows() { "rows that it replaces" } else { "pair" };
        let bytes = 4 * self.shape.iter().product::<u64>();
        format!(
            "{:?}: the LoRA file has {} of {} as a whole, {bytes} bytes, with the {what} in it.",
            self.from,
            self.tensor,
            base.path().display()
        )
    }

    /// Writes the new matrix in F32, row by row.
    pub(super) fn write(&self, tensors: &Safetensors, base: &File, out: &mut dyn Write) -> io::Result<()> {
        let other = io::Error::other::<crate::Error>;
        let own: &TensorInfo = base
            .tensor(target(base, self.tensor))
            .ok_or_else(|| other(base.error(self.tensor, "found none").into()))?;
        let width = own.shape[0] as usize;
        let n_bytes = own.dtype.row_bytes(width).ok_or_else(|| {
            other(
                base.error(self.tensor, format!("rows of {width} are not whole blocks of {}", own.dtype))
                    .into(),
            )
        })?;
        let read = |entry: &Stored| tensors.values(entry).map_err(io::Error::other);
        let (a, b) = match &self.how {
            How::Pair { a, b, .. } => (read(a)?, read(b)?),
            How::Rows { values, .. } => (read(values)?, Vec::new()),
        };
        let data = base.data(own);
        let mut row = zeros(width).map_err(io::Error::other)?;
        for token in 0..own.shape[1] as usize {
            let bytes = data.slice(token * n_bytes..(token + 1) * n_bytes);
            dequantize(own.dtype, bytes, &mut row).map_err(io::Error::other)?;
            match &self.how {
                How::Pair { a: shape, factor, .. } => {
                    let (rank, n) = (shape.shape[0] as usize, shape.shape[1] as usize);
                    for (x, b) in row.iter_mut().zip(b.chunks_exact(rank)) {
                        let sum: f32 = b.iter().enumerate().map(|(r, b)| b * a[r * n + token]).sum();
                        *x += factor * sum;
                    }
                }
                How::Rows { of, .. } => {
                    if let Some(i) = of.get(&token) {
                        row.copy_from_slice(&a[i * width..(i + 1) * width]);
                    }
                }
            }
            for x in &row {
                out.write_all(&x.to_le_bytes())?;
            }
        }
        Ok(())
    }
}

/// Checks the rows of one matrix: each token once.
pub(super) fn check(indices: &[u64], n: u64) -> std::result::Result<Vec<usize>, String> {
    let mut seen = BTreeSet::new();
    for &index in indices {
        if index >= n || !seen.insert(index) {
            return Err(format!("expected tokens below {n}, each once, found {index}"));
        }
    }
    Ok(indices.iter().map(|&index| index as usize).collect())
}
