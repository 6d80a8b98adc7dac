//! Rows of the plainest quantised types to floats, faster than ggml's own loops and bit for bit the same: whole blocks at a
//! time, so that the compiler makes vectors of them.

use half::f16;

/// Converts a row of whole blocks to as many floats as it has values.
pub type Convert = fn(&[u8], &mut [f32]);

fn scale(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Blocks of 32: a scale, then four bits each, the first 16 in the low halves; 8 is zero.
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

/// Blocks of 32: a scale and what zero stands for, then four bits each as in Q4_0.
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

/// Blocks of 32: a scale, then eight bits each.
pub fn q8_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(34).zip(out.chunks_exact_mut(32)) {
        let d = scale(block, 0);
        for (out, q) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(*q as i8) * d;
        }
    }
}

/// Rounds to bfloat16, to nearest, ties to even; NaN stays NaN.
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
