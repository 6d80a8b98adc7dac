//! Q8_0: a factor, and codes of eight bits.

use super::format::*;

pub(crate) struct Q8_0;

impl Format for Q8_0 {
    blocks!(Q8_0);
    const SIGNED: bool = true;
    const CODES: usize = 2;

    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, _: usize) -> Bytes<L> {
        bytes::<L, Self, 2>(l, blocks, [Self::CODES, Self::CODES + 16])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &Codes<L>, b: &Bytes<L>, _: usize, _: usize) -> Codes<L> {
        each(l, |i| b[i])
    }
}
