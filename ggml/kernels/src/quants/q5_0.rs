//! Q5_0: a factor, four bytes of fifth bits, and codes, of which 16 stands for 0.

use super::format::*;

pub(crate) struct Q5_0;

impl Format for Q5_0 {
    blocks!(Q5_0);
    const OFFSET: i8 = 16;
    const CODES: usize = 6;

    #[inline(always)]
    fn shared<L: Lanes>(l: L, blocks: Blocks<Self>) -> Codes<L> {
        [l.words(blocks.map(|b| word(b, 2, false))); 8]
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, bits: &Codes<L>, b: &Bytes<L>, _: usize, _: usize) -> Codes<L> {
        with_fifth_bits(l, b, bits[0])
    }
}
