//! Q5_K: Q4_K with a fifth bit elsewhere.

use super::format::*;

pub(crate) struct Q5K;

impl Format for Q5K {
    blocks!(Q5_K);
    six_bits_each!();
    const CODES: usize = 48;

    #[inline(always)]
    fn shared<L: Lanes>(l: L, blocks: Blocks<Self>) -> Codes<L> {
        let [a, b, c, d, e, f, g, h, ..] = bytes::<L, Self, 2>(l, blocks, [16, 32]);
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, bits: &Codes<L>, b: &Bytes<L>, group: usize, i: usize) -> Codes<L> {
        let bit = Self::part(group, i);
        let mut codes = [l.all(0); 8];
        for (quad, code) in codes.iter_mut().enumerate() {
            let fifth =
                if bit < 4 { left(l, bits[quad], 4 - bit, 16) } else { right(l, bits[quad], bit - 4, 16) };
            *code = l.or(right(l, b[quad], 4 * i, 15), fifth);
        }
        codes
    }
}
