//! MXFP4 (OCP Microscaling Formats 1.0): a power of two, and floats of four bits, E2M1. gpt-oss has its experts in them.

use super::format::*;

pub(crate) struct Mxfp4;

/// Twice the values of the codes, which are whole numbers.
const TWICE: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The bits of half of each power of two, E8M0: `2^(i - 128)`. The first two are below the normal numbers. The last, which the
/// standard calls NaN, is a power as in ggml.
const HALF_POWERS: [u32; 256] = {
    let mut all = [0; 256];
    let mut i = 0;
    while i < 256 {
        all[i] = if i < 2 { 1 << (21 + i) } else { (i as u32 - 1) << 23 };
        i += 1;
    }
    all
};

impl Format for Mxfp4 {
    blocks!(MXFP4);
    const SIGNED: bool = true;
    const CODES: usize = 1;

    #[inline(always)]
    fn units<L: Lanes>(l: L, blocks: Blocks<Self>) -> [L::Floats; 2] {
        [l.as_floats(l.words(blocks.map(|b| HALF_POWERS[usize::from(b[0])]))), l.none()]
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &Codes<L>, b: &Bytes<L>, _: usize, _: usize) -> Codes<L> {
        lookup(l, b, &TWICE)
    }
}

#[test]
fn powers_of_two() {
    for (bits, i) in HALF_POWERS.into_iter().zip(0..) {
        assert_eq!(f64::from(f32::from_bits(bits)), 2f64.powi(i - 128), "{i}");
    }
}
