//! Tensors of a safetensors file: its only reader in this crate.

use std::path::{Path, PathBuf};

use files::{Map, Unchanging};
use gguf::{float, DType};
use safetensors::{Dtype, SafeTensors};

use super::refuse;
use crate::{Error, Result};

/// An open file whose header was checked: names are unique, and each tensor's bytes lie in it and fill its shape.
pub(super) struct Tensors {
    path: PathBuf,
    map: Map,
    entries: Vec<Entry>,
    metadata: Vec<(String, String)>,
}

/// A tensor.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: String,
    dtype: DType,
    /// Slowest dimension first.
    pub(super) shape: Vec<usize>,
    at: std::ops::Range<usize>,
}

impl Tensors {
    pub(super) fn open(path: &Path) -> Result<Tensors> {
        let map = Map::open(path, Unchanging::while_mapped())?;
        let bad = |e: safetensors::SafeTensorError| {
            let why = e.to_string().replace(char::is_control, " ");
            Error::Invalid(format!("{}: not a safetensors file: {why}", path.display()))
        };
        let mut entries = Vec::new();
        let (_, header) = SafeTensors::read_metadata(&map).map_err(bad)?;
        let start = map.as_ptr() as usize;
        for (name, view) in SafeTensors::deserialize(&map).map_err(bad)?.iter() {
            let dtype = match view.dtype() {
                Dtype::F32 => DType::F32,
                Dtype::F16 => DType::F16,
                Dtype::BF16 => DType::BF16,
                other => {
                    return Err(refuse(path, name, format!("expected f32, f16 or bf16, found {other:?}")))
                }
            };
            let from = view.data().as_ptr() as usize - start;
            let at = from..from + view.data().len();
            entries.push(Entry { name: name.to_owned(), dtype, shape: view.shape().to_vec(), at });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
        Ok(Tensors { path: path.to_owned(), map, entries, metadata })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// In the order of their names.
    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// An entry of the header's `__metadata__`.
    pub(super) fn note(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// The values of a tensor of this file; all are finite.
    pub(super) fn values(&self, entry: &Entry) -> Result<Vec<f32>> {
        let mut values = vec![0f32; entry.shape.iter().product()];
        if !float::decode(entry.dtype, &self.map[entry.at.clone()], &mut values) {
            return Err(refuse(&self.path, &entry.name, "its bytes do not fill its shape"));
        }
        match values.iter().position(|x| !x.is_finite()) {
            Some(i) => Err(refuse(
                &self.path,
                &entry.name,
                format!("expected finite values, found {} at {i}", values[i]),
            )),
            None => Ok(values),
        }
    }
}
