//! Tensor data from file to file: copied, or read as f32 and written as another type, in chunks of bounded
//! size.

use std::io::{self, Write};

use gguf::{DType, File, TensorInfo};
use rayon::prelude::*;
use ropewalk_core::control::Control;
use serde::Serialize;

use crate::rows::{self, at_index, dequantize, quantize, zeros};

/// Values one thread converts at a time: whole blocks of every type.
pub(crate) const RUN: usize = 1 << 14;
/// Values converted before they are written: what bounds memory.
const BATCH: usize = 64 * RUN;

/// The error of a tensor's new values against its old ones, dequantized.
#[derive(Debug, Clone, Serialize)]
pub struct TensorError {
    /// The tensor.
    pub name: String,
    /// Type before.
    pub from: &'static str,
    /// Type after.
    pub to: &'static str,
    /// Root mean square of the differences.
    pub rmse: f64,
    /// The same, over the root mean square of the old values; 0 for a tensor of zeros.
    pub rel_rmse: f64,
    /// Largest difference.
    pub max: f64,
    /// The same, over the largest old value.
    pub rel_max: f64,
}

impl TensorError {
    /// From the sums over all of its `n` values.
    pub(crate) fn of(name: String, from: DType, to: DType, n: usize, sums: Sums) -> TensorError {
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        TensorError {
            name,
            from: from.name(),
            to: to.name(),
            rmse: (sums.error / n.max(1) as f64).sqrt(),
            rel_rmse: sums.relative(),
            max: sums.max_error,
            rel_max: ratio(sums.max_error, sums.max),
        }
    }
}

/// Sums over one chunk.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sums {
    error: f64,
    power: f64,
    max_error: f64,
    max: f64,
    /// Squares of the change that adapters make.
    change: f64,
    /// Products of that change and the written one.
    along: f64,
}

impl Sums {
    pub(crate) fn of(old: &[f32], new: &[f32]) -> Sums {
        old.iter().zip(new).fold(Sums::default(), |s, (&a, &b)| {
            let (a, d) = (f64::from(a), f64::from(a) - f64::from(b));
            Sums {
                error: s.error + d * d,
                power: s.power + a * a,
                max_error: s.max_error.max(d.abs()),
                max: s.max.max(a.abs()),
                ..s
            }
        })
    }
    /// [`Sums::of`] the merged values `exact` and the written ones `new`, with what becomes of the change from `base`.
    pub(crate) fn of_merged(base: &[f32], exact: &[f32], new: &[f32]) -> Sums {
        let change = |values: &[f32], i: usize| f64::from(values[i]) - f64::from(base[i]);
        let products = |new: &[f32]| (0..base.len()).map(|i| change(exact, i) * change(new, i)).sum::<f64>();
        Sums { change: products(exact), along: products(new), ..Sums::of(exact, new) }
    }
    pub(crate) fn is_finite(&self) -> bool {
        self.max_error.is_finite() && self.error.is_finite()
    }
    /// Root mean square of the differences over that of the old values; 0 for zeros.
    pub(crate) fn relative(&self) -> f64 {
        if self.power > 0.0 {
            (self.error / self.power).sqrt()
        } else {
            0.0
        }
    }
    /// Root mean square of the differences over that of the change; `None` if nothing changes.
    pub(crate) fn over_change(&self) -> Option<f64> {
        (self.change > 0.0).then(|| (self.error / self.change).sqrt())
    }
    /// The part of the change that the written values have: its component along the exact change.
    pub(crate) fn kept(&self) -> Option<f64> {
        (self.change > 0.0).then(|| self.along / self.change)
    }
    pub(crate) fn plus(self, o: Sums) -> Sums {
        Sums {
            error: self.error + o.error,
            power: self.power + o.power,
            max_error: self.max_error.max(o.max_error),
            max: self.max.max(o.max),
            change: self.change + o.change,
            along: self.along + o.along,
        }
    }
}

/// Writes a tensor as `to`, and returns how far that is from what it was. Rows must be whole blocks of `to`.
pub(crate) fn convert(
    file: &File,
    t: &TensorInfo,
    to: DType,
    out: &mut dyn Write,
) -> io::Result<TensorError> {
    let data = file.data(t);
    let n = t.n_elements();
    // Whole runs are whole blocks of both types; so then is what is left, because the tensor is.
    let bytes_at = |i: usize| i / t.dtype.block_size() * t.dtype.block_bytes();
    let mut sums = Sums::default();
    for start in (0..n).step_by(BATCH) {
        let end = n.min(start + BATCH);
        let runs = (start..end).into_par_iter().step_by(RUN).map(|at| -> rows::Result<(Vec<u8>, Sums)> {
            let mut old = zeros(RUN.min(end - at))?;
            dequantize(t.dtype, data.slice(bytes_at(at)..bytes_at(at + old.len())), &mut old)?;
            let bytes = quantize(to, old.len(), &old).map_err(|e| at_index(e, at))?;
            let mut new = zeros(old.len())?;
            dequantize(to, &bytes, &mut new)?;
            Ok((bytes, Sums::of(&old, &new)))
        });
        for (bytes, chunk) in runs.collect::<rows::Result<Vec<_>>>().map_err(io::Error::other)? {
            out.write_all(&bytes)?;
            sums = sums.plus(chunk);
        }
    }
    if !sums.is_finite() {
        let what = format!("its values cannot be stored as {to}: they become infinite or NaN");
        return Err(io::Error::other(what));
    }
    Ok(TensorError::of(t.name.clone(), t.dtype, to, n, sums))
}

/// How far the values of a tensor are from those of the tensor of another file that it was made from; `base` is the one
/// that adapters were merged into, if any were.
pub(crate) fn difference(
    base: Option<(&File, &TensorInfo)>,
    (old, t): (&File, &TensorInfo),
    (new, made): (&File, &TensorInfo),
    control: &Control<'_>,
) -> io::Result<Sums> {
    let (n, mut sums) = (t.n_elements(), Sums::default());
    let part = |file: &File, t: &TensorInfo, at: usize, n: usize| -> rows::Result<Vec<f32>> {
        let bytes_at = |i: usize| i / t.dtype.block_size() * t.dtype.block_bytes();
        let mut values = zeros(n)?;
        dequantize(t.dtype, file.data(t).slice(bytes_at(at)..bytes_at(at + n)), &mut values)?;
        Ok(values)
    };
    for start in (0..n).step_by(BATCH) {
        control.check()?;
        let end = n.min(start + BATCH);
        let runs = (start..end).into_par_iter().step_by(RUN).map(|at| -> rows::Result<Sums> {
            let n = RUN.min(end - at);
            let (old, new) = (part(old, t, at, n)?, part(new, made, at, n)?);
            Ok(match base {
                Some((file, t)) => Sums::of_merged(&part(file, t, at, n)?, &old, &new),
                None => Sums::of(&old, &new),
            })
        });
        for chunk in runs.collect::<rows::Result<Vec<_>>>().map_err(io::Error::other)? {
            sums = sums.plus(chunk);
        }
    }
    Ok(sums)
}
