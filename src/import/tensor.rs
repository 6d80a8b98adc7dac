//! Tensors of the new file, and how their rows come from those of the checkpoint.

mod packed;

use std::io;

use files::Bytes;
use gguf::float::{decode, encode};
use gguf::DType;
use half::f16;

use crate::safetensors::{no_float, Stored, Tensors};
use crate::{Error, Result};

/// The weights of a convolution over time.
const CONVOLUTION: &str = "ssm_conv1d.weight";

/// Values read at a time: they and the largest row bound the memory.
const BATCH: usize = 1 << 20;

/// A tensor to be written.
#[derive(Debug)]
pub struct Tensor {
    name: String,
    shape: Vec<u64>,
    plain: bool,
    source: Source,
}

/// Which row of the source is a row of the result. Rows are those of the last dimension; of a vector, its
/// values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rows {
    /// All, in order.
    All,
    /// The first N rows.
    First(usize),
    /// For each of so many heads, rows of the first and of the second half in turn: transformers rotates
    /// dimension i with i + n/2, llama.cpp's `llama` i with i + 1.
    Interleaved(usize),
    /// From query, key and value of each head in turn to all queries, all keys, all values.
    Apart(usize),
    /// `n` rows of every `of`, after the first `from`.
    #[allow(missing_docs)]
    Of { of: usize, from: usize, n: usize },
    /// After the first `from`, heads of `size` rows, `groups` times as many as there are in a group: the first of each
    /// group, then the second of each, and so on.
    #[allow(missing_docs)]
    Ungrouped { from: usize, groups: usize, size: usize },
}

/// The change from a weight in a checkpoint to that in a GGUF file, where an adapter has a part of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// Rows of a matrix, values of a vector.
    pub rows: Rows,
    /// Columns of a matrix.
    pub columns: Rows,
    /// True if 1 is added to each value.
    pub one_more: bool,
}

impl Change {
    /// None.
    pub(crate) const NONE: Change = Change { rows: Rows::All, columns: Rows::All, one_more: false };

    pub(crate) fn rows(rows: Rows) -> Change {
        Change { rows, ..Change::NONE }
    }

    pub(crate) fn one_more(one_more: bool) -> Change {
        Change { one_more, ..Change::NONE }
    }
}

/// The change of the values themselves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Values {
    /// They stay.
    Same,
    /// 1 is added.
    OneMore,
    /// `-exp(x)`.
    MinusExp,
    /// Columns in another order, or some of them.
    Columns(Rows),
    /// They are columns of each expert, not rows.
    Transposed,
    /// They are in blocks of MXFP4, and stay.
    Mxfp4,
}

#[derive(Debug)]
enum Source {
    /// Values that are computed.
    Values(Vec<f32>),
    /// Rows of tensors of the same shape, one after the other; of blocks in MXFP4, and of their scales.
    Stored { parts: Vec<Stored>, rows: Rows, values: Values },
}

impl Rows {
    /// For each row of a result of so many rows the one that it comes from; `None` where they stay.
    ///
    /// # Errors
    /// Why the source cannot have so many rows.
    pub fn order(self, n_rows: usize) -> std::result::Result<Option<Vec<usize>>, String> {
        if self == Rows::All {
            return Ok(None);
        }
        self.of(n_rows)?;
        Ok(Some((0..n_rows).map(|i| self.source(i, n_rows)).collect()))
    }

    fn source(self, i: usize, n_rows: usize) -> usize {
        match self {
            Rows::All | Rows::First(_) => i,
            Rows::Interleaved(heads) => {
                let size = n_rows / heads;
                let (head, j) = (i / size, i % size);
                head * size + j % 2 * (size / 2) + j / 2
            }
            Rows::Apart(heads) => {
                let size = n_rows / heads / 3;
                let (what, head) = (i / (heads * size), i / size % heads);
                (head * 3 + what) * size + i % size
            }
            Rows::Of { of, from, n } => i / n * of + from + i % n,
            Rows::Ungrouped { from, .. } if i < from => i,
            Rows::Ungrouped { from, groups, size } => {
                let per_group = (n_rows - from) / groups / size;
                let (head, at) = ((i - from) / size, (i - from) % size);
                from + ((head % groups) * per_group + head / groups) * size + at
            }
        }
    }
    /// The rows that come of so many, or why that is none.
    fn of(self, n_rows: usize) -> Result<usize, String> {
        let whole = |n: usize| match n > 0 && n_rows.is_multiple_of(n) {
            true => Ok(n_rows),
            false => Err(format!("found {n_rows} rows, expected a multiple of {n}")),
        };
        match self {
            Rows::All => Ok(n_rows),
            Rows::First(n) => Ok(n.min(n_rows)),
            Rows::Interleaved(heads) => whole(heads.saturating_mul(2)),
            Rows::Apart(heads) => whole(heads.saturating_mul(3)),
            Rows::Of { of, n, .. } => whole(of).map(|all| all / of * n),
            Rows::Ungrouped { from, groups, size } => {
                let step = groups.saturating_mul(size);
                let behind = n_rows.checked_sub(from).filter(|n| step > 0 && n.is_multiple_of(step));
                let what = || format!("found {n_rows} rows, expected {from} and a multiple of {step}");
                behind.map(|_| n_rows).ok_or_else(what)
            }
        }
    }
}

impl Tensor {
    /// Name in the new file.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Shape in ggml order.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }
    /// True for what llama.cpp wants in F32 whatever the file's type: vectors, norms, biases, routers,
    /// convolutions.
    pub fn stays_f32(&self) -> bool {
        self.plain
    }
    /// Number of values.
    pub fn n_elements(&self) -> u64 {
        self.shape.iter().product()
    }
    /// The type its values have in the checkpoint.
    pub fn stored(&self) -> DType {
        match &self.source {
            Source::Values(_) => DType::F32,
            Source::Stored { values: Values::Mxfp4, .. } => DType::MXFP4,
            Source::Stored { parts, .. } => parts[0].dtype,
        }
    }
    /// The type of blocks in the checkpoint that the new file has as they are, whatever its type.
    pub fn packed(&self) -> Option<DType> {
        Some(self.stored()).filter(|&dtype| dtype == DType::MXFP4)
    }

    /// A vector that the checkpoint does not have.
    pub(crate) fn computed(name: &str, values: Vec<f32>) -> Tensor {
        Tensor {
            name: name.into(),
            shape: vec![values.len() as u64],
            plain: true,
            source: Source::Values(values),
        }
    }
    /// Rows of one tensor; with `stack`, of one or more of one shape after each other in a new outermost
    /// dimension.
    pub(crate) fn of(
        name: String,
        mut parts: Vec<Stored>,
        stack: bool,
        rows: Rows,
        values: Values,
        from: &Tensors,
    ) -> Result<Tensor> {
        let experts = match values {
            Values::Mxfp4 => {
                let (scales, shape) = packed::blocks(&parts[0], rows, from)?;
                parts.push(scales);
                Some(shape)
            }
            Values::Transposed => Some(packed::columns(&parts[0], rows, from)?),
            _ => None,
        };
        if let Some(mut shape) = experts {
            shape.reverse();
            return Ok(Tensor { name, shape, plain: false, source: Source::Stored { parts, rows, values } });
        }
        let first = &parts[0];
        let wrong = |t: &Stored, what: String| Error::at(from.path(t), &t.name, what);
        if let Some(other) = parts.iter().find(|t| t.shape != first.shape || t.dtype != first.dtype) {
            let what = format!(
                "found {} {:?}, expected {} {:?}",
                other.dtype, other.shape, first.dtype, first.shape
            );
            return Err(wrong(other, what));
        }
        if first.dtype == DType::I8 {
            return Err(wrong(first, no_float("U8")));
        }
        let n_rows = rows.of(first.n_rows()).map_err(|what| wrong(first, what))?;
        let mut shape = first.shape.clone();
        if let Values::Columns(columns) = values {
            let n = columns.of(first.width()).map_err(|what| wrong(first, format!("of a row: {what}")))?;
            if let [_, .., last] = &mut shape[..] {
                *last = n as u64;
            }
        }
        // A convolution of each channel alone has a dimension of 1 between channels and time.
        if name.ends_with(CONVOLUTION) && shape.len() == 3 && shape[1] == 1 {
            shape.remove(1);
        }
        // Rows are the last dimension but one; the others stay.
        let at = shape.len().saturating_sub(2);
        shape[at] = n_rows as u64 / shape[..at].iter().product::<u64>();
        if stack {
            shape.insert(0, parts.len() as u64);
        }
        if shape.len() > 4 {
            return Err(wrong(first, format!("found {} dimensions, expected at most 4", shape.len())));
        }
        shape.reverse();
        let plain = shape.len() == 1
            || !name.ends_with(".weight")
            || ["_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", CONVOLUTION]
                .iter()
                .any(|end| name.ends_with(end));
        Ok(Tensor { name, shape, plain, source: Source::Stored { parts, rows, values } })
    }

    /// The bytes in the checkpoint, where they are those of type `to`.
    pub(crate) fn unchanged<'a>(&self, to: DType, from: &'a Tensors) -> Option<Bytes<'a>> {
        match &self.source {
            Source::Stored { parts, rows: Rows::All, values: Values::Same } if parts.len() == 1 => {
                Some(&parts[0]).filter(|t| t.dtype == to).map(|t| from.data(t))
            }
            _ => None,
        }
    }

    /// Gives what is [packed](Tensor::packed) in order, whole blocks at a time, to `take`.
    pub(crate) fn each_packed(
        &self,
        from: &Tensors,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        match &self.source {
            Source::Stored { parts, rows, values: Values::Mxfp4 } => {
                packed::each_block(parts, *rows, self.n_elements() / self.shape[0], from, take)
            }
            _ => Err(io::Error::other("values are no blocks")),
        }
    }

    /// Gives the values in order, whole rows at a time, to `take`.
    pub(crate) fn each(
        &self,
        from: &Tensors,
        take: &mut dyn FnMut(&[f32]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (parts, rows, change) = match &self.source {
            Source::Values(values) => return take(values),
            Source::Stored { parts, rows, values: Values::Transposed } => {
                return packed::each_column(&parts[0], *rows, self.shape[1] as usize, from, take);
            }
            Source::Stored { parts, rows, values } => (parts, *rows, *values),
        };
        let row = self.shape[0] as usize;
        let width = parts[0].width();
        // Of a vector, all values are one row of the new file.
        let step = (BATCH / row.max(1)).max(1) * (row / width).max(1);
        let mut values = Vec::new();
        for part in parts {
            let (data, stored) = (from.data(part), part.n_rows());
            let bytes = width * part.dtype.block_bytes();
            let n_rows = rows.of(stored).map_err(io::Error::other)?;
            for start in (0..n_rows).step_by(step) {
                let end = n_rows.min(start + step);
                resize(&mut values, (end - start) * width)?;
                let read = |at: usize, out: &mut [f32]| {
                    let n = out.len() * part.dtype.block_bytes();
                    match decode(part.dtype, data.slice(at..at + n), out) {
                        true => Ok(()),
                        false => Err(io::Error::other(format!("{} cannot be read", part.dtype))),
                    }
                };
                if matches!(rows, Rows::All | Rows::First(_)) {
                    read(start * bytes, &mut values)?;
                } else {
                    for (out, i) in values.chunks_exact_mut(width).zip(start..end) {
                        read(rows.source(i, stored) * bytes, out)?;
                    }
                }
                match change {
                    Values::Same | Values::Transposed | Values::Mxfp4 => {}
                    Values::OneMore => values.iter_mut().for_each(|x| *x = rounded(*x + 1.0, part.dtype)),
                    Values::MinusExp => {
                        values.iter_mut().for_each(|x| *x = rounded(-f64::from(*x).exp() as f32, part.dtype));
                    }
                    Values::Columns(columns) => {
                        let n = columns.of(width).map_err(io::Error::other)?;
                        let chosen = values
                            .chunks_exact(width)
                            .flat_map(|row| (0..n).map(|i| row[columns.source(i, width)]));
                        take(&chosen.collect::<Vec<f32>>())?;
                        continue;
                    }
                }
                take(&values)?;
            }
        }
        Ok(())
    }
}

/// Rounds as torch does: to the tensor's own type if that is F16, else to F32.
fn rounded(x: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// Little-endian bytes of values as F32, F16 or BF16.
///
/// # Errors
/// Another type, a value that would become infinite, or memory for the bytes cannot be had.
pub fn floats(to: DType, values: &[f32]) -> io::Result<Vec<u8>> {
    if let Some(lost) = values.iter().find(|x| x.is_finite() && x.abs() >= limit(to)) {
        return Err(io::Error::other(format!("found {lost:e}, which {to} cannot hold; name another type")));
    }
    encode(to, values).map_err(io::Error::other)
}

/// Makes room for `n` values, and zeros of those that are new.
fn resize(values: &mut Vec<f32>, n: usize) -> io::Result<()> {
    values.try_reserve(n.saturating_sub(values.len())).map_err(|_| {
        let bytes = 4 * n as u64;
        io::Error::from(files::OutOfMemory { bytes })
    })?;
    values.resize(n, 0.0);
    Ok(())
}

/// The least magnitude that becomes infinite.
fn limit(to: DType) -> f32 {
    match to {
        DType::F16 => 65520.0,
        DType::BF16 => f32::from_bits(0x7f7f_8000),
        _ => f32::INFINITY,
    }
}
