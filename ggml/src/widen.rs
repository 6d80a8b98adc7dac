//! Rows of the plainest quantised types to floats, faster than ggml's own loops and bit for bit the same: whole blocks at a
//! time, so that the compiler makes vectors of them.

use half::f16;

use crate::sys;

/// Converts a row, whole blocks, to as many floats.
pub(crate) type Convert = fn(&[u8], &mut [f32]);

/// The function for rows of a type, if there is one here.
pub(crate) fn convert(dtype: sys::ggml_type) -> Option<Convert> {
    match dtype {
        sys::GGML_TYPE_Q4_0 => Some(q4_0),
        sys::GGML_TYPE_Q4_1 => Some(q4_1),
        sys::GGML_TYPE_Q8_0 => Some(q8_0),
        _ => None,
    }
}

fn scale(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Blocks of 32: a scale, then four bits each, the first 16 in the low halves; 8 is zero.
fn q4_0(row: &[u8], out: &mut [f32]) {
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
fn q4_1(row: &[u8], out: &mut [f32]) {
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
fn q8_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.chunks_exact(34).zip(out.chunks_exact_mut(32)) {
        let d = scale(block, 0);
        for (out, q) in out.iter_mut().zip(&block[2..]) {
            *out = f32::from(*q as i8) * d;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::{dequantize, quantize};
    use crate::DType;

    #[test]
    fn the_same_bits_as_ggml() {
        let n = 32 * 70;
        let values: Vec<f32> =
            (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as f32 / 1e6 - 4.0).collect();
        for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0] {
            let row = quantize(dtype, n, &values).unwrap();
            let mut theirs = vec![f32::NAN; n];
            dequantize(dtype, &row, &mut theirs).unwrap();
            let mut ours = vec![f32::NAN; n];
            convert(dtype.sys()).unwrap()(&row, &mut ours);
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&ours), bits(&theirs), "{dtype:?}");
        }
        assert!(convert(DType::Q6_K.sys()).is_none());
    }
}
