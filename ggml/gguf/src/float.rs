//! Conversion of the float types F32, F16 and BF16 to and from `f32`, without ggml.
#![forbid(unsafe_code)]

use files::memory::room;
use files::Bytes;
use half::{bf16, f16};

use crate::{DType, Error, Result};

/// Reads little-endian values of a float type into `out`. False, and nothing is written, for another type and
/// for a number of bytes that is not that of `out.len()` values.
pub fn decode<'a>(dtype: DType, bytes: impl Into<Bytes<'a>>, out: &mut [f32]) -> bool {
    let bytes = bytes.into();
    if dtype.is_quantized() || dtype.row_bytes(out.len()) != Some(bytes.len()) {
        return false;
    }
    match dtype {
        DType::F32 => read(bytes, out, f32::from_le_bytes),
        DType::F16 => read(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        DType::BF16 => read(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        _ => return false,
    }
    true
}

/// Values read at a time.
const STEP: usize = 1024;

fn read<const N: usize>(bytes: Bytes<'_>, out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    let mut buffer = [[0; N]; STEP];
    for (out, chunk) in out.chunks_mut(STEP).zip(bytes.chunks(STEP * N)) {
        let buffer = &mut buffer[..out.len()];
        chunk.copy_to(buffer.as_flattened_mut());
        out.iter_mut().zip(buffer).for_each(|(out, &mut bytes)| *out = value(bytes));
    }
}

/// Little-endian bytes of the values in a float type, rounded to nearest, ties to even.
///
/// # Errors
/// Another type, or memory for the bytes cannot be had.
pub fn encode(dtype: DType, values: &[f32]) -> Result<Vec<u8>> {
    let n_bytes =
        dtype.row_bytes(values.len()).filter(|_| matches!(dtype, DType::F32 | DType::F16 | DType::BF16));
    let n_bytes = n_bytes.ok_or_else(|| Error::Argument(format!("{dtype} is not a float type")))?;
    let mut out = room(n_bytes).map_err(|e| Error::OutOfMemory {
        bytes: e.bytes as usize,
        what: format!("{} values of {dtype}", values.len()),
    })?;
    match dtype {
        DType::F16 => out.extend(values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes())),
        DType::BF16 => out.extend(values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
        _ => out.extend(values.iter().flat_map(|x| x.to_le_bytes())),
    }
    Ok(out)
}
