//! Q5_1: a factor, a number that is added, four bytes of fifth bits, and codes.

use super::format::*;

pub(crate) struct Q5_1;

impl Format for Q5_1 {
    blocks!(Q5_1);
    const ADDS: bool = true;
    const CODES: usize = 8;

    #[inline(always)]
    fn shared<L: Lanes>(l: L, blocks: Blocks<Self>) -> Codes<L> {
        [l.words(blocks.map(|b| word(b, 4, false))); 8]
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, bits: &Codes<L>, b: &Bytes<L>, _: usize, _: usize) -> Codes<L> {
        with_fifth_bits(l, b, bits[0])
    }
}
