//! Q4_K: codes of four bits; a factor and a minimum of six bits for each 32.

use super::format::*;

pub(crate) struct Q4K;

impl Format for Q4K {
    blocks!(Q4_K);
    const ADDS: bool = true;
    const CODES: usize = 16;
    const GROUPS: usize = 4;
    const IN_GROUP: usize = 2;

    #[inline(always)]
    fn group<L: Lanes>(l: L, blocks: Blocks<Self>, group: usize) -> Bytes<L> {
        let at = Self::CODES + 32 * group;
        bytes::<L, Self, 2>(l, blocks, [at, at + 16])
    }

    #[inline(always)]
    fn part_codes<L: Lanes>(l: L, _: &Codes<L>, b: &Bytes<L>, _: usize, i: usize) -> Codes<L> {
        each(l, |quad| right(l, b[quad], 4 * i, 15))
    }

    #[inline(always)]
    fn heads_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> L::Ints {
        bytes::<L, Self, 1>(l, blocks, [0])[0]
    }

    #[inline(always)]
    fn multiples_of_rows<L: Lanes>(l: L, blocks: Blocks<Self>) -> [[L::Ints; 4]; 2] {
        six_bits::<L, Self>(l, blocks)
    }
}
