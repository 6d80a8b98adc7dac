//! Stacks of experts that are not stored row by row: in MXFP4, and with inputs and outputs exchanged.

use std::io;

use gguf::float::decode;

use super::{resize, Rows, BATCH};
use crate::safetensors::{no_float, Stored, Tensors};
use crate::{Error, Result};

/// Bytes of the values of a block of 32, two in each.
const CODES: usize = 16;
const CODES_U64: u64 = CODES as u64;

/// The scales of weights in MXFP4, and the weights' shape in the order of safetensors: `NAME_blocks` are
/// `[experts, rows, blocks, 16]` bytes with the values, `NAME_scales` `[experts, rows, blocks]` with an exponent for each
/// block.
pub(super) fn blocks(blocks: &Stored, rows: Rows, from: &Tensors) -> Result<(Stored, Vec<u64>)> {
    let wrong = |t: &Stored, what: String| Error::at(from.path(t), &t.name, what);
    let name = format!("{}_scales", blocks.name.trim_end_matches("_blocks"));
    let missing = || wrong(blocks, format!("found no {name}, expected the scales of these blocks"));
    let scales = from.find(&name).ok_or_else(missing)?;
    if let Some(t) = [blocks, scales].into_iter().find(|t| t.dtype != gguf::DType::I8) {
        return Err(wrong(t, format!("found {}, expected bytes (U8)", t.dtype)));
    }
    let [experts, n_rows, n, CODES_U64] = blocks.shape[..] else {
        let what = format!("found shape {:?}, expected experts, rows, blocks and 16", blocks.shape);
        return Err(wrong(blocks, what));
    };
    if scales.shape != [experts, n_rows, n] {
        let what = format!("found shape {:?}, expected {:?}", scales.shape, [experts, n_rows, n]);
        return Err(wrong(scales, what));
    }
    let kept = rows.of(n_rows as usize).map_err(|what| wrong(blocks, what))?;
    Ok((scales.clone(), vec![experts, kept as u64, n * 32]))
}

/// Gives `n_rows` rows of the blocks among `parts`, with the scales after them, in ggml's order to `take`: the exponent,
/// then bytes whose halves are values 16 apart. There values that follow each other share one.
pub(super) fn each_block(
    parts: &[Stored],
    rows: Rows,
    n_rows: u64,
    from: &Tensors,
    take: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let (codes, scales) = (from.data(&parts[0]), from.data(&parts[1]));
    let n = parts[0].shape[2] as usize;
    let (stored, mut out) = (scales.len() / n, Vec::new());
    let n_rows = n_rows as usize;
    for i in 0..n_rows {
        let row = rows.source(i, stored);
        for block in row * n..(row + 1) * n {
            let mut code = [0; CODES];
            codes.slice(block * CODES..(block + 1) * CODES).copy_to(&mut code);
            let mut scale = [0];
            scales.slice(block..block + 1).copy_to(&mut scale);
            let value = |i: usize| (code[i / 2] >> (i % 2 * 4)) & 15;
            out.extend(scale);
            out.extend((0..16).map(|i| value(i) | (value(i + 16) << 4)));
        }
        if out.len() > BATCH || i + 1 == n_rows {
            take(&out)?;
            out.clear();
        }
    }
    Ok(())
}

/// The shape of weights of `[experts, inputs, outputs]`, where rows of the new file are outputs, in the order of safetensors.
pub(super) fn columns(stored: &Stored, rows: Rows, from: &Tensors) -> Result<Vec<u64>> {
    let wrong = |what: String| Error::at(from.path(stored), &stored.name, what);
    if stored.dtype == gguf::DType::I8 {
        return Err(wrong(no_float("U8")));
    }
    let [experts, inputs, outputs] = stored.shape[..] else {
        return Err(wrong(format!("found shape {:?}, expected experts, inputs and outputs", stored.shape)));
    };
    Ok(vec![experts, rows.of(outputs as usize).map_err(wrong)? as u64, inputs])
}

/// Gives their values in order, whole rows of the new file at a time, `n_rows` for each expert, to `take`.
pub(super) fn each_column(
    stored: &Stored,
    rows: Rows,
    n_rows: usize,
    from: &Tensors,
    take: &mut dyn FnMut(&[f32]) -> io::Result<()>,
) -> io::Result<()> {
    let (data, dtype) = (from.data(stored), stored.dtype);
    let [experts, inputs, outputs] = [0, 1, 2].map(|i| stored.shape[i] as usize);
    let (size, step) = (dtype.block_bytes(), (BATCH / inputs).max(1));
    let (mut out, mut columns) = (Vec::new(), Vec::new());
    for expert in 0..experts {
        for start in (0..n_rows).step_by(step) {
            let n = step.min(n_rows - start);
            let source = |i: usize| rows.source(start + i, outputs);
            // What becomes these rows lies between the first and the last of their columns.
            let (first, last) = (source(0), source(n - 1));
            resize(&mut out, n * inputs)?;
            resize(&mut columns, last + 1 - first)?;
            for input in 0..inputs {
                let at = (expert * inputs + input) * outputs + first;
                if !decode(dtype, data.slice(at * size..(at + columns.len()) * size), &mut columns) {
                    return Err(io::Error::other(format!("{dtype} cannot be read")));
                }
                (0..n).for_each(|i| out[i * inputs + input] = columns[source(i) - first]);
            }
            take(&out)?;
        }
    }
    Ok(())
}
