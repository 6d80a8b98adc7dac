//! Tensor element types: names, block sizes, and conversion of rows to and from `f32`.

use std::ffi::c_void;

use crate::{sys, Error, Result};

#[cfg(target_endian = "big")]
compile_error!("tensor data in GGUF files is little-endian and is used in place");

/// A ggml tensor element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types, missing_docs)]
#[repr(u32)]
pub enum DType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

/// Largest magnitude a type with half-precision values or block scales can hold.
const F16_MAX: f32 = 65504.0;
/// Largest finite bfloat16.
const BF16_MAX: f32 = f32::from_bits(0x7f7f_0000);
/// Largest product of an E4M3 scale (448) and an E2M1 value (6).
const NVFP4_MAX: f32 = 2688.0;
/// Values converted at a time through a buffer that is aligned as ggml needs it, where the caller's may not be.
const SCRATCH_ELEMENTS: usize = 16 * 1024;

impl DType {
    /// Every type this build of ggml knows.
    #[rustfmt::skip]
    pub const ALL: &'static [DType] = {
        use DType::*;
        &[
            F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ2_XXS, IQ2_XS,
            IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, I8, I16, I32, I64, F64, IQ1_M, BF16, TQ1_0, TQ2_0,
            MXFP4, NVFP4, Q1_0, Q2_0,
        ]
    };

    /// Name, elements in a block, bytes of a block (`ggml-common.h`; a test compares them with the library's).
    const fn facts(self) -> (&'static str, usize, usize) {
        use DType::*;
        match self {
            F32 => ("f32", 1, 4),
            F16 => ("f16", 1, 2),
            Q4_0 => ("q4_0", 32, 18),
            Q4_1 => ("q4_1", 32, 20),
            Q5_0 => ("q5_0", 32, 22),
            Q5_1 => ("q5_1", 32, 24),
            Q8_0 => ("q8_0", 32, 34),
            Q8_1 => ("q8_1", 32, 36),
            Q2_K => ("q2_k", 256, 84),
            Q3_K => ("q3_k", 256, 110),
            Q4_K => ("q4_k", 256, 144),
            Q5_K => ("q5_k", 256, 176),
            Q6_K => ("q6_k", 256, 210),
            Q8_K => ("q8_k", 256, 292),
            IQ2_XXS => ("iq2_xxs", 256, 66),
            IQ2_XS => ("iq2_xs", 256, 74),
            IQ3_XXS => ("iq3_xxs", 256, 98),
            IQ1_S => ("iq1_s", 256, 50),
            IQ4_NL => ("iq4_nl", 32, 18),
            IQ3_S => ("iq3_s", 256, 110),
            IQ2_S => ("iq2_s", 256, 82),
            IQ4_XS => ("iq4_xs", 256, 136),
            I8 => ("i8", 1, 1),
            I16 => ("i16", 1, 2),
            I32 => ("i32", 1, 4),
            I64 => ("i64", 1, 8),
            F64 => ("f64", 1, 8),
            IQ1_M => ("iq1_m", 256, 56),
            BF16 => ("bf16", 1, 2),
            TQ1_0 => ("tq1_0", 256, 54),
            TQ2_0 => ("tq2_0", 256, 66),
            MXFP4 => ("mxfp4", 32, 17),
            NVFP4 => ("nvfp4", 64, 36),
            Q1_0 => ("q1_0", 128, 18),
            Q2_0 => ("q2_0", 64, 18),
        }
    }

    /// The type with this number in a GGUF file.
    pub fn from_raw(raw: u32) -> Option<DType> {
        Self::ALL.iter().copied().find(|t| t.raw() == raw)
    }
    /// The number in a GGUF file.
    pub fn raw(self) -> u32 {
        self as u32
    }
    /// Lower-case name, such as `q4_k`.
    pub fn name(self) -> &'static str {
        self.facts().0
    }
    /// The type of this name, in either case.
    pub fn parse(name: &str) -> Option<DType> {
        Self::ALL.iter().copied().find(|t| t.name().eq_ignore_ascii_case(name))
    }
    /// Elements in one block.
    pub fn block_size(self) -> usize {
        self.facts().1
    }
    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.facts().2
    }
    /// Bytes of a row of `n` elements; `None` when `n` is not whole blocks or the product overflows.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_size()) {
            return None;
        }
        (n / self.block_size()).checked_mul(self.block_bytes())
    }
    /// True for block-quantised types.
    pub fn is_quantized(self) -> bool {
        self.block_size() > 1
    }
    /// True when `dequantize` can read it.
    pub fn can_dequantize(self) -> bool {
        use DType::*;
        !matches!(self, I8 | I16 | I32 | I64 | F64 | Q8_1 | Q8_K)
    }
    /// True when quantising to it needs an importance matrix, which this crate does not compute
    /// (the list of llama-quantize, which is longer than `ggml_quantize_requires_imatrix`).
    pub fn needs_importance(self) -> bool {
        use DType::*;
        matches!(self, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S)
    }
    /// True when `quantize` can write it without an importance matrix.
    pub fn can_quantize(self) -> bool {
        self.can_dequantize() && !self.needs_importance()
    }
    /// Largest magnitude `quantize` accepts for this type.
    pub fn max_abs(self) -> f32 {
        match self {
            DType::F32 => f32::MAX,
            DType::BF16 => BF16_MAX,
            DType::NVFP4 => NVFP4_MAX,
            _ => F16_MAX,
        }
    }
    pub(crate) fn sys(self) -> sys::ggml_type {
        self.raw() as sys::ggml_type
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// Reads a row (or rows laid end to end) of `dtype` into `dst`; lengths must agree exactly.
///
/// Any bytes are accepted: hostile ones give odd numbers, NaN included, never an access out of bounds.
///
/// # Errors
/// When the type has no conversion to f32, or `src` is not exactly `dtype.row_bytes(dst.len())` long.
pub fn dequantize(dtype: DType, src: &[u8], dst: &mut [f32]) -> Result<()> {
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
    if dtype == DType::F32 {
        for (d, s) in dst.iter_mut().zip(src.chunks_exact(4)) {
            *d = f32::from_le_bytes([s[0], s[1], s[2], s[3]]);
        }
        return Ok(());
    }
    // Blocks hold halves at most (Q8_K has an f32, but no conversion), or bytes only when their size is odd.
    if src.as_ptr().cast::<u16>().is_aligned() || dtype.block_bytes() % 2 == 1 {
        return to_float(dtype, src, dst);
    }
    // A tensor may sit at any byte when general.alignment is 1.
    let blocks = SCRATCH_ELEMENTS / dtype.block_size();
    let mut scratch = vec![0u64; (blocks * dtype.block_bytes()).div_ceil(8)];
    for (s, d) in src.chunks(blocks * dtype.block_bytes()).zip(dst.chunks_mut(blocks * dtype.block_size())) {
        let bytes = &mut bytes_of_mut(&mut scratch)[..s.len()];
        bytes.copy_from_slice(s);
        to_float(dtype, bytes, d)?;
    }
    Ok(())
}

/// Calls ggml's conversion. The caller has checked `src.len() == dtype.row_bytes(dst.len())` and the alignment.
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
/// ggml's own quantisers do not look at what they are given. Tried on the pinned build: a NaN becomes some finite
/// number without a word in most types; infinities, and values too large for a half-precision block scale, turn
/// whole blocks into NaN; NaN and values whose squares overflow abort the process in `iq3_xxs` and `iq3_s`.
///
/// # Errors
/// [`Error::NotQuantizable`] with the index of the first value that is not finite or beyond [`DType::max_abs`];
/// [`Error::Argument`] when the type cannot be written or rows are not whole blocks.
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
    let mut out = Vec::with_capacity(row_bytes * (src.len() / n_per_row));
    if dtype == DType::F32 {
        out.extend(src.iter().flat_map(|v| v.to_le_bytes()));
        return Ok(out);
    }
    let rows = SCRATCH_ELEMENTS.div_ceil(n_per_row);
    let mut scratch = vec![0u64; (rows.min(src.len() / n_per_row) * row_bytes).div_ceil(8)];
    for part in src.chunks(rows * n_per_row) {
        let n_rows = part.len() / n_per_row;
        // SAFETY: reads n_rows * n_per_row floats, which is part.len(); writes n_rows * row_bytes bytes, which
        // scratch holds (n_rows <= rows) at 8-byte alignment. The type has a quantiser and needs no importance
        // matrix, rows are whole blocks and start is 0, so none of ggml's assertions fails. Its lazily built
        // tables are guarded by ggml's critical section.
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
        out.extend_from_slice(&bytes_of_mut(&mut scratch)[..written]);
    }
    Ok(out)
}

fn whole_blocks(dtype: DType, n: usize) -> Error {
    Error::Argument(format!(
        "{dtype}: rows are whole blocks of {} values, found a row of {n}",
        dtype.block_size()
    ))
}

fn bytes_of_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: the same memory seen as bytes; u8 has no invalid values and no alignment, and the borrow is unique.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), std::mem::size_of_val(words)) }
}
