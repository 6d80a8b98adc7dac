//! Importance matrices in llama.cpp's GGUF format (`tools/imatrix`): for each matrix the sum of the squares of its
//! inputs, column by column, and how many rows of input were counted. The format before it is read by [`legacy`].

use std::path::{Path, PathBuf};

use super::{key, legacy, KeyValue};
use crate::{sys, Result};
use gguf::{DType, File};

/// Largest mean square taken: far beyond what models have, and small enough that products of it stay finite in F32,
/// where the quantizers of the smallest types would abort.
pub(super) const MAX_VALUE: f32 = 1e12;
/// Endings of the two tensors of an entry.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// An importance matrix, read and checked.
#[derive(Debug, Clone)]
pub struct Imatrix {
    path: PathBuf,
    found: Found,
}

/// Contents of a file of either format.
#[derive(Debug, Clone)]
pub(super) struct Found {
    pub entries: Vec<(String, Vec<f32>)>,
    pub dataset: Option<String>,
    pub n_chunks: u32,
}

impl Imatrix {
    /// Reads a file as llama-imatrix writes it: GGUF, or the older `.dat`.
    ///
    /// # Errors
    /// Not such a file, or a matrix whose numbers make no sense.
    pub fn open(path: &Path) -> Result<Imatrix> {
        let found = if legacy::is_gguf(path)? { gguf(path)? } else { legacy::open(path)? };
        Ok(Imatrix { path: path.to_owned(), found })
    }

    /// The file it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mean square of each column of the input, by the name of the matrix; of experts one after another.
    pub fn entries(&self) -> &[(String, Vec<f32>)] {
        &self.found.entries
    }

    /// The keys that llama-quantize writes with a matrix of this name, ended by an empty one.
    pub(super) fn keys(&self) -> Vec<sys::llama_model_kv_override> {
        let path = self.path.to_string_lossy();
        let mut keys = vec![key("quantize.imatrix.file", KeyValue::Text(&path))];
        keys.extend(
            self.found.dataset.as_deref().map(|d| key("quantize.imatrix.dataset", KeyValue::Text(d))),
        );
        keys.push(key("quantize.imatrix.entries_count", KeyValue::Number(self.found.entries.len() as u32)));
        if self.found.n_chunks > 0 {
            keys.push(key("quantize.imatrix.chunks_count", KeyValue::Number(self.found.n_chunks)));
        }
        keys.push(key("", KeyValue::Number(0)));
        keys
    }
}

fn gguf(path: &Path) -> Result<Found> {
    let file = File::open(path)?;
    let kind = file.get_opt::<String>("general.type")?.unwrap_or_default();
    if kind != "imatrix" {
        return Err(file.error("general.type", format!("expected imatrix, found {kind:?}")).into());
    }
    let mut entries = Vec::new();
    for sums in file.tensors() {
        let Some(name) = sums.name.strip_suffix(SUMS) else {
            if sums.name.strip_suffix(COUNTS).is_none_or(|n| file.tensor(&format!("{n}{SUMS}")).is_none()) {
                let what = format!("expected pairs of NAME{SUMS} and NAME{COUNTS}");
                return Err(file.error(&sums.name, what).into());
            }
            continue;
        };
        let counts = file
            .tensor(&format!("{name}{COUNTS}"))
            .ok_or_else(|| file.error(&sums.name, format!("{name}{COUNTS} is missing")))?;
        let width = sums.shape[0] as usize;
        let n = sums.n_elements().checked_div(width).unwrap_or(0);
        if sums.dtype != DType::F32 || counts.dtype != DType::F32 || counts.n_elements() != n || n == 0 {
            let what = format!(
                "expected f32 and one count for each of {n} matrices, found {} and {} counts of {}",
                sums.dtype,
                counts.n_elements(),
                counts.dtype
            );
            return Err(file.error(&sums.name, what).into());
        }
        let (mut values, counts) = (file.floats(sums)?, file.floats(counts)?);
        for (row, &count) in values.chunks_mut(width).zip(&counts) {
            // As llama-quantize does: an expert that was never asked counts all columns alike.
            row.iter_mut().for_each(|v| *v = if count > 0.0 { *v / count } else { 1.0 });
        }
        if let Some(bad) = values.iter().chain(&counts).find(|v| !(0.0..=MAX_VALUE).contains(*v)) {
            let what = format!("expected numbers from 0 to {MAX_VALUE:e}, found {bad}");
            return Err(file.error(&sums.name, what).into());
        }
        entries.push((name.to_owned(), values));
    }
    if entries.is_empty() {
        return Err(file.error("tensors", "expected at least one pair, found none").into());
    }
    let dataset = file.get_opt::<Vec<String>>("imatrix.datasets")?.and_then(|d| d.into_iter().next());
    let n_chunks = file.get_opt::<u32>("imatrix.chunk_count")?.unwrap_or(0);
    Ok(Found { entries, dataset, n_chunks })
}
