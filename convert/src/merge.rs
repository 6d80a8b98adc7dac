//! Adapters merged into weights: `W + scale * B A` in F32, row by row, then written in the type asked for.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gguf::{DType, File, TensorInfo};
use rayon::prelude::*;
use ropewalk_core::adapter::{self, AdapterReader, AdapterSpec, ModuleInfo, PairInfo};
use ropewalk_core::hparams::ClexNet;
use ropewalk_core::rope::Spec;
use serde::Serialize;

use crate::requantize::{Sums, RUN};
use crate::rows::{self, dequantize, dequantize_tensor, quantize, zeros};
use crate::{Error, Result};

/// Runs converted before they are written: what bounds memory.
const RUNS: usize = 64;
/// The output matrix, which a file whose output is its embedding does not have.
pub(crate) const OUTPUT: &str = "output.weight";

/// The error of merged tensors of one type against the exact F32 values.
#[derive(Debug, Clone, Serialize)]
pub struct MergeError {
    /// The type they are written in.
    #[serde(rename = "type")]
    pub dtype: &'static str,
    /// Number of tensors.
    pub n_tensors: usize,
    /// Root mean square of the differences over that of the exact values, all tensors together.
    pub rel_rmse: f64,
}

/// One tensor that adapters changed.
#[derive(Debug, Clone)]
pub(crate) struct Merged {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) sums: Sums,
}

/// Adapters to be merged into one file.
#[derive(Debug)]
pub(crate) struct Merge {
    adapters: Vec<(AdapterReader, f32)>,
}

/// The changes that adapters make to one tensor.
#[derive(Debug, Clone)]
pub(crate) struct Change<'m> {
    module: Option<(&'m AdapterReader, &'m ModuleInfo, f32)>,
    pairs: Vec<(&'m AdapterReader, &'m PairInfo, f32)>,
}

impl Merge {
    pub(crate) fn open(specs: &[AdapterSpec], file: &File) -> Result<Merge> {
        let adapters = adapter::open_all(specs, file)?;
        if let Some((opened, _)) = adapters.iter().find(|(o, _)| o.landmarks().is_some()) {
            let what = "it has a landmark token, which a model file cannot hold: use it as an adapter";
            return Err(Error::Invalid(format!("{}: {what}", opened.file().path().display())));
        }
        Ok(Merge { adapters })
    }

    /// The specs adapters were trained under, where they say.
    pub(crate) fn ropes(&self) -> impl Iterator<Item = (&AdapterReader, &Spec)> {
        self.adapters.iter().filter_map(|(o, _)| o.meta().rope.as_ref().map(|spec| (o, spec)))
    }

    /// The network of CLEX that one of them brings.
    pub(crate) fn clex_net(&self) -> Result<Option<ClexNet>> {
        let brings = self.adapters.iter().find(|(o, _)| o.clex().is_some());
        let net = brings.map(|(o, scale)| o.clex_net(*scale, dequantize_tensor)).transpose();
        Ok(net.map_err(|e| Error::Invalid(e.to_string()))?.flatten())
    }

    /// The changes to a tensor of the file; `None` for most.
    pub(crate) fn of(&self, name: &str) -> Result<Option<Change<'_>>> {
        let module = self.adapters.iter().find_map(|(o, scale)| {
            o.modules_to_save().iter().find(|m| m.name == name).map(|module| (o, module, *scale))
        });
        let pairs = self.pairs(name)?;
        let change = Change { module, pairs };
        Ok((change.module.is_some() || !change.pairs.is_empty()).then_some(change))
    }

    /// Returns true if the output is no longer the embedding, and the file has both.
    pub(crate) fn unties(&self, embedding: &str) -> bool {
        let own = |(o, _): &(AdapterReader, f32)| {
            let saves = |name: &str| o.modules_to_save().iter().any(|m| m.name == name);
            o.pairs().iter().any(|p| p.weight == OUTPUT)
                || saves(OUTPUT)
                || o.keeps_output() && saves(embedding)
        };
        self.adapters.iter().any(own)
    }

    /// The changes to the output matrix, where the embedding is that as well: those of its name, and of the embedding
    /// where it follows that.
    pub(crate) fn of_tied_output(&self, embedding: &str) -> Result<Option<Change<'_>>> {
        let own = self.of(OUTPUT)?;
        if own.as_ref().is_some_and(|change| change.module.is_some()) {
            return Ok(own);
        }
        let module = self.of(embedding)?.and_then(|c| c.module).filter(|(o, ..)| !o.keeps_output());
        let pairs = own.map_or(Vec::new(), |change| change.pairs);
        Ok((module.is_some() || !pairs.is_empty()).then_some(Change { module, pairs }))
    }

    fn pairs(&self, name: &str) -> Result<Vec<(&AdapterReader, &PairInfo, f32)>> {
        let mut pairs = Vec::new();
        for (opened, scale) in &self.adapters {
            for pair in opened.pairs().iter().filter(|p| p.weight == name) {
                pairs.push((opened, pair, opened.pair_scale(pair, *scale)?));
            }
        }
        Ok(pairs)
    }
}

/// Values of a low-rank pair: `a` is `[n_in, rank]`, `b` is `[rank, n_out]`.
struct Factors {
    a: Vec<f32>,
    b: Vec<f32>,
    rank: usize,
    scale: f32,
}

impl Factors {
    /// Adds `scale * B A` to row `at` of the weight.
    fn add(&self, at: usize, row: &mut [f32]) {
        let b = &self.b[at * self.rank..(at + 1) * self.rank];
        for (&b, a) in b.iter().zip(self.a.chunks_exact(row.len())) {
            let factor = self.scale * b;
            row.iter_mut().zip(a).for_each(|(w, &a)| *w += factor * a);
        }
    }
}

/// Writes a changed tensor as `to`. Returns how far that is from the exact values.
pub(crate) fn write(
    file: &File,
    t: &TensorInfo,
    to: DType,
    change: &Change<'_>,
    out: &mut dyn Write,
) -> io::Result<Sums> {
    let module =
        change.module.map(|(opened, info, scale)| opened.module_values(info, scale, file, dequantize_tensor));
    let module = module.transpose().map_err(io::Error::other)?;
    let load = |&(opened, pair, scale): &(&AdapterReader, &PairInfo, f32)| -> rows::Result<Factors> {
        let (a, b) = (
            opened.values(&pair.name_a(), dequantize_tensor)?,
            opened.values(&pair.name_b(), dequantize_tensor)?,
        );
        Ok(Factors { a, b, rank: pair.rank, scale })
    };
    let pairs = change.pairs.iter().map(load).collect::<rows::Result<Vec<_>>>().map_err(io::Error::other)?;
    let data = file.data(t);
    let width = t.shape.first().map_or(1, |&n| n as usize).max(1);
    let no_rows = || io::Error::other(format!("rows of {width} are not whole blocks of {}", t.dtype));
    let row_bytes = t.dtype.row_bytes(width).ok_or_else(no_rows)?;
    let (n_rows, step) = (t.n_elements() / width, (RUN / width).max(1));
    let mut sums = Sums::default();
    for start in (0..n_rows).step_by(step * RUNS) {
        let end = n_rows.min(start + step * RUNS);
        let runs = (start..end).into_par_iter().step_by(step).map(|at| -> rows::Result<(Vec<u8>, Sums)> {
            let rows = at..end.min(at + step);
            let mut base = zeros(rows.len() * width)?;
            dequantize(t.dtype, data.slice(rows.start * row_bytes..rows.end * row_bytes), &mut base)?;
            let mut exact = zeros(base.len())?;
            exact.copy_from_slice(match &module {
                Some(values) => &values[rows.start * width..rows.end * width],
                None => &base[..],
            });
            for (row, i) in exact.chunks_exact_mut(width).zip(rows.clone()) {
                pairs.iter().for_each(|pair| pair.add(i, row));
            }
            let bytes = quantize(to, width, &exact)?;
            let mut new = zeros(exact.len())?;
            dequantize(to, &bytes, &mut new)?;
            Ok((bytes, Sums::of_merged(&base, &exact, &new)))
        });
        for (bytes, chunk) in runs.collect::<rows::Result<Vec<_>>>().map_err(io::Error::other)? {
            out.write_all(&bytes)?;
            sums = sums.plus(chunk);
        }
    }
    let lost = || io::Error::other(format!("the merged values do not survive as {to}"));
    sums.is_finite().then_some(sums).ok_or_else(lost)
}

pub(crate) fn by_type(merged: &[Merged]) -> Vec<MergeError> {
    let mut types: BTreeMap<&'static str, (usize, Sums)> = BTreeMap::new();
    for Merged { dtype, sums, .. } in merged {
        let entry = types.entry(dtype.name()).or_default();
        *entry = (entry.0 + 1, entry.1.plus(*sums));
    }
    types
        .into_iter()
        .map(|(dtype, (n_tensors, s))| MergeError { dtype, n_tensors, rel_rmse: s.relative() })
        .collect()
}
