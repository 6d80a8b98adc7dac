//! Rows of weights for tests of products.

use gguf::DType;
use half::f16;

/// Where the half-precision numbers of a block lie.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_1 | DType::Q5_1 | DType::Q4_K | DType::Q5_K => &[0, 2],
        DType::Q2_K => &[80, 82],
        DType::Q3_K => &[108],
        DType::Q6_K => &[208],
        _ => &[0],
    }
}

/// `n` rows of `k` weights: any bytes, but for the numbers that scale them.
pub(crate) fn random_rows(dtype: DType, n: usize, k: usize) -> Vec<u8> {
    let (block, n_bytes) = (dtype.block_size(), dtype.block_bytes());
    let mut bytes: Vec<u8> =
        (0..(n * k / block * n_bytes) as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    for (i, bytes) in bytes.chunks_exact_mut(n_bytes).enumerate() {
        for (j, at) in halves(dtype).iter().enumerate() {
            let value = f16::from_f32(0.01 + ((i * 7 + j * 3) % 13) as f32 * 0.003);
            bytes[*at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes
}

/// A row of blocks that are this byte throughout, but for the numbers that scale them: 1.
pub(crate) fn filled_row(dtype: DType, byte: u8, n_blocks: usize) -> Vec<u8> {
    let n_bytes = dtype.block_bytes();
    let mut bytes = vec![byte; n_blocks * n_bytes];
    for bytes in bytes.chunks_exact_mut(n_bytes) {
        for at in halves(dtype) {
            bytes[*at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
        }
    }
    bytes
}
