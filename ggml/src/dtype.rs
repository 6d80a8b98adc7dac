//! Element types: rows of tensors converted to and from `f32` by ggml, and the Rust numbers that tensors
//! hold.

use std::ffi::c_void;

use files::memory::{filled, room};
use files::Bytes;
use gguf::{File, TensorInfo};

use crate::{sys, Error, Result};

pub use gguf::DType;

/// Values converted at a time through a buffer that is aligned as ggml needs it, where the caller's may not
/// be.
const SCRATCH_ELEMENTS: usize = 16 * 1024;

/// The C number of a type.
pub(crate) trait SysType {
    fn sys(self) -> sys::ggml_type;
}

impl SysType for DType {
    fn sys(self) -> sys::ggml_type {
        self.raw() as sys::ggml_type
    }
}

/// The values of a tensor of a file as f32.
///
/// # Errors
/// A type without a conversion to f32, or memory for the values cannot be had.
pub fn dequantize_tensor(file: &File, t: &TensorInfo) -> Result<Vec<f32>> {
    let n = t.n_elements();
    let mut values = filled(n, 0.0).map_err(|e| Error::OutOfMemory {
        device: "CPU".to_owned(),
        bytes: e.bytes as usize,
        what: format!("the values of {} in {}", t.name.escape_debug(), file.path().display()),
    })?;
    dequantize(t.dtype, file.data(t), &mut values).map_err(|e| match e {
        Error::Argument(what) => file.error(&t.name, what).into(),
        other => other,
    })?;
    Ok(values)
}

/// Reads a row (or rows laid end to end) of `dtype` into `dst`; lengths must agree exactly.
///
/// Any bytes are accepted: hostile ones give odd numbers, NaN included, never an access out of bounds.
///
/// # Errors
/// When the type has no conversion to f32, or `src` is not exactly `dtype.row_bytes(dst.len())` long.
pub fn dequantize<'a>(dtype: DType, src: impl Into<Bytes<'a>>, dst: &mut [f32]) -> Result<()> {
    let src = src.into();
    if !dtype.can_dequantize() {
        return Err(Error::Argument(format!("{dtype} cannot be converted to f32")));
    }
    let expected = dtype.row_bytes(dst.len()).ok_or_else(|| whole_blocks(dtype, dst.len()))?;
    if src.len() != expected {
        return Err(Error::Argument(format!(
            "{} values of {dtype} take {expected} bytes, found {}",
            dst.len(),
            src.len()
        )));
    }
    if gguf::float::decode(dtype, src, dst) {
        return Ok(());
    }
    // Of a map only copies are read; and a tensor may sit at any byte when general.alignment is 1.
    let blocks = (SCRATCH_ELEMENTS.min(dst.len()) / dtype.block_size()).max(1);
    let mut scratch = vec![0u64; (blocks * dtype.block_bytes()).div_ceil(8)];
    for (s, d) in src.chunks(blocks * dtype.block_bytes()).zip(dst.chunks_mut(blocks * dtype.block_size())) {
        let bytes = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut scratch)[..s.len()];
        s.copy_to(bytes);
        to_float(dtype, bytes, d)?;
    }
    Ok(())
}

/// Calls ggml's conversion. The caller has checked `src.len() == dtype.row_bytes(dst.len())` and the
/// alignment.
fn to_float(dtype: DType, src: &[u8], dst: &mut [f32]) -> Result<()> {
    // SAFETY: the number is one of ggml's own (DType::ALL), so this indexes inside ggml's static table.
    let traits = unsafe { sys::ggml_get_type_traits(dtype.sys()) };
    // SAFETY: the table is static and immutable.
    let convert = unsafe { (*traits).to_float }
        .ok_or_else(|| Error::Argument(format!("{dtype} cannot be converted to f32 by this build")))?;
    // SAFETY: reads exactly row_bytes(dst.len()) bytes of src and writes dst.len() floats; both lengths were
    // checked. Table look-ups inside are by masked bit fields, so every bit pattern of src stays in bounds.
    unsafe { convert(src.as_ptr().cast::<c_void>(), dst.as_mut_ptr(), dst.len() as i64) };
    Ok(())
}

/// Writes whole rows of `n_per_row` values as `dtype`. May be called from several threads at once.
///
/// ggml's own quantizers do not look at what they are given. Tried on the pinned build: a NaN becomes some
/// finite number without a word in most types; infinities, and values too large for a half-precision block
/// scale, turn whole blocks into NaN; NaN and values whose squares overflow abort the process in `iq3_xxs`
/// and `iq3_s`.
///
/// # Errors
/// [`Error::NotQuantizable`] with the index of the first value that is not finite or beyond
/// [`DType::max_abs`]; [`Error::Argument`] when the type cannot be written or rows are not whole blocks;
/// [`Error::OutOfMemory`].
pub fn quantize(dtype: DType, n_per_row: usize, src: &[f32]) -> Result<Vec<u8>> {
    if dtype.needs_importance() {
        return Err(Error::Argument(format!("{dtype} can only be written with an importance matrix")));
    }
    if !dtype.can_quantize() {
        return Err(Error::Argument(format!("f32 cannot be converted to {dtype}")));
    }
    let row_bytes = match n_per_row {
        0 => None,
        n => dtype.row_bytes(n),
    }
    .ok_or_else(|| whole_blocks(dtype, n_per_row))?;
    if !src.len().is_multiple_of(n_per_row) {
        return Err(Error::Argument(format!("{} values are not whole rows of {n_per_row}", src.len())));
    }
    let limit = dtype.max_abs();
    if let Some(index) = src.iter().position(|v| v.is_nan() || v.abs() > limit) {
        return Err(Error::NotQuantizable { dtype: dtype.name(), index, value: src[index], limit });
    }
    let refused = |e: files::OutOfMemory| Error::OutOfMemory {
        device: "CPU".to_owned(),
        bytes: e.bytes as usize,
        what: format!("{} values of {dtype}", src.len()),
    };
    let mut out = room(row_bytes * (src.len() / n_per_row)).map_err(refused)?;
    if dtype == DType::F32 {
        out.extend(src.iter().flat_map(|v| v.to_le_bytes()));
        return Ok(out);
    }
    let rows = SCRATCH_ELEMENTS.div_ceil(n_per_row);
    let scratch = (rows.min(src.len() / n_per_row) * row_bytes).div_ceil(8);
    let mut scratch = filled(scratch, 0u64).map_err(refused)?;
    for part in src.chunks(rows * n_per_row) {
        let n_rows = part.len() / n_per_row;
        // SAFETY: reads n_rows * n_per_row floats, which is part.len(); writes n_rows * row_bytes bytes,
        // which scratch holds (n_rows <= rows) at 8-byte alignment. The type has a quantizer and needs no
        // importance matrix, rows are whole blocks and start is 0, so none of ggml's assertions fails. Its
        // lazily built tables are guarded by ggml's critical section.
        let written = unsafe {
            sys::ggml_quantize_chunk(
                dtype.sys(),
                part.as_ptr(),
                scratch.as_mut_ptr().cast::<c_void>(),
                0,
                n_rows as i64,
                n_per_row as i64,
                std::ptr::null(),
            )
        };
        if written != n_rows * row_bytes {
            return Err(Error::Argument(format!("{dtype}: ggml wrote {written} bytes for {n_rows} rows")));
        }
        out.extend_from_slice(&bytemuck::cast_slice::<u64, u8>(&scratch)[..written]);
    }
    Ok(out)
}

fn whole_blocks(dtype: DType, n: usize) -> Error {
    Error::Argument(format!(
        "{dtype}: rows are whole blocks of {} values, found a row of {n}",
        dtype.block_size()
    ))
}

/// Numbers that can be copied into a tensor as they are.
pub trait Element: bytemuck::Pod + private::Sealed {
    /// The types of tensors whose elements they are.
    const HOLDS: &'static [DType];
    /// The value as a row index, if it can be one.
    fn index(self) -> Option<i64>;
}

mod private {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty: $holds:expr, $index:expr;)*) => {$(
        impl private::Sealed for $t {}
        impl Element for $t {
            const HOLDS: &'static [DType] = $holds;
            fn index(self) -> Option<i64> {
                let index: fn(Self) -> Option<i64> = $index;
                index(self)
            }
        }
    )*};
}
elements! {
    f32: &[DType::F32], |_| None;
    i32: &[DType::I32], |i| Some(i64::from(i));
    i64: &[DType::I64], Some;
    u16: &[DType::F16, DType::BF16], |_| None;
}
