//! Conversion of rows of F16, BF16, and Q8_0 to floats: bit for bit what ggml's own loops give, but faster. `quants` converts blocks
//! of the other types.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use crate::simd::{with_registers, FloatLanes as _, Registers};

/// A function that converts a row to as many floats as it has values.
pub type Convert = fn(&[u8], &mut [f32]);

pub fn f16(row: &[u8], out: &mut [f32]) {
    // SAFETY: two bytes of any value are a u16.
    let (before, bits, _) = unsafe { row.align_to::<u16>() };
    if before.is_empty() && cfg!(target_endian = "little") {
        bits.reinterpret_cast::<f16>().convert_to_f32_slice(&mut out[..row.len() / 2]);
    } else {
        out.iter_mut()
            .zip(row.as_chunks().0)
            .for_each(|(out, bytes)| *out = f16::from_le_bytes(*bytes).to_f32());
    }
}

/// The upper halves of floats.
pub fn bf16(row: &[u8], out: &mut [f32]) {
    for (out, bytes) in out.iter_mut().zip(row.as_chunks().0) {
        *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Blocks of 32 values: a half-precision scale, then eight bits each.
pub fn q8_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<34>().0.iter().zip(out.as_chunks_mut::<32>().0) {
        let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
        out.iter_mut().zip(&block[2..]).for_each(|(out, q)| *out = f32::from(*q as i8) * d);
    }
}

/// Rounds to bfloat16 bits, to nearest, ties to even; NaN stays NaN. `x` and `y` have the same length.
pub fn to_bf16(x: &[f32], y: &mut [u16]) {
    with_registers!(Registers::best(), s => s.run(|| {
        for (y, x) in y.iter_mut().zip(x) {
            let bits = x.to_bits();
            let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
            *y = if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded };
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_as_half_does() {
        let values: Vec<f32> = (0..100_000u32)
            .map(|i| f32::from_bits(i.wrapping_mul(42_949)))
            .chain([f32::INFINITY, 1e38, -0.0])
            .collect();
        let mut ours = vec![0u16; values.len()];
        to_bf16(&values, &mut ours);
        for (v, o) in values.iter().zip(ours) {
            assert_eq!(o, half::bf16::from_f32(*v).to_bits(), "{v}");
        }
    }
}
