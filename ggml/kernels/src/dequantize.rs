//! Conversion of rows of F16, BF16, Q4_0, Q4_1 and Q8_0 to floats: bit for bit what ggml's own loops give, but faster,
//! because whole blocks are converted in loops that the compiler vectorizes.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// A function that converts a row of whole blocks to as many floats as it has values.
pub type Convert = fn(&[u8], &mut [f32]);

fn scale(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

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

/// Blocks of 32 values: a scale, then four bits each, the first 16 values in the low halves of the bytes.
/// Value 8 means 0.
pub fn q4_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(18).zip(out.chunks_exact_mut(32)) {
        let d = scale(block, 0);
        let (low, high) = out.split_at_mut(16);
        for ((low, high), q) in low.iter_mut().zip(high).zip(&block[2..]) {
            *low = (i32::from(q & 15) - 8) as f32 * d;
            *high = (i32::from(q >> 4) - 8) as f32 * d;
        }
    }
}

/// Blocks of 32 values: a scale and a minimum, then four bits each as in Q4_0.
pub fn q4_1(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(20).zip(out.chunks_exact_mut(32)) {
        let (d, m) = (scale(block, 0), scale(block, 2));
        let (low, high) = out.split_at_mut(16);
        for ((low, high), q) in low.iter_mut().zip(high).zip(&block[4..]) {
            *low = i32::from(q & 15) as f32 * d + m;
            *high = i32::from(q >> 4) as f32 * d + m;
        }
    }
}

/// Blocks of 32 values: a scale, then eight bits each.
// Inlined into the loops of attention, the 32 steps would be unrolled and not vectorized.
#[inline(never)]
pub fn q8_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(34).zip(out.chunks_exact_mut(32)) {
        let d = scale(block, 0);
        for (out, q) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(*q as i8) * d;
        }
    }
}

/// Rounds to bfloat16 bits, to nearest, ties to even; NaN stays NaN. `x` and `y` have the same length.
pub fn to_bf16(x: &[f32], y: &mut [u16]) {
    for (y, x) in y.iter_mut().zip(x) {
        let bits = x.to_bits();
        let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
        *y = if x.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded };
    }
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
