//! Rows of weights for tests of products, and what they are as ggml's `ggml-common.h` defines the types.

use gguf::DType;
use half::f16;

use super::*;

/// The weights of a row, each read by itself.
pub(crate) fn weights(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let blocks = bytes.chunks_exact(dtype.block_bytes());
    blocks.flat_map(|b| (0..dtype.block_size()).map(move |i| weight(dtype, b, i))).collect()
}

/// Values of the codes of IQ4_NL and IQ4_XS.
const TABLE: [f64; 16] =
    [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

/// A float of four bits: sign, two bits of exponent, one of mantissa.
fn e2m1(code: u32) -> f64 {
    let (exponent, mantissa) = (code >> 1 & 3, f64::from(code & 1));
    let size =
        if exponent == 0 { mantissa / 2.0 } else { (1.0 + mantissa / 2.0) * f64::from(1 << (exponent - 1)) };
    if code & 8 == 0 {
        size
    } else {
        -size
    }
}

/// Weight `i` of a block.
fn weight(dtype: DType, b: &[u8], i: usize) -> f64 {
    let half = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f64();
    // Bits `n` of a byte, from bit `from` on.
    let bits = |at: usize, from: usize, n: u32| u32::from(b[at]) >> from & ((1u32 << n) - 1);
    // Four bits each, of 16 bytes for 32 weights: the lower halves first.
    let nibble = |at: usize| bits(at + i % 16, i % 32 / 16 * 4, 4);
    let fifth = |at: usize| bits(at + i / 8, i % 8, 1) << 4;
    let table = |code: u32| TABLE[code as usize];
    // Of 256 weights: the part of 128, that of 32 in it, and the weight in that.
    let (n, j, l) = (i / 128, i / 32 % 4, i % 32);
    let two_bits = |at: usize| bits(at + 32 * n + l, 2 * j, 2);
    let four_bits = |at: usize| bits(at + i / 64 * 32 + l, i / 32 % 2 * 4, 4);
    // Factor and minimum of six bits each for 32, in twelve bytes from the fourth on.
    let six_bits = || {
        let part = i / 32;
        if part < 4 {
            [bits(4 + part, 0, 6), bits(8 + part, 0, 6)]
        } else {
            let high = [bits(part, 6, 2), bits(4 + part, 6, 2)];
            [bits(8 + part, 0, 4) | high[0] << 4, bits(8 + part, 4, 4) | high[1] << 4]
        }
    };
    let with_minimum = |code: u32, [factor, minimum]: [u32; 2], at: usize| {
        half(at) * f64::from(factor * code) - half(at + 2) * f64::from(minimum)
    };
    match dtype {
        DType::Q4_0 => half(0) * (f64::from(nibble(2)) - 8.0),
        DType::Q4_1 => half(0) * f64::from(nibble(4)) + half(2),
        DType::Q5_0 => half(0) * (f64::from(nibble(6) | fifth(2)) - 16.0),
        DType::Q5_1 => half(0) * f64::from(nibble(8) | fifth(4)) + half(2),
        DType::Q8_0 => half(0) * f64::from(b[2 + i] as i8),
        DType::IQ4_NL => half(0) * table(nibble(2)),
        DType::MXFP4 => 2f64.powi(i32::from(b[0]) - 127) * e2m1(nibble(1)),
        DType::IQ4_XS => {
            let part = i / 32;
            let high = u32::from(u16::from_le_bytes([b[2], b[3]])) >> (2 * part) & 3;
            let factor = bits(4 + part / 2, part % 2 * 4, 4) | high << 4;
            half(0) * (f64::from(factor) - 32.0) * table(nibble(8 + 16 * part))
        }
        DType::Q2_K => with_minimum(two_bits(16), [bits(i / 16, 0, 4), bits(i / 16, 4, 4)], 80),
        DType::Q3_K => {
            let part = i / 16;
            let factor = bits(96 + part % 8, part / 8 * 4, 4) | bits(104 + part % 4, part / 4 * 2, 2) << 4;
            let code = two_bits(32) | bits(l, i / 32, 1) << 2;
            half(108) * (f64::from(factor) - 32.0) * (f64::from(code) - 4.0)
        }
        DType::Q4_K => with_minimum(four_bits(16), six_bits(), 0),
        DType::Q5_K => with_minimum(four_bits(48) | bits(16 + l, i / 32, 1) << 4, six_bits(), 0),
        DType::Q6_K => {
            let low = bits(64 * n + j % 2 * 32 + l, j / 2 * 4, 4);
            let code = low | bits(128 + 32 * n + l, 2 * j, 2) << 4;
            half(208) * f64::from(b[192 + i / 16] as i8) * (f64::from(code) - 32.0)
        }
        other => unreachable!("{other}"),
    }
}

/// Each in all instructions, of numbers of blocks that do not fill the lanes, or fill them more than once.
#[test]
#[cfg(target_arch = "x86_64")]
fn conversion_is_exact() {
    for (with, &dtype) in Instructions::all().flat_map(|with| TYPES.iter().map(move |dtype| (with, dtype))) {
        for n_blocks in [1, 7, 16, 21, 40] {
            let bytes = random_rows(dtype, 1, n_blocks * dtype.block_size());
            let mut floats = vec![f32::NAN; n_blocks * dtype.block_size()];
            // SAFETY: the processor has the instructions.
            unsafe { convert::by(with, dtype)(&bytes, &mut floats) };
            let want: Vec<f32> = weights(dtype, &bytes).iter().map(|w| *w as f32).collect();
            assert_eq!(floats, want, "{with:?} {dtype} {n_blocks}");
        }
    }
}

/// Where the half-precision numbers of a block lie.
fn halves(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::MXFP4 => &[],
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
        if dtype == DType::MXFP4 {
            bytes[0] = 118 + (i * 7 % 5) as u8;
        }
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
        if dtype == DType::MXFP4 {
            bytes[0] = 127;
        }
        for at in halves(dtype) {
            bytes[*at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
        }
    }
    bytes
}
