//! Stacks of experts that are not stored row by row: in MXFP4, and with inputs and outputs exchanged.

use std::io;

use gguf::float::decode;

use super::{resize, Rows, BATCH};
use crate::safetensors::{no_float, Stored, Tensors};
use crate::{Error, Result};

/// Bytes of the values of a block of 32, two in each.
const CODES: usize = 16;

/// Weights in MXFP4: `NAME_blocks` of `[experts, rows, blocks, 16]` bytes with the values, `NAME_scales` of
/// `[experts, rows, blocks]` with an exponent for each block.
#[derive(Debug)]
pub(super) struct Mxfp4 {
    blocks: Stored,
    scales: Stored,
    rows: Rows,
    /// Rows of all experts, of those that are stored.
    n_rows: usize,
}

/// Weights of `[experts, inputs, outputs]`, where rows of the new file are outputs.
#[derive(Debug)]
pub(super) struct Transposed {
    pub(super) stored: Stored,
    rows: Rows,
    /// Rows of one expert in the new file.
    n_rows: usize,
}

impl Mxfp4 {
    /// The blocks with their scales, and their shape in the order of safetensors.
    pub(super) fn of(blocks: Stored, rows: Rows, from: &Tensors) -> Result<(Mxfp4, Vec<u64>)> {
        let wrong = |t: &Stored, what: String| Err(Error::at(from.path(t), &t.name, what));
        let name = format!("{}_scales", blocks.name.trim_end_matches("_blocks"));
        let Some(scales) = from.find(&name).cloned() else {
            return wrong(&blocks, format!("found no {name}, expected the scales of these blocks"));
        };
        if let Some(t) = [&blocks, &scales].into_iter().find(|t| t.dtype != gguf::DType::I8) {
            return wrong(t, format!("found {}, expected bytes (U8)", t.dtype));
        }
        let [experts, n_rows, n, CODES_U64] = blocks.shape[..] else {
            return wrong(
                &blocks,
                format!("found shape {:?}, expected experts, rows, blocks and 16", blocks.shape),
            );
        };
        if scales.shape != [experts, n_rows, n] {
            let what = format!("found shape {:?}, expected {:?}", scales.shape, [experts, n_rows, n]);
            return wrong(&scales, what);
        }
        let kept = match rows.of(n_rows as usize) {
            Ok(kept) => kept as u64,
            Err(what) => return wrong(&blocks, what),
        };
        let n_rows = (experts * kept) as usize;
        // As large as what lies in the file, and twice that.
        Ok((Mxfp4 { blocks, scales, rows, n_rows }, vec![experts, kept, n * 32]))
    }

    /// Gives the blocks in ggml's order to `take`: the exponent, then bytes whose halves are values 16 apart. There values
    /// that follow each other share one.
    pub(super) fn each(
        &self,
        from: &Tensors,
        take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (codes, scales) = (from.data(&self.blocks), from.data(&self.scales));
        let n = self.blocks.shape[2] as usize;
        let (stored, mut out) = (scales.len() / n, Vec::new());
        for i in 0..self.n_rows {
            let row = self.rows.source(i, stored);
            for block in row * n..(row + 1) * n {
                let mut code = [0; CODES];
                codes.slice(block * CODES..(block + 1) * CODES).copy_to(&mut code);
                let mut scale = [0];
                scales.slice(block..block + 1).copy_to(&mut scale);
                let value = |i: usize| (code[i / 2] >> (i % 2 * 4)) & 15;
                out.extend(scale);
                out.extend((0..16).map(|i| value(i) | (value(i + 16) << 4)));
            }
            if out.len() > BATCH || i + 1 == self.n_rows {
                take(&out)?;
                out.clear();
            }
        }
        Ok(())
    }
}

const CODES_U64: u64 = CODES as u64;

impl Transposed {
    /// The weights, and their shape in the new file in the order of safetensors.
    pub(super) fn of(stored: Stored, rows: Rows, from: &Tensors) -> Result<(Transposed, Vec<u64>)> {
        let wrong = |what: String| Err(Error::at(from.path(&stored), &stored.name, what));
        if stored.dtype == gguf::DType::I8 {
            return wrong(no_float("U8"));
        }
        let [experts, inputs, outputs] = stored.shape[..] else {
            return wrong(format!("found shape {:?}, expected experts, inputs and outputs", stored.shape));
        };
        match rows.of(outputs as usize) {
            Err(what) => wrong(what),
            Ok(n_rows) => Ok((Transposed { stored, rows, n_rows }, vec![experts, n_rows as u64, inputs])),
        }
    }

    /// Gives the values in order, whole rows of the new file at a time, to `take`.
    pub(super) fn each(
        &self,
        from: &Tensors,
        take: &mut dyn FnMut(&[f32]) -> io::Result<()>,
    ) -> io::Result<()> {
        let (data, dtype) = (from.data(&self.stored), self.stored.dtype);
        let [experts, inputs, outputs] = [0, 1, 2].map(|i| self.stored.shape[i] as usize);
        let (size, step) = (dtype.block_bytes(), (BATCH / inputs).max(1));
        let (mut rows, mut columns) = (Vec::new(), Vec::new());
        for expert in 0..experts {
            for start in (0..self.n_rows).step_by(step) {
                let n = step.min(self.n_rows - start);
                let source = |i: usize| self.rows.source(start + i, outputs);
                // What becomes these rows lies between the first and the last of their columns.
                let (first, last) = (source(0), source(n - 1));
                resize(&mut rows, n * inputs)?;
                resize(&mut columns, last + 1 - first)?;
                for input in 0..inputs {
                    let at = (expert * inputs + input) * outputs + first;
                    if !decode(dtype, data.slice(at * size..(at + columns.len()) * size), &mut columns) {
                        return Err(io::Error::other(format!("{dtype} cannot be read")));
                    }
                    (0..n).for_each(|i| rows[i * inputs + input] = columns[source(i) - first]);
                }
                take(&rows)?;
            }
        }
        Ok(())
    }
}
